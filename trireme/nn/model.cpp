#include "trireme/nn/model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <unordered_map>
#include <unordered_set>

#include "trireme/base/error.h"
#include "trireme/nn/recompute.h"
#include "trireme/spec/models/models.h"

namespace trireme {

ParameterPtr Layer::parameter(const std::string& name) const {
  for (const auto& one : parts_.parameters) {
    if (one->name == name) return one;
  }
  fail("layer {} has no parameter {}", this->name(), name);
}

BufferPtr Layer::buffer(const std::string& name) const {
  for (const auto& one : parts_.buffers) {
    if (one->name == name) return one;
  }
  fail("layer {} has no buffer {}", this->name(), name);
}

Projection Layer::projection(const std::string& name, WeightLayout layout, const ModelConfig& config) const {
  Projection projection;
  projection.layout = layout;
  projection.weight = parameter(name + ".weight");
  const auto [a, b] = adapter_names(name);
  for (const auto& one : parts_.parameters) {
    if (one->name == name + ".bias") projection.bias = one;
    if (one->name == a) projection.lora_a = one;
    if (one->name == b) projection.lora_b = one;
  }
  if (projection.lora_a) projection.lora_scale = config.lora_alpha / static_cast<double>(config.lora_rank);
  return projection;
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
    x = first + i < pass.recomputed ? recomputed(layers[i], x, pass) : layers[i]->forward(x, pass);
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

namespace {

void place(Parameter& parameter, at::ScalarType type, at::Device device) {
  parameter.value = at::empty_like(parameter.value, at::device(device).dtype(type)).set_requires_grad(parameter.trained);
}

}  // namespace

LayerTable Model::table(int64_t element_bytes) const {
  LayerTable table;
  table.element_bytes = element_bytes;
  table.skips = skips;
  table.input = input;
  std::unordered_map<const Parameter*, size_t> numbers;
  for (const auto& layer : layers) {
    auto& row = table.layers.emplace_back(layer->spec());
    row.uses.clear();
    for (const auto& parameter : layer->parameters()) {
      const auto [found, is_new] = numbers.emplace(parameter.get(), table.weights.size());
      if (is_new) table.weights.emplace_back(*parameter).shape = parameter->value.sizes().vec();
      row.uses.push_back(found->second);
    }
  }
  table.count();
  return table;
}

void Model::initialize(uint64_t seed) {
  c10::NoGradGuard no_grad;
  for (const auto& parameter : parameters()) {
    if (parameter->initial.kind == Initial::Kind::given) continue;
    if (parameter->value.is_meta()) place(*parameter, at::kDouble, at::kCPU);
    draw(*parameter, seed, parameter->value);
  }
}

void Model::to(at::ScalarType dtype, at::Device device) {
  c10::NoGradGuard no_grad;
  for (const auto& parameter : parameters()) {
    const auto type = parameter->wide && dtype != at::kDouble ? at::kFloat : dtype;
    if (parameter->value.is_meta()) {
      place(*parameter, type, device);
    } else {
      parameter->value = parameter->value.detach().to(device, type).set_requires_grad(parameter->trained);
    }
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

// A parameter that layers share is the same one in all of them.
ModelParts make_parts(const LayerTable& table) {
  ParameterList parameters;
  for (const auto& spec : table.weights) parameters.push_back(make_parameter(spec));
  std::vector<bool> used(parameters.size());
  ModelParts parts;
  for (const auto& spec : table.layers) {
    auto& layer = parts.emplace_back();
    layer.spec = spec;
    for (const size_t number : spec.uses) {
      if (used[number]) ++parameters[number]->uses;
      used[number] = true;
      layer.parameters.push_back(parameters[number]);
    }
    for (const auto& buffer : spec.buffers) {
      auto value = at::full(buffer.shape, buffer.start, buffer.counts ? at::kLong : at::kDouble);
      layer.buffers.push_back(std::make_shared<Buffer>(Buffer{buffer.name, std::move(value)}));
    }
  }
  return parts;
}

Layers build_layers(const ModelParts& parts, const ModelConfig& config) {
  switch (config.kind) {
    case ModelKind::gpt: return build_gpt(parts, config);
    case ModelKind::llama: return build_llama(parts, config);
    case ModelKind::mlp: return build_mlp(parts, config);
    case ModelKind::resnet18:
    case ModelKind::resnet34:
    case ModelKind::resnet50: return build_resnet(parts, config);
    case ModelKind::vgg11:
    case ModelKind::vgg16:
    case ModelKind::alexnet:
    case ModelKind::cnn: return build_chain(parts, config);
    case ModelKind::googlenet: return build_googlenet(parts, config);
    case ModelKind::custom: break;
  }
  fail("no such model");
}

}  // namespace

std::unique_ptr<Model> build_model(const ModelConfig& config, int64_t vocab) {
  const auto table = model_table(config, vocab);
  auto model = std::make_unique<Model>();
  model->layers = build_layers(make_parts(table), config);
  model->skips = table.skips;
  model->input = table.input;
  return model;
}

}  // namespace trireme
