#!/usr/bin/env python3
"""Golden tests: what a person types, and what the program answers, word for word.

    tests/golden/run.py --program build/release/bin/trireme [--update] [FILE.golden …]

A file holds cases. Each runs in a fresh folder with data/text.txt and data/tokens.bin; its commands run in order:

    --- what the case shows
    $ trireme train model.layer=2
    2| error: command line: unknown key model.layer, did you mean model.layers?
    = 2

`1|` marks standard output, `2|` standard error, `=` the exit status. Commands are shell commands; $SOURCE is the
source tree. --update rewrites the files from what the program prints.
"""
import argparse
import difflib
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

# What differs from machine to machine and from run to run. Applied to both sides.
SUBSTITUTIONS = [
    (r"(loss|grad_norm) \d+\.\d+", r"\1 NUMBER"),
    (r"tps [\d.,]+", "tps RATE"),
    # Products ask for as much as suits the processor, and what is there to spare is a matter of time.
    (r", (activations|working|samples|messages|spare|other) [\d.]+ [kMG]?B", ""),
    (r"eta [\d.]+ \w+", "eta TIME"),
    (r"[\d.]+ [kMG]? ?tokens/s", "RATE tokens/s"),
    (r"--python TEXT=\S+", "--python TEXT=PYTHON"),
    (r"\(process \d+\)", "(process PID)"),
    (r"\s+[\d.]+ (us|ms|s)$", " TIME"),
    (r'"(solver_s|cpu_s)":[\d.e+-]+', r'"\1":TIME'),
    (r"rank \d: ", "rank N: "),
    (r"\d+ ranks share \d+ cores: they will take turns", "RANKS share CORES: they will take turns"),
]


def replaced(text):
    for pattern, name in SUBSTITUTIONS:
        text = re.sub(pattern, name, text)
    return text


def parse(text):
    """(heading, [(title, [(command, answer lines)])]): what stands before the first case, and the cases."""
    heading, cases = [], []
    for line in text.splitlines():
        if line.startswith("--- "):
            cases.append((line[4:], []))
        elif not cases:
            heading.append(line)
        elif line.startswith("$ "):
            cases[-1][1].append((line[2:], []))
        elif line:
            cases[-1][1][-1][1].append(line)
    return heading, cases


def fill(folder):
    """The data that every case finds: a text of 60 kB, and 1000 tokens below 500 in a file with a header."""
    data = pathlib.Path(folder, "data")
    data.mkdir()
    text = "".join(f"{number} oars keep time\n" for number in range(4000))
    data.joinpath("text.txt").write_text(text[:60000])
    header = [20240520, 1, 1000] + [0] * 253
    tokens = [number * 7 % 500 for number in range(1000)]
    data.joinpath("tokens.bin").write_bytes(struct.pack("<256i1000H", *header, *tokens))


def answer(command, folder, program):
    """What the program says, as it stands in a golden file."""
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "SOURCE": str(HERE.parent.parent), "LC_ALL": "C"}
    environment["HOME"] = os.environ.get("HOME", "/")
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    lines = [f"1| {line}".rstrip() for line in done.stdout.splitlines()]
    lines += [f"2| {line}".rstrip() for line in done.stderr.splitlines()]
    return [replaced(line.replace(folder, "FOLDER")) for line in lines] + [f"= {done.returncode}"]


def run_file(path, program, update):
    """Runs the cases of a file; the number of those that differ."""
    heading, cases = parse(path.read_text())
    written, different = list(heading), 0
    for title, commands in cases:
        found_all, expected_all = [], []
        with tempfile.TemporaryDirectory(prefix="trireme-golden-") as folder:
            fill(folder)
            for command, expected in commands:
                found_all += [f"$ {command}", *answer(command, folder, program)]
                expected_all += [f"$ {command}", *map(replaced, expected)]
        written += [f"--- {title}", *found_all, ""]
        if found_all != expected_all and not update:
            different += 1
            print(f"{path.name}: {title}")
            print("\n".join(difflib.unified_diff(expected_all, found_all, "expected", "found", lineterm="", n=100)))
    if update:
        path.write_text("\n".join(written).rstrip("\n") + "\n")
    print(f"{path.name}: {len(cases)} cases" + (f", {different} differ" if different else ", rewritten" if update else ""))
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=lambda word: pathlib.Path(word).resolve())
    parser.add_argument("--update", action="store_true", help="rewrite the files from what the program prints")
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="default: every *.golden beside this script")
    args = parser.parse_args()
    files = args.files or sorted(HERE.glob("*.golden"))
    return 1 if sum([run_file(path, args.program, args.update) for path in files]) else 0


if __name__ == "__main__":
    sys.exit(main())
