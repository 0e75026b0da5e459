#!/usr/bin/env python3
"""Ranks that go their own ways meet again, by hand (part of make soak): ROUNDS short runs of four ranks on one core for every
such sync.kind, with a meeting in every step; each must end with status 0."""
import os
import shutil
import subprocess

from harness import arguments, check, folder, main

SETTINGS = """model.kind=mlp model.layers=1 model.width=4 model.inputs=2 model.classes=2 data.kind=synthetic data.samples=64
    train.batch=8 train.steps=150 train.eval_every=1 train.eval_batches=0 checkpoint.every=0 optimizer.kind=sgd
    optimizer.warmup=0 log.tensorboard=false""".split()
KINDS = {
    "elastic": ["sync.kind=elastic", "sync.every=1000"],
    "server": ["sync.kind=server", "sync.staleness=2"],
    "gossip": ["sync.kind=gossip", "sync.every=1"],
    "hogwild": ["sync.kind=hogwild", "--threads"],
    "eager": ["sync.kind=eager"],
    "stale": ["sync.kind=stale", "sync.staleness=2"],
}


def test():
    args = arguments(__doc__, rounds=500)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with folder() as where:
        for kind, settings in KINDS.items():
            failures = []
            for number in range(args.rounds):
                run_dir = where / "run"
                words = [args.program, "train", *SETTINGS, *settings, f"run_dir={run_dir}", "--ranks", "4"]
                ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
                shutil.rmtree(run_dir, ignore_errors=True)
                if ran.returncode != 0:
                    failures.append(f"run {number}: status {ran.returncode}: {(ran.stdout + ran.stderr)[-300:]}")
            print(f"{kind}: {args.rounds - len(failures)} of {args.rounds} runs ended well", flush=True)
            check(not failures, "\n".join(failures[:5]))


main(test)
