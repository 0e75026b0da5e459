#!/usr/bin/env python3
"""The peer of `trireme bench train`: the same model, weights and batches in plain PyTorch.

Eager or through torch.compile, with fused AdamW; several ranks by DistributedDataParallel over Gloo, with bucket views
and, where nothing is compiled, a static graph. Reads initial parameters and batches from a safetensors file; prints one
JSON object with the median step time and the losses. With --probe it prints which matrix library torch uses instead,
and how fast that is.
"""
import argparse
import json
import os
import re
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from torch_models import build, read_safetensors
from torch_ranks import free_port, start_ranks

WARMUP = 2  # steps that pay for memory, caches and compilation, and are not timed; as many as on the other side


def probe():
    """The library of torch's matrix products, and its speed with fp32 matrices of 1024 x 1024 on one core."""
    torch.set_num_threads(1)
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    out = torch.empty(1024, 1024)
    seconds = []
    for _ in range(40):
        begun = time.perf_counter()
        torch.mm(left, right, out=out)
        seconds.append(time.perf_counter() - begun)
    config = torch.__config__.show()
    version = re.search(r"Math Kernel Library Version (\d+(?:\.\d+)*)", config)
    blas = re.search(r"BLAS_INFO=(\w+)", config)
    library = f"MKL {version[1]}" if version else blas[1] if blas else "unknown"
    return {"library": library, "gflops": 2e-9 * 1024**3 / min(seconds), "torch": torch.__version__}


def buckets(args):
    """PowerSGD's hook fails over Gloo with more than one bucket."""
    return {"bucket_cap_mb": 10000} if args.hook == "powersgd" else {}


def add_hook(model, name):
    """DDP's own ways to send fewer bytes, at their defaults."""
    if name == "fp16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    if name == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        state = PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook)


def sent_by_host():
    """Bytes that have left by eth0 of a host of the benchmark's own making, where mpirun starts the ranks; else None."""
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return None
    with open("/proc/net/dev") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == "eth0":
                return int(numbers.split()[8])
    return None


class StepTimes:
    """When each step ended. A card is not waited for meanwhile: its events say it afterwards."""

    def __init__(self, device):
        self.card, self.ends = device.type == "cuda", []

    def step_ended(self):
        if self.card:
            self.ends.append(torch.cuda.Event(enable_timing=True))
            self.ends[-1].record()
        else:
            self.ends.append(time.perf_counter())

    def median(self):
        """Of the steps after the first ones, each from the end of the one before it."""
        if self.card:
            torch.cuda.synchronize()
        apart = lambda a, b: a.elapsed_time(b) * 1e-3 if self.card else b - a
        return statistics.median(apart(a, b) for a, b in zip(self.ends[WARMUP - 1 :], self.ends[WARMUP:]))


def wrapped(model, args):
    """The model as it is called in a step."""
    trained = model
    if args.ranks > 1:
        # Of compiled code DDP makes a part for each of its buckets, which it cannot with a static graph.
        own = {"static_graph": not args.compile, "gradient_as_bucket_view": True}
        trained = nn.parallel.DistributedDataParallel(model, **own, **buckets(args))
        add_hook(trained, args.hook)
    return torch.compile(trained) if args.compile else trained


def train(rank, args, result):
    torch.set_num_threads(args.threads)
    tensors = read_safetensors(args.inputs)
    model = build(args.model, tensors, args.heads, args.channels_last)
    device, whole = torch.device(args.device), torch.bfloat16 if args.precision == "bf16" else torch.float32
    model = model.to(device, whole)
    # What a loader would have to bring lies on the card already.
    for name, tensor in tensors.items():
        if name.startswith(("inputs.", "targets.")):
            tensors[name] = tensor.to(device, whole if tensor.is_floating_point() else tensor.dtype)
    if args.ranks > 1:
        dist.init_process_group("gloo", init_method=f"tcp://{args.master}:{args.port}", rank=rank, world_size=args.ranks)
    trained = wrapped(model, args)
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    parameters = list(model.parameters())

    losses, sent, times = [], None, StepTimes(device)
    for step in range(args.steps):
        if step == WARMUP:
            sent = sent_by_host()
        inputs, targets = tensors[f"inputs.{step % args.batches}"], tensors[f"targets.{step % args.batches}"]
        share = inputs.size(0) // args.ranks
        inputs, targets = inputs[rank * share : (rank + 1) * share], targets[rank * share : (rank + 1) * share]
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "autocast"):
            loss = trained(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        times.step_ended()
    if sent is not None:
        result["sent_bytes"] = (sent_by_host() - sent) / (args.steps - WARMUP)
    losses = torch.stack(losses).float().cpu()
    if args.ranks > 1:
        dist.all_reduce(losses)
        losses /= args.ranks
    if rank == 0:
        result.update(step_s=times.median(), losses=losses.tolist(), threads=args.threads, torch=torch.__version__)


def run(args):
    """What the ranks found; nothing on ranks but the first of those that mpirun started."""
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        rank, result = int(os.environ["OMPI_COMM_WORLD_RANK"]), {}
        train(rank, args, result)
        dist.barrier()
        dist.destroy_process_group()
        return result if rank == 0 else None
    if args.ranks == 1:
        result = {}
        train(0, args, result)
        return result
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    args.port = free_port()
    with mp.Manager() as manager:
        shared = manager.dict()
        start_ranks(train, args.ranks, (args, shared))
        return dict(shared)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", action="store_true", help="only say which matrix library torch uses")
    parser.add_argument("--inputs")
    parser.add_argument("--model", choices=["gpt", "llama", "mlp", "resnet18", "resnet50", "vgg11"])
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true", help="images and weights of convolutions")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batches", type=int, default=1, help="batches in the file, used in turn")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16", "autocast"], default="fp32", help="bf16: of everything")
    parser.add_argument("--hook", choices=["none", "fp16", "powersgd"], default="none", help="DDP's communication hook")
    parser.add_argument("--port", type=int, default=29555, help="of rank 0, where mpirun starts the ranks")
    parser.add_argument("--master", default="127.0.0.1", help="address of rank 0, where mpirun starts the ranks")
    args = parser.parse_args()
    if args.probe:
        print(json.dumps(probe()))
        return
    if not args.inputs or not args.model:
        parser.error("--inputs and --model are required, unless there is --probe")
    if args.steps <= WARMUP:
        parser.error(f"--steps must be more than {WARMUP}: the first ones are not timed")
    output = os.dup(1)
    os.dup2(2, 1)  # what compilers and Gloo print goes to standard error: standard output carries the result alone
    try:
        result = run(args)
    except Exception as error:
        if not args.compile:
            raise
        # Whether torch.compile works depends on the model, the machine's compiler and the version: its row says so.
        print(error, file=sys.stderr)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        result = {"failed": lines[-1] if isinstance(error, mp.ProcessRaisedException) and lines else
                  f"{type(error).__name__}: {lines[0] if lines else ''}"}
    if result is not None:
        os.write(output, json.dumps(result).encode() + b"\n")


if __name__ == "__main__":
    main()
