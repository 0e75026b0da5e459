#!/usr/bin/env python3
"""Puts faults into lines that changed, one at a time, and says which of them the tests catch.

    tests/faults.py --since COMMIT [--seed 1] [--count 40] [--build build/release] [--list] [--only 3,17]

A fault is a small change that compiles: a comparison turned round, a condition negated, a statement left out, a number
one off. The draw depends on the seed and on the lines alone. A fault counts as caught when a test fails, hangs or
crashes; those of the file's own room run first, then all others. By hand: it takes minutes a fault. Sources are put
back at the end, also after ctrl-C; what the tree held before must be committed.
"""
import argparse
import pathlib
import random
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SWAPS = [
    (r" == ", " != "), (r" != ", " == "), (r" < ", " <= "), (r" > ", " >= "), (r" <= ", " < "), (r" >= ", " > "),
    (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "), (r" \* ", " + "), (r" / ", " * "),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"\bstd::min\b", "std::max"), (r"\bstd::max\b", "std::min"),
    (r"\+\+", "--"), (r" \+= ", " -= "), (r" -= ", " += "),
]


def sh(*words, **more):
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, **more)


def changed_lines(since):
    """(path, line number, text) of lines of ours that differ from the commit."""
    found, path, number = [], None, 0
    diff = sh("git", "diff", "-U0", since, "--", "trireme/*.cpp", "trireme/*.h").stdout
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line[6:] if line.startswith("+++ b/") else None
        elif line.startswith("@@"):
            number = int(re.search(r"\+(\d+)", line).group(1))
        elif line.startswith("+") and path:
            found.append((path, number, line[1:]))
            number += 1
    return found


def without_text(line):
    """The line with its strings and comment blanked, so that no fault changes words only."""
    line = re.sub(r'"(\\.|[^"\\])*"', lambda match: '"' + " " * (len(match.group()) - 2) + '"', line)
    return re.sub(r"//.*", lambda match: " " * len(match.group()), line)


def closing(code, begin):
    """Where the parenthesis that was opened before `begin` closes; None where another line has it."""
    depth = 1
    for place in range(begin, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place
    return None


def faults_of(line):
    """All changed forms of a line."""
    code = without_text(line)
    if not code.strip() or code.lstrip().startswith(("#", "*", "using ", "namespace ", "template", "static_assert")):
        return []
    forms = []
    for pattern, other in SWAPS:
        for match in re.finditer(pattern, code):
            forms.append(line[:match.start()] + other + line[match.end():])
    for match in re.finditer(r"(?<![\w.'])(\d+)(?![\w.'])", code):
        forms.append(line[:match.start()] + str(int(match.group()) + 1) + line[match.end():])
    condition = re.match(r"\s*(?:\} else )?(?:if|while) \(", code)
    end = closing(code, condition.end()) if condition else None
    if end is not None and ";" not in code[condition.end():end]:
        forms.append(line[:condition.end()] + "!(" + line[condition.end():end] + ")" + line[end:])
    if re.match(r"\s*[\w.>\-\[\]]+(\(.*\)| [+\-*/|&]?= .*);\s*$", code) and not re.match(r"\s*(return|const|auto|throw)\b", code):
        forms.append(re.match(r"\s*", line).group() + ";")
    return forms


def draw(since, seed, count):
    """Lines first, so that a long line is not drawn more often; spares follow, for faults that do not compile."""
    stream = random.Random(seed)
    lines = [one for one in changed_lines(since) if faults_of(one[2])]
    stream.shuffle(lines)
    return [(path, number, text, stream.choice(faults_of(text))) for path, number, text in lines[:3 * count]]


def test_steps(build, path):
    room = path.split("/")[1]
    ctest = ["ctest", "--test-dir", build, "--stop-on-failure", "--timeout", "180", "-j", "2"]
    own = ctest + ["-R", rf"^(unit|e2e)\.{room}$"]
    slow = "^unit.train$"
    return [own, ctest + ["-L", "unit|golden|mpi", "-E", slow], ctest + ["-R", slow], ctest + ["-L", "e2e"]]


def verdict(build, path):
    """What became of the fault that is in the tree now."""
    made = sh("cmake", "--build", build, "-j", "2")
    if made.returncode != 0:
        return "does not compile"
    for step in test_steps(build, path):
        ran = sh(*step)
        if ran.returncode != 0 and "No tests were found" not in ran.stdout + ran.stderr:
            failed = re.findall(r"\d+ - (\S+) \(", ran.stdout)
            return "caught by " + ", ".join(failed[:3])
    return "SURVIVED"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", type=lambda text: {int(one) for one in text.split(",")})
    options = parser.parse_args()
    if sh("git", "status", "--porcelain", "--untracked-files=no").stdout:
        sys.exit("faults: commit or put away your changes first: the tree is changed and put back")
    counted = caught = 0
    for index, (path, number, text, fault) in enumerate(draw(options.since, options.seed, options.count)):
        if options.only and index not in options.only:
            continue
        print(f"{index}: {path}:{number}\n  - {text.strip()}\n  + {fault.strip()}", flush=True)
        if options.list:
            continue
        file = ROOT / path
        before, begun = file.read_text(), time.time()
        lines = before.split("\n")
        assert lines[number - 1] == text, f"{path}:{number} is another line"
        lines[number - 1] = fault
        try:
            file.write_text("\n".join(lines))
            result = verdict(options.build, path)
        finally:
            file.write_text(before)
        print(f"  {result} ({time.time() - begun:.0f} s)", flush=True)
        if result == "does not compile":
            continue
        counted += 1
        caught += result != "SURVIVED"
        if counted == options.count:
            break
    print(f"{caught} of {counted} faults were caught")


if __name__ == "__main__":
    main()
