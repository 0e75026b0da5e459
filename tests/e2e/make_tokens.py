#!/usr/bin/env python3
"""tools/make-tokens.py: the tokens decode to the text, the mask covers prompts, and `trireme train` reads both."""
import importlib.util
import json
import struct
import subprocess
import sys

from harness import SKIP, SOURCE, arguments, check, folder, main, run

TOOL = SOURCE / "tools/make-tokens.py"
LETTERS = "".join(f"Captain {number} wrote of {number * 7 % 31} oars and the sea.\n" for number in range(40))


def tool(*words, cwd, fails=None):
    done = subprocess.run([sys.executable, TOOL, *words], cwd=cwd, capture_output=True, text=True)
    if fails is None:
        check(done.returncode == 0, f"make-tokens.py {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout.splitlines()[-1].split()
    check(done.returncode == 1 and fails in done.stderr and "Traceback" not in done.stderr, f"expected {fails!r}, found {done.stderr!r}")
    return None


def read(path):
    data = path.read_bytes()
    magic, version, count = struct.unpack("<3i", data[:12])
    check((magic, version) == (20240520, 1), f"header {magic}, {version}")
    return list(struct.unpack(f"<{count}H", data[1024:]))


def test():
    args = arguments(__doc__)
    if not importlib.util.find_spec("tokenizers"):
        print(f"skipped: {sys.executable} has no tokenizers")
        return SKIP
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    with folder() as where:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator([LETTERS], trainers.BpeTrainer(vocab_size=320, special_tokens=["<|end|>"], initial_alphabet=alphabet))
        tokenizer.save(str(where / "tokenizer.json"))
        end = tokenizer.token_to_id("<|end|>")
        common = ["--tokenizer", "tokenizer.json", "--out", "tokens.bin"]

        # A file is a document; without a separator the tokens are the text and nothing else.
        (where / "letters.txt").write_text(LETTERS)
        settings = tool("letters.txt", *common, cwd=where)
        check(tokenizer.decode(read(where / "tokens.bin"), skip_special_tokens=False) == LETTERS, "the tokens are another text")
        check(not (where / "tokens.bin.mask").exists() and "data.mask" not in " ".join(settings), "a mask for nothing")

        # Lines as documents, each begun by the separator.
        settings = tool("letters.txt", "--lines", "--separator", "<|end|>", *common, cwd=where)
        tokens = read(where / "tokens.bin")
        check(tokens[0] == end and tokens.count(end) == 40, f"{tokens.count(end)} documents of 40")
        check(f"data.separator={end}" in settings, f"settings: {settings}")

        # Prompts are masked: what is learnt decodes to the completions.
        pairs = [{"prompt": f"How many oars, captain {n}?", "completion": f" {n * 7 % 31} oars."} for n in range(60)]
        (where / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs) + json.dumps({"text": "The sea."}) + "\n")
        settings = tool("pairs.jsonl", "--separator", "<|end|>", *common, cwd=where)
        tokens, mask = read(where / "tokens.bin"), (where / "tokens.bin.mask").read_bytes()
        check(len(tokens) == len(mask), "the mask has another length")
        learnt = tokenizer.decode([token for token, one in zip(tokens, mask) if one and token != end])
        check(learnt == "".join(pair["completion"] for pair in pairs) + "The sea.", f"learnt: {learnt!r}")
        run([args.program, "train", *settings, "model.layers=1", "model.width=16", "model.heads=2", "model.context=32", "train.batch=4",
             "train.steps=3", "train.threads=1", "run_dir=run"], where)  # fmt: skip
        print(f"{len(tokens)} tokens, {sum(mask)} learnt: trained")

        tool("none.txt", *common, cwd=where, fails="none.txt: No such file")
        tool("letters.txt", "--tokenizer", "letters.txt", "--out", "x", cwd=where, fails="letters.txt: not a tokenizer.json")
        tool("letters.txt", "--separator", "<nothing>", *common, cwd=where, fails="'<nothing>' is no token of tokenizer.json")
        (where / "bad.jsonl").write_text('{"text": "x"}\n{"prompt": "x"}\n')
        tool("bad.jsonl", *common, cwd=where, fails="bad.jsonl:2: a document is an object")
        (where / "bad.jsonl").write_text("{\n")
        tool("bad.jsonl", *common, cwd=where, fails="bad.jsonl:1: not JSON")
        (where / "empty.txt").write_text(" \n")
        tool("empty.txt", *common, cwd=where, fails="there is no text in it")


main(test)
