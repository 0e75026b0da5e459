#!/usr/bin/env python3
"""Pipelines as a person runs them: a model in stages on real processes gives the losses of one rank; a model that one
rank may not hold trains on four; a stage that dies in mid-pipeline is named, and the run goes on from its checkpoint with
the same bytes; a trace and its picture are left behind; what cannot be laid out is refused before the first step."""
import os
import re
import signal
import time

from harness import MPIRUN, TINY, Job, arguments, check, checkpoints, folder, losses, main, metrics, run

STEPS = 12
CONFIG = [*TINY, "model.layers=4", f"train.steps={STEPS}", "train.microbatch=2", "train.precision=fp64", "log.every=1"]


def same(found, expected, what, limit=1e-9):
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
    check(len(found) == len(expected) and worst <= limit, f"{what}: losses are {worst:.1e} apart")
    print(f"{what}: losses within {worst:.1e}")


def model_bytes(run_folder, step):
    return [path.read_bytes() for path in sorted((run_folder / f"checkpoints/step-{step}").glob("*.safetensors"))]


def stages(args, where, expected):
    ways = {
        "2 stages, 1f1b": (["parallel.pipe=2"], [], 2),
        "3 stages, gpipe": (["parallel.pipe=3", "parallel.schedule=gpipe"], [], 3),
        "4 stages, arrival": (["parallel.pipe=4", "parallel.schedule=arrival"], [], 4),
        "2 stages of 2 replicas, 1f1b": (["parallel.pipe=2"], [], 4),
        "3 stages, by mpirun": (["parallel.pipe=3", "comm.transport=mpi"], MPIRUN, 3),
        "2 stages of 2 replicas, arrival, by mpirun": (["parallel.pipe=2", "parallel.schedule=arrival", "comm.transport=mpi"], MPIRUN, 4),
        "3 stages of 2 chunks, interleaved": (["parallel.pipe=3", "parallel.schedule=interleaved"], [], 3),
        "3 replicas, then 1, zero-bubble": (["parallel.pipe=2", "parallel.replicas=[3,1]", "parallel.schedule=zero-bubble"], [], 4),
        "2 stages as a V, by mpirun": (["parallel.pipe=2", "parallel.schedule=zero-bubble-v", "comm.transport=mpi"], MPIRUN, 2),
        "1 replica, then 2, 1f1b, by mpirun": (["parallel.pipe=2", "parallel.replicas=[1,2]", "comm.transport=mpi"], MPIRUN, 3),
        "2 stages, by a table of actions": (["parallel.pipe=2", "parallel.schedule=file", "parallel.schedule_file=actions.csv"], [], 2),
    }
    rows = [[f"{stage}F{m}" for m in range(6)] + [f"{stage}B{m}" for m in range(6)] for stage in range(2)]
    (where / "actions.csv").write_text("\n".join(",".join(row) for row in rows) + "\n")
    for number, (what, (settings, launcher, ranks)) in enumerate(ways.items()):
        words = [args.program, "train", *CONFIG, *settings, f"run_dir=way-{number}"]
        job = run([*launcher, "-np", ranks, *words] if launcher else [*words, "--ranks", ranks], where)
        same(losses(where / f"way-{number}"), expected, what)
        check(not job.leftovers(), f"left behind {job.leftovers()}")
    idle = metrics(where / "way-0")[-1]["idle"]
    check(len(idle) == 2 and all(set(one) == {"forward", "backward", "reduce"} for one in idle), f"idle by stage and cause: {idle}")


def larger_than_a_rank(args, where):
    """2.6 MB of parameters, gradients and moments in fp64, and activations: too much for one rank of 3 MB."""
    limit = ["memory.limit_mb=3"]
    job = run([args.program, "train", *CONFIG, *limit, "run_dir=refused"], where, status=2)
    check(re.search(r"a rank of stage 0 would hold [\d.]+ MB \(values .*gradients .*optimizer .*activations .*\), more than memory.limit_mb = 3", job.output),
          f"the refusal has no numbers:\n{job.output}")  # fmt: skip
    run([args.program, "train", *CONFIG, *limit, "parallel.pipe=4", "run_dir=four", "--ranks", 4], where)
    print(next(line for line in job.output.splitlines() if "would hold" in line))
    return losses(where / "four")


def a_stage_dies(args, where):
    words = [args.program, "train", *CONFIG, "train.steps=60", "parallel.pipe=3", "checkpoint.every=10", "--ranks", 3]
    run([*words, "run_dir=whole"], where)
    for victim in range(3):
        run_dir = f"killed-{victim}"
        job = Job([*words, f"run_dir={run_dir}"], where)
        job.wait_for(lambda: checkpoints(where / run_dir), "a checkpoint was there")
        ranks = job.wait_for_ranks(3)
        begun = time.monotonic()
        os.kill(ranks[victim], signal.SIGKILL)
        check(job.wait() == 1, f"how it ended:\n{job.output}")
        check(time.monotonic() - begun < 10, "the others took longer than ten seconds to end")
        check(re.search(rf"rank {victim} \(process \d+\) (died|was killed).*its last operation: ", job.output), f"who died is not said:\n{job.output}")
        run([*words, f"run_dir={run_dir}", "--resume"], where)
        check(model_bytes(where / run_dir, 60) == model_bytes(where / "whole", 60), f"{run_dir}: other bytes after resuming")
        check(not job.leftovers(), f"left behind {job.leftovers()}")
        print(f"stage {victim} killed: named, resumed to the same bytes")


def never_drains(args, where):
    """Stopped with microbatches in flight, and killed: the run ends with the bytes of one that nobody disturbed."""
    for schedule in ("pipedream", "pipedream-2bw"):
        untied = "true" if schedule == "pipedream" else "false"
        words = [args.program, "train", *CONFIG, f"model.untied={untied}", "train.steps=60", "parallel.pipe=3",
                 f"parallel.schedule={schedule}", "checkpoint.every=10", "--ranks", 3]  # fmt: skip
        run([*words, f"run_dir=whole-{schedule}"], where)
        expected = model_bytes(where / f"whole-{schedule}", 60)
        job = Job([*words, f"run_dir=stopped-{schedule}"], where)
        job.wait_for_step(12)
        os.kill(job.process.pid, signal.SIGTERM)
        check(job.wait() == 143, f"how it ended:\n{job.output}")
        saved = checkpoints(where / f"stopped-{schedule}")[-1]
        check(not job.leftovers(), f"left behind {job.leftovers()}")
        run([*words, f"run_dir=stopped-{schedule}", "--resume"], where)
        check(model_bytes(where / f"stopped-{schedule}", 60) == expected, f"{schedule}: other bytes after resuming from step {saved}")
        job = Job([*words, f"run_dir=killed-{schedule}"], where)
        job.wait_for(lambda: checkpoints(where / f"killed-{schedule}"), "a checkpoint was there")
        os.kill(job.wait_for_ranks(3)[1], signal.SIGKILL)
        check(job.wait() == 1 and "rank 1 (process" in job.output, f"how it ended:\n{job.output}")
        run([*words, f"run_dir=killed-{schedule}", "--resume"], where)
        check(model_bytes(where / f"killed-{schedule}", 60) == expected, f"{schedule}: other bytes after a kill")
        print(f"{schedule}: stopped at step {saved} and killed, resumed to the same bytes", flush=True)
    job = run([*words, "sync.kind=stale", "run_dir=refused-2"], where, status=2)
    check("sync.kind = stale" in job.output, job.output)


def other_layouts(args, where):
    """A checkpoint of three stages goes on with two, and with none."""
    for pipe in (1, 2):
        run([args.program, "train", "--from", "whole/checkpoints/step-60", *CONFIG, "train.steps=62", f"parallel.pipe={pipe}",
             "checkpoint.every=10", "--ranks", pipe], where)  # fmt: skip
    job = run([args.program, "generate", "whole", "--tokens", 8], where)
    print("a checkpoint of three stages goes on with one and two, and generates:", repr(job.output.strip()[-20:]))


def timeline(args, where):
    run([args.program, "train", *CONFIG, "parallel.pipe=2", "log.trace_steps=2", "log.trace_from=2", "run_dir=traced", "--ranks", 2], where)
    check((where / "traced/trace.pftrace").stat().st_size > 1000, "the trace is empty")
    svg = (where / "traced/timeline.svg").read_text()
    check(svg.startswith("<svg") and svg.count("forward") >= 12 and "rank 1 (stage 1, replica 0)" in svg, "the picture lacks passes")
    print("trace and picture are there")


def refusals(args, where):
    for settings, ranks, said in (
        (["parallel.pipe=7"], 7, "the model has 6 layers"),
        (["parallel.pipe=2"], 3, "3 ranks cannot be laid out as parallel.pipe = 2"),
        (["parallel.pipe=2", "parallel.cuts=[6]"], 2, "parallel.cuts = [6]"),
        (["parallel.pipe=3", "parallel.cuts=[2]"], 3, "parallel.cuts = [2] must name one layer less than parallel.pipe = 3"),
    ):
        job = run([args.program, "train", *CONFIG, *settings, "run_dir=none", "--ranks", ranks], where, status=2)
        check(said in job.output, f"not said: {said}\n{job.output}")
        check(not (where / "none").exists(), "a refused run left its folder behind")
    # One microbatch, and fewer than stages, work.
    for number, microbatch in enumerate((12, 6)):
        run([args.program, "train", *CONFIG, f"train.microbatch={microbatch}", "parallel.pipe=3", f"run_dir=few-{number}", "--ranks", 3], where)
    print("what cannot be laid out is refused; few microbatches work")


def test():
    args = arguments(__doc__)
    with folder() as where:
        run([args.program, "train", *CONFIG, "run_dir=alone"], where)
        expected = losses(where / "alone")
        stages(args, where, expected)
        same(larger_than_a_rank(args, where), expected, "four ranks of 2 MB")
        a_stage_dies(args, where)
        never_drains(args, where)
        other_layouts(args, where)
        timeline(args, where)
        refusals(args, where)


main(test)
