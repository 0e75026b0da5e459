#!/usr/bin/env python3
"""Memory that is missing ends a job with one sentence: what was asked for, in which operation, what would need less; without
frames of a stack, and on all ranks."""
from harness import TINY, Job, arguments, check, folder, main

# A rank may map 2 GB, of which the program itself takes 0.9, and its activations would take 2.
WORDS = [*TINY, "model.width=64", "model.context=128", "model.dropout=0", "data.kind=synthetic", "train.steps=3", "optimizer.warmup=1"]


def test():
    args = arguments(__doc__)
    with folder() as where:
        for ranks in (1, 2):
            words = [args.program, "train", *WORDS, f"train.batch={1600 * ranks}", "--ranks", ranks, f"run_dir=run-{ranks}"]
            command = "ulimit -v 2000000; exec " + " ".join(map(str, words))
            job = Job(["bash", "-c", command], where)
            status = job.wait(120)
            errors = [line for line in job.output.splitlines() if "error: " in line]
            check(status == 1, f"{ranks} ranks: ended with status {status}:\n{job.output}")
            check(len(errors) == 1, f"{ranks} ranks: {len(errors)} errors:\n{job.output}")
            for part in ("out of memory: ", " were asked for, more than is free, in ", "(step 1)", "train.microbatch"):
                check(part in errors[0], f"{ranks} ranks: no {part!r} in {errors[0]}")
            check("frame #" not in job.output and "Exception raised" not in job.output, job.output)
            check(not job.leftovers(), f"left behind {job.leftovers()}")
            print(f"{ranks} ranks: {errors[0]}", flush=True)


main(test)
