#include "trireme/spec/layer.h"

#include <fmt/format.h>

#include <cmath>

#include "trireme/base/units.h"

namespace trireme {

int64_t LayerTable::sum(int64_t LayerSpec::* field) const {
  int64_t total = 0;
  for (const auto& layer : layers) total += layer.*field;
  return total;
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
  const auto bytes = [&](int64_t elements) { return human_bytes(static_cast<double>(elements * element_bytes)); };
  for (const auto& layer : layers) {
    text += fmt::format("{:<12} {:>10} {:>14} {:>14} {:>8} {:>12} {:>12} {:>12}\n", layer.name,
                        human_count(static_cast<double>(layer.parameters)), human_count(layer.forward_flops),
                        human_count(layer.backward_flops), human_count(layer.depth),
                        human_count(layer.depth > 0 ? layer.forward_flops / layer.depth : 0), bytes(layer.activations),
                        bytes(layer.output));
  }
  return text;
}

double product_flops(double m, double k, double n) { return 2 * m * k * n; }
double product_depth(double k) { return 1 + std::ceil(std::log2(std::max(1.0, k))); }

}  // namespace trireme
