#!/usr/bin/env python3
"""Two hosts of two ranks, which are network namespaces with links of limited rate: the numbers of one rank, no more
bytes between the hosts than must be, and a host that is cut off is named."""
import os
import shutil
import subprocess
import time

from harness import SKIP, SOURCE, TINY, Job, arguments, check, folder, losses, main, run

HOSTS = SOURCE / "tools/hosts.sh"
QUIET = ["checkpoint.every=0", "train.eval_batches=0", "data.validation=0", "log.tensorboard=false"]
BLOCK = 256  # elements that share a scale of 32 bits: sync.codec_block


def hosts(*words):
    return subprocess.run([HOSTS, *map(str, words)], capture_output=True, text=True)


def on_hosts(program, where, *words):
    return run([HOSTS, "run", 2, program, "train", *words], where)


def same_numbers(args, where):
    config = [*TINY, *QUIET, "train.precision=fp64", "train.steps=10", "train.microbatch=3"]
    run([args.program, "train", *config, f"run_dir={where}/one"], where)
    one = losses(where / "one")
    for name, layout in {"data": [], "pipe": ["parallel.pipe=2"], "root": ["sync.kind=root", "sync.bucket_mb=0.01"]}.items():
        job = on_hosts(args.program, where, *config, *layout, f"run_dir={where}/{name}")
        check("by shared memory and mpi" in job.output, job.output)
        both = losses(where / name)
        worst = max(abs(a - b) / abs(a) for a, b in zip(one, both))
        check(len(both) == len(one) == 10 and worst <= 1e-9, f"{name}: {both} instead of {one}")
        print(f"2 hosts x 2 ranks, {name}: losses as of one rank, worst difference {worst:.1e}")


def few_bytes(args, where, codec, bits):
    """`bits` an element; of two hosts each must send as much as it keeps the sum of."""
    config = ["model.kind=mlp", "model.layers=3", "model.width=512", "model.inputs=512", "model.classes=10", "data.kind=synthetic",
              "train.batch=16", "train.threads=1", f"sync.codec={codec}", *QUIET]  # fmt: skip
    sent = {}
    for steps in (2, 8):
        before = [int(line) for line in hosts("sent").stdout.split()]
        on_hosts(args.program, where, *config, f"train.steps={steps}", f"run_dir={where}/{codec}-{steps}")
        sent[steps] = [int(line) - old for line, old in zip(hosts("sent").stdout.split(), before)]
    parameters = 3 * (512 * 512 + 512) + 512 * 10 + 10
    bound = bits * parameters / 8
    for host in range(2):
        ratio = (sent[8][host] - sent[2][host]) / 6 / bound
        check(1 <= ratio <= 1.05, f"{codec}: host {host + 1} sends {ratio:.3f} of the least that it must")
        print(f"{codec}: host {host + 1} sends {ratio:.4f} x the least bytes that it must, {bound:.0f} a step")


def cut_off(args, where):
    job = Job([HOSTS, "run", 2, args.program, "train", *TINY, *QUIET, "train.steps=100000", f"run_dir={where}/cut"], where)
    try:
        job.wait_for_step(3)
        began = time.monotonic()
        hosts("cut", 2)
        job.wait_for(lambda: "host trihost2 (rank 2 and 1 more) has not been heard of" in job.output, "the lost host's name", 20)
        seconds = time.monotonic() - began
        check(seconds < 10, f"it took {seconds:.1f} s")
        print(f"a host that is cut off is named after {seconds:.1f} s")
    finally:
        job.end()


def test():
    args = arguments(__doc__)
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "mpirun", "unshare"))):
        print("skipped: hosts of this machine's own making need root, iproute2 and mpirun")
        return SKIP
    made = hosts("start", 2, "500mbit")
    try:
        if made.returncode != 0:
            print(f"skipped: network namespaces cannot be made here ({made.stderr.strip()})")
            return SKIP
        with folder() as where:
            same_numbers(args, where)
            few_bytes(args, where, "none", 32)
            few_bytes(args, where, "int8", 8 + 32 / BLOCK)
            few_bytes(args, where, "int4", 4 + 32 / BLOCK)
            cut_off(args, where)
    finally:
        hosts("stop")


main(test)
