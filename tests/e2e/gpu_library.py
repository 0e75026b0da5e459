#!/usr/bin/env python3
"""A program of one's own on a card: built against the installed library, its losses are those of the CPU, on one rank and
on several that share the card, by DataParallel and by Trainer, in replicas and in stages."""
import json
import re
import shutil
import subprocess

from harness import MPIRUN, SKIP, SOURCE, arguments, check, folder, main


def losses(where, ranks, *words):
    command = [*(MPIRUN + ["-np", str(ranks)] if ranks > 1 else []), where / "build/normed", *words]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=120)
    check(done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stderr}")
    return [float(value) for value in re.findall(r"^loss (.*)$", done.stdout, re.MULTILINE)]


def build(where, program):
    for command in (["cmake", "--install", program.parent.parent, "--prefix", where / "prefix"],
                    ["cmake", "-S", where, "-B", where / "build", f"-DCMAKE_PREFIX_PATH={where / 'prefix'}", "-DCMAKE_BUILD_TYPE=Release"],
                    ["cmake", "--build", where / "build"]):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        check(done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def test():
    args = arguments(__doc__, device="cuda")
    doctor = json.loads(subprocess.run([args.program, "doctor", "--json"], capture_output=True, text=True, check=True).stdout)
    if args.device == "cuda" and not doctor["CUDA"]["good"]:
        print(f"skipped: no CUDA device ({doctor['CUDA']['what']})")
        return SKIP
    with folder() as where:
        shutil.copytree(SOURCE / "tests/e2e/library", where, dirs_exist_ok=True)
        build(where, args.program)
        trainer = ["checkpoint.every=0", "log.tensorboard=false"]
        for kind, settings in {"DataParallel": [], "a module moved late": ["late"], "Trainer": trainer}.items():
            reference = losses(where, 1, "cpu", *settings, *(["run_dir=reference"] if settings == trainer else []))
            check(len(reference) == 8 and reference[-1] < reference[0], f"{kind} does not learn: {reference}")
            cases = [(1, []), (2, []), (3, [])]
            if settings == trainer:
                cases += [(2, ["parallel.pipe=2"]), (4, ["parallel.pipe=2", "parallel.schedule=gpipe"])]
            for ranks, split in cases:
                run = [f"run_dir=run-{ranks}-{len(split)}"] if settings == trainer else []
                found = losses(where, ranks, args.device, *settings, *run, *split)
                worst = max(abs(a / b - 1) for a, b in zip(found, reference, strict=True))
                check(worst < 1e-9, f"{kind}, {ranks} ranks {split}: {found}, on one rank of the CPU {reference}")
                print(f"{kind}, {ranks} rank(s) on {args.device} {' '.join(split)}: worst difference {worst:.1e}")
    return 0


main(test)
