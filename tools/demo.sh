#!/usr/bin/env bash
# What `make demo` runs once everything is built: trains the small default model on two ranks and samples from it.
set -euo pipefail
program="$1"

printf '\nA GPT of 0.8 million parameters reads the default text on two ranks (ctrl-C saves; trireme train --resume goes on).\n\n'
"$program" train examples/gpt.yaml --ranks 2
run="$(ls -dt runs/gpt-*/ | head -n 1)"
run="${run%/}"

printf '\nA sample of what it learned:\n\n'
"$program" generate "$run" --prompt 'And God said' --tokens 300 --temperature 0.7

python="$(cat build/python)"
"$python" - "$run" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(f"{sys.argv[1]}/metrics.jsonl")]
losses = [line["loss"] for line in lines if "loss" in line]
print(f"\nloss: {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last of {len(losses)}")
PYTHON
printf 'run folder: %s (metrics.jsonl, TensorBoard files, plan.yaml, checkpoints/)\n' "$run"
printf 'again from a checkpoint: %s train --from %s train.steps=600 --ranks 2\n' "$program" "$run"
