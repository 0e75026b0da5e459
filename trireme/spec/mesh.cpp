#include "trireme/spec/mesh.h"

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"

namespace trireme {

Mesh make_mesh(const ParallelConfig& parallel, int ranks) {
  const int64_t stages = parallel.pipe;
  const int64_t replicas = parallel.data > 0 ? parallel.data : std::max<int64_t>(1, ranks / stages);
  if (stages * replicas != ranks) {
    const auto layout = parallel.data > 0 ? fmt::format("parallel.pipe = {} times parallel.data = {}", stages, replicas)
                                          : fmt::format("parallel.pipe = {}", stages);
    refuse("{} ranks cannot be laid out as {}: start {} ranks, or change the layout", ranks, layout,
           parallel.data > 0 || ranks < stages ? fmt::format("{}", stages * replicas)
                                               : fmt::format("{} or {}", stages * replicas, stages * (replicas + 1)));
  }
  return {static_cast<int>(stages), static_cast<int>(replicas)};
}

namespace {

// The cuts whose heaviest stage is lightest: best[s][l] is the weight of the heaviest of s stages over the first l
// layers.
std::vector<int64_t> balanced(const LayerTable& table, size_t stages) {
  const size_t layers = table.layers.size();
  std::vector<double> before(layers + 1, 0);
  for (size_t l = 0; l < layers; ++l)
    before[l + 1] = before[l] + table.layers[l].forward_flops + table.layers[l].backward_flops;
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(layers + 1, infinity));
  std::vector<std::vector<size_t>> cut(stages + 1, std::vector<size_t>(layers + 1, 0));
  best[0][0] = 0;
  for (size_t s = 1; s <= stages; ++s) {
    for (size_t l = s; l <= layers; ++l) {
      for (size_t k = s - 1; k < l; ++k) {
        const double heaviest = std::max(best[s - 1][k], before[l] - before[k]);
        if (heaviest < best[s][l]) {
          best[s][l] = heaviest;
          cut[s][l] = k;
        }
      }
    }
  }
  std::vector<int64_t> begins(stages);
  for (size_t s = stages, l = layers; s > 0; l = cut[s][l], --s) begins[s - 1] = static_cast<int64_t>(cut[s][l]);
  return begins;
}

}  // namespace

std::vector<int64_t> stage_begins(const LayerTable& table, const ParallelConfig& parallel) {
  const auto layers = static_cast<int64_t>(table.layers.size());
  if (parallel.pipe > layers) {
    refuse("parallel.pipe = {}: the model has {} layers, and a stage needs at least one", parallel.pipe, layers);
  }
  if (parallel.cuts.empty()) return balanced(table, static_cast<size_t>(parallel.pipe));
  std::vector<int64_t> begins{0};
  for (const int64_t cut : parallel.cuts) {
    if (cut <= begins.back() || cut >= layers) {
      refuse("parallel.cuts = [{}]: each must be above the one before and below {}, the number of layers",
             fmt::join(parallel.cuts, ", "), layers);
    }
    begins.push_back(cut);
  }
  return begins;
}

}  // namespace trireme
