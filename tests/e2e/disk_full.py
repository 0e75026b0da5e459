#!/usr/bin/env python3
"""A disk that fills up while a checkpoint is written: training goes on and says so, and the older checkpoint is whole. But
a run whose last state could not be saved has failed: it ends with 1 and says which steps are lost and what there is to go
on from, also when it was asked to stop. What surely does not fit is refused before."""
import contextlib
import re
import signal
import subprocess

from harness import SKIP, TINY, Job, arguments, being_saved, check, checkpoints, folder, losses, main, run

STEPS = 30
CONFIG = [*TINY, f"train.steps={STEPS}", "checkpoint.every=10", "checkpoint.keep=5"]
ROOM = "900k"  # two checkpoints of some 400 kB, not three


def words_of(args, ranks, run_dir):
    return [args.program, "train", *CONFIG, f"run_dir={run_dir}", "--ranks", ranks]


def check_loss(job, run_dir, begun, ended):
    """The last line says what was lost, and what is the newest whole checkpoint."""
    saved = checkpoints(run_dir)
    last = job.output.splitlines()[-1]
    steps = rf"steps {saved[-1] + 1} to {ended} are" if ended > saved[-1] + 1 else f"step {ended} is"
    wanted = (rf"error: (rank \d+: )?the last checkpoint, of step {ended}, was not saved: .*disk full.*\. {steps} lost; "
              rf"the newest whole checkpoint is {re.escape(str(run_dir))}/checkpoints/step-{saved[-1]}: --resume goes on from it")  # fmt: skip
    check(re.fullmatch(wanted, last), f"the last line does not say what is lost:\n{last}\nwanted: {wanted}\n{job.output}")
    check(not being_saved(run_dir), "half of a checkpoint stays on the full disk")
    return saved


def fills_up(args, where, disk, ranks):
    run_dir = disk / f"run-{ranks}"
    words = words_of(args, ranks, run_dir)
    job = run(words, where, status=1)
    check(f"warning: the checkpoints do not fit: with checkpoint.keep = 5" in job.output, f"it began without a warning:\n{job.output}")
    saved = check_loss(job, run_dir, 0, STEPS)
    check(saved[-1] < STEPS and len(losses(run_dir)) >= saved[-1], f"metrics.jsonl tells of {len(losses(run_dir))} steps")
    run([args.program, "generate", run_dir, "--tokens", 1], where)  # checks the bytes of the newest
    print(f"{ranks} rank(s): saved {saved}; {job.output.splitlines()[-1]}")
    # Still no room: a resumed run that can save nothing is refused before it loses more.
    refused = run([*words, "--resume"], where, status=2)
    check("not even one checkpoint fits" in refused.output, refused.output)
    # Room again: the run goes on from what was saved.
    for old in saved[:-1]:
        subprocess.run(["rm", "-r", run_dir / f"checkpoints/step-{old}"], check=True)
    run([*words, "--resume", "checkpoint.every=0"], where)
    check(checkpoints(run_dir)[-1] == STEPS, f"resumed where there is room: {checkpoints(run_dir)}")
    subprocess.run(["rm", "-r", run_dir], check=True)


def stopped(args, where, disk, ranks):
    """Asked to stop, with no room for the checkpoint that this asks for: a failure, not a stop."""
    run_dir = disk / f"stopped-{ranks}"
    filler = disk / "filler"
    filler.touch()
    job = Job([*words_of(args, ranks, run_dir), "train.steps=100000", "checkpoint.keep=1", "log.every=1"], where)
    try:
        job.wait_for(lambda: checkpoints(run_dir), "a first checkpoint")
        with open(filler, "wb", buffering=0) as file:  # takes all that is left, also what a save gives back

            def fill():
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(4096))
                return "was not saved" in job.output

            job.wait_for(fill, "a save had failed")
        job.process.send_signal(signal.SIGTERM)
        status = job.wait()
    finally:
        job.end()
    check(status == 1, f"ended with status {status}:\n{job.output}")
    ended = int(re.findall(r"the last checkpoint, of step (\d+)", job.output)[-1])
    check_loss(job, run_dir, 0, ended)
    filler.unlink()
    print(f"{ranks} rank(s), asked to stop: {job.output.splitlines()[-1]}")
    subprocess.run(["rm", "-r", run_dir], check=True)


def refused(args, where, disk):
    """Before anything is lost: by --dry-run where all would not fit, by a run where not even one would."""
    for words in ([], ["--ranks", 2]):
        dry = run([args.program, "train", *CONFIG, f"run_dir={disk / 'dry'}", "--dry-run", *words], where, status=2)
        check(re.search(r"error: the checkpoints do not fit: with checkpoint.keep = 5 .* has .* free", dry.output), dry.output)
        run([args.program, "train", *CONFIG, f"run_dir={disk / 'dry'}", "--dry-run", "checkpoint.every=0", *words], where)
        large = run([args.program, "train", *CONFIG, f"run_dir={disk / 'large'}", "model.width=256", *words], where, status=2)
        check("not even one checkpoint fits: it takes " in large.output, large.output)
        check("step 1/" not in large.output, f"it was refused after it had begun:\n{large.output}")
    left = [path.name for path in disk.iterdir()]
    check(not left, f"refused runs left {left}")
    print("what does not fit is refused")


def test():
    args = arguments(__doc__)
    with folder() as where:
        disk = where / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "trireme-test", disk], capture_output=True, text=True)
        if mounted.returncode != 0:
            print(f"skipped: a small file system cannot be mounted here ({mounted.stderr.strip()})")
            return SKIP
        try:
            refused(args, where, disk)
            for ranks in (1, 2):
                fills_up(args, where, disk, ranks)
                stopped(args, where, disk, ranks)
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)


main(test)
