#include "trireme/nn/model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <unordered_set>

#include "trireme/base/error.h"
#include "trireme/nn/on_threads.h"

namespace trireme {

ParameterPtr Layer::add(const std::string& name, std::vector<int64_t> shape, Initial initial) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = name;
  parameter->value = at::empty(shape, at::kDouble).set_requires_grad(true);
  parameter->initial = initial;
  parameter->decays = shape.size() > 1;
  parameters_.push_back(parameter);
  return parameter;
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

LayerTable Model::table(int64_t element_bytes) const {
  LayerTable table;
  table.element_bytes = element_bytes;
  for (const auto& layer : layers) table.layers.push_back(layer->spec());
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
    parameter->value = parameter->value.detach().to(device, dtype).set_requires_grad(true);
  }
}

at::Tensor cross_entropy_sum(const at::Tensor& output, const at::Tensor& targets) {
  auto rows = output.reshape({-1, output.size(-1)});
  if (rows.scalar_type() == at::kBFloat16 || rows.scalar_type() == at::kHalf) rows = rows.to(at::kFloat);
  return at::cross_entropy_loss(rows, targets.reshape({-1}), {}, at::Reduction::Sum);
}

std::unique_ptr<Model> build_model(const ModelConfig& config, int64_t vocab) {
  if (config.kind == ModelKind::custom)
    refuse("model.kind = custom is the model of a program that uses the library: train it with that program");
  auto model = config.kind == ModelKind::gpt ? build_gpt(config, vocab) : build_mlp(config);
  if (config.skip) model->skips.push_back({0, model->layers.size() - 1});
  return model;
}

}  // namespace trireme
