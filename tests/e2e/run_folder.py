#!/usr/bin/env python3
"""A run's folder belongs to one run while it lives: a second one is refused with the process and host of the first, whether
it begins anew, resumes or only asks (--dry-run); once the first is killed, --resume works at once. Who reads may come in.
log.txt holds all that was said, with times, and how it ended."""
import json
import os
import re
import shutil
import signal
import socket

from harness import MPIRUN, TINY, Job, check, checkpoints, arguments, folder, main, run

CONFIG = [*TINY, "model.width=64", "model.context=128", "train.steps=2000", "checkpoint.every=5", "checkpoint.keep=100", "log.every=1"]
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  "


def log_of(run_dir, name="log.txt"):
    """The lines of log.txt without their times, all of which must be there."""
    lines = (run_dir / name).read_text().splitlines()
    for line in lines:
        check(re.match(STAMP, line), f"a line of {run_dir / name} has no time: {line!r}")
    return [re.sub(STAMP, "", line, count=1) for line in lines]


def check_log(run_dir, job, status, *more):
    """All that the job said stands in the log, and more."""
    log = log_of(run_dir)
    printed = [line for line in job.output.splitlines() if not line.startswith("run folder: ") and not line.startswith("{")]
    for line in printed:
        check(line in log, f"the job said {line!r}, log.txt did not:\n" + "\n".join(log))
    for part in (f"{socket.gethostname()}", "trireme train", "run folder: ", *more):
        check(any(part in line for line in log), f"{part!r} is not in log.txt:\n" + "\n".join(log))
    check(log[-1] == f"ended with exit status {status}", f"the last line of log.txt is {log[-1]!r}")


def refused(args, where, pid, *words):
    """A second run: refused with the first one's process and host, and without a trace."""
    job = run([args.program, "train", *CONFIG, *words], where, status=2)
    named = re.search(r"error: .*the-run is in use by process (\d+) on host (\S+), since", job.output)
    check(named and named.group(2) == socket.gethostname(), f"it does not say who is there:\n{job.output}")
    check(int(named.group(1)) == pid, f"it names process {named.group(1)}, not {pid}:\n{job.output}")


def two_runs(args, where, ranks, launcher=None):
    """The second is refused while the first lives; after kill -9 of the first, its run goes on at once."""
    run_dir = where / "the-run"
    words = [args.program, "train", *CONFIG, "run_dir=the-run"]
    first = Job([*launcher, *words] if launcher else [*words, "--ranks", ranks], where)
    try:
        first.wait_for(lambda: len(checkpoints(run_dir)) >= 2, "two checkpoints were saved")
        pid = first.ranks()[0] if ranks > 1 else first.process.pid
        config = (run_dir / "config.yaml").stat().st_mtime_ns
        refused(args, where, pid, "run_dir=the-run", "--resume")
        if ranks == 1:
            refused(args, where, pid, "run_dir=the-run")
            refused(args, where, pid, "--from", "the-run", "--ranks", 2)
            refused(args, where, pid, "run_dir=the-run", "--dry-run")
            run([args.program, "generate", "the-run", "--tokens", 1], where)
            run([args.program, "average", "averaged", f"the-run/checkpoints/step-{checkpoints(run_dir)[-1]}"], where)
        check((run_dir / "config.yaml").stat().st_mtime_ns == config, "a refused run wrote into the folder")
        check(first.process.poll() is None, f"the first run did not live through it:\n{first.output}")
        for victim in (first.ranks().values() if ranks > 1 else [pid]):
            os.kill(victim, signal.SIGKILL)
        first.wait(20)
    finally:
        first.end()
    saved = checkpoints(run_dir)[-1]
    resumed = run([args.program, "train", *CONFIG, "run_dir=the-run", "--resume", f"train.steps={saved + 3}", "--ranks", ranks], where)
    check(f"resuming after step {saved}" in resumed.output, resumed.output)
    check_log(run_dir, resumed, 0, f"trained {saved + 3} steps", f"step {saved + 1}/{saved + 3}  loss", f"train.steps={saved + 3}")
    check(sum("command line: " in line for line in log_of(run_dir)) == 2, "the log of the first run was not kept")
    shutil.rmtree(run_dir)
    print(f"{ranks} rank(s){' under mpirun' if launcher else ''}: a second run was refused, and the resume took the folder over from process {pid}")


def asked_to_stop(args, where, ranks):
    """What was heard and what was done about it stands in the log."""
    run_dir = where / f"stopped-{ranks}"
    job = Job([args.program, "train", *CONFIG, f"run_dir={run_dir.name}", "--ranks", ranks], where)
    job.wait_for_step(3)
    job.process.send_signal(signal.SIGTERM)
    check(job.wait() == 143, job.output)
    check_log(run_dir, job, 143, "ending this step and saving a checkpoint", "stopped after step")
    check(ranks == 1 or "starting 2 ranks on this host" in log_of(run_dir), "the launcher's words are missing")
    # On a terminal the steps are one line that is drawn again and again, and with --json there are none: not so in the log.
    for number, (words, terminal) in enumerate(((["--json"], False), ([], True))):
        shown = Job([args.program, "train", *CONFIG, f"run_dir=shown-{ranks}-{number}", "--ranks", ranks, "train.steps=5", *words], where, terminal=terminal)
        check(shown.wait() == 0, shown.output)
        log = log_of(where / f"shown-{ranks}-{number}")
        for step in range(1, 6):
            check(any(line.startswith(f"step {step}/5  loss") for line in log), f"step {step} is not in the log:\n" + "\n".join(log))
        if words:
            check(json.loads(shown.output.splitlines()[-1])["steps"] == 5, shown.output)
    print(f"{ranks} rank(s): SIGTERM and the result stand in log.txt")


def failed(args, where):
    """The error of a rank, and the exit status: once, by our launcher or, under another one, by the first rank."""
    words = [args.program, "train", *CONFIG, "optimizer.lr=1e30", "optimizer.warmup=0", "optimizer.clip=0", "train.nonfinite_limit=0"]
    job = run([*words, "run_dir=failed", "--ranks", 2], where, status=1)
    check_log(where / "failed", job, 1, "error: ")
    if shutil.which("mpirun"):
        run([*MPIRUN, "-np", 2, *words, "run_dir=failed-under-mpirun"], where, status=1)
        check("ended with exit status 1" in log_of(where / "failed-under-mpirun"), "the log does not tell the exit status")
    for run_dir in where.glob("failed*"):
        ends = [line for line in log_of(run_dir) if line.startswith("ended with")]
        check(len(ends) == 1, f"{run_dir.name}: {ends}")
    print("an error and the exit status stand in log.txt")


def sweeps(args, where):
    """A sweep has its folder to itself too."""
    words = [args.program, "sweep", *CONFIG, "--grid", "optimizer.lr=1e-3,2e-3", "--out", "swept"]
    first = Job(words, where)
    try:
        first.wait_for(lambda: checkpoints(where / "swept/point-1"), "its first run had saved")
        for more in ([], ["--resume"]):
            second = run([*words, *more], where, status=2)
            check(f"swept is in use by process {first.process.pid} on host {socket.gethostname()}" in second.output, second.output)
        first.process.send_signal(signal.SIGTERM)
        check(first.wait() == 143, first.output)
    finally:
        first.end()
    print("a second sweep was refused")


def test():
    args = arguments(__doc__)
    with folder() as where:
        two_runs(args, where, 1)
        two_runs(args, where, 2)
        if shutil.which("mpirun"):
            two_runs(args, where, 2, [*MPIRUN, "-np", 2])
        else:
            print("no mpirun here: its case is left out")
        asked_to_stop(args, where, 1)
        asked_to_stop(args, where, 2)
        failed(args, where)
        sweeps(args, where)


main(test)
