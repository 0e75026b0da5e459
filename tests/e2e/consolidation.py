#!/usr/bin/env python3
"""Runs every command of docs/consolidation.md, and checks what they made: the mean of the checkpoints, the numbers of an
evaluation, a student that has the same losses on any number of ranks. Then full disks and missing files."""
import json
import os
import pathlib
import re
import shutil
import struct

from harness import SOURCE, arguments, check, folder, losses, main, metrics, run


def commands():
    page = (SOURCE / "docs/consolidation.md").read_text()
    for block in re.findall(r"```sh\n(.*?)```", page, re.S):
        yield from block.strip().splitlines()


def tensors(path):
    """{name: values} of a file of fp32 tensors."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        check(entry["dtype"] == "F32", f"{name} is of type {entry['dtype']}")
        found[name] = struct.unpack(f"<{(end - begin) // 4}f", raw[8 + length + begin : 8 + length + end])
    return found


def as_fp32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def newest(run_folder):
    return max((run_folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))


def check_mean(where, to, weights):
    found = tensors(newest(where / to) / "model.safetensors")
    sources = [tensors(newest(where / f"sweeps/random/point-{k}") / "model.safetensors") for k in (1, 3)]
    for name, values in found.items():
        for i, value in enumerate(values):
            expected = as_fp32(sum(w * source[name][i] for w, source in zip(weights, sources)) / sum(weights))
            check(value == expected, f"{to}: element {i} of {name} is {value}, not {expected}")
    check(sources[0] != sources[1] and len(found) == len(sources[0]), "the sources do not differ, or tensors are missing")
    print(f"{to} is the mean of its checkpoints, to the last bit")


def check_evaluation(args, where):
    """A checkpoint gets the numbers of its run; an ensemble lies below the mean of its members' losses (Jensen)."""
    words = [args.program, "evaluate", "sweeps/random/point-1", "sweeps/random/point-3", "--json"]
    result = json.loads(run(words, where).output)
    for model, number in zip(result["models"], (1, 3)):
        reported = metrics(where / f"sweeps/random/point-{number}")[-1]["eval_loss"]
        check(abs(model["eval_loss"] / reported - 1) < 1e-6, f"point {number}: {model} and its run {reported}")
    mean = sum(model["eval_loss"] for model in result["models"]) / 2
    check(result["ensemble"]["eval_loss"] < mean, f"the ensemble {result}")
    print("evaluate gives the runs' own numbers")


def check_student(args, where):
    """The same losses on any number of ranks and stages, in fp64."""
    words = [args.program, "train", SOURCE / "examples/tiny.yaml", "model.width=16", "train.steps=10", "train.precision=fp64",
             "distill.from=sweeps/random/point-1", "train.threads=1"]  # fmt: skip
    found = {}
    for name, more in {"one": [], "two": ["--ranks", 2], "three": ["--ranks", 3, "train.microbatch=2"],
                       "stages": ["--ranks", 2, "parallel.pipe=2", "train.microbatch=2"]}.items():  # fmt: skip
        run([*words, f"run_dir=runs/{name}", *more], where)
        found[name] = losses(where / f"runs/{name}")
        worst = max(abs(a / b - 1) for a, b in zip(found[name], found["one"]))
        check(len(found[name]) == 10 and worst < 1e-9, f"{name}: losses {worst} apart: {found[name]} and {found['one']}")
    check("distillation" in metrics(where / "runs/one")[0], "metrics.jsonl tells nothing of the distillation")
    print("a student has the same losses on one, two and three ranks and in two stages")


def check_refusals(args, where):
    for words, said in [
        (["average", "runs/x", "sweeps/random/point-1", "runs/nowhere"], "runs/nowhere does not exist"),
        (["average", "runs/mean", "sweeps/random/point-1"], "runs/mean exists already"),
        (["average", "runs/x", "sweeps/random/point-1", "runs/student"], "model.width is 32 in the first and 16 in the other"),
        (["evaluate", "runs/nowhere"], "runs/nowhere does not exist"),
        (["evaluate", "data.samples=3"], "evaluate needs a checkpoint"),
        (["train", "distill.from=runs/nowhere"], "distill.from: runs/nowhere does not exist"),
        (["train", "distill.from=runs/mean", "model.context=64"], "distill.from: runs/mean/checkpoints/step-40 reads sequences of 32"),
    ]:
        job = run([args.program, *words], where, status=2)
        check(said in job.output, f"{words} did not say {said!r}:\n{job.output}")
    check(not (where / "runs/x").exists() and not (where / "runs/x.partial").exists(), "a refused average left a folder")
    damaged = where / "runs/damaged"
    shutil.copytree(where / "runs/mean", damaged)
    path = newest(damaged) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    job = run([args.program, "average", "runs/x", "runs/damaged"], where, status=2)
    check("is damaged: the checksum of its " in job.output, job.output)
    print("what cannot be is refused, with the reason")


def check_full_disk(args, where):
    """On a disk that is full an average fails, says so, and leaves nothing."""
    small = where / "small"
    small.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=64k none {small} 2>/dev/null") != 0:
        print("no file system of a small size can be made here: the full disk is left out")
        return
    try:
        job = run([args.program, "average", "small/mean", "sweeps/random/point-1"], where, status=1)
        check("small/mean.partial" in job.output and "disk full" in job.output, job.output)
        check(not list(small.iterdir()), f"a failed average left {list(small.iterdir())}")
        print("a full disk: status 1, nothing left behind")
    finally:
        os.system(f"umount {small}")


def test():
    args = arguments(__doc__)
    with folder() as where:
        (where / "examples").symlink_to(SOURCE / "examples")
        for command in commands():
            line = command.replace("trireme", str(args.program), 1)
            run(["bash", "-c", line], where, timeout=120)
        check((where / "runs/student/checkpoints/step-40").exists(), "the student was not trained")
        check_mean(where, "runs/mean", (1, 1))
        check_mean(where, "runs/weighted", (3, 1))
        check_evaluation(args, where)
        check_refusals(args, where)
        check_student(args, where)
        check_full_disk(args, where)
        job = run([args.program, "train", "--from", "runs/mean", "train.steps=42"], where)
        check("holds no optimizer state: the optimizer starts anew" in job.output, job.output)
        check([line["step"] for line in metrics(where / "runs/mean")] == [41, 42], "the mean did not go on with step 41")


if __name__ == "__main__":
    main(test)
