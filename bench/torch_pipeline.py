#!/usr/bin/env python3
"""The peer of Trireme's pipeline benchmark: the same GPT cut by `torch.distributed.pipelining`, over Gloo.

Several stages: one process each, ScheduleGPipe or Schedule1F1B. One stage: plain accumulation over the microbatches.
Reads initial parameters and batches from a safetensors file; prints one JSON object with step times and losses.
"""
import argparse
import functools
import json
import os
import random
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from torch_models import Block, Norm, read_safetensors
from torch_ranks import free_port, start_ranks

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,  # with one chunk a rank: ZB1P
    "zero-bubble-v": ScheduleZBVZeroBubble,
}
SEVERAL = ("interleaved", "zero-bubble", "zero-bubble-v")  # those that take a list of stages
FORWARD, BACKWARD = 0, 1


class Layers(nn.Module):
    """One part of the list: embedding, blocks, final norm with the tied head. The ends both hold wte."""

    def __init__(self, tensors, heads, stage, cuts, wte):
        super().__init__()
        layers = 2 + len({name.split(".")[1] for name in tensors if name.startswith("h.")})
        bounds = [0, *cuts, layers]
        if any(a >= b for a, b in zip(bounds, bounds[1:])):
            raise ValueError(f"--cuts {cuts} must rise strictly between 0 and {layers}, the number of layers")
        begin, end = bounds[stage], bounds[stage + 1]
        self.wte = wte if begin == 0 or end == layers else None
        self.wpe = nn.Parameter(tensors["wpe.weight"]) if begin == 0 else None
        self.h = nn.ModuleList(Block(tensors, f"h.{i - 1}", heads) for i in range(max(begin, 1), min(end, layers - 1)))
        self.ln_f = Norm(tensors["ln_f.weight"], tensors["ln_f.bias"]) if end == layers else None

    def forward(self, x):
        if self.wpe is not None:
            # A dense gradient writes the whole table for each microbatch. A sparse one is cheaper where tokens are few;
            # on the last stage the head's gradient is dense in any case.
            sparse = self.ln_f is None and self.wte.size(0) > 8 * x.numel()
            x = F.embedding(x, self.wte, sparse=sparse) + self.wpe[: x.size(1)]
        for block in self.h:
            x = block(x)
        return x if self.ln_f is None else F.linear(self.ln_f(x), self.wte)


class Delivery:
    """A receive that is complete once the message has come in and its time on the way has passed."""

    def __init__(self, sent, seconds, *args, **kwargs):
        self.sent, self.seconds, self.work = sent, seconds, dist.irecv(*args, **kwargs)

    def wait(self):
        self.work.wait()
        time.sleep(max(0.0, self.sent.item() + self.seconds - time.monotonic()))


class Stage(PipelineStage):
    """A stage that counts the microbatches it holds and, with jitter, delays each message on its way.

    The delay is that of a slow link: a message cannot be used before the moment it was sent plus a random time. The
    sender notes that moment in memory that all stages share (Linux has one monotonic clock for all processes). The
    receive operations are replaced by ones whose wait sleeps out what is left of the delay: that wait is the one place
    where a schedule stands still for a message. Sends are posted before it and move in Gloo's own thread, so they are
    not delayed, and neither is a receiver that was still computing when the message came due. Sleeping all of it in
    the wait would charge that receiver too, as no link does. Each direction has its own generator, so that a message
    has the same delay under every schedule. Without jitter nothing stands between the schedule and Gloo.
    """

    def __init__(self, module, part, args, sent):
        super().__init__(module, part, args.stages * args.chunks, torch.device("cpu"))
        self.peak, self.sent, self.jitter = 0, sent, args.jitter_ms / 1e3
        self.generators = [random.Random(2 * part + way) for way in (FORWARD, BACKWARD)]

    def forward_one_chunk(self, *args, **kwargs):
        output = super().forward_one_chunk(*args, **kwargs)
        self.peak = max(self.peak, len(self.fwd_cache))
        return output

    def note(self, ops, way, chunk):
        if self.jitter:
            self.sent[self.stage_index, way, chunk] = time.monotonic()
        return ops

    def delay(self, ops, source, way, chunk):
        for op in ops if self.jitter else []:
            seconds = self.generators[way].uniform(0, self.jitter)
            op.op = functools.partial(Delivery, self.sent[source, way, chunk], seconds)
        return ops

    def get_fwd_send_ops(self, chunk):
        return self.note(super().get_fwd_send_ops(chunk), FORWARD, chunk)

    def get_bwd_send_ops(self, chunk):
        return self.note(super().get_bwd_send_ops(chunk), BACKWARD, chunk)

    def get_fwd_recv_ops(self, chunk):
        return self.delay(super().get_fwd_recv_ops(chunk), self.stage_index - 1, FORWARD, chunk)

    def get_bwd_recv_ops(self, chunk):
        return self.delay(super().get_bwd_recv_ops(chunk), self.stage_index + 1, BACKWARD, chunk)


def clip(parameters, wte, rank, stages, ends):
    """Sums the tied gradient over its two holders, then clips by the norm over all stages, where wte counts once."""
    if wte is not None and wte.grad.is_sparse:
        wte.grad = wte.grad.to_dense()
    work = dist.all_reduce(wte.grad, group=ends, async_op=True) if wte is not None and ends is not None else None
    square = nn.utils.get_total_norm([p.grad for p in parameters if p is not wte], foreach=True) ** 2
    if work:
        work.wait()
    if rank == 0:
        square += wte.grad.norm() ** 2
    if stages > 1:
        dist.all_reduce(square)
    nn.utils.clip_grads_with_norm_(parameters, 1.0, square.sqrt(), foreach=True)


def parts_of(rank, args):
    """The parts of the model that a rank holds, as the schedule lays them out."""
    if args.schedule == "zero-bubble-v":
        return [rank, 2 * args.stages - 1 - rank]
    return [chunk * args.stages + rank for chunk in range(args.chunks)]


def train(rank, args, sent, result):
    torch.set_num_threads(args.threads)
    tensors = read_safetensors(args.inputs)
    parts = parts_of(rank, args)
    wte = nn.Parameter(tensors["wte.weight"])  # one, where a rank has both ends
    modules = [Layers(tensors, args.heads, part, args.cuts, wte) for part in parts]
    wte = next((module.wte for module in modules if module.wte is not None), None)
    tensors = {name: tensor for name, tensor in tensors.items() if name.startswith(("inputs.", "targets."))}
    batch = tensors["inputs.0"].size(0)
    if batch % args.microbatches:
        raise ValueError(f"a batch of {batch} cannot be cut into {args.microbatches} equal microbatches")

    # The mean over microbatches is taken in the loss, where it is free: scale_grads passes over all gradients again.
    def loss_of(logits, targets):
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1)) / args.microbatches

    ends = None
    if args.stages > 1:
        os.dup2(2, 1)  # what Gloo prints goes to standard error: standard output carries the result alone
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{args.port}", rank=rank, world_size=args.stages)
        ends = dist.new_group([0, args.stages - 1]) if args.schedule != "zero-bubble-v" else None
        stages = [Stage(module, part, args, sent) for module, part in zip(modules, parts)]
        given = stages if args.schedule in SEVERAL else stages[0]
        schedule = SCHEDULES[args.schedule](given, args.microbatches, loss_fn=loss_of, scale_grads=False)
    last = args.stages * args.chunks - 1 in parts

    def accumulate(inputs, targets):
        """The microbatches' losses, on the last stage."""
        losses = []
        if args.stages == 1:
            for x, y in zip(inputs.chunk(args.microbatches), targets.chunk(args.microbatches)):
                losses.append(loss_of(modules[0](x), y))
                losses[-1].backward()
        else:
            given = (inputs,) if rank == 0 else ()
            # The logits of the whole batch are not wanted: return_outputs would keep and join them.
            kept = {"target": targets, "losses": losses, "return_outputs": False} if last else {}
            schedule.step(*given, **kept)
        return losses

    parameters = list(dict.fromkeys(p for module in modules for p in module.parameters()))
    decay = [p for p in parameters if p.dim() > 1]
    plain = [p for p in parameters if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)

    losses, moments = [], []
    for step in range(args.steps):
        parts = accumulate(tensors[f"inputs.{step % args.batches}"], tensors[f"targets.{step % args.batches}"])
        clip(parameters, wte, rank, args.stages, ends)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(sum(part.item() for part in parts))
        moments.append(time.perf_counter())
    result[f"peak.{rank}"] = sum(stage.peak for stage in stages) if args.stages > 1 else 1
    if rank == 0:
        seconds = statistics.median(b - a for a, b in zip(moments[1:], moments[2:]))  # the first two warm up
        result.update(step_s=seconds, threads=args.threads, torch=torch.__version__)
    if last:
        result["losses"] = losses


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--chunks", type=int, default=1, help="parts of the model on each rank")
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--cuts", default="", help="first layers of stages 1.., of: embedding, blocks, head")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True, help="batches in the file, used in turn")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--weight-decay", type=float, required=True)
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="each message takes up to so much longer")
    args = parser.parse_args()
    args.cuts = [int(cut) for cut in args.cuts.split(",") if cut]
    if len(args.cuts) != args.stages * args.chunks - 1:
        parser.error(f"--cuts names {len(args.cuts)} cuts, but {args.stages * args.chunks} parts need one less")
    if args.steps < 3:
        parser.error("--steps must be at least 3: the first two are not timed")
    if args.stages == 1:
        result = {}
        train(0, args, None, result)
    else:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
        args.port = free_port()
        sent = torch.zeros(args.stages * args.chunks, 2, args.microbatches, dtype=torch.float64).share_memory_()
        with mp.Manager() as manager:
            shared = manager.dict()
            start_ranks(train, args.stages, (args, sent, shared))
            result = dict(shared)
    result["peak_in_flight"] = [result.pop(f"peak.{rank}") for rank in range(args.stages)]
    print(json.dumps({key: result[key] for key in ("step_s", "losses", "threads", "torch", "peak_in_flight")}))


if __name__ == "__main__":
    main()
