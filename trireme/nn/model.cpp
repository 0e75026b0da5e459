#include "trireme/nn/model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "trireme/base/error.h"
#include "trireme/base/pattern.h"
#include "trireme/nn/on_threads.h"

namespace trireme {

ParameterPtr Layer::add(const std::string& name, std::vector<int64_t> shape, Initial initial) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = name;
  const auto format = shape.size() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  parameter->value = at::empty(shape, at::kDouble, format).set_requires_grad(true);
  parameter->initial = initial;
  parameter->decays = shape.size() > 1;
  parameters_.push_back(parameter);
  return parameter;
}

BufferPtr Layer::remember(const std::string& name, at::Tensor value) {
  return buffers_.emplace_back(std::make_shared<Buffer>(Buffer{name, std::move(value)}));
}

Projection Layer::add_projection(const std::string& name, int64_t inputs, int64_t outputs, WeightLayout layout,
                                 bool bias, Initial initial, const ModelConfig& config) {
  Projection projection;
  projection.layout = layout;
  const bool in_out = layout == WeightLayout::in_out;
  projection.weight =
      add(name + ".weight", in_out ? std::vector<int64_t>{inputs, outputs} : std::vector<int64_t>{outputs, inputs},
          initial);
  if (bias) projection.bias = add(name + ".bias", {outputs}, Initial::zeros());
  if (config.lora_rank > 0 && matches_any(split_patterns(config.lora_targets), name)) {
    const auto bound = 1 / std::sqrt(static_cast<double>(inputs));
    projection.lora_a = add(name + ".lora_A.weight", {config.lora_rank, inputs}, Initial::uniform(bound));
    projection.lora_b = add(name + ".lora_B.weight", {outputs, config.lora_rank}, Initial::zeros());
    projection.lora_scale = config.lora_alpha / static_cast<double>(config.lora_rank);
  }
  return projection;
}

ParameterPtr Layer::share(ParameterPtr parameter) {
  ++parameter->uses;
  parameters_.push_back(parameter);
  return parameter;
}

at::Tensor Model::forward(const at::Tensor& input, const Pass& pass) const {
  std::vector<at::Tensor> skipped(skips.size());
  return forward(input, pass, 0, skipped);
}

at::Tensor Model::forward(const at::Tensor& input, const Pass& pass, size_t first,
                          std::vector<at::Tensor>& skipped) const {
  auto x = input;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (size_t k = 0; k < skips.size(); ++k) {
      if (skips[k].to == first + i) x = x + skipped[k];
    }
    if (pass.before_layer) (*pass.before_layer)(i);
    x = layers[i]->forward(x, pass);
    for (size_t k = 0; k < skips.size(); ++k) {
      if (skips[k].from == first + i) skipped[k] = x;
    }
  }
  return x;
}

ParameterList Model::parameters() const {
  ParameterList all;
  std::unordered_set<const Parameter*> seen;
  for (const auto& layer : layers) {
    for (const auto& parameter : layer->parameters()) {
      if (seen.insert(parameter.get()).second) all.push_back(parameter);
    }
  }
  return all;
}

BufferList Model::buffers() const {
  BufferList all;
  for (const auto& layer : layers) all.insert(all.end(), layer->buffers().begin(), layer->buffers().end());
  return all;
}

LayerTable Model::table(int64_t element_bytes) const {
  LayerTable table;
  table.element_bytes = element_bytes;
  std::unordered_set<const Parameter*> seen;
  for (const auto& layer : layers) {
    table.layers.push_back(layer->spec());
    for (const auto& parameter : layer->parameters()) {
      if (!parameter->trained && seen.insert(parameter.get()).second)
        table.layers.back().frozen += parameter->value.numel();
    }
  }
  return table;
}

namespace {

double draw(const Initial& initial, Key key, int64_t i) {
  const auto place = static_cast<uint64_t>(i);
  switch (initial.kind) {
    case Initial::Kind::zeros: return 0;
    case Initial::Kind::ones: return 1;
    case Initial::Kind::normal: return initial.scale * normal(key, place);
    case Initial::Kind::uniform: return initial.scale * (2 * uniform(key, place) - 1);
    case Initial::Kind::given: break;
  }
  return 0;
}

}  // namespace

void Model::initialize(uint64_t seed) {
  c10::NoGradGuard no_grad;
  for (const auto& parameter : parameters()) {
    if (parameter->initial.kind == Initial::Kind::given) continue;
    const Key key = Key{seed}.with("init").with(parameter->name);
    auto values = at::empty(parameter->value.sizes(), at::kDouble);
    auto* data = values.data_ptr<double>();
    on_threads(values, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) data[i] = draw(parameter->initial, key, i);
    });
    parameter->value.copy_(values);
  }
}

void Model::to(at::ScalarType dtype, at::Device device) {
  c10::NoGradGuard no_grad;
  for (const auto& parameter : parameters()) {
    const auto type = parameter->wide && dtype != at::kDouble ? at::kFloat : dtype;
    parameter->value = parameter->value.detach().to(device, type).set_requires_grad(parameter->trained);
  }
  buffers_to(dtype, device);
}

void Model::buffers_to(at::ScalarType dtype, at::Device device) {
  for (const auto& buffer : buffers()) {
    const bool counts = !buffer->value.is_floating_point();
    const auto type = counts ? buffer->value.scalar_type() : dtype == at::kDouble ? dtype : at::kFloat;
    buffer->value = buffer->value.to(device, type);
  }
}

at::Tensor cross_entropy_sum(const at::Tensor& output, const at::Tensor& targets) {
  auto rows = output.reshape({-1, output.size(-1)});
  if (rows.scalar_type() == at::kBFloat16 || rows.scalar_type() == at::kHalf) rows = rows.to(at::kFloat);
  return at::cross_entropy_loss(rows, targets.reshape({-1}), {}, at::Reduction::Sum);
}

namespace {

std::unique_ptr<Model> build_layers(const ModelConfig& config, int64_t vocab) {
  switch (config.kind) {
    case ModelKind::gpt: return build_gpt(config, vocab);
    case ModelKind::llama: return build_llama(config, vocab);
    case ModelKind::mlp: return build_mlp(config);
    case ModelKind::resnet18:
    case ModelKind::resnet34:
    case ModelKind::resnet50: return build_resnet(config);
    case ModelKind::vgg11:
    case ModelKind::vgg16: return build_vgg(config);
    case ModelKind::alexnet: return build_alexnet(config);
    case ModelKind::cnn: return build_cnn(config);
    case ModelKind::googlenet: return build_googlenet(config);
    case ModelKind::custom:
      refuse("model.kind = custom is the model of a program that uses the library: train it with that program");
  }
  fail("no such model");
}

// Decides which parameters are trained: all but those that model.freeze names, or the adapters alone.
void freeze(const Model& model, const ModelConfig& config) {
  const auto patterns = split_patterns(config.freeze);
  const auto parameters = model.parameters();
  const auto names = [&](const std::string& pattern) {
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](const auto& parameter) { return matches(pattern, parameter->name); });
  };
  for (const auto& pattern : patterns) {
    if (!names(pattern)) refuse("model.freeze: no parameter has the name {}", pattern);
  }
  bool any = false;
  for (const auto& parameter : parameters) {
    const bool adapter = matches_any({"*.lora_A.weight", "*.lora_B.weight"}, parameter->name);
    parameter->trained = config.lora_rank > 0 ? adapter : !matches_any(patterns, parameter->name);
    parameter->value.set_requires_grad(parameter->trained);
    any = any || parameter->trained;
  }
  if (any) return;
  if (config.lora_rank > 0) {
    const auto& block = model.layers[1]->parameters();
    const auto matrix = std::find_if(block.begin(), block.end(), [](const auto& one) { return one->decays; });
    refuse("model.lora_targets = {} names no matrix of this model: they are called {} and the like",
           config.lora_targets, (*matrix)->name.substr(0, (*matrix)->name.rfind(".weight")));
  }
  refuse("model.freeze = {} leaves nothing to train", config.freeze);
}

}  // namespace

std::unique_ptr<Model> build_model(const ModelConfig& config, int64_t vocab) {
  auto model = build_layers(config, config.vocab > 0 ? config.vocab : vocab);
  if (config.skip) model->skips.push_back({0, model->layers.size() - 1});
  freeze(*model, config);
  return model;
}

}  // namespace trireme
