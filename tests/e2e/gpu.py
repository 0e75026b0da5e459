#!/usr/bin/env python3
"""The same GPT and Llama on a CUDA device and on the CPU: losses of ten steps within the rounding of the precision, with one
rank, with two replicas, and cut into four stages that share the card. Then a ResNet, whose BatchNorms exchange statistics:
in fp64, because in others its steps drift apart by rounding alone, and the first step in those.

Skips itself (exit 77) where there is no CUDA device.
"""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

SKIP = 77
STEPS = 10
CONFIG = [
    "model.layers=4", "model.width=128", "model.heads=4", "model.context=128",
    "data.kind=synthetic", f"train.steps={STEPS}", "train.batch=16", "train.microbatch=2", "optimizer.lr=1e-3",
    "optimizer.warmup=5",
]  # fmt: skip
IMAGES = [
    "model.kind=resnet18", "model.image=16", "model.classes=4", "data.kind=synthetic", f"train.steps={STEPS}",
    "train.batch=6", "optimizer.kind=sgd", "optimizer.lr=0.01", "optimizer.warmup=0", "optimizer.schedule=constant",
]  # fmt: skip
IMAGE_SPLITS = [(1, []), (2, []), (3, ["parallel.pipe=3"]), (4, ["parallel.pipe=2", "parallel.data=2"])]
MODELS = {"gpt": ["model.kind=gpt", "model.dropout=0.1"], "llama": ["model.kind=llama", "model.kv_heads=2"]}
SPLITS = [
    (1, []),
    (2, []),
    (4, ["parallel.pipe=4", "parallel.schedule=1f1b"]),
    (4, ["parallel.pipe=4", "parallel.schedule=arrival"]),
    (4, ["parallel.pipe=2", "parallel.data=2", "parallel.schedule=gpipe"]),
    (3, ["parallel.pipe=3", "comm.transport=mpi"]),  # through pinned memory of the host
]


def losses(program, folder, ranks, overrides, config=CONFIG):
    command = [program, "train", *config, *overrides, f"run_dir={folder}", "--json"]
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr}")
    lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    args = parser.parse_args()
    doctor = json.loads(subprocess.run([args.program, "doctor", "--json"], capture_output=True, text=True, check=True).stdout)
    if not doctor["CUDA"]["good"]:
        print(f"skipped: no CUDA device ({doctor['CUDA']['what']})")
        return SKIP

    # bf16 holds 8 bits: a loss of some units may differ by a few thousandths, and the differences grow with the steps.
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for model, (precision, tolerance) in itertools.product(MODELS, [("fp64", 1e-9), ("fp32", 1e-4), ("bf16", 1e-2)]):
            common = [*MODELS[model], f"train.precision={precision}"]
            reference = losses(args.program, f"{folder}/{model}-cpu-{precision}", 1, common)
            for case, (ranks, split) in enumerate(SPLITS if model == "gpt" else SPLITS[:3]):
                found = losses(args.program, f"{folder}/{model}-cuda-{precision}-{case}", ranks, [*common, "train.device=cuda", *split])
                worst = max(abs(a - b) / abs(b) for a, b in zip(found, reference))
                good = len(found) == STEPS and worst <= tolerance
                failed += not good
                print(f"{model}, {precision}, {ranks} rank(s) on the card {' '.join(split)}: worst difference {worst:.2e} (limit {tolerance:.0e}) {'ok' if good else 'FAILED'}")
        for precision, tolerance, steps in [("fp64", 1e-9, STEPS), ("fp32", 1e-4, 1), ("bf16", 3e-2, 1)]:
            given = [f"train.precision={precision}"]
            reference = losses(args.program, f"{folder}/images-cpu-{precision}", 1, given, IMAGES)[:steps]
            for case, (ranks, split) in enumerate(IMAGE_SPLITS):
                overrides = [*given, "train.device=cuda", *split]
                found = losses(args.program, f"{folder}/images-{precision}-{case}", ranks, overrides, IMAGES)[:steps]
                worst = max(abs(a - b) / abs(b) for a, b in zip(found, reference))
                failed += not worst <= tolerance
                print(f"resnet18, {precision}, {ranks} rank(s) on the card {' '.join(split)}: worst difference {worst:.2e} (limit {tolerance:.0e}) {'ok' if worst <= tolerance else 'FAILED'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
