#!/usr/bin/env python3
"""Progress: one line that is redrawn on a terminal, without colour where NO_COLOR is set, and plain lines in a pipe."""
import re
import shutil

from harness import TINY, Job, arguments, check, folder, main, run

STEPS = 40
CONFIG = [*TINY, "model.width=64", "model.context=128", f"train.steps={STEPS}", "log.every=10"]
COLOUR = re.compile(r"\x1b\[\d+m")
STEP = re.compile(r"step\S* (\d+)/")


def on_terminal(args, where, environment, more=()):
    job = Job([args.program, "train", *CONFIG, "--ranks", 2, *more], where, environment={"TERM": "xterm", **environment}, terminal=True)
    status = job.wait(40)
    check(status == 0, f"status {status}:\n{job.output}")
    return job.output


def test():
    args = arguments(__doc__)
    with folder() as where:
        def check_live(name, output):
            # A warning, such as one of a slow rank, takes the line's place, and the line is drawn again below it.
            lines = [line for line in output.split("\n") if STEP.search(COLOUR.sub("", line))]
            left = [line for line in lines if STEP.search(COLOUR.sub("", line.rstrip("\r").split("\r")[-1]))]
            check(len(left) == 1, f"{name}: {len(left)} lines of steps where one is redrawn:\n{output!r}")
            drawn = [int(step) for line in lines for step in STEP.findall(COLOUR.sub("", line))]
            draws = sum(line.count("\r") for line in lines)
            check(draws >= 3 and drawn == sorted(drawn) and drawn[-1] == STEPS, f"{name}: drawn {drawn}:\n{output!r}")
            check(all(word in "".join(lines) for word in ("loss", "eta", "tps", "[")), f"{name}: what a line shows:\n{output!r}")
            print(f"{name}: one line, drawn {len(drawn)} times")

        output = on_terminal(args, where, {})
        check_live("terminal", output)
        check(COLOUR.search(output), f"no colour on a terminal:\n{output!r}")
        output = on_terminal(args, where, {"NO_COLOR": "1"})
        check_live("NO_COLOR", output)
        check(not COLOUR.search(output), f"colour in spite of NO_COLOR:\n{output!r}")
        if shutil.which("mpirun"):
            check_live("terminal over our own mpirun", on_terminal(args, where, {}, ["comm.transport=mpi"]))

        output = on_terminal(args, where, {"TERM": "dumb"})
        check("\x1b" not in output and STEP.findall(output) == ["1", "10", "20", "30", "40"], f"a dumb terminal:\n{output!r}")
        output = run([args.program, "train", *CONFIG, "--ranks", 2], where).output
        check("\x1b" not in output and "\r" not in output, f"control characters in a pipe:\n{output!r}")
        check(STEP.findall(output) == ["1", "10", "20", "30", "40"], f"lines in a pipe:\n{output}")
        print("pipe: plain lines")
        output = run([args.program, "train", *CONFIG, "--ranks", 2, "--json"], where).output
        check(not STEP.search(output), f"progress in spite of --json:\n{output}")


main(test)
