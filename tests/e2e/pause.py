#!/usr/bin/env python3
"""ctrl-Z stops all ranks of a job, by whomever they were started, and fg lets them go on: for longer than a rank may be
silent, the job ends well, with the same bytes as one that nobody paused. So does SIGTSTP, and a sweep with its runs."""
import contextlib
import os
import pathlib
import signal
import time

from harness import TINY, Job, arguments, check, final_bytes, folder, main, run

STEPS = 40
PAUSE_S = 2  # longer than watchdog.heartbeat
CONFIG = [*TINY, "model.width=64", "model.context=128", f"train.steps={STEPS}", "log.every=1", "watchdog.heartbeat=1"]


def state(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return ""


def pause(job, processes, ask):
    """Pauses the job, sees all of its processes stopped and the work standing still, and lets it go on."""
    ask()
    job.wait_for(lambda: all(state(pid) == "T" for pid in processes), f"{processes} were stopped")
    shown = job.output
    time.sleep(PAUSE_S)
    check(all(state(pid) == "T" for pid in processes), f"some of {processes} went on by themselves")
    check(job.output == shown, f"the job went on:\n{job.output}")
    os.kill(job.process.pid, signal.SIGCONT)


def paused(where, name, words, reference, terminal=False, times=1):
    run_dir = name.replace(" ", "-")
    job = Job([*words, f"run_dir={run_dir}"], where, terminal=terminal)
    job.wait_for_step(3)
    processes = [job.process.pid, *job.ranks().values()]
    check(len(processes) == 3, f"{name}: {processes}")
    for _ in range(times):
        pause(job, processes, lambda: job.type("\x1a") if terminal else os.kill(job.process.pid, signal.SIGTSTP))
        job.wait_for(lambda: not any(state(pid) == "T" for pid in processes), f"{processes} went on")
    status = job.wait()
    check(status == 0, f"{name}: ended with status {status}:\n{job.output}")
    check("has not answered" not in job.output and "made no progress" not in job.output, job.output)
    check(final_bytes(where / run_dir, STEPS) == reference, f"{name}: ended with other bytes")
    check(not job.leftovers(), f"{name} left behind {job.leftovers()}")
    print(f"{name}: paused, ended with the same bytes", flush=True)


def stopped_while_paused(where, words):
    """A paused job that is asked to end, and continued, saves and ends."""
    job = Job([*words, "run_dir=ended"], where)
    job.wait_for_step(3)
    ranks = list(job.ranks().values())
    os.kill(job.process.pid, signal.SIGTSTP)
    job.wait_for(lambda: all(state(pid) == "T" for pid in [job.process.pid, *ranks]), "all were stopped")
    os.kill(job.process.pid, signal.SIGTERM)
    os.kill(job.process.pid, signal.SIGCONT)
    status = job.wait()
    check(status == 143 and "stopped after step" in job.output, f"ended with status {status}:\n{job.output}")
    check(not job.leftovers(), f"left behind {job.leftovers()}")
    print("stopped while paused: saved and ended", flush=True)


def sweep(args, where):
    job = Job([args.program, "sweep", *CONFIG, "--grid", "optimizer.lr=1e-3,2e-3", "--ranks", 2, "--ranks-per-run", 2], where)
    running = job.wait_for(lambda: len(found := list(job.processes())) == 4 and found, "a run of two ranks")
    os.kill(job.process.pid, signal.SIGTSTP)
    job.wait_for(lambda: all(state(pid) == "T" for pid in running), "all were stopped")
    time.sleep(PAUSE_S)
    check(all(state(pid) == "T" for pid in running), "a run of the sweep went on by itself")
    os.kill(job.process.pid, signal.SIGCONT)
    status = job.wait(120)
    check(status == 0 and "0 failed" in job.output, f"the sweep ended with status {status}:\n{job.output}")
    check(not job.leftovers(), f"the sweep left behind {job.leftovers()}")
    print("sweep: paused with its runs, ended well", flush=True)


def test():
    args = arguments(__doc__)
    own = [args.program, "train", *CONFIG, "--ranks", 2]
    with folder() as where:
        run([*own, "run_dir=undisturbed"], where)
        reference = final_bytes(where / "undisturbed", STEPS)
        paused(where, "by SIGTSTP", own, reference, times=2)  # after the first time all must watch as before
        paused(where, "by ctrl-Z", own, reference, terminal=True)
        run([*own, "comm.transport=mpi", "run_dir=by-mpi"], where)
        paused(where, "under mpirun", [*own, "comm.transport=mpi"], final_bytes(where / "by-mpi", STEPS))
        stopped_while_paused(where, own)
        sweep(args, where)


main(test)
