#!/usr/bin/env python3
"""A learning rate that blows the model up: steps without finite values are skipped, said and counted; after the limit the
run stops with status 1. One that recovers goes on."""
import re

from harness import TINY, arguments, check, folder, main, metrics, run

LIMIT = 3
CONFIG = [*TINY, "train.steps=20", "optimizer.lr=1e30", "optimizer.clip=0", "optimizer.warmup=1", f"train.nonfinite_limit={LIMIT}",
          "checkpoint.every=1"]  # fmt: skip


def test():
    args = arguments(__doc__)
    with folder() as where:
        for ranks in (1, 2):
            job = run([args.program, "train", *CONFIG, f"run_dir=run-{ranks}", "--ranks", ranks], where, status=1)
            skipped = [int(step) for step in re.findall(r"warning: step (\d+) skipped: .* not finite", job.output)]
            check(len(skipped) == LIMIT, f"{len(skipped)} skipped steps were said, not {LIMIT}:\n{job.output}")
            errors = [line for line in job.output.splitlines() if line.startswith("error: ")]
            check(len(errors) == 1 and f"not finite for {LIMIT + 1} steps in a row" in errors[0], f"how it ends:\n{job.output}")
            check("optimizer.lr" in errors[0] and "train.nonfinite_limit" in errors[0], f"what to do:\n{errors[0]}")
            lines = metrics(where / f"run-{ranks}")
            counted = [line["skipped"] for line in lines]
            check(counted[-1] == LIMIT + 1 and counted[0] == 0, f"skipped, as metrics.jsonl counts: {counted}")
            check("loss" in lines[-1]["nonfinite"], f"metrics.jsonl does not name what is not finite: {lines[-1]}")
            check(not job.leftovers(), f"left behind {job.leftovers()}")
            print(f"{ranks} rank(s): skipped {skipped}; {errors[0]}")


main(test)
