#!/usr/bin/env python3
"""Every way to keep replicas together, on real processes: asked to stop in the midst of its steps it saves and goes on,
a rank that dies is named, and what codecs have left to say comes through a kill and through a resume to the last bit."""
import json
import math
import os
import random
import shutil
import signal
import time

from harness import Job, arguments, check, checkpoints, final_bytes, folder, main, metrics, run
from kill import CONFIG, RANKS, STEPS, kill_round, own, print_outcome

# Kinds in which ranks go on as messages happen to come: two runs need not end with the same bytes.
FREE = {
    "stale": ["sync.staleness=2"],
    "eager": ["sync.eager=solo", "sync.every=8"],
    "server": ["sync.staleness=-1", "sync.servers=2"],
    "elastic": ["sync.every=2"],
    "gossip": ["sync.every=1"],
    "hogwild": [],
}


def words_of(args, kind, *more):
    words = [args.program, "train", *CONFIG, f"sync.kind={kind}", *FREE[kind], *more, "--ranks", RANKS]
    return [*words, "--threads"] if kind == "hogwild" else words


def stopped(args, where, kind):
    """SIGTERM: saved where they stood; --resume goes on to the end."""
    words = words_of(args, kind, f"run_dir={kind}", "checkpoint.every=0")
    job = Job([*words, "trial.delay_ms=[20,20,40]"], where)
    job.wait_for_step(5)
    os.kill(job.process.pid, signal.SIGTERM)
    status = job.wait(30)
    saved = checkpoints(where / kind)
    check(status == 143 and saved and saved[-1] < STEPS, f"{kind}: status {status}, saved {saved}:\n{job.output}")
    check(not job.leftovers(), f"{kind} left behind {job.leftovers()}")
    run([*words, "--resume"], where)
    lines = metrics(where / kind)
    check(checkpoints(where / kind)[-1] == STEPS, f"{kind}: ended at {checkpoints(where / kind)}")
    check(all(math.isfinite(line["loss"]) for line in lines), f"{kind}: {[line['loss'] for line in lines]}")
    check(lines[-1]["loss"] < 0.9 * lines[0]["loss"], f"{kind} learnt nothing: {lines[0]['loss']} to {lines[-1]['loss']}")
    print(f"{kind}: stopped at step {saved[-1]}, went on to {STEPS}, loss {lines[0]['loss']:.2f} to {lines[-1]['loss']:.2f}", flush=True)


def killed(args, where, kind):
    """kill -9 of a rank that others may not be waiting for: named all the same."""
    job = Job(words_of(args, kind, f"run_dir=killed-{kind}", "train.steps=100000"), where)
    job.wait_for_step(3)
    pid = job.ranks()[1]
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    status = job.wait(15)
    check(status == 1 and f"rank 1 (process {pid})" in job.output, f"{kind}: status {status}:\n{job.output}")
    check(not job.leftovers(), f"{kind} left behind {job.leftovers()}")
    shutil.rmtree(where / f"killed-{kind}")
    print(f"{kind}: a dead rank is named, all ended after {time.monotonic() - begun:.1f} s", flush=True)


def exact(name, *settings):
    """A launcher of kill.py whose runs are the same to the bit, also after a resume."""

    def launcher(args, words):
        return own(args, [*words, *settings])

    launcher.__name__ = name
    return launcher


def resumed_exactly(args, where, launcher, number):
    begun = time.monotonic()
    run_dir = f"whole-{number}"
    run(launcher(args, [f"run_dir={run_dir}"]), where)
    reference, seconds = final_bytes(where / run_dir, STEPS), time.monotonic() - begun
    lines = metrics(where / run_dir)
    if "codec" in lines[-1]:
        told = lines[-1]["codec"]
        check(told["ratio"] > 1 and told["sent_bytes"] * told["ratio"] > told["sent_bytes"], json.dumps(told))
    outcome = kill_round(args, where, reference, number, random.Random(args.seed + number), launcher, seconds, False)
    print_outcome(number, outcome)


def pipelines(args, where):
    """Replicas of two stages each that average now and then: stopped and resumed, they end with the same bytes."""
    words = [args.program, "train", *CONFIG, "model.untied=true", "parallel.pipe=2", "train.microbatch=1", "sync.kind=local",
             "sync.every=7", "checkpoint.every=0", "--ranks", 4]  # fmt: skip
    run([*words, "run_dir=pipelines"], where)
    job = Job([*words, "run_dir=pipelines-stopped", "trial.delay_ms=[20,20,20,40]"], where)
    job.wait_for_step(5)
    os.kill(job.process.pid, signal.SIGTERM)
    check(job.wait(30) == 143 and not job.leftovers(), f"how it ended:\n{job.output}")
    saved = checkpoints(where / "pipelines-stopped")[-1]
    run([*words, "run_dir=pipelines-stopped", "--resume"], where)
    expected, found = (final_bytes(where / name, STEPS) for name in ("pipelines", "pipelines-stopped"))
    check(len(expected) == 2 and found == expected, f"other bytes after resuming from step {saved}")
    print(f"local, two stages a replica: stopped at step {saved}, resumed to the same bytes", flush=True)


def test():
    args = arguments(__doc__, seed=int(time.time()) % 100000)
    print(f"--seed {args.seed}")
    with folder() as where:
        for kind in FREE:
            stopped(args, where, kind)
        for kind in ("stale", "server", "gossip"):
            killed(args, where, kind)
        pipelines(args, where)
        launchers = [
            exact("int8", "sync.codec=int8"),
            exact("topk by mpi", "sync.codec=topk", "sync.codec_keep=0.05", "comm.transport=mpi"),
            exact("low rank", "sync.codec=lowrank", "sync.codec_rank=2"),
            exact("local with int4", "sync.kind=local", "sync.every=7", "sync.outer_momentum=0.5", "sync.codec=int4"),
        ]
        for number, launcher in enumerate(launchers):
            if "by mpi" in launcher.__name__ and not shutil.which("mpirun"):
                print("no mpirun here: a case is left out")
                continue
            resumed_exactly(args, where, launcher, number)


main(test)
