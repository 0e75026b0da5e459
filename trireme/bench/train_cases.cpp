#include "trireme/bench/train_cases.h"

#include <fmt/ranges.h>

#include "trireme/base/error.h"

namespace trireme {

namespace {

const std::vector<KnownCase>& known_cases() {
  static const std::vector<KnownCase> cases{
      // 8,407,050 parameters.
      {"mlp",
       "mlp 8x1024",
       "mlp",
       {"model.layers=8", "model.width=1024", "model.inputs=1024", "model.classes=10", "train.batch=64",
        "optimizer.lr=1e-4"}},
      {"gpt",
       "gpt 10.8M",
       "gpt",
       {"model.layers=6", "model.width=384", "model.heads=6", "model.context=256", "model.vocab=256", "train.batch=4",
        "optimizer.lr=3e-4"}},
      // So small that it only tries the benchmark itself.
      {"tiny",
       "mlp 2x64",
       "mlp",
       {"model.layers=2", "model.width=64", "model.inputs=64", "model.classes=10", "train.batch=16",
        "optimizer.lr=1e-4"}},
      // The GPT's width and depth, with a third of its heads for keys and values.
      {"llama",
       "llama 9.6M",
       "llama",
       {"model.layers=6", "model.width=384", "model.heads=6", "model.kv_heads=2", "model.context=256",
        "model.vocab=256", "train.batch=4", "optimizer.lr=3e-4"}},
      // 11,173,962 parameters, 3.3 GFLOP a sample. PyTorch has synchronised BatchNorm for cards alone: beside DDP, both
      // sides normalise by each rank's own samples.
      {"resnet18",
       "resnet18 32x32",
       "resnet18",
       {"model.image=32", "model.classes=10", "train.batch=64", "model.batch_norm=local", "optimizer.lr=1e-5"},
       false,
       true},
      // 132,863,336 parameters, of which 123.6 M are in the three last layers: little to compute, much to send. Dropout
      // off, as the peer's masks are others.
      {"vgg11",
       "vgg11 224x224",
       "vgg11",
       {"model.image=224", "model.classes=1000", "model.dropout=0", "train.batch=32", "optimizer.lr=1e-5",
        "data.samples=256"},
       false,
       true,
       2},
      {"llama-162m",
       "llama 162M on a card",
       "llama",
       {"model.layers=12", "model.width=768", "model.heads=12", "model.context=1024", "model.vocab=50304",
        "model.hidden=2048", "train.batch=16", "optimizer.lr=1e-4"},
       true,
       false,
       2,
       2e-2},
      {"resnet50",
       "resnet50 224x224 on a card",
       "resnet50",
       {"model.image=224", "model.classes=1000", "train.batch=256", "model.batch_norm=local", "optimizer.lr=1e-5",
        "data.samples=2048"},
       true,
       true,
       2,
       2e-2}};
  return cases;
}

}  // namespace

const KnownCase& known_case(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& known : known_cases()) {
    if (known.name == name) return known;
    names.push_back(known.name);
  }
  for (const char* other : {"shared", "shared-tiny"}) names.emplace_back(other);
  refuse("--case {}: there are {}", name, fmt::join(names, ", "));
}

std::vector<std::string> overrides_of(const KnownCase& known) {
  std::vector<std::string> all = known.settings;
  all.push_back("model.kind=" + known.model);
  all.insert(all.end(),
             {"optimizer.schedule=constant", "optimizer.warmup=0", "optimizer.clip=1.0", "checkpoint.every=0",
              "train.eval_batches=0", "data.validation=0", "data.kind=synthetic", "log.tensorboard=false"});
  if (known.card) all.insert(all.end(), {"train.device=cuda", "train.precision=bf16"});
  return all;
}

}  // namespace trireme
