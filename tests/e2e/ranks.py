#!/usr/bin/env python3
"""However the ranks are started and however many they are, the losses are the same: fp64, dropout, 15 steps, 1e-9."""
import os
import shutil
import socket
import sys

from harness import MPIRUN, TINY, Job, arguments, check, folder, losses, main, run

STEPS = 15
CONFIG = [*TINY, "train.precision=fp64", f"train.steps={STEPS}", "train.eval_every=5", "log.tensorboard=false"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def torchrun_by_hand(args, where, ranks, run_dir):
    """The environment that torchrun gives its ranks, without torchrun. All must end well."""
    jobs = []
    port = free_port()
    for rank in range(ranks):
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "e2e", "TORCHELASTIC_RESTART_COUNT": 0}  # fmt: skip
        words = [args.program, "train", *CONFIG, f"run_dir={run_dir}"]
        jobs.append(Job(words, where, environment={name: str(value) for name, value in environment.items()}))
    for job in jobs:
        status = job.wait()
        check(status == 0, f"a rank ended with status {status}:\n{job.output}")
    return jobs[0]


def waits_kindly(args, where):
    """Where there are cores to share, a run that nobody told how its threads wait begins with an environment that does:
    OpenMP reads it before the program's first line."""
    if len(os.sched_getaffinity(0)) == 1:
        return
    endless = [word for word in CONFIG if not word.startswith("train.steps=")] + ["train.steps=100000000"]
    job = Job([args.program, "train", *endless, "run_dir=waits"], where)
    job.wait_for_step(1)
    known = job.processes()[job.process.pid]
    job.process.terminate()
    job.wait()
    check(known.get("OMP_WAIT_POLICY") == "passive", f"threads wait as OpenMP chooses: {known}")
    print("threads wait kindly")


def test():
    args = arguments(__doc__)
    with folder() as where:
        reference = []

        def compare(name, job, run_dir, says=None):
            found = losses(where / run_dir)
            check(len(found) == STEPS, f"{name}: {len(found)} steps instead of {STEPS}")
            if not reference:
                reference.extend(found)
            worst = max(abs(a - b) / abs(b) for a, b in zip(found, reference))
            check(worst <= 1e-9, f"{name}: losses differ by {worst:.2e} relative\n{found}\n{reference}")
            check(says is None or says in job.output, f"{name}: does not say {says!r}:\n{job.output}")
            check(job.output.count("started by") <= 1, f"{name}: says more than once who started it:\n{job.output}")
            check(not job.leftovers(), f"{name} left behind {job.leftovers()}")
            print(f"{name}: largest difference {worst:.2e}")

        def train(name, words, says=None, launcher=()):
            run_dir = name.replace(" ", "-")
            job = run([*launcher, args.program, "train", *CONFIG, f"run_dir={run_dir}", *words], where)
            compare(name, job, run_dir, says)

        train("one rank", [])
        for ranks in (2, 3, 4):
            train(f"{ranks} ranks", ["--ranks", ranks], f"{ranks} ranks by shared")
        train("3 ranks as threads", ["--ranks", 3, "--threads"], "3 ranks by threads")
        train("2 ranks in microbatches", ["--ranks", 2, "train.microbatch=4"])
        train("2 ranks by speed", ["--ranks", 2, "parallel.shares=[3,1]"], "as 9, 3")
        train("3 ranks by speed in microbatches", ["--ranks", 3, "parallel.shares=[5,2,1]", "train.microbatch=2"])
        compare("2 ranks by the environment of torchrun", torchrun_by_hand(args, where, 2, "by-hand"), "by-hand", "started by torchrun: rank 0 of 2")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", 2, "--master-port", free_port()]
        train("2 ranks by torchrun", [], "started by torchrun: rank 0 of 2", torchrun)
        if not shutil.which("mpirun"):
            print("no mpirun here: its cases are left out")
            return
        train("2 ranks by our own mpirun", ["--ranks", 2, "comm.transport=mpi"], "2 ranks by mpi")
        train("2 ranks by speed through MPI", ["--ranks", 2, "parallel.shares=[1,3]", "comm.transport=mpi"], "as 3, 9")
        train("2 ranks under mpirun", [], "started by mpirun: rank 0 of 2", [*MPIRUN, "-np", 2])
        train("3 ranks under mpirun through MPI", ["comm.transport=mpi"], "3 ranks by mpi", [*MPIRUN, "-np", 3])

        waits_kindly(args, where)

        # What cannot be meant is refused, by all ranks and at once.
        job = run([*MPIRUN, "-np", 2, args.program, "train", *CONFIG, "--ranks", 3], where, status=2)
        check("--ranks 3, but started by mpirun: rank" in job.output, job.output)
        for name, seed in (("a.yaml", 1), ("b.yaml", 2)):
            (where / name).write_text(f"train: {{seed: {seed}}}\n")
        for transport in ("shared", "mpi"):
            one = [args.program, "train", *CONFIG[:-1], f"comm.transport={transport}"]
            words = [*MPIRUN, "-np", 1, *one, "a.yaml", ":", "-np", 1, *one, "b.yaml"]
            words = [word for word in words if not str(word).startswith("train.seed")]
            job = run(words, where, status=2, timeout=20)
            check("rank 1 was started with another configuration than rank 0" in job.output, job.output)
            check(not job.leftovers(), f"left behind {job.leftovers()}")
        print("contradictions are refused")


main(test)
