#!/usr/bin/env python3
"""The peer of `trireme bench comm`: torch.distributed's collectives over Gloo, on the same sizes.

Prints one JSON object: microseconds by collective and bytes.
"""
import argparse
import json
import os
import statistics
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from torch_ranks import free_port, start_ranks

warnings.filterwarnings("ignore", category=FutureWarning)  # names that are new in one version and old in the next


def cases(rank, ranks, count):
    data = torch.full((count,), float(rank + 1))
    part = torch.full((count // ranks,), float(rank + 1))
    taken = torch.empty(count)
    parts = list(taken.chunk(ranks))
    return {
        "all_reduce": lambda: dist.all_reduce(data),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, data),
        "all_gather": lambda: dist.all_gather_into_tensor(taken, part),
        "all_to_all": lambda: dist.all_to_all_single(taken, data),
    }


def measure(call, blocks, seconds):
    for _ in range(2):
        call()
    begun = time.perf_counter()
    call()
    once = torch.tensor([time.perf_counter() - begun])
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    rounds = max(2, min(1000, int(seconds / max(1e-6, once.item()))))
    times = []
    for _ in range(blocks):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(rounds):
            call()
        mine = torch.tensor([(time.perf_counter() - begun) / rounds])
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        times.append(mine.item())
    return statistics.median(times)


def run(rank, arguments, port, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.ranks)
    found = {}
    for name in arguments.collectives.split(","):
        for size in arguments.sizes.split(","):
            call = cases(rank, arguments.ranks, int(size) // 4)[name]
            found.setdefault(name, {})[size] = measure(call, arguments.blocks, arguments.seconds) * 1e6
    if rank == 0:
        results.update(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--collectives", required=True)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02)
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with mp.Manager() as manager:
        results = manager.dict()
        start_ranks(run, arguments.ranks, (arguments, free_port(), results))
        found = dict(results)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
