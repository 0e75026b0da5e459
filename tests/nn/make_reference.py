#!/usr/bin/env python3
"""Trains two tiny models and a ResNet-18 for ten steps in plain PyTorch and writes down what happened.

Read by tests/train/reference_test.cpp. To make the files anew:

    .venv/bin/python tests/nn/make_reference.py        # writes tests/nn/reference/{gpt,mlp,resnet18}.safetensors

Initial weights are kept in half precision (and are exactly that), all that follows in double precision. ResNet-18 has too
many to be kept: its weights and images are numbers that both sides make (`noise`), exact in single precision.
"""
import json
import math
import pathlib
import struct
import sys

import numpy
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "bench"))
from torch_train import Gpt, Mlp, ResNet18  # noqa: E402  (the same plain modules that the benchmark trains)

NAMES = {torch.float64: "F64", torch.float16: "F16", torch.int64: "I64"}
STEPS, CLIP = 10, 1.0


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        raw = tensor.contiguous().numpy().tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    print(f"{path}: {path.stat().st_size} bytes")


def gpt_weights(layers, width, context, vocab):
    shapes = {"wte.weight": (vocab, width), "wpe.weight": (context, width)}
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    for i in range(layers):
        for name, shape in {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
                            "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}.items():
            shapes[f"h.{i}.{name}.weight"], shapes[f"h.{i}.{name}.bias"] = shape, shape[1:]
        for name in ("ln_1", "ln_2"):
            shapes[f"h.{i}.{name}.weight"] = shapes[f"h.{i}.{name}.bias"] = (width,)
    # Larger than GPT-2's own, and no gain or bias is trivial, so that every gradient matters.
    gain = lambda name: 1.0 if "ln_" in name and name.endswith("weight") else 0.0
    return {name: (gain(name) + 0.1 * torch.randn(shape)).half() for name, shape in shapes.items()}


def mlp_weights(inputs, width, classes, layers):
    sizes = [inputs] + [width] * layers + [classes]
    names = [f"layers.{i}" for i in range(layers)] + ["head"]
    weights = {}
    for name, before, after in zip(names, sizes, sizes[1:]):
        weights[f"{name}.weight"] = (torch.randn(after, before) / before**0.5).half()
        weights[f"{name}.bias"] = (0.1 * torch.randn(after)).half()
    return weights


def noise(shape, salt):
    """Numbers from -1 to 1, bit for bit those of reference_test.cpp; `salt` tells tensors apart."""
    number = numpy.arange(numpy.prod(shape), dtype=numpy.uint64) + numpy.uint64(salt << 32)
    for _ in range(2):
        number *= numpy.uint64(0x9E3779B97F4A7C15)
        number ^= number >> numpy.uint64(32)
    number *= numpy.uint64(0x9E3779B97F4A7C15)
    return torch.from_numpy((number >> numpy.uint64(41)).astype(numpy.float64) * 2.0**-22 - 1).reshape(shape)


def resnet18_weights(classes):
    shapes = {"conv1.weight": (64, 3, 3, 3), "bn1.weight": (64,), "bn1.bias": (64,), "fc.weight": (classes, 512), "fc.bias": (classes,)}
    before = 64
    for group, width in enumerate((64, 128, 256, 512), start=1):
        for block in ("0", "1"):
            name = f"layer{group}.{block}"
            convolutions = {f"{name}.conv1": (f"{name}.bn1", before, 3), f"{name}.conv2": (f"{name}.bn2", width, 3)}
            if before != width:
                convolutions[f"{name}.downsample.0"] = (f"{name}.downsample.1", before, 1)
            for convolution, (norm, inputs, size) in convolutions.items():
                shapes[f"{convolution}.weight"] = (width, inputs, size, size)
                shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (width,)
            before = width

    def weight(salt, name, shape):
        if len(shape) > 1:
            return noise(shape, salt) * (6 / math.prod(shape[1:])) ** 0.5
        return noise(shape, salt) * 0.125 + (1 if name.endswith(".weight") else 0)  # no gain or bias is trivial

    return {name: weight(salt, name, shapes[name]).float() for salt, name in enumerate(sorted(shapes))}


def parameter_names(model, weights):
    """Which parameter of the module is which weight: they share values before the first step."""
    left = dict(weights)
    names = {}
    for parameter in model.parameters():
        name = next(n for n, w in left.items() if torch.equal(w.double(), parameter.data))
        names[name] = parameter
        del left[name]
    return names


def run(model, optimizer, batches, result):
    losses, norms = [], []
    parameters = list(model.parameters())
    for step, (inputs, targets) in enumerate(batches):
        loss = model(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters))
        if norm > CLIP:  # written out: torch's clip_grad_norm_ adds 1e-6 to the norm
            for parameter in parameters:
                parameter.grad.mul_(CLIP / norm)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
        result[f"inputs.{step}"], result[f"targets.{step}"] = inputs, targets
    result["losses"] = torch.tensor(losses, dtype=torch.float64)
    result["norms"] = torch.tensor(norms, dtype=torch.float64)
    print("losses", [f"{loss:.4f}" for loss in losses], "norms", [f"{norm:.2f}" for norm in norms])


def groups(model, weight_decay):
    decaying = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def reference(weights, build, make_optimizer, batches):
    model = build({name: weight.double() for name, weight in weights.items()}).double()
    names = parameter_names(model, weights)
    assert len(names) == len(weights)
    result = {f"initial.{name}": weight for name, weight in weights.items()}
    run(model, make_optimizer(model), batches, result)
    result.update({f"final.{name}": parameter.data for name, parameter in names.items()})
    return result


def main():
    torch.manual_seed(1)
    (HERE / "reference").mkdir(exist_ok=True)
    layers, width, heads, context, vocab, batch = 2, 32, 4, 16, 64, 3
    tokens = [torch.randint(vocab, (batch, context + 1)) for _ in range(STEPS)]
    result = reference(
        gpt_weights(layers, width, context, vocab),
        lambda tensors: Gpt(tensors, heads),
        lambda model: torch.optim.AdamW(groups(model, 0.1), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False),
        [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in tokens],
    )
    write_safetensors(HERE / "reference" / "gpt.safetensors", result)

    inputs, width, classes, layers, batch = 8, 16, 5, 2, 6
    result = reference(
        mlp_weights(inputs, width, classes, layers),
        Mlp,
        lambda model: torch.optim.SGD(groups(model, 0.1), lr=0.1, momentum=0.9, nesterov=True, foreach=False),
        [(torch.randn(batch, inputs, dtype=torch.float64), torch.randint(classes, (batch,))) for _ in range(STEPS)],
    )
    write_safetensors(HERE / "reference" / "mlp.safetensors", result)

    classes, batch, image = 10, 8, 32
    weights = resnet18_weights(classes)
    model = ResNet18(weights).double()
    assert {name for name, _ in model.named_parameters()} == set(weights)
    optimizer = torch.optim.SGD(groups(model, 0.1), lr=0.002, momentum=0.9, foreach=False)
    batches = [(noise((batch, 3, image, image), len(weights) + turn), (3 * torch.arange(batch) + turn) % classes) for turn in (0, 1)]
    result = {}
    run(model, optimizer, batches * (STEPS // 2), result)
    result = {name: result[name] for name in ("losses", "norms")}
    for name in ("bn1.running_mean", "layer4.1.bn2.running_var", "layer2.0.downsample.1.weight", "fc.bias"):
        result[f"final.{name}"] = model.state_dict()[name]
    write_safetensors(HERE / "reference" / "resnet18.safetensors", result)


if __name__ == "__main__":
    main()
