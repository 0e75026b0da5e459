#!/usr/bin/env python3
"""Hugging Face's transformers and Trireme on the same models: what one writes the other reads, with equal answers, and ten
steps of training give the same losses. GPT-2 and Llama (grouped queries, tied and untied), in one file and in several,
adapters trained and merged."""
import contextlib
import hashlib
import importlib.util
import json
import os
import struct
import sys

from harness import SKIP, TINY, arguments, check, folder, losses, main, run

IDS = [3, 5, 7, 1, 0, 39, 22, 11]
CONTEXT, VOCAB, BATCH, STEPS = 16, 40, 4, 10
TOLERANCE = 1e-4


def tiny_models():
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    gpt2 = GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=CONTEXT, vocab_size=VOCAB, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
                      bos_token_id=0, eos_token_id=0, initializer_range=0.1)  # fmt: skip
    llama = dict(num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=CONTEXT, vocab_size=VOCAB, initializer_range=0.1)  # fmt: skip
    yield "gpt2", GPT2LMHeadModel(gpt2)
    yield "llama", LlamaForCausalLM(LlamaConfig(**llama, tie_word_embeddings=False))
    yield "llama-tied", LlamaForCausalLM(LlamaConfig(**llama, tie_word_embeddings=True, rope_theta=5000.0, rms_norm_eps=1e-5))


def their_logits(model):
    import torch

    with torch.no_grad():
        return model.eval()(torch.tensor([IDS])).logits[0].double()


def our_logits(program, where, model):
    from safetensors.torch import load_file

    run([program, "generate", model, "--ids", ",".join(map(str, IDS)), "--tokens", 1, "--logits", "logits"], where)
    return load_file(where / "logits")["logits"].clone()  # the file is written again


def check_equal(found, expected, what):
    worst = (found - expected).abs().max().item()
    check(worst <= TOLERANCE, f"{what}: logits differ by {worst:.2e}")
    check(expected.abs().max().item() > 0.05, f"{what}: logits that tell nothing")


def load(path):
    from transformers import AutoModelForCausalLM

    with contextlib.redirect_stderr(open(os.devnull, "w")):  # progress bars
        return AutoModelForCausalLM.from_pretrained(path)


def write_tokens(path):
    """As many tokens as the steps read, and a held-out share of none."""
    tokens = [(place * place + 3 * place) % 37 for place in range(BATCH * CONTEXT * 2 + 1)]
    path.write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    return tokens


TRAIN = ["data.kind=tokens", "data.path=tokens.bin", "data.validation=0", "train.eval_batches=0", f"train.batch={2 * BATCH}", f"train.steps={STEPS}",
         "train.threads=1", "optimizer.lr=1e-3", "optimizer.schedule=constant", "optimizer.warmup=0", "log.tensorboard=false"]  # fmt: skip


def their_losses(model, tokens):
    """All samples are one batch, so the order in it does not matter."""
    import torch

    rows = [tokens[start : start + CONTEXT + 1] for start in range(0, len(tokens) - 1, CONTEXT)]
    rows = torch.tensor(rows)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    found = []
    for _ in range(STEPS):
        logits = model.train()(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), rows[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def check_model(program, where, name, model, tokens):
    from safetensors.torch import load_file, save_file

    # What transformers writes, in one file and in many, loads here.
    expected = their_logits(model)
    with contextlib.redirect_stderr(open(os.devnull, "w")):
        model.save_pretrained(where / name)
        model.save_pretrained(where / f"{name}-shards", max_shard_size="10KB")
    check((where / f"{name}-shards/model.safetensors.index.json").exists(), "transformers wrote one file")
    check_equal(our_logits(program, where, name), expected, name)
    check_equal(our_logits(program, where, f"{name}-shards"), expected, f"{name} in several files")

    # Older files: no prefix, causal masks among the weights, half precision.
    if name == "gpt2":
        weights = {key.removeprefix("transformer."): value for key, value in load_file(where / "gpt2/model.safetensors").items()}
        import torch

        weights["h.0.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT).tril()
        weights["h.0.attn.masked_bias"] = torch.tensor(-1e4)
        (where / "gpt2-old").mkdir()
        save_file(weights, where / "gpt2-old/model.safetensors")
        (where / "gpt2-old/config.json").write_text((where / "gpt2/config.json").read_text())
        check_equal(our_logits(program, where, "gpt2-old"), expected, "an old file of GPT-2")
        for dtype in (torch.bfloat16, torch.float16):
            half = load(where / "gpt2").to(dtype)
            with contextlib.redirect_stderr(open(os.devnull, "w")):
                half.save_pretrained(where / "half")
            check_equal(our_logits(program, where, "half"), their_logits(half.float()), f"GPT-2 in {dtype}")

    # Ten steps from these weights, and what they give goes back to transformers.
    run([program, "train", f"model.from={name}", *TRAIN, "run_dir=run"], where)
    ours, theirs = losses(where / "run"), their_losses(model, tokens)
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    check(len(ours) == STEPS and worst <= TOLERANCE, f"{name}: losses differ by {worst:.2e}: {ours} and {theirs}")
    check(ours[0] - ours[-1] > 0.01, f"{name}: nothing was learnt: {ours}")
    run([program, "convert", "run", "whole"], where)
    run([program, "convert", "run", "parts", "--max-shard-mb", 0.02], where)
    check((where / "parts/model.safetensors.index.json").exists(), "one file where several were asked for")
    found = our_logits(program, where, "run")
    check_equal(found, their_logits(model), f"{name} after training")
    check_equal(found, their_logits(load(where / "whole")), f"{name} exported")
    check_equal(found, their_logits(load(where / "parts")), f"{name} exported in several files")
    for made in ("run", "whole", "parts"):
        os.rename(where / made, where / f"{name}-{made}")
    print(f"{name}: logits and ten losses agree (worst loss difference {worst:.1e})")


def digest(path):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


def check_adapters(program, where, name, targets):
    from safetensors.torch import load_file

    before = digest(where / name)
    run([program, "train", f"model.from={name}", *TRAIN, "model.lora_rank=4", "optimizer.lr=1e-2", *targets, "run_dir=lora"], where)
    check(digest(where / name) == before, "the base was changed")
    adapters = load_file(where / f"lora/checkpoints/step-{STEPS}/model.safetensors")
    check(all(".lora_" in key for key in adapters), f"a checkpoint of adapters holds {sorted(adapters)}")
    run([program, "convert", "lora", "merged"], where)
    base, merged = load_file(where / name / "model.safetensors"), load_file(where / "merged/model.safetensors")
    changed = {key for key in base if key != "lm_head.weight" or key in merged if not base[key].equal(merged[key])}
    expected = {key for key in base if "attn" in key and key.endswith("weight")}
    check(changed == expected, f"{name}: changed {sorted(changed ^ expected)}")
    check_equal(our_logits(program, where, "lora"), their_logits(load(where / "merged")), f"{name} with merged adapters")
    moved = (our_logits(program, where, "lora") - our_logits(program, where, name)).abs().max().item()
    check(moved > 10 * TOLERANCE, f"{name}: the adapters moved the logits by {moved:.1e} only")
    run([program, "convert", "lora", "adapters", "--adapters-only"], where)
    alone = load_file(where / "adapters/adapter_model.safetensors")
    check(len(alone) == len(adapters) and all(key.startswith("base_model.model.") for key in alone), f"adapters: {sorted(alone)}")
    check(json.loads((where / "adapters/adapter_config.json").read_text())["r"] == 4, "the rank is lost")
    for made in ("lora", "merged", "adapters"):
        os.rename(where / made, where / f"{name}-{made}")
    print(f"{name}: {len(adapters)} adapters trained, merged into {len(changed)} matrices, the base unchanged")


def check_alphabet(program, where):
    """A model of text keeps its letters: transformers reads from the converted folder that each byte is a token."""
    from transformers import AutoTokenizer

    run([program, "train", *TINY, "train.steps=1", "optimizer.warmup=1", "run_dir=letters"], where)
    run([program, "convert", "letters", "alphabet"], where)
    tokenizer = AutoTokenizer.from_pretrained(where / "alphabet")
    text = "oars keep time\n" + "".join(map(chr, range(256))) + "\u20ac"
    check(tokenizer(text)["input_ids"] == list(text.encode()), "transformers reads other tokens than bytes")
    check(tokenizer.decode(list(text.encode())) == text, "transformers writes another text")
    print("alphabet: transformers reads bytes")


def test():
    args = arguments(__doc__)
    missing = [name for name in ("transformers", "safetensors", "torch") if not importlib.util.find_spec(name)]
    if missing:
        print(f"skipped: {sys.executable} has no {', '.join(missing)}")
        return SKIP
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    with folder() as where:
        tokens = write_tokens(where / "tokens.bin")
        for name, model in tiny_models():
            check_model(args.program, where, name, model, tokens)
        check_adapters(args.program, where, "gpt2", [])
        check_adapters(args.program, where, "llama", [])
        check_alphabet(args.program, where)


main(test)
