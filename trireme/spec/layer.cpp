#include "trireme/spec/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/spec/pass_bytes.h"

namespace trireme {

namespace {

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

int64_t ParameterSpec::elements() const { return product(shape); }
int64_t BufferSpec::elements() const { return product(shape); }

namespace {

constexpr std::string_view first_half = ".lora_A.weight", second_half = ".lora_B.weight";

}  // namespace

AdapterNames adapter_names(const std::string& name) {
  return {name + std::string(first_half), name + std::string(second_half)};
}

std::string adapted_by(const std::string& parameter) {
  return parameter.ends_with(first_half) ? parameter.substr(0, parameter.size() - first_half.size()) : "";
}

bool LayerSpec::operator==(const LayerSpec& other) const {
  const auto seen = [](const LayerSpec& one) {
    return std::tie(one.name, one.forward_flops, one.backward_flops, one.depth, one.parameters, one.tied, one.frozen,
                    one.output, one.uses, one.buffers, one.takes_ids);
  };
  return seen(*this) == seen(other);
}

LayerSpec& LayerTable::add_layer(std::string name) {
  auto& layer = layers.emplace_back();
  layer.name = std::move(name);
  return layer;
}

ParameterSpec& LayerTable::add(std::string name, std::vector<int64_t> shape, Initial initial) {
  layers.back().uses.push_back(weights.size());
  auto& parameter = weights.emplace_back();
  parameter.name = std::move(name);
  parameter.kind = shape.size() > 1 ? ParameterKind::matrix : ParameterKind::vector;
  parameter.shape = std::move(shape);
  parameter.initial = initial;
  return parameter;
}

void LayerTable::share(const std::string& name) {
  const auto found = std::find_if(weights.begin(), weights.end(), [&](const auto& one) { return one.name == name; });
  if (found == weights.end()) fail("no parameter {} to share", name);
  layers.back().uses.push_back(static_cast<size_t>(found - weights.begin()));
}

void LayerTable::count() {
  std::vector<bool> seen(weights.size());
  for (auto& layer : layers) {
    layer.parameters = layer.tied = layer.frozen = 0;
    for (const size_t number : layer.uses) {
      const int64_t elements = weights[number].elements();
      (seen[number] ? layer.tied : layer.parameters) += elements;
      if (!seen[number] && !weights[number].trained) layer.frozen += elements;
      seen[number] = true;
    }
  }
}

int64_t LayerTable::sum(int64_t LayerSpec::* field) const {
  int64_t total = 0;
  for (const auto& layer : layers) total += layer.*field;
  return total;
}

int64_t LayerTable::kept_bytes(size_t layer) const {
  const auto bytes = forward_bytes(*this, layer, layer + 1, {});
  return bytes.input + bytes.kept;
}

int64_t LayerTable::activation_bytes() const {
  const auto bytes = forward_bytes(*this, 0, layers.size(), {});
  return bytes.input + bytes.kept;
}

int64_t LayerTable::parameters() const { return sum(&LayerSpec::parameters); }

double LayerTable::flops() const {
  double total = 0;
  for (const auto& layer : layers) total += layer.forward_flops + layer.backward_flops;
  return total;
}

std::string LayerTable::full() const {
  std::string text = fmt::format("{:<12} {:>10} {:>14} {:>14} {:>8} {:>12} {:>12} {:>12}\n", "layer", "parameters",
                                 "forward FLOP", "backward FLOP", "depth", "parallelism", "kept", "output");
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto& layer = layers[i];
    text += fmt::format("{:<12} {:>10} {:>14} {:>14} {:>8} {:>12} {:>12} {:>12}\n", layer.name,
                        human_count(static_cast<double>(layer.parameters)), human_count(layer.forward_flops),
                        human_count(layer.backward_flops), human_count(layer.depth),
                        human_count(layer.depth > 0 ? layer.forward_flops / layer.depth : 0),
                        human_bytes(static_cast<double>(kept_bytes(i))),
                        human_bytes(static_cast<double>(layer.output * element_bytes)));
  }
  return text;
}

double product_flops(double m, double k, double n) { return 2 * m * k * n; }
double product_depth(double k) { return 1 + std::ceil(std::log2(std::max(1.0, k))); }

}  // namespace trireme
