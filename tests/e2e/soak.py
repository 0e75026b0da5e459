#!/usr/bin/env python3
"""The whole of the promise, by hand (make soak, some ten minutes): ROUNDS times kill -9 of a random one of three ranks at a
random instant, every third time while a checkpoint is being written, then as many rounds of ctrl-C and SIGTERM in turn;
each time the run is resumed and must end with the bytes of the undisturbed run."""
import os
import random
import re
import shutil
import signal
import time

from harness import Failure, Job, arguments, check, checkpoints, folder, main
from kill import RANKS, STEPS, kill_round, mpirun, own, print_outcome, resume_and_compare, undisturbed


def stop_round(args, where, reference, number, chance, duration_s):
    """Ctrl-C or SIGTERM at a random instant of a run; what happened, in words."""
    control_c = number % 2 == 0
    run_dir = f"stopped-{number}"
    words = own(args, [f"run_dir={run_dir}"])
    job = Job(words, where, terminal=control_c)
    try:
        job.wait_for_ranks(RANKS)
        time.sleep(max(0, chance.uniform(0, 0.8 * duration_s) - (time.monotonic() - job.began)))
        asked_at = time.monotonic()
        if control_c:
            job.type("\x03")
        else:
            os.kill(job.process.pid, signal.SIGTERM)
        status = job.wait(30)
    except Failure:
        job.end()
        raise
    ended_s = time.monotonic() - asked_at
    saved = checkpoints(where / run_dir)
    if status == 0:  # it was over before, or in its very last step: an earlier instant then
        check(saved and saved[-1] == STEPS, f"status 0, but not at the end: {saved}\n{job.output}")
        shutil.rmtree(where / run_dir)
        return stop_round(args, where, reference, number, chance, duration_s / 2)
    check(status == (130 if control_c else 143), f"status {status}:\n{job.output}")
    stopped = re.search(r"stopped after step (\d+)", job.plain)
    check(stopped and saved and int(stopped.group(1)) == saved[-1], f"saved {saved}:\n{job.output}")
    left = job.leftovers()
    check(not left, f"left behind {left}")
    resumed_from = resume_and_compare(words, where, run_dir, reference)
    shutil.rmtree(where / run_dir)
    return (f"{number:3}  {'ctrl-C' if control_c else 'SIGTERM':<8} after {asked_at - job.began:4.1f} s, status {status}, ended in {ended_s:4.1f} s, "
            f"saved and resumed from {resumed_from:3}, same bytes")  # fmt: skip


def test():
    args = arguments(__doc__, seed=int(time.time()) % 100000, rounds=20)
    print(f"--seed {args.seed}")
    chance = random.Random(args.seed)
    failures = []
    with folder() as where:
        reference, duration_s = undisturbed(args, where)
        print(f"undisturbed: {duration_s:.1f} s\n\nkill -9 of a random one of {RANKS} ranks", flush=True)
        for number in range(args.rounds):
            launcher = mpirun if number % 5 == 4 and shutil.which("mpirun") else own
            try:
                print_outcome(number, kill_round(args, where, reference, number, chance, launcher, duration_s, number % 3 == 2))
            except Failure as failure:
                failures.append(failure)
                print(f"{number:3}  FAILED: {failure}", flush=True)
        print(f"\nctrl-C and SIGTERM of {RANKS} ranks", flush=True)
        for number in range(args.rounds):
            try:
                print(stop_round(args, where, reference, number, chance, duration_s), flush=True)
            except Failure as failure:
                failures.append(failure)
                print(f"{number:3}  FAILED: {failure}", flush=True)
    print(f"\n{2 * args.rounds - len(failures)} of {2 * args.rounds} rounds went as they should")
    return 1 if failures else 0


main(test)
