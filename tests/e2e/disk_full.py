#!/usr/bin/env python3
"""A disk that fills up while a checkpoint is written: training goes on and says so, and the older checkpoint is whole."""
import pathlib
import subprocess

from harness import SKIP, TINY, arguments, being_saved, check, checkpoints, folder, losses, main, run

STEPS = 30
CONFIG = [*TINY, f"train.steps={STEPS}", "checkpoint.every=10", "checkpoint.keep=5"]
ROOM = "900k"  # two checkpoints of some 400 kB, not three


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
            for ranks in (1, 2):
                run_dir = disk / f"run-{ranks}"
                job = run([args.program, "train", *CONFIG, f"run_dir={run_dir}", "--ranks", ranks], where)
                saved = checkpoints(run_dir)
                check(saved and saved[-1] < STEPS, f"the disk was meant to fill up; saved: {saved}\n{job.output}")
                said = [line for line in job.output.splitlines() if "was not saved" in line]
                check(said and all("disk full" in line for line in said), f"it does not say that the disk is full:\n{job.output}")
                check(f"trained {STEPS} steps" in job.output, job.output)
                check(f"checkpoint: {run_dir}/checkpoints/step-{saved[-1]}" in job.output, job.output)
                check(not being_saved(run_dir), "half of a checkpoint stays on the full disk")
                check(len(losses(run_dir)) >= saved[-1], f"metrics.jsonl tells of {len(losses(run_dir))} steps")
                run([args.program, "generate", run_dir, "--tokens", 1], where)  # checks the bytes of the newest
                print(f"{ranks} rank(s): saved {saved}; {said[0]}")
                # Room again: the run goes on from what was saved.
                for old in saved[:-1]:
                    subprocess.run(["rm", "-r", run_dir / f"checkpoints/step-{old}"], check=True)
                run([args.program, "train", *CONFIG, f"run_dir={run_dir}", "--ranks", ranks, "--resume", "checkpoint.every=0"], where)
                check(checkpoints(run_dir)[-1] == STEPS, f"resumed where there is room: {checkpoints(run_dir)}")
                subprocess.run(["rm", "-r", run_dir], check=True)
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)


main(test)
