"""The models of the benchmarks' peers in plain PyTorch, with weights from a safetensors file in our names and layouts."""
import json
import mmap
import struct

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64}


def read_safetensors(path):
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (length,) = struct.unpack("<Q", memory[:8])
    header = json.loads(memory[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        data = bytearray(memory[8 + length + begin : 8 + length + end])
        tensors[name] = torch.frombuffer(data, dtype=DTYPES[info["dtype"]]).reshape(info["shape"])
    return tensors


class Conv1D(nn.Module):
    """GPT-2's linear layer: weight [in, out]."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class Norm(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x):
        return F.layer_norm(x, (x.size(-1),), self.weight, self.bias)


class Block(nn.Module):
    def __init__(self, tensors, prefix, heads):
        super().__init__()
        pair = lambda name: (tensors[f"{prefix}.{name}.weight"], tensors[f"{prefix}.{name}.bias"])
        self.heads = heads
        self.ln_1, self.ln_2 = Norm(*pair("ln_1")), Norm(*pair("ln_2"))
        self.c_attn, self.c_proj = Conv1D(*pair("attn.c_attn")), Conv1D(*pair("attn.c_proj"))
        self.c_fc, self.down = Conv1D(*pair("mlp.c_fc")), Conv1D(*pair("mlp.c_proj"))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        split = lambda t: t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, tensors, heads):
        super().__init__()
        layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("h."))
        self.wte, self.wpe = nn.Parameter(tensors["wte.weight"]), nn.Parameter(tensors["wpe.weight"])
        self.h = nn.ModuleList(Block(tensors, f"h.{i}", heads) for i in range(layers))
        self.ln_f = Norm(tensors["ln_f.weight"], tensors["ln_f.bias"])

    def forward(self, ids, targets):
        x = F.embedding(ids, self.wte) + self.wpe[: ids.size(1)]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte)
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.view(-1))


def rotate(x, cos, sin):
    """Half-split rotary positions, in the fewest passes that eager PyTorch has for them."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self, tensors, prefix, heads):
        super().__init__()
        weight = lambda name: nn.Parameter(tensors[f"{prefix}.{name}.weight"])
        self.heads = heads
        self.input_norm, self.output_norm = weight("input_layernorm"), weight("post_attention_layernorm")
        self.q, self.k, self.v, self.o = (weight(f"self_attn.{name}_proj") for name in "qkvo")
        self.gate, self.up, self.down = (weight(f"mlp.{name}_proj") for name in ("gate", "up", "down"))

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        split = lambda t: t.view(batch, length, -1, width // self.heads).transpose(1, 2)
        y = F.rms_norm(x, (width,), self.input_norm, 1e-5)
        q, k, v = (split(F.linear(y, weight)) for weight in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).reshape(batch, length, width), self.o)
        y = F.rms_norm(x, (width,), self.output_norm, 1e-5)
        return x + F.linear(F.silu(F.linear(y, self.gate)) * F.linear(y, self.up), self.down)


class Llama(nn.Module):
    def __init__(self, tensors, heads):
        super().__init__()
        layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
        self.tokens, self.head = nn.Parameter(tensors["model.embed_tokens.weight"]), nn.Parameter(tensors["lm_head.weight"])
        self.blocks = nn.ModuleList(LlamaBlock(tensors, f"model.layers.{i}", heads) for i in range(layers))
        self.norm = nn.Parameter(tensors["model.norm.weight"])
        width = self.tokens.size(1) // heads
        length = tensors["inputs.0"].size(1)
        angles = torch.outer(torch.arange(length).double(), 10000.0 ** (-torch.arange(0, width, 2).double() / width))
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())

    def forward(self, ids, targets):
        x = F.embedding(ids, self.tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(F.rms_norm(x, (x.size(-1),), self.norm, 1e-5), self.head)
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.view(-1))


class Mlp(nn.Module):
    def __init__(self, tensors):
        super().__init__()
        names = sorted({name.rsplit(".", 1)[0] for name in tensors if name.startswith("layers.")}, key=lambda n: int(n.split(".")[1]))
        self.layers = nn.ModuleList()
        for name in [*names, "head"]:
            weight = tensors[f"{name}.weight"]
            layer = nn.Linear(weight.size(1), weight.size(0))
            layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(tensors[f"{name}.bias"])
            self.layers.append(layer)

    def forward(self, x, targets):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return F.cross_entropy(self.layers[-1](x), targets)


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += shortcut
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    """torchvision's names, with the first layer that is usual for images of 32 x 32."""

    def __init__(self, tensors):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        for group in range(4):
            width = 64 << group
            first = ResidualBlock(64 if group == 0 else width // 2, width, 1 if group == 0 else 2)
            self.add_module(f"layer{group + 1}", nn.Sequential(first, ResidualBlock(width, width, 1)))
        self.fc = nn.Linear(512, tensors["fc.weight"].size(0))
        weights = {name: tensors[name] for name, _ in self.named_parameters()}
        self.load_state_dict(weights, strict=False)

    def forward(self, x, targets):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return F.cross_entropy(self.fc(x.mean((2, 3))), targets)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride > 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += shortcut
        return F.relu(y, inplace=True)


class ResNet50(nn.Module):
    """torchvision's names, for large images."""

    def __init__(self, tensors):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for group, blocks in enumerate((3, 4, 6, 3)):
            width = 64 << group
            layers = []
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width, 2 if group > 0 and block == 0 else 1))
                inputs = 4 * width
            self.add_module(f"layer{group + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(2048, tensors["fc.weight"].size(0))
        self.load_state_dict({name: tensors[name] for name, _ in self.named_parameters()}, strict=False)

    def forward(self, x, targets):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return F.cross_entropy(self.fc(x.mean((2, 3))).float(), targets)


class Vgg11(nn.Module):
    """torchvision's names; dropout off."""

    def __init__(self, tensors):
        super().__init__()
        features, inputs = [], 3
        for width in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
            if width == "pool":
                features.append(nn.MaxPool2d(2))
            else:
                features += [nn.Conv2d(inputs, width, 3, 1, 1), nn.ReLU(inplace=True)]
                inputs = width
        self.features = nn.Sequential(*features)
        classes = tensors["classifier.6.weight"].size(0)
        hidden = [nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Identity(), nn.Linear(4096, 4096), nn.ReLU(inplace=True)]
        self.classifier = nn.Sequential(*hidden, nn.Identity(), nn.Linear(4096, classes))
        self.load_state_dict({name: tensors[name] for name, _ in self.named_parameters()})

    def forward(self, x, targets):
        return F.cross_entropy(self.classifier(self.features(x).flatten(1)), targets)


def build(kind, tensors, heads, channels_last):
    """The model of these weights. In the other layout, the batches among the tensors are laid out alike."""
    if kind == "gpt":
        return Gpt(tensors, heads)
    if kind == "llama":
        return Llama(tensors, heads)
    if kind == "mlp":
        return Mlp(tensors)
    model = {"resnet18": ResNet18, "resnet50": ResNet50, "vgg11": Vgg11}[kind](tensors)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        for name in [name for name in tensors if name.startswith("inputs.")]:
            tensors[name] = tensors[name].to(memory_format=torch.channels_last)
    return model
