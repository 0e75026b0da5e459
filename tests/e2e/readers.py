#!/usr/bin/env python3
"""Other people's readers: TensorBoard reads what metrics.jsonl holds, each step once though the run was killed and
resumed in between, and the safetensors package reads the checkpoint."""
import importlib.util
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys

from harness import SKIP, TINY, Job, arguments, check, checkpoints, folder, main, metrics, run

STEPS = 30
CONFIG = [*TINY, "model.width=64", "model.context=128", f"train.steps={STEPS}", "checkpoint.every=10", "train.eval_every=10", "log.every=1",
          "run_dir=run"]  # fmt: skip
SCALARS = {"loss_metrics/global_avg_loss": "loss", "grad_norm": "grad_norm", "lr": "lr", "throughput(tps)": "tokens_per_s",
           "time_metrics/end_to_end(s)": "step_s", "eval/loss": "eval_loss"}  # fmt: skip


def as_float32(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def test():
    args = arguments(__doc__)
    missing = [name for name in ("tensorboard", "safetensors", "numpy") if not importlib.util.find_spec(name)]
    if missing:
        print(f"skipped: {sys.executable} has no {', '.join(missing)}")
        return SKIP
    with folder() as where:
        # Killed in the midst of the steps after a checkpoint: both files hold steps that are then done again.
        words = [args.program, "train", *CONFIG, "--ranks", 2]
        job = Job(words, where)
        job.wait_for(lambda: checkpoints(where / "run") and "step 14/" in job.output, "step 14")
        os.kill(job.ranks()[0], signal.SIGKILL)
        job.wait(15)
        run([*words, "--resume"], where)

        steps = metrics(where / "run")
        check([line["step"] for line in steps] == list(range(1, STEPS + 1)), f"steps in metrics.jsonl: {[line['step'] for line in steps]}")
        reader = pathlib.Path(__file__).with_name("read_tensorboard.py")
        series = json.loads(subprocess.run([sys.executable, reader, where / "run"], check=True, capture_output=True, text=True).stdout)
        for tag, key in SCALARS.items():
            expected = [[line["step"], as_float32(line[key])] for line in steps if key in line]
            check(series.get(tag) == expected, f"{tag} differs from {key}:\n{series.get(tag)}\n{expected}")
        owners = [tag for tag in series if tag.startswith("memory/")]
        check(owners, f"no memory among {sorted(series)}")
        print(f"TensorBoard reads {len(series)} series of {len(steps)} steps, each once")

        import numpy
        from safetensors.numpy import load_file

        for name, tensors_of_each in (("model", 1), ("optimizer", 2)):
            tensors = load_file(where / f"run/checkpoints/step-{STEPS}/{name}.safetensors")
            check(all(numpy.isfinite(tensor).all() for tensor in tensors.values()), f"{name}: values that are not finite")
            if name == "model":
                shapes = {key: tensor.shape for key, tensor in tensors.items()}
                check(shapes["wte.weight"] == (256, 64), f"wte.weight: {shapes['wte.weight']}")
            check(len(tensors) == len(shapes) * tensors_of_each, f"{name}: {len(tensors)} tensors for {len(shapes)} parameters")
            print(f"safetensors reads {len(tensors)} tensors of {name}.safetensors")


main(test)
