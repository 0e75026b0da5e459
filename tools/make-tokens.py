#!/usr/bin/env python3
"""Makes a token file for data.kind=tokens from text, with a Hugging Face tokenizer.json (package `tokenizers`).

  tools/make-tokens.py book.txt letters.txt --tokenizer gpt2/tokenizer.json --separator '<|endoftext|>' --out tokens.bin
  tools/make-tokens.py questions.jsonl --tokenizer gpt2/tokenizer.json --separator '<|endoftext|>' --out tokens.bin

A text file is one document, or with --lines one a line. A line of a .jsonl file is one document: an object with "text",
or with "prompt" and "completion", of which only the completion is learnt. Then a mask of one byte for each token is
written beside the tokens (OUT.mask). Each document begins with the separator, where one is given. The last line printed
has the settings that fit the file.
"""
import argparse
import json
import os
import pathlib
import struct
import sys

# llm.c's headers: 256 words, of which these two and the number of tokens are used.
HEADERS = {"H": (20240520, 1), "I": (20240801, 7)}


class Refusal(Exception):
    pass


def documents_of(path, lines):
    """(prompt, completion) of each document; what has no prompt is all completion."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Refusal(f"{path}: not UTF-8 text (byte {error.start})") from None
    if path.suffix != ".jsonl":
        for document in text.splitlines(keepends=True) if lines else [text]:
            if document.strip():
                yield "", document
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise Refusal(f"{path}:{number}: not JSON: {error.msg}") from None
        keys = set(entry) if isinstance(entry, dict) else set()
        strings = isinstance(entry, dict) and all(isinstance(entry[key], str) for key in keys & {"text", "prompt", "completion"})
        if strings and "text" in keys:
            yield "", entry["text"]
        elif strings and {"prompt", "completion"} <= keys:
            yield entry["prompt"], entry["completion"]
        else:
            raise Refusal(f'{path}:{number}: a document is an object with "text", or with "prompt" and "completion", of strings')


def tokens_of(tokenizer, prompt, completion):
    """Tokens of the whole, so that its seam is what it would be in running text; learnt from the completion on."""
    encoded = tokenizer.encode(prompt + completion, add_special_tokens=False)
    return encoded.ids, bytes(1 if begin >= len(prompt) else 0 for begin, _ in encoded.offsets)


def write(path, data):
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", type=pathlib.Path, help="text files, or .jsonl files of documents")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, help="a tokenizer.json")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the token file to write")
    parser.add_argument("--separator", help="the token with which each document begins, as text: <|endoftext|>")
    parser.add_argument("--lines", action="store_true", help="each line of a text file is a document")
    args = parser.parse_args()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Refusal("the package tokenizers is missing: python3 -m pip install tokenizers") from None
    if not args.tokenizer.is_file():
        raise Refusal(f"{args.tokenizer}: there is no such file")
    try:
        tokenizer = Tokenizer.from_file(str(args.tokenizer))
    except Exception as error:
        raise Refusal(f"{args.tokenizer}: not a tokenizer.json: {error}") from None
    separator = tokenizer.token_to_id(args.separator) if args.separator is not None else None
    if args.separator is not None and separator is None:
        raise Refusal(f"--separator: {args.separator!r} is no token of {args.tokenizer}")

    vocab = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    tokens, mask, documents = [], bytearray(), 0
    for path in args.inputs:
        for prompt, completion in documents_of(path, args.lines):
            documents += 1
            if separator is not None:
                tokens.append(separator)
                mask += b"\1"
            ids, learnt = tokens_of(tokenizer, prompt, completion)
            tokens += ids
            mask += learnt
    if not tokens:
        raise Refusal(f"{', '.join(map(str, args.inputs))}: there is no text in it")
    if len(tokens) >= 2**31:
        raise Refusal(f"{len(tokens)} tokens are more than the header of one file can count: write several")

    kind = "H" if vocab <= 2**16 else "I"
    magic, version = HEADERS[kind]
    header = struct.pack("<256i", magic, version, len(tokens), *[0] * 253)
    write(args.out, header + struct.pack(f"<{len(tokens)}{kind}", *tokens))
    settings = [f"data.kind=tokens data.path={args.out} model.vocab={vocab}"]
    if separator is not None:
        settings.append(f"data.separator={separator}")
    mask_path = args.out.with_name(args.out.name + ".mask")
    if 0 in mask:
        write(mask_path, mask)
        settings.append(f"data.mask={mask_path}")
    else:
        mask_path.unlink(missing_ok=True)  # of an earlier file of this name
    print(f"{args.out}: {len(tokens)} tokens of {documents} document(s), {sum(mask)} learnt, a vocabulary of {vocab}")
    print(" ".join(settings))


if __name__ == "__main__":
    try:
        main()
    except Refusal as refusal:
        sys.exit(f"make-tokens.py: {refusal}")
