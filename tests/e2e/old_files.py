#!/usr/bin/env python3
"""Runs of earlier programs (tests/old) go on today: the same losses to the last digits, one metrics.jsonl, and their
checkpoints generate, convert and start other runs. What a later program wrote is refused and left alone."""
import json
import shutil

from harness import SOURCE, arguments, check, checkpoints, folder, main, metrics, run

OLD = SOURCE / "tests/old"


def take_out(where, old):
    """A copy of the old run, under the name that its files have for it."""
    shutil.copytree(OLD / old, where / "runs" / old.rpartition("/")[2])
    return where / "runs" / old.rpartition("/")[2]


def header(run_folder):
    return json.loads((run_folder / "metrics.jsonl").read_text().splitlines()[0])


def check_goes_on(program, where, old, steps, words):
    """Goes on after the old checkpoint; the steps that it had been followed by have the losses of then."""
    run_folder = take_out(where, old)
    saved = checkpoints(run_folder)
    then = {line["step"]: line for line in metrics(run_folder)}
    check(sorted(then) == list(range(1, steps + 1)) and saved[-1] < steps, f"{old} has steps {sorted(then)} and checkpoints {saved}")
    run([program, "train", "--from", run_folder.relative_to(where), *words], where)
    now = {line["step"]: line for line in metrics(run_folder)}
    check(sorted(now) == sorted(then), f"{old}: metrics.jsonl has steps {sorted(now)}")
    for step, line in now.items():
        for key in ("loss", "grad_norm", "eval_loss"):
            check((key in line) == (key in then[step]), f"{old}: {key} of step {step} came or went")
            if key in line:
                error = abs(line[key] / then[step][key] - 1)
                check(error <= 1e-9, f"{old}: {key} of step {step} was {then[step][key]} and is {line[key]}")
        if step <= saved[-1]:
            check(line == then[step], f"{old}: the line of step {step} was changed")
    check(header(run_folder) == {"format": "trireme-metrics", "version": 1}, f"{old}: metrics.jsonl begins with {header(run_folder)}")
    check((run_folder / "config.yaml").read_text().startswith("version: 1\n"), f"{old}: its config.yaml has no version")
    check(checkpoints(run_folder) == [*saved, steps], f"{old}: checkpoints {checkpoints(run_folder)}")
    return run_folder


def change(path, now, later):
    text = path.read_text()
    check(now in text, f"{path} has no {now}")
    path.write_text(text.replace(now, later, 1))


def check_refuses_the_future(program, where, run_folder):
    before = sorted(path for path in run_folder.rglob("*"))
    for file, now, later, said in [
        ("config.yaml", "version: 1\n", "version: 2\n", "runs/gpt/config.yaml:1: version = 2: made by a newer Trireme"),
        ("metrics.jsonl", '"version":1', '"version":2', "runs/gpt/metrics.jsonl was made by a newer Trireme"),
        ("checkpoints/step-6/manifest.json", '"version": 1', '"version": 2', "runs/gpt/checkpoints/step-6 was made by a newer Trireme"),
    ]:  # fmt: skip
        change(run_folder / file, now, later)
        text = (run_folder / file).read_text()
        job = run([program, "train", "--from", "runs/gpt", "train.steps=8"], where, status=2)
        check(said in job.output, f"it did not say {said!r}, but:\n{job.output}")
        check((run_folder / file).read_text() == text, f"{file} was changed")
        change(run_folder / file, later, now)
    check(sorted(path for path in run_folder.rglob("*")) == before, "files came or went")
    run([program, "train", "--from", "runs/gpt", "train.steps=8"], where)


def test():
    program = arguments(__doc__).program
    with folder() as where:
        gpt = check_goes_on(program, where, "unversioned/gpt", 6, [])
        old = OLD / "unversioned/gpt/checkpoints/step-3"
        job = run([program, "generate", old, "--ids", "1,2,3", "--tokens", 4], where)
        check(len(job.output.split()) >= 4, f"it generated {job.output}")
        run([program, "convert", old, "models/gpt"], where)
        check((where / "models/gpt/model.safetensors").exists(), "convert wrote no weights")
        run([program, "train", f"model.from={old}", "data.kind=synthetic", "train.steps=1", "run_dir=runs/next"], where)
        check_refuses_the_future(program, where, gpt)
    for words in (["--ranks", "2"], ["parallel.pipe=1"]):
        with folder() as where:
            check_goes_on(program, where, "unversioned/mlp", 6, words)
    print("old files are read")


main(test)
