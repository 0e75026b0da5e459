#!/usr/bin/env python3
"""Ctrl-C and SIGTERM end the step, save, and leave with 130 or 143, though the save takes five seconds; a second ctrl-C
leaves at once; a rank that is stopped (SIGSTOP) is named within ten seconds. --resume ends with the same bytes."""
import os
import re
import shutil
import signal
import time

from harness import MPIRUN, Job, arguments, check, checkpoints, final_bytes, folder, main, run
from kill import CONFIG, RANKS, STEPS, own_mpirun, resume_and_compare, undisturbed

SLOW_SAVE = ["checkpoint.every=0", "checkpoint.rate_mb=0.35"]  # some 1.7 MB


def asked_to_stop(args, where, reference, name, words, ask, status, slow_save=True, terminal=False):
    """Asks a job to stop in the midst of its steps; checks how it ends and how it goes on."""
    run_dir = name.replace(" ", "-")
    words = [*words, f"run_dir={run_dir}"]
    job = Job([*words, *SLOW_SAVE] if slow_save else words, where, terminal=terminal)
    job.wait_for_step(3)
    begun = time.monotonic()
    ask(job)
    found = job.wait(40)
    took_s = time.monotonic() - begun
    check(found == status, f"{name}: ended with status {found}, not {status}:\n{job.output}")
    saved = checkpoints(where / run_dir)
    check(saved, f"{name}: no checkpoint was saved:\n{job.output}")
    stopped = re.search(r"stopped after step (\d+)", job.plain)
    check(not stopped or int(stopped.group(1)) == saved[-1], f"{name}: the checkpoint is of step {saved[-1]}:\n{job.output}")
    check(not slow_save or took_s > 3, f"{name}: the save was meant to take some seconds, all took {took_s:.1f} s:\n{job.output}")
    check(not job.leftovers(), f"{name} left behind {job.leftovers()}")
    run([args.program, "generate", f"{run_dir}/checkpoints/step-{saved[-1]}", "--tokens", 1], where)  # checks its bytes
    resume_and_compare(words, where, run_dir, reference)
    shutil.rmtree(where / run_dir)
    print(f"{name}: status {found}, saved step {saved[-1]} in {took_s:.1f} s, resumed to the same bytes", flush=True)


def type_control_c(job):
    job.type("\x03")


def send(number):
    return lambda job: os.kill(job.process.pid, number)


def twice(args, where, words):
    """Of the second ctrl-C: no saving, no waiting, nothing left."""
    job = Job([*words, *SLOW_SAVE, "run_dir=twice"], where, terminal=True)
    job.wait_for_step(3)
    job.type("\x03")
    job.wait_for_text("saving a checkpoint")
    time.sleep(1)
    begun = time.monotonic()
    job.type("\x03")
    status = job.wait(10)
    took_s = time.monotonic() - begun
    check(status == 130 and took_s < 2, f"the second ctrl-C: status {status} after {took_s:.1f} s:\n{job.output}")
    check(not checkpoints(where / "twice"), "the second ctrl-C still left a checkpoint: was it saved too fast for this test?")
    check(not job.leftovers(), f"the second ctrl-C left behind {job.leftovers()}")
    print(f"second ctrl-C: status {status} after {took_s:.1f} s")


def immune(args, where):
    """Under nohup the end of a session is no reason to stop, neither to one rank nor to a job; SIGTERM is. After SIGTERM
    the end of the session says nothing new, another SIGTERM or ctrl-C does."""
    ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    for name, words in {"one": [], "job": ["--ranks", RANKS]}.items():
        job = Job([*ignoring, args.program, "train", *CONFIG, "train.steps=100000", "checkpoint.every=0", *words, f"run_dir=hup-{name}"], where)
        job.wait_for_step(3)
        os.kill(job.process.pid, signal.SIGHUP)
        reached = int(re.findall(r"step (\d+)/", job.plain)[-1])
        job.wait_for_step(reached + 20)
        os.kill(job.process.pid, signal.SIGTERM)
        status = job.wait(20)
        check(status == 143 and checkpoints(where / f"hup-{name}"), f"nohup, {name}: SIGTERM gave status {status}:\n{job.output}")
        job = Job([args.program, "train", *CONFIG, *SLOW_SAVE, *words, f"run_dir=session-{name}"], where)
        job.wait_for_step(3)
        os.kill(job.process.pid, signal.SIGTERM)
        job.wait_for_text("saving a checkpoint")
        os.kill(job.process.pid, signal.SIGHUP)
        status = job.wait(40)
        check(status == 143 and checkpoints(where / f"session-{name}"), f"SIGTERM and SIGHUP, {name}: status {status}:\n{job.output}")
    print("nohup: SIGHUP is not heard; with SIGTERM it is no second wish")


def several_signals(args, where):
    """`timeout` and terminals signal a process, and then its whole group: signals that come together are one wish."""
    for name, words in {"one": [], "job": ["--ranks", RANKS]}.items():
        job = Job([args.program, "train", *CONFIG, *SLOW_SAVE, *words, f"run_dir=several-{name}"], where)
        job.wait_for_step(3)
        for pause_s in (0.02, 0.05, 0):
            os.kill(job.process.pid, signal.SIGTERM)
            time.sleep(pause_s)
        status = job.wait(40)
        check(status == 143 and checkpoints(where / f"several-{name}"), f"three SIGTERM at once, {name}: status {status}:\n{job.output}")
    print("three SIGTERM at once: saved")


def frozen(where, name, words):
    """A rank that is stopped, as by SIGSTOP or a dead disk: named, and the job ends."""
    job = Job([*words, f"run_dir={name.replace(' ', '-')}"], where)
    job.wait_for_step(3)
    rank, pid = 1, job.ranks()[1]
    begun = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    job.wait_for_text(f"rank {rank} (process {pid}) has not answered for", timeout=10)
    named_s = time.monotonic() - begun
    status = job.wait(30)
    check(status == 1, f"{name}: ended with status {status}:\n{job.output}")
    check("its last operation: " in job.output, job.output)
    left = job.leftovers(20)
    check(not left, f"{name} left behind {left}")
    print(f"{name}: named after {named_s:.1f} s, all ended after {time.monotonic() - begun:.1f} s")


def under_mpirun(args, where):
    """Open MPI's mpirun takes its time: it passes a SIGTERM on after odls_base_sigkill_timeout seconds (it sends SIGCONT at
    once), and kills after as many again. Given enough of them, the ranks save."""
    steps = 150
    words = ["train", *CONFIG, f"train.steps={steps}", "checkpoint.every=0"]
    run([args.program, *words, "run_dir=long", "--ranks", RANKS], where)
    mpirun = [*MPIRUN, "--mca", "odls_base_sigkill_timeout", 2, "-np", RANKS, args.program, *words, "run_dir=under-mpirun"]
    job = Job([*mpirun, "checkpoint.rate_mb=1.2"], where)
    job.wait_for_step(3)
    os.kill(job.process.pid, signal.SIGTERM)
    status = job.wait(20)
    saved = checkpoints(where / "under-mpirun")
    check(status != 0 and saved and saved[-1] < steps, f"SIGTERM to mpirun: status {status}, saved {saved}:\n{job.output}")
    check(not job.leftovers(), f"SIGTERM to mpirun left behind {job.leftovers()}")
    run([*mpirun, "--resume"], where)
    check(final_bytes(where / "under-mpirun", steps) == final_bytes(where / "long", steps), "SIGTERM to mpirun: other bytes after the resume")
    print(f"SIGTERM to mpirun: status {status}, saved step {saved[-1]}, resumed to the same bytes")


def test():
    args = arguments(__doc__)
    own = [args.program, "train", *CONFIG, "--ranks", RANKS]
    with folder() as where:
        reference, _ = undisturbed(args, where)
        asked_to_stop(args, where, reference, "ctrl-C", own, type_control_c, 130, terminal=True)
        asked_to_stop(args, where, reference, "SIGTERM", own, send(signal.SIGTERM), 143)
        alone = [args.program, "train", *CONFIG]
        run([*alone, "run_dir=alone"], where)
        alone_bytes = final_bytes(where / "alone", STEPS)  # other sums than those of three ranks: other last bits
        asked_to_stop(args, where, alone_bytes, "ctrl-C of one rank", alone, type_control_c, 130, slow_save=False, terminal=True)
        twice(args, where, own)
        immune(args, where)
        several_signals(args, where)
        frozen(where, "SIGSTOP", own)
        if not shutil.which("mpirun"):
            print("no mpirun here: its cases are left out")
            return
        reference, _ = undisturbed(args, where, own_mpirun)
        asked_to_stop(args, where, reference, "ctrl-C over our own mpirun", [*own, "comm.transport=mpi"], type_control_c, 130, terminal=True)
        under_mpirun(args, where)


if __name__ == "__main__":
    main(test)
