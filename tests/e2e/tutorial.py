"""Runs every command of docs/tutorial.md in a home of its own: the library is installed, programs outside of the tree are
built against it, and their losses are the same on one rank, on four, and as a pipeline."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import harness
from harness import check


def commands(page):
    for block in re.findall(r"```sh\n(.*?)```", page, re.S):
        yield from block.strip().splitlines()


def losses(text):
    return [float(value) for value in re.findall(r"loss ([0-9.]+)", text)]


def test():
    args = harness.arguments("Runs the tutorial.")
    if not shutil.which("mpirun"):
        print("skipped: there is no mpirun")
        return harness.SKIP
    build = args.program.parents[1]
    found = {}
    with tempfile.TemporaryDirectory() as home:
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith((*harness.LAUNCHER_MARKS, "LD_LIBRARY_PATH"))}
        environment |= {"HOME": home, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # fmt: skip
        for command in commands((harness.SOURCE / "docs/tutorial.md").read_text()):
            line = command.replace("build/release", str(build))
            if line.startswith("cmake --install"):  # a tree that was moved is as good
                line = line.replace("~/trireme", "~/before/trireme") + " && mv ~/before/trireme ~/trireme"
            done = subprocess.run(["bash", "-c", line], cwd=harness.SOURCE, env=environment, capture_output=True, text=True,
                                  timeout=280)  # fmt: skip
            check(done.returncode == 0, f"{command}\nended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
            found[command] = losses(done.stdout)
        saved = pathlib.Path(home) / "spirals/spirals-run/checkpoints/step-200/model.safetensors"
        check(saved.exists(), f"there is no {saved}")
    loops = [values for command, values in found.items() if command.endswith("build/spirals")]
    own = [values for command, values in found.items() if command.endswith("build/own_optimizer")]
    pipes = [values for command, values in found.items() if "build/pipeline" in command]
    check(len(loops) == 2 and len(own) == 2 and len(pipes) == 3, f"four loops and three trainers print losses: {found}")
    for group, count in ((loops, 20), (own, 20), (pipes, 4)):
        for values in group:
            check(len(values) == count, f"{count} losses, not {values}")
            check(values[-1] < 0.5 * values[0], f"it should learn: {values}")
            worst = max(abs(a - b) / b for a, b in zip(values, group[0]))
            check(worst < (1e-9 if group is own else 1e-3), f"losses are {worst} apart: {values} and {group[0]}")
    print("every command runs, and the losses of each program agree on all its ranks")


if __name__ == "__main__":
    harness.main(test)
