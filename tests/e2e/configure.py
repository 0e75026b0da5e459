"""A machine that lacks a part loses the tests that need it and no others, and configure says which. Without LibTorch, which
has nothing to do with it."""
import subprocess

import harness
from harness import SOURCE, check, folder

NEEDS = {"RAPIDCHECK": ("librapidcheck-dev", {"properties_test.cpp", "clp_properties_test.cpp"}),
         "CLP": ("coinor-libclp-dev", {"clp_test.cpp", "clp_properties_test.cpp"})}  # fmt: skip


def configure(where, lacking):
    words = ["cmake", "-S", SOURCE, "-B", where, "-G", "Ninja", "-DTRIREME_TORCH=OFF"]
    words += [f"-DTRIREME_{part}_INCLUDE:STRING=OFF" for part in lacking]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    check(done.returncode == 0, done.stdout + done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("-- Trireme: without the tests ")]
    check(len(lines) <= 1, f"more than one line: {lines}")
    return lines[0] if lines else "", (where / "build.ninja").read_text()


def test():
    harness.arguments(__doc__)
    tests = {path.name for path in (SOURCE / "tests/fleet").glob("*_test.cpp")}
    with folder() as where:
        line, _ = configure(where / "all", [])
        if "fleet/" in line:
            print(f"skipped: this machine lacks a part itself ({line})")
            return harness.SKIP
        for lacking in (["RAPIDCHECK"], ["CLP"], ["RAPIDCHECK", "CLP"]):
            line, build = configure(where / "-".join(lacking), lacking)
            left_out = set().union(*(NEEDS[part][1] for part in lacking))
            for name in tests:
                check((f"test_fleet.dir/fleet/{name}.o:" in build) == (name not in left_out), f"without {lacking}: is {name} built? {line}")
                packages = [NEEDS[part][0] for part in sorted(lacking, key=list(NEEDS)[::-1].index) if name in NEEDS[part][1]]
                said = f"fleet/{name} (install {' '.join(packages)})"
                check((said in line) == (name in left_out), f"without {lacking}, {said!r} is said wrongly: {line}")
    print("tests that need a missing part are left out, said and nothing else is")


if __name__ == "__main__":
    harness.main(test)
