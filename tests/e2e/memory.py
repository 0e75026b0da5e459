#!/usr/bin/env python3
"""A run that cannot fit into the machine's memory, or into its cgroup, is refused before anything is allocated."""
import json
import os
import pathlib
import resource
import subprocess

from harness import TINY, arguments, check, clean_environment, folder, losses, main

HUGE = ["model.kind=gpt", "model.layers=96", "model.width=8192", "model.heads=64", "model.context=1024", "model.vocab=50257",
        "data.kind=synthetic", "data.samples=8", "train.batch=2", "train.steps=1", "log.tensorboard=false"]  # fmt: skip
TREE = pathlib.Path("/sys/fs/cgroup")


def ask(args, where, *words, group=None):
    """Exit status, the words, and the largest number of bytes that the command held."""

    def enter():
        if group:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    ran = subprocess.run([args.program, "train", *words, "run_dir=run"], cwd=where, env=clean_environment(), preexec_fn=enter,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)  # fmt: skip
    return ran.returncode, ran.stdout


def refused(args, where, place, *words, group=None):
    status, said = ask(args, where, *words, group=group)
    last = said.strip().splitlines()[-1]
    check(status == 2, f"{words}: status {status}\n{said}")
    check("the run needs at least" in last and f"of memory on {place}" in last, said)
    check("frame #" not in said and "backtrace" not in said, said)
    check(not (where / "run").exists(), "a refused run left a folder")


def cgroup():
    """A new group of 400 MB inside our own, of either version; None where none can be made."""
    for name, limit in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        lines = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
        own = [path for _, controllers, path in lines if controllers == name]
        group = TREE / name / (own[0] if own else "/").lstrip("/") / f"trireme-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            print(f"no group for {limit}: {error}")
            continue
        if (group / limit).exists():  # made by the kernel: this is the controller's tree
            (group / limit).write_text("400000000")
            return group
        group.rmdir()
    return None


def trained(args, where, name, words):
    """The largest number of bytes that the process held, what it told of each step, and its losses."""
    run = subprocess.Popen([args.program, "train", *words, f"run_dir={name}"], cwd=where, env=clean_environment(),
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    said = run.stdout.read().decode()
    _, status, usage = os.wait4(run.pid, 0)
    check(status == 0, f"{name}: status {status}\n{said}")
    lines = [json.loads(line) for line in (where / name / "metrics.jsonl").read_text().splitlines()]
    return usage.ru_maxrss * 1024, [line["memory"] for line in lines if "memory" in line], losses(where / name)


def counted(args, where):
    """What a run says that it holds, by owner, is what the kernel sees of the process; layers that are computed again hold
    less."""
    quiet = ["data.kind=synthetic", "train.eval_batches=0", "log.tensorboard=false", "train.threads=1", "train.steps=2"]
    words = [*quiet, "model.layers=12", "model.width=256", "model.heads=4", "model.context=256", "train.batch=8", "model.vocab=256"]
    least, _, _ = trained(args, where, "least", [*quiet, "model.kind=mlp", "model.layers=1", "model.width=8", "train.batch=4"])
    peaks, losses_of = {}, {}
    for kept in ("keep", "recompute"):
        peak, memory, losses_of[kept] = trained(args, where, kept, [*words, f"memory.activations={kept}"])
        peaks[kept] = peak
        step = max(sum(one.values()) for one in memory)
        # The last checkpoint copies what it writes, when activations are gone.
        last = memory[-1]
        saved = 2 * (last["parameters"] + last["optimizer"]) + last["gradients"]
        told, seen = max(step, saved), peak - least
        check(abs(told - seen) < 0.05 * seen + 16e6, f"{kept}: told {told / 1e6:.0f} MB, held {seen / 1e6:.0f} MB: {memory}")
        check(last.get("other", 0) < 1e6, f"{kept}: nobody's: {last}")
        print(f"{kept}: told {told / 1e6:.0f} MB, held {seen / 1e6:.0f} MB")
    # Of a layer and a sample 16 numbers for each of 256 x 256 are kept, or its input: one. The rest of the process stays.
    kept = 12 * 16 * 256 * 256 * 8 * 4
    saved = peaks["keep"] - peaks["recompute"]
    check(saved > 0.6 * kept, f"peaks {peaks}: {saved / 1e6:.0f} MB less, of {kept / 1e6:.0f} MB that were kept")
    check(losses_of["keep"] == losses_of["recompute"], f"other losses: {losses_of}")
    print(f"recompute: {peaks['keep'] / 1e6:.0f} MB -> {peaks['recompute'] / 1e6:.0f} MB, kept before {kept / 1e6:.0f} MB")


def test():
    args = arguments(__doc__)
    with folder() as where:
        refused(args, where, "this host", *HUGE, "--dry-run")
        refused(args, where, "this host", *HUGE)
        refused(args, where, "this host", *HUGE, "--ranks", "2")
        held = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        check(held < 1e9, f"a refused run held {held / 1e9:.1f} GB")
        print(f"refused in the launcher and in the rank, holding {held / 1e6:.0f} MB at most")
        group = cgroup()
        if group:
            try:
                large = [*TINY, "model.width=1024", "model.layers=4", "train.steps=1", "optimizer.warmup=0", "checkpoint.every=0"]
                refused(args, where, "the cgroup /", *large, "--dry-run", group=group)
                status, said = ask(args, where, *TINY, "train.steps=1", "optimizer.warmup=0", "--dry-run", group=group)
                check(status == 0, said)
                print("refused by a cgroup's limit")
            finally:
                group.rmdir()
        counted(args, where)


main(test)
