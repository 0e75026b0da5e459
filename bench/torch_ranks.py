"""Ranks of the peers: processes on this machine that meet over Gloo."""
import os
import socket

import torch.distributed as dist
import torch.multiprocessing as mp


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ended_at_once(rank, train, args):
    """A rank ends without tearing down its process group: that aborts a process now and then that has done its work."""
    train(rank, *args)
    dist.barrier()  # nobody leaves while another still uses the store, which the first rank keeps
    os._exit(0)


def start_ranks(train, ranks, args):
    """Runs train(rank, *args), which initialises the process group, in so many processes. Fails if one of them does."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # of what a process that ends at once leaves to the kernel
    mp.spawn(ended_at_once, args=(train, args), nprocs=ranks)
