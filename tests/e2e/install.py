"""An installed tree works where it is moved to, without any help from the environment: the program starts and trains, finds
what it needs besides, find_package finds the library, and only headers that users are meant to see are there. (tutorial.py
builds and runs programs on a tree that was moved.)

By hand, in minutes: --every-header compiles each installed header by itself."""
import os
import re
import shutil
import subprocess

import harness
from harness import SOURCE, check, folder


def output(words, where, status=0, environment=None):
    done = subprocess.run([str(word) for word in words], cwd=where, env=environment or harness.clean_environment(),
                          capture_output=True, text=True, timeout=280)  # fmt: skip
    check(done.returncode == status, f"{' '.join(map(str, words))}\nended with {done.returncode}, not {status}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def reached_headers():
    """trireme/trireme.h and all of ours that it includes, as the source tree has them; version.h is made."""
    reached, awaited = {"trireme/version.h"}, ["trireme/trireme.h"]
    while awaited:
        header = awaited.pop()
        if header not in reached:
            reached.add(header)
            awaited += re.findall(r'^#include "(trireme/[^"]+)"', (SOURCE / header).read_text(), re.M)
    return reached


def check_headers(tree, build, every):
    include = tree / "include"
    found = {str(path.relative_to(include)) for path in include.rglob("*") if path.is_file()}
    check(found == reached_headers(), f"installed headers differ from those that trireme.h reaches: {found ^ reached_headers()}")
    if not every:
        return
    # As a user's program compiles them: its own command, with another file.
    [command] = [line for line in (build / "compile_commands.json").read_text().splitlines() if '"command"' in line and "own_optimizer" in line]
    flags = re.search(r'"command": "(.*)"', command).group(1).split(" -o ")[0].split()
    for header in sorted(found):
        output([*flags, "-fsyntax-only", "-x", "c++", include / header], tree)
        print(f"{header} compiles by itself")


def check_program(tree, where, version):
    program = tree / "bin/trireme"
    dynamic = output(["readelf", "-d", program], where)
    check("$ORIGIN/../lib" in dynamic, f"the program does not look for its own files where it lies:\n{dynamic}")
    check(output([program, "--version"], where).strip() == f"trireme {version}", "another version")
    harness.run([program, "train", tree / "share/trireme/examples/tiny.yaml", "train.steps=2", "optimizer.warmup=0", "run_dir=run", "--ranks", "2"], where)
    check(len(harness.losses(where / "run")) == 2, "two steps leave two losses")
    output([tree / "share/trireme/tools/hosts.sh", "nothing"], where, status=2)


def check_library(tree, where, version):
    shutil.copytree(SOURCE / "examples/library", where / "spirals")
    build = where / "spirals/build"
    output(["cmake", "-S", where / "spirals", "-B", build, f"-DCMAKE_PREFIX_PATH={tree}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], where)
    cache = (build / "CMakeCache.txt").read_text()
    check(f"Trireme_DIR:PATH={tree}/lib/cmake/Trireme" in cache, "find_package found another Trireme")
    # A program for a later version is told at configure time.
    (where / "spirals/CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(later LANGUAGES CXX)\nfind_package(Trireme 9.9 REQUIRED)\n")
    told = output(["cmake", "-S", where / "spirals", "-B", where / "later", f"-DCMAKE_PREFIX_PATH={tree}"], where, status=1)
    check(f"version: {version}" in told, f"the version that is there is not said:\n{told}")
    return build


def test():
    args = harness.arguments(__doc__, every_header=0)
    version = re.search(r"project\(Trireme VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
    os.environ.pop("LD_LIBRARY_PATH", None)
    with folder() as where:
        output(["cmake", "--install", args.program.parents[1], "--prefix", where / "first/place"], where)
        tree = where / "moved"
        (where / "first/place").rename(tree)
        check_program(tree, where, version)
        build = check_library(tree, where, version)
        check_headers(tree, build, args.every_header)
    print("the installed tree works where it was moved to")


if __name__ == "__main__":
    harness.main(test)
