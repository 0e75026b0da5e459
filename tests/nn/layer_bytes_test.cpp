// What the table of a model foresees of a pass's memory, held against what is allocated: layer by layer, and for whole
// models.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "trireme/memory/counter.h"
#include "trireme/nn/model.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/pass_bytes.h"

namespace trireme {
namespace {

constexpr int64_t vocab = 96;

struct Case {
  std::string name;
  ModelConfig model;
};

at::ScalarType type_of(int64_t element_bytes) {
  return element_bytes == 2 ? at::kBFloat16 : element_bytes == 4 ? at::kFloat : at::kDouble;
}

// A model whose gradients have places, as a store gives them, and hold those of an earlier microbatch.
std::unique_ptr<Model> make_model(const ModelConfig& config, int64_t element_bytes, DeferredGradients* deferred) {
  auto model = build_model(config, vocab);
  const auto type = type_of(element_bytes);
  model->to(type, at::kCPU);
  for (const auto& parameter : model->parameters()) {
    parameter->value.detach().fill_(0.01);
    if (!parameter->trained) continue;
    const auto master = type == at::kDouble ? at::kDouble : at::kFloat;
    parameter->gradient.view = at::zeros_like(parameter->value.detach(), parameter->value.options().dtype(master));
    parameter->gradient.fresh = false;
    parameter->gradient.deferred = deferred;
  }
  return model;
}

at::Tensor make_input(const ModelConfig& config, int64_t samples, at::ScalarType type) {
  if (reads_tokens(config.kind)) return at::randint(vocab, {samples, config.context}, at::kLong);
  if (takes_images(config.kind)) return at::randn({samples, config.channels, config.image, config.image}).to(type);
  return at::randn({samples, config.inputs}).to(type);
}

// The layers [begin, end) of a model, passed as a rank passes its part of it.
class Part {
 public:
  Part(const Model& model, size_t begin, size_t end, Ledger& ledger, DeferredGradients& deferred,
       WeightGradients weights, size_t recomputed)
      : begin_(begin), last_(end == model.layers.size()), ledger_(ledger), deferred_(deferred), weights_(weights) {
    part_.layers.assign(model.layers.begin() + static_cast<int64_t>(begin),
                        model.layers.begin() + static_cast<int64_t>(end));
    pass_.training = true;
    pass_.recomputed = recomputed;
  }

  PassBytes run(at::Tensor& given) {
    const auto held = [&] { return ledger_.held(Memory::host); };
    const auto most = [&] { return ledger_.most(Memory::host).total; };
    PassBytes bytes;
    bytes.input = static_cast<int64_t>(given.nbytes());
    auto input = std::exchange(given, at::Tensor());
    if (begin_ > 0) input.requires_grad_(true);
    pass_.samples = at::arange(input.size(0));
    int64_t before = held();
    ledger_.begin_most();
    std::vector<at::Tensor> skipped, outputs{part_.forward(input, pass_, begin_, skipped)};
    at::Tensor loss, targets;
    const int64_t without_targets = held(), forward_most = most();
    if (last_) {
      auto shape = outputs[0].sizes().vec();
      const int64_t classes = shape.back();
      shape.pop_back();
      targets = at::randint(classes, shape, at::kLong);
      const int64_t of_targets = held() - without_targets;
      ledger_.begin_most();
      loss = part_.loss(outputs[0], targets);
      outputs.clear();
      bytes.forward_most = std::max(forward_most, most() - of_targets) - before;
      bytes.kept = held() - of_targets - before;
    } else {
      bytes.forward_most = forward_most - before;
      bytes.output = static_cast<int64_t>(outputs[0].nbytes());
      bytes.kept = held() - before - bytes.output;
    }
    before = held();
    ledger_.begin_most();
    if (last_) {
      loss.backward();
    } else {
      const std::vector<at::Tensor> gradients{at::ones(outputs[0].sizes(), outputs[0].options().requires_grad(false))};
      if (outputs[0].requires_grad()) torch::autograd::backward(outputs, gradients);
    }
    auto gradient = input.grad();
    input = loss = at::Tensor();
    outputs.clear();
    if (gradient.defined()) bytes.input_gradient = static_cast<int64_t>(gradient.nbytes());
    bytes.waiting = deferred_.bytes();
    const auto compute = [&] {
      deferred_.compute(0, deferred_.writes.size());
      deferred_.writes.clear();
    };
    if (weights_ == WeightGradients::at_the_end) compute();
    bytes.backward_most = most() - before;
    before = held();
    ledger_.begin_most();
    compute();
    bytes.weights_most = most() - before;
    return bytes;
  }

 private:
  const size_t begin_;
  const bool last_;
  Ledger& ledger_;
  DeferredGradients& deferred_;
  const WeightGradients weights_;
  Model part_;
  Pass pass_;
};

class LayerBytes : public testing::Test {
 protected:
  LayerBytes() : threads_(at::get_num_threads()) {
    count_memory();
    at::set_num_threads(1);
  }
  ~LayerBytes() override { at::set_num_threads(threads_); }

  static void expect_near(int64_t foreseen, int64_t measured, const std::string& what) {
    constexpr int64_t small = 150'000;  // what products need for themselves is known to a block or two
    const auto found = static_cast<double>(measured);
    EXPECT_LE(std::abs(static_cast<double>(foreseen - measured)), std::max(0.05 * found, 1.0 * small))
        << what << ": foreseen " << foreseen << ", measured " << measured;
  }

  static void compare(const PassBytes& foreseen, const PassBytes& measured, const std::string& where) {
    EXPECT_EQ(foreseen.input, measured.input) << where;
    EXPECT_EQ(foreseen.output, measured.output) << where;
    expect_near(foreseen.kept, measured.kept, where + ", kept");
    expect_near(foreseen.forward_most, measured.forward_most, where + ", forward");
    expect_near(foreseen.backward_most, measured.backward_most, where + ", backward");
    EXPECT_EQ(foreseen.input_gradient, measured.input_gradient) << where;
    expect_near(foreseen.waiting, measured.waiting, where + ", waiting");
    expect_near(foreseen.weights_most, measured.weights_most, where + ", weights");
  }

  // Each layer alone, and the whole model, kept and computed again.
  void check(const Case& one, int64_t element_bytes, const std::vector<int64_t>& sample_counts,
             WeightGradients weights = WeightGradients::at_once) {
    Ledger ledger;
    const OwnerScope here(ledger, Owner::other);
    const auto table = model_table(one.model, vocab, element_bytes);
    DeferredGradients deferred;
    const auto model =
        make_model(one.model, element_bytes, weights == WeightGradients::at_once ? nullptr : &deferred);
    const size_t layers = model->layers.size();
    const auto whole = [&](size_t begin, size_t end, at::Tensor input, size_t recomputed, const std::string& where) {
      const ReplayConditions conditions{.samples = input.size(0), .weights = weights};
      Part part(*model, begin, end, ledger, deferred, weights, recomputed);
      compare(pass_bytes(table, begin, end, conditions, recomputed), part.run(input), where);
    };
    const auto type = type_of(element_bytes);
    warm_up(*model, make_input(one.model, 2, type));
    for (const int64_t samples : sample_counts) {
      const auto name = one.name + ", " + std::to_string(8 * element_bytes) + " bits, " + std::to_string(samples) +
                        " samples";
      auto x = make_input(one.model, samples, type);
      for (size_t i = 0; i < layers; ++i) {
        // Equal blocks are equal.
        if (i < 2 || i + 1 == layers || table.layers[i].output != table.layers[i - 1].output)
          whole(i, i + 1, x.clone(), 0, name + ", " + table.layers[i].name);
        if (i + 1 < layers) x = ahead(*model->layers[i], x);
      }
      whole(0, layers, make_input(one.model, samples, type), 0, name + ", all layers");
      if (weights == WeightGradients::at_once)
        whole(0, layers, make_input(one.model, samples, type), layers - 1, name + ", all layers computed again");
    }
  }

 private:
  // A message to the next part of the model lies as tensors do by default.
  static at::Tensor ahead(Layer& layer, const at::Tensor& x) {
    const c10::NoGradGuard no_grad;
    Pass pass;
    pass.training = true;
    pass.samples = at::arange(x.size(0));
    return layer.forward(x, pass).contiguous();
  }

  // What layers make once and keep.
  static void warm_up(const Model& model, at::Tensor x) {
    for (const auto& layer : model.layers) x = ahead(*layer, x);
  }

  const int threads_;
};

ModelConfig gpt() {
  return {.kind = ModelKind::gpt, .layers = 2, .width = 128, .heads = 4, .context = 128, .vocab = vocab};
}

ModelConfig llama() {
  auto config = gpt();
  config.kind = ModelKind::llama;
  config.hidden = 256;
  return config;
}

TEST_F(LayerBytes, OfGpt) {
  for (const int64_t element_bytes : {4, 2, 8}) check({"gpt", gpt()}, element_bytes, {4, 12});
  auto config = gpt();
  config.dropout = 0.1;
  for (const int64_t element_bytes : {4, 2}) check({"gpt with dropout", config}, element_bytes, {8});
  config = gpt();
  config.untied = true;
  config.lora_rank = 4;
  for (const int64_t element_bytes : {4, 2}) check({"gpt with adapters", config}, element_bytes, {8});
  config.lora_rank = 0;
  config.freeze = "wte.*, wpe.*, h.0.*";
  check({"gpt, partly frozen", config}, 4, {8});
}

TEST_F(LayerBytes, OfLlama) {
  for (const int64_t element_bytes : {4, 2, 8}) check({"llama", llama()}, element_bytes, {4, 12});
  auto config = llama();
  config.kv_heads = 2;
  config.tied = true;
  check({"llama with grouped heads", config}, 4, {8});
  config.dropout = 0.1;
  for (const int64_t element_bytes : {4, 2}) check({"llama with dropout", config}, element_bytes, {8});
  config.dropout = 0;
  config.lora_rank = 4;
  config.lora_targets = "*.q_proj, *.v_proj, *.up_proj";
  check({"llama with adapters", config}, 4, {8});
}

TEST_F(LayerBytes, OfAnMlp) {
  ModelConfig config{.kind = ModelKind::mlp, .layers = 3, .width = 512, .inputs = 300, .classes = 100};
  for (const int64_t element_bytes : {4, 2, 8}) check({"mlp", config}, element_bytes, {256, 2048});
  config.dropout = 0.1;
  check({"mlp with dropout", config}, 4, {2048});
}

// Weights whose gradients are computed later keep what these are computed from.
TEST_F(LayerBytes, OfGradientsThatArePutOff) {
  for (const auto weights : {WeightGradients::at_the_end, WeightGradients::later}) {
    check({"gpt, put off", gpt()}, 4, {8}, weights);
    check({"llama, put off", llama()}, 2, {8}, weights);
    check({"resnet18, put off", {.kind = ModelKind::resnet18, .classes = 10, .image = 32}}, 4, {8}, weights);
  }
}

TEST_F(LayerBytes, OfImageModels) {
  const auto config = [](ModelKind kind, int64_t image) {
    return ModelConfig{.kind = kind, .dropout = 0.1, .classes = 10, .image = image};
  };
  for (const int64_t element_bytes : {4, 2, 8}) {
    check({"cnn", config(ModelKind::cnn, 32)}, element_bytes, {8, 64});
    check({"resnet18", config(ModelKind::resnet18, 16)}, element_bytes, {16});
  }
  check({"resnet50", config(ModelKind::resnet50, 64)}, 4, {8});
  check({"vgg11", config(ModelKind::vgg11, 32)}, 4, {16});
  check({"alexnet", config(ModelKind::alexnet, 32)}, 4, {64});
  check({"googlenet", config(ModelKind::googlenet, 32)}, 4, {8, 16});
}

}  // namespace
}  // namespace trireme
