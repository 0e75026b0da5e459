#!/usr/bin/env python3
"""Sweeps of real processes: several at once, points that fail, the best one's checkpoint, ctrl-C and SIGKILL in the midst of
runs, and a resume that runs no point twice and ends with the results of a sweep that nobody disturbed."""
import json
import os
import re
import signal
import time

from harness import TINY, Job, arguments, check, checkpoints, folder, main, metrics, run

GRID = ["--grid", "optimizer.lr=1e-4,1e-2", "--grid", "model.layers=1,2"]
QUICK = [*TINY, "train.steps=20"]
SLOW = [*TINY, "train.steps=150", "model.width=64"]


def lines(sweep):
    """sweep.jsonl without its first line, by point."""
    found = [json.loads(line) for line in (sweep / "sweep.jsonl").read_text().splitlines()]
    check(found[0]["format"] == "trireme-sweep", f"sweep.jsonl begins with {found[0]}")
    return {line["point"]: line for line in found[1:]}


def started(sweep):
    return {int(path.parent.name[6:]) for path in sweep.glob("point-*/metrics.jsonl")}


def whole(args, where):
    """Four points, two at once: the table, the page, and what is kept."""
    job = run([args.program, "sweep", *QUICK, *GRID, "--ranks", 2, "--out", "grid", "--json"], where)
    result = json.loads(job.output)
    found = lines(where / "grid")
    check(result["done"] == 4 and len(found) == 4, f"not all points are done: {result}")
    order = [point["eval_loss"] for point in result["points"]]
    check(order == sorted(order) and len(set(order)) == 4, f"not sorted, or points with the same loss: {order}")
    best = result["best"]
    for number, line in found.items():
        reported = metrics(where / f"grid/point-{number}")[-1]
        check(line["eval_loss"] == reported["eval_loss"] and reported["step"] == 20, f"point {number}: {line} and {reported}")
        check(checkpoints(where / f"grid/point-{number}") == ([20] if number == best else []), f"point {number} kept others")
        config = (where / f"grid/point-{number}/config.yaml").read_text()
        check(re.search(rf"^  lr: {float(line['settings']['optimizer.lr']):g}$".replace("1e-04", "0.0001"), config, re.M), config)
        check(f"  layers: {line['settings']['model.layers']}\n" in config, config)
    run([args.program, "generate", result["checkpoint"], "--tokens", 1], where)
    page = (where / "grid/sweep.html").read_text()
    check(page.count("<svg") == 2 and page.count("<circle") == 8, "the page has not one picture a key with all points")
    job = run([args.program, "sweep", *QUICK, *GRID, "--out", "grid"], where, status=2)
    check("already holds a sweep: go on with --resume" in job.output, job.output)
    job = run([args.program, "sweep", *QUICK, "train.steps=30", *GRID, "--out", "grid", "--resume"], where, status=2)
    check("is of another sweep: its config differ" in job.output, job.output)
    # Nothing is left to do: nothing is run, and nothing changes.
    job = run([args.program, "sweep", *QUICK, *GRID, "--out", "grid", "--resume", "--json"], where)
    check(json.loads(job.output)["points"] == result["points"], job.output)
    print(f"four points: the best is {best}, and only it kept its checkpoint")


def failing(args, where):
    """A rate at which nothing is finite, and settings that do not go together: recorded, and the rest goes on."""
    words = [args.program, "sweep", *QUICK, "train.nonfinite_limit=2", "--out", "failing"]
    job = run([*words, "--grid", "optimizer.lr=1e-2,1e30", "--grid", "model.heads=4,5", "--ranks", 2], where)
    found = lines(where / "failing")
    check([found[number]["status"] for number in (1, 2, 3, 4)] == ["done", "failed", "failed", "failed"], f"{found}")
    check("must be divisible by model.heads = 5" in found[2]["error"], found[2]["error"])
    check("not finite for 3 steps in a row" in found[3]["error"], found[3]["error"])
    check("point 3 failed: step" in job.output and "best by eval_loss: point 1" in job.output, job.output)
    job = run([args.program, "sweep", *QUICK, "train.nonfinite_limit=2", "--grid", "optimizer.lr=1e30,1e31", "--out", "hopeless"], where, status=1)
    check(lines(where / "hopeless")[2]["status"] == "failed", job.output)
    job = run([args.program, "sweep", *QUICK, "data.path=nowhere.txt", *GRID, "--out", "none"], where, status=2)
    check("nowhere.txt" in job.output and not (where / "none").exists(), job.output)
    print("points that fail are recorded, and the sweep goes on")


def ranks(args, where):
    """Runs of two ranks; and a random search whose further trials change none of the first."""
    words = [args.program, "sweep", *QUICK, "--random", "optimizer.lr=log:1e-4..1e-1", "--seed", 5, "--ranks", 4,
             "--ranks-per-run", 2, "--out", "ranks", "--best", "loss"]  # fmt: skip
    run([*words, "--trials", 2], where)
    first = lines(where / "ranks")
    check("ranks: 2\n" in (where / "ranks/point-1/plan.yaml").read_text(), "a run has not two ranks")
    run([*words, "--trials", 3, "--resume"], where)
    then = lines(where / "ranks")
    check(len(then) == 3 and all(then[k]["loss"] == first[k]["loss"] for k in first), f"{first} became {then}")
    check(then[1]["settings"] != then[2]["settings"] != then[3]["settings"], f"{then}")
    print("random points on two ranks each; three trials begin with the first two")


def full_disk(args, where):
    """On a disk that is full the sweep ends by itself, says so, and leaves no process."""
    small = where / "small"
    small.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=16k none {small} 2>/dev/null") != 0:
        print("no file system of a small size can be made here: the full disk is left out")
        return
    try:
        job = Job([args.program, "sweep", *QUICK, *GRID, "--ranks", 2, "--out", "small/sweep"], where)
        status = job.wait(60)
        check(status == 1 and "disk full" in job.output, f"a full disk: status {status}:\n{job.output}")
        check(not job.leftovers(), f"a full disk left behind {job.leftovers()}")
        print("a full disk: status 1, and the reason")
    finally:
        os.system(f"umount {small}")


def interrupted(args, where, name, strike, status):
    """Strikes a sweep when a point is done and two are under way; resumed, it ends as if nothing had been."""
    words = [args.program, "sweep", *SLOW, *GRID, "--ranks", 2, "--out", name]
    job = Job(words, where, terminal=True)
    sweep = where / name
    job.wait_for(lambda: (sweep / "sweep.jsonl").exists() and len(lines(sweep)) >= 1 and len(started(sweep)) >= 3, "a point was done", 60)
    under_way = started(sweep) - set(lines(sweep))
    job.wait_for(lambda: any(len(metrics(sweep / f"point-{number}")) > 3 for number in under_way), "another had begun", 60)
    strike(job)
    found = job.wait(30)
    check(found == status, f"{name}: ended with status {found}, not {status}:\n{job.output}")
    left = job.leftovers(15)
    check(not left, f"{name} left behind {left}")
    before = lines(sweep)
    check(1 <= len(before) < 4, f"{name}: {len(before)} points were done: struck too late")
    saved = {number: checkpoints(sweep / f"point-{number}") for number in started(sweep) - set(before)}
    check(any(saved.values()), f"{name}: no run saved: {saved}")
    job = run([*words, "--resume"], where, timeout=120)
    after = lines(sweep)
    check(sorted(after) == [1, 2, 3, 4] and all(after[k] | {"checkpoint": 0} == before[k] | {"checkpoint": 0} for k in before),
          f"{name}: a point that was done has other results: {before} became {after}")  # fmt: skip
    for number, steps in saved.items():
        said = (sweep / f"point-{number}/output.txt").read_text()
        check(not steps or f"resuming after step {steps[-1]}" in said, f"{name}: point {number} did not go on:\n{said}")
    return {number: line["eval_loss"] for number, line in after.items()}


def control_c(job):
    job.type("\x03")


def kill(job):
    os.kill(job.process.pid, signal.SIGKILL)


def test():
    args = arguments(__doc__)
    with folder() as where:
        whole(args, where)
        failing(args, where)
        ranks(args, where)
        full_disk(args, where)
        run([args.program, "sweep", *SLOW, *GRID, "--ranks", 2, "--out", "undisturbed"], where, timeout=120)
        expected = {number: line["eval_loss"] for number, line in lines(where / "undisturbed").items()}
        for name, strike, status in (("control-c", control_c, 130), ("killed", kill, 137)):
            begun = time.monotonic()
            found = interrupted(args, where, name, strike, status)
            check(found == expected, f"{name}: {found}, undisturbed {expected}")
            print(f"{name}: resumed to the same results ({time.monotonic() - begun:.0f} s)")


if __name__ == "__main__":
    main(test)
