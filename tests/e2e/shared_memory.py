#!/usr/bin/env python3
"""One host's shared memory with other users and containers in it: names that another user takes first, two jobs in pid
namespaces of their own that look alike in all else, and what a killed job left."""
import os
import shutil
import signal
import subprocess
import sys
import time

from harness import SKIP, TINY, Job, arguments, check, folder, in_shared_memory, losses, main, run

STEPS = 3
CONFIG = [*TINY, f"train.steps={STEPS}", "optimizer.warmup=0", "train.eval_batches=0", "data.validation=0", "checkpoint.every=0", "log.tensorboard=false"]
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
INSIDE = "SHARED_MEMORY_TEST_INSIDE"  # set where this script has a /dev/shm of its own
PORT = 29500

# What the names of older versions began with, and what may come after the names of this one.
PREDICTED = [f"trireme-0-{job}{end}" for job in ("pid1", "pid2", f"torchrun-same-{PORT}-0") for end in ("", ".building", ".comm")]
SQUATTER = """
import os, sys
os.chdir("/dev/shm")
for name in sys.argv[2:]:
    os.symlink(sys.argv[1], name)
print("ready", flush=True)
known = set()
while True:
    for name in set(os.listdir()) - known:
        known.add(name)
        for end in (".building", ".comm", ".0.0", ".1.0", ".mail0.0-1", ".mail0.1-0", ".group0.0"):
            try:
                os.close(os.open(name + end, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
                known.add(name + end)
            except OSError:
                pass
"""


def torchrun_rank(args, rank, run_dir):
    """A rank as torchrun starts it; every job of this test has the same marks."""
    marks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT,
             "TORCHELASTIC_RUN_ID": "same", "TORCHELASTIC_RESTART_COUNT": 0}  # fmt: skip
    return ["env", *[f"{name}={value}" for name, value in marks.items()], args.program, "train", *CONFIG, f"run_dir={run_dir}"]


def script(*commands):
    quoted = [" ".join(f"'{word}'" for word in command) if isinstance(command, list) else command for command in commands]
    return [*CONTAINER, "sh", "-c", "\n".join(quoted)]


def both_ranks(args, run_dir, between=""):
    """A container whose rank 1 begins once `between` is done; it ends well when both do."""
    return script(" ".join(f"'{word}'" for word in torchrun_rank(args, 0, run_dir)) + " &", between or ":",
                  torchrun_rank(args, 1, run_dir) , "second=$?; wait $! && exit $second")  # fmt: skip


def check_losses(where, run_dir, reference):
    found = losses(where / run_dir)
    check(len(found) == STEPS, f"{run_dir}: losses of {len(found)} steps")
    check(not reference or found == reference, f"{run_dir}: {found} instead of {reference}")
    return found


def names_of_another_user(args, where):
    victim = where / "victim"
    victim.write_bytes(b"untouched")
    victim.chmod(0o666)
    squatter = subprocess.Popen(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", SQUATTER,
                                 str(victim), *PREDICTED], stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        check(squatter.stdout.readline() == "ready\n", "the other user could not begin")
        own = run([*CONTAINER, args.program, "train", *CONFIG, "--ranks", 2, "run_dir=squatted-own"], where)
        by_torchrun = run(both_ranks(args, "squatted-torchrun"), where)
    finally:
        squatter.kill()
        squatter.wait()
    check(victim.read_bytes() == b"untouched", "what the other user's links pointed at was written to")
    for job in (own, by_torchrun):
        check("2 ranks by shared" in job.output, job.output)
    reference = check_losses(where, "squatted-own", None)
    check_losses(where, "squatted-torchrun", reference)
    for path in os.scandir("/dev/shm"):
        os.unlink(path)
    print("names that another user takes first: both jobs ran, and wrote to none of them")
    return reference


def side_by_side(args, where, reference):
    jobs = [Job([*CONTAINER, args.program, "train", *CONFIG, "--ranks", 2, f"run_dir=beside-{i}"], where) for i in range(2)]
    for i, job in enumerate(jobs):
        status = job.wait()
        check(status == 0, f"job {i} of two ended with status {status}:\n{job.output}")
        check_losses(where, f"beside-{i}", reference)
    check(not in_shared_memory(), f"left behind {in_shared_memory()}")
    print("two containers that number their processes alike: both jobs ended as one alone")


def one_while_another_meets(args, where, reference):
    waiting = Job(both_ranks(args, "waiting", "while [ ! -e go ]; do sleep 0.05; done"), where)
    waiting.wait_for(lambda: len(in_shared_memory()) == 2, "its first rank waited for the other one")
    before = in_shared_memory()
    run(both_ranks(args, "meanwhile"), where)
    check_losses(where, "meanwhile", reference)
    check(in_shared_memory() == before and all(before.values()), f"{in_shared_memory()} instead of {before}")
    (where / "go").touch()
    status = waiting.wait()
    check(status == 0, f"ended with status {status}:\n{waiting.output}")
    check_losses(where, "waiting", reference)
    check(not in_shared_memory(), f"left behind {in_shared_memory()}")
    print("a job whose ranks are about to meet is left alone by one with the same marks in another container")


def what_was_left(args, where, reference):
    killed = Job(script(torchrun_rank(args, 0, "killed")), where)
    killed.wait_for(lambda: len(in_shared_memory()) == 2, "its first rank waited for the other one")
    for pid in killed.processes():
        os.kill(pid, signal.SIGKILL)
    killed.wait()
    deadline = time.monotonic() + 10
    while any(in_shared_memory().values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    check(list(in_shared_memory().values()) == [False, False], f"after the kill there is {in_shared_memory()}")
    run([*CONTAINER, args.program, "train", *CONFIG, "--ranks", 2, "run_dir=next"], where)
    check_losses(where, "next", reference)
    check(not os.listdir("/dev/shm"), f"the next start left {os.listdir('/dev/shm')}")
    print("what a killed job left was swept by the next one, in another container")


def test():
    args = arguments(__doc__)
    needed = [*CONTAINER, "--mount", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "true"]
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv"))) or subprocess.run(needed, capture_output=True).returncode != 0:
        print("skipped: needs root that may make pid and mount namespaces, and become another user")
        return SKIP
    if INSIDE not in os.environ:
        words = [sys.executable, *sys.argv[:1], "--program", str(args.program)]
        mount = 'mount -t tmpfs -o mode=1777,size=1g none /dev/shm && exec "$@"'
        os.execvpe("unshare", ["unshare", "--mount", "sh", "-c", mount, "sh", *words], {**os.environ, INSIDE: "1"})
    with folder() as where:
        where.chmod(0o755)
        reference = names_of_another_user(args, where)
        side_by_side(args, where, reference)
        one_while_another_meets(args, where, reference)
        what_was_left(args, where, reference)


main(test)
