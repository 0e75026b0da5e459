#!/usr/bin/env python3
"""kill -9 of any rank at any instant: the others end within ten seconds and say who died doing what, nothing is left
behind, and --resume ends with the very bytes of a run that nobody disturbed."""
import contextlib
import dataclasses
import os
import random
import re
import shutil
import signal
import time

from harness import MPIRUN, TINY, Job, Failure, arguments, being_saved, check, checkpoints, final_bytes, folder, main, run

STEPS = 40
RANKS = 3
PATIENCE_S = 10  # from the kill to the end of everything
# Steps of some 50 ms, and saves that take a quarter of a second of the background: a random instant often falls into one.
CONFIG = [*TINY, "model.width=64", "model.context=128", f"train.steps={STEPS}", "checkpoint.every=5", "checkpoint.rate_mb=6",
          "log.every=1"]  # fmt: skip


@dataclasses.dataclass
class Outcome:
    """A line of the table that the soak prints."""

    how: str
    rank: int
    after_s: float
    ended_s: float
    resumed_from: int
    said: str


def own(args, words):
    return [args.program, "train", *CONFIG, *words, "--ranks", RANKS]


def own_mpirun(args, words):
    return [*own(args, words), "comm.transport=mpi"]


def mpirun(args, words):
    return [*MPIRUN, "-np", RANKS, args.program, "train", *CONFIG, *words]


def undisturbed(args, where, launcher=own):
    """(bytes of the final model, seconds that the run took)"""
    begun = time.monotonic()
    run_dir = f"undisturbed-{launcher.__name__}"
    run(launcher(args, [f"run_dir={run_dir}"]), where)
    return final_bytes(where / run_dir, STEPS), time.monotonic() - begun


def resume_and_compare(words, where, run_dir, reference, environment=None):
    """Continues a run that was cut off; the step that it went on from (0: there was no checkpoint yet)."""
    saved = checkpoints(where / run_dir)
    run([*words, "--resume"] if saved else words, where, environment=environment)
    check(final_bytes(where / run_dir, STEPS) == reference, f"{run_dir}: the resumed run ended with other bytes (from step {saved[-1:]})")
    return saved[-1] if saved else 0


def kill_round(args, where, reference, number, chance, launcher, duration_s, during_save):
    """One kill, the checks, and the resumed run."""
    run_dir = f"killed-{number}"
    words = launcher(args, [f"run_dir={run_dir}"])
    job = Job([*words, "checkpoint.rate_mb=0.5"] if during_save else words, where)  # at that rate a save takes seconds
    try:
        job.wait_for_ranks(RANKS)
        if during_save:
            job.wait_for(lambda: checkpoints(where / run_dir) and being_saved(where / run_dir), "a second checkpoint was being written")
            time.sleep(chance.uniform(0, 0.5))
        else:
            time.sleep(max(0, chance.uniform(0, duration_s) - (time.monotonic() - job.began)))
        ranks = job.ranks()
        if len(ranks) < RANKS:  # it was over before: an earlier instant then
            job.wait()
            shutil.rmtree(where / run_dir)
            return kill_round(args, where, reference, number, chance, launcher, duration_s / 2, during_save)
        victim = chance.choice(sorted(ranks))
        had_begun = "step 1/" in job.output
        killed_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # it ended of itself in this very moment
            os.kill(ranks[victim], signal.SIGKILL)
        status = job.wait(PATIENCE_S + 5)
        left = job.leftovers(max(0.1, PATIENCE_S - (time.monotonic() - killed_at)))
        ended_s = time.monotonic() - killed_at
    except Failure:
        job.end()
        raise
    # Where no launcher of ours looks after the ranks, what they were about to share when they were killed before they had
    # met is left to the next start.
    unmet = launcher is mpirun and not had_begun
    for_next_start = job.left_in_shared_memory() if unmet else []
    left = [one for one in left if one not in for_next_start]
    check(not left, f"{left} left behind {PATIENCE_S} s after the kill:\n{job.output}")
    check(ended_s <= PATIENCE_S, f"the job ended {ended_s:.1f} s after the kill:\n{job.output}")
    finished = f"trained {STEPS} steps" in job.output  # the kill fell into the last milliseconds
    check(status != 0 or finished, f"a killed job ended with status 0:\n{job.output}")
    named = re.search(rf"error: .*rank {victim} \(process {ranks[victim]}\) (.*)\. The job ends", job.output)
    # Before the ranks have met nobody but mpirun itself can know.
    early = rf"process rank {victim} .*exited on signal 9|mpirun ended with status 137: a rank was killed by signal 9"
    by_mpirun = re.search(early, job.output) if launcher is not own and not had_begun else None
    check(named or by_mpirun or finished, f"the message does not name rank {victim}:\n{job.output}")
    said = named.group(1) if named else by_mpirun.group(0) if by_mpirun else "finished"
    check(not named or "its last operation: " in said, f"no last operation: {said}")
    resumed_from = resume_and_compare(words, where, run_dir, reference)
    check(not job.left_in_shared_memory(), f"the next start left {job.left_in_shared_memory()} of the killed job")
    shutil.rmtree(where / run_dir)
    how = launcher.__name__.replace("_", " ") + (", saving" if during_save else "")
    return Outcome(how, victim, killed_at - job.began, ended_s, resumed_from, said)


def print_outcome(number, outcome):
    print(f"{number:3}  {outcome.how:<20} rank {outcome.rank} after {outcome.after_s:4.1f} s, ended in {outcome.ended_s:4.1f} s, "
          f"resumed from {outcome.resumed_from:3}, same bytes; {outcome.said}", flush=True)  # fmt: skip


def test():
    args = arguments(__doc__, seed=int(time.time()) % 100000)
    print(f"--seed {args.seed}")
    chance = random.Random(args.seed)
    kinds = [(own, False), (own, True)]
    if shutil.which("mpirun"):
        kinds += [(mpirun, False), (mpirun, True), (own_mpirun, False)]
    else:
        print("no mpirun here: its cases are left out")
    with folder() as where:
        references = {}
        for number, (launcher, during_save) in enumerate(kinds):
            # MPI adds in another order than shared memory does: other last bits.
            wire = own_mpirun if launcher is own_mpirun else own
            if wire not in references:
                references[wire] = undisturbed(args, where, wire)
            reference, duration_s = references[wire]
            print_outcome(number, kill_round(args, where, reference, number, chance, launcher, duration_s, during_save))


if __name__ == "__main__":
    main(test)
