#!/usr/bin/env python3
"""A rank that really works longer, because it has 15 of 16 samples, is named with its host and with the shares that
would even it out; metrics.jsonl has every rank's busy time in every step. Ranks of a pipeline's stages are not compared."""
import json
import re
import socket
import statistics

from harness import arguments, check, folder, main, metrics, run

STEPS = 105  # five windows of twenty; two of them running must show it
CONFIG = ["model.kind=mlp", "data.kind=synthetic", "model.layers=4", "model.width=512", "train.batch=512", "train.threads=1",
          f"train.steps={STEPS}", "optimizer.warmup=5", "log.tensorboard=false"]  # fmt: skip


def events(run_folder, name):
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("event") == name]


def named(args, where, slow):
    """Two replicas, of which `slow` has most of the samples."""
    run_dir = f"slow-{slow}"
    shares = [15, 1] if slow == 0 else [1, 15]
    job = run([args.program, "train", *CONFIG, f"parallel.shares={shares}".replace(" ", ""), f"run_dir={run_dir}", "--ranks", 2], where)
    steps = metrics(where / run_dir)
    check(len(steps) == STEPS and all(len(step["busy_s"]) == 2 for step in steps), "busy times are missing")
    busy = [statistics.median(step["busy_s"][rank] for step in steps) for rank in (0, 1)]
    check(busy[slow] > busy[1 - slow], f"rank {slow} has fifteen times the samples, and was busy for {busy} s")
    for step in steps:
        awaited = step["waits_for"]
        check(step["busy_s"][awaited["rank"]] == max(step["busy_s"]) and awaited["seconds"] >= 0, f"who was waited for: {step}")
    told = events(where / run_dir, "straggler")
    check(len(told) == 1, f"told {len(told)} times in {STEPS} steps, not once: {told}")
    check(told[0]["rank"] == slow and told[0]["host"] == socket.gethostname(), f"named {told[0]}")
    even = told[0]["shares"]
    check(sum(even) == 512 and min(even) > 0 and even[slow] < 480, f"shares {even}")
    said = f"warning: rank {slow} on host {socket.gethostname()} keeps the others waiting"
    check(said in job.output and f"parallel.shares=[{even[0]},{even[1]}]" in job.output, f"not said: {said}\n{job.output}")
    print(next(line for line in job.output.splitlines() if "keeps the others waiting" in line))


def stages(args, where):
    job = run([args.program, "train", *CONFIG, "train.batch=64", "parallel.pipe=2", "parallel.cuts=[1]", "train.microbatch=32", "run_dir=staged", "--ranks", 2], where)
    steps = metrics(where / "staged")
    check(all(len(step["busy_s"]) == 2 and "waits_for" not in step for step in steps), "stages are not compared")
    check("waiting" not in job.output and not events(where / "staged", "straggler"), job.output)
    print("stages of one replica: busy times, and nobody is blamed")


def alone(args, where):
    run([args.program, "train", *CONFIG, "train.steps=5", "run_dir=alone"], where)
    check(not any(re.search("busy|waits", key) for step in metrics(where / "alone") for key in step), "alone nobody waits")


def test():
    args = arguments(__doc__)
    with folder() as where:
        for slow in (1, 0):
            named(args, where, slow)
        stages(args, where)
        alone(args, where)


main(test)
