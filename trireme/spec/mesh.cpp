#include "trireme/spec/mesh.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/words.h"

namespace trireme {

bool Mesh::even() const {
  return std::all_of(replicas_by_stage.begin(), replicas_by_stage.end(),
                     [this](int one) { return one == replicas_by_stage.front(); });
}

int Mesh::first_rank(int stage) const {
  if (replicas_by_stage.empty()) return stage;
  return std::accumulate(replicas_by_stage.begin(), replicas_by_stage.begin() + stage, 0);
}

int Mesh::stage_of(int rank) const {
  int stage = 0;
  for (int next = replicas(0); stage + 1 < stages && rank >= next; next += replicas(stage)) ++stage;
  return stage;
}

Mesh make_mesh(const ParallelConfig& parallel, int ranks) {
  Mesh mesh;
  mesh.stages = static_cast<int>(parallel.pipe);
  if (const auto layout = row_of(parallel.schedule).layout) {
    const auto [chunks, vee] = layout(parallel.options);
    mesh.chunks = chunks;
    mesh.vee = vee;
  }
  if (!parallel.replicas.empty()) {
    mesh.replicas_by_stage.assign(parallel.replicas.begin(), parallel.replicas.end());
    if (mesh.ranks() != ranks) {
      refuse("{} cannot be laid out as parallel.replicas = [{}]: start {}, or change the layout",
             counted(ranks, "rank"), fmt::join(parallel.replicas, ", "), counted(mesh.ranks(), "rank"));
    }
    return mesh;
  }
  const int64_t stages = parallel.pipe;
  const int64_t replicas = parallel.data > 0 ? parallel.data : std::max<int64_t>(1, ranks / stages);
  if (stages * replicas != ranks) {
    const auto asked = parallel.data > 0 ? fmt::format("parallel.pipe = {} times parallel.data = {}", stages, replicas)
                                          : fmt::format("parallel.pipe = {}", stages);
    refuse("{} cannot be laid out as {}: start {}, or change the layout", counted(ranks, "rank"), asked,
           parallel.data > 0 || ranks < stages
               ? counted(stages * replicas, "rank")
               : fmt::format("{} or {}", stages * replicas, counted(stages * (replicas + 1), "rank")));
  }
  mesh.replicas_by_stage.assign(static_cast<size_t>(stages), static_cast<int>(replicas));
  return mesh;
}

StagePlace place_of(const Mesh& mesh, int stage, int replica, int microbatches) {
  StagePlace place{stage, mesh.stages, microbatches, mesh.chunks, mesh.vee};
  if (mesh.even()) return place;
  place.replicas = mesh.replicas_by_stage;
  place.replica = replica;
  place.dealt = microbatches;
  place.microbatches = (microbatches - replica + mesh.replicas(stage) - 1) / mesh.replicas(stage);
  return place;
}

namespace {

// The cuts whose heaviest part is lightest: best[s][l] is the weight of the heaviest of s parts over the first l
// layers. `sharers`: among so many ranks a part's work is dealt.
std::vector<int64_t> balanced(const LayerTable& table, const std::vector<int>& sharers) {
  const size_t layers = table.layers.size(), parts = sharers.size();
  std::vector<double> before(layers + 1, 0);
  for (size_t l = 0; l < layers; ++l)
    before[l + 1] = before[l] + table.layers[l].forward_flops + table.layers[l].backward_flops;
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(parts + 1, std::vector<double>(layers + 1, infinity));
  std::vector<std::vector<size_t>> cut(parts + 1, std::vector<size_t>(layers + 1, 0));
  best[0][0] = 0;
  for (size_t s = 1; s <= parts; ++s) {
    for (size_t l = s; l <= layers; ++l) {
      for (size_t k = s - 1; k < l; ++k) {
        const double heaviest = std::max(best[s - 1][k], (before[l] - before[k]) / sharers[s - 1]);
        if (heaviest < best[s][l]) {
          best[s][l] = heaviest;
          cut[s][l] = k;
        }
      }
    }
  }
  std::vector<int64_t> begins(parts);
  for (size_t s = parts, l = layers; s > 0; l = cut[s][l], --s) begins[s - 1] = static_cast<int64_t>(cut[s][l]);
  return begins;
}

}  // namespace

void check_cuts(const std::vector<int64_t>& cuts, int64_t layers) {
  int64_t before = 0;
  for (const int64_t cut : cuts) {
    if (cut <= before || cut >= layers) {
      refuse("parallel.cuts = [{}]: each must be above the one before and below {}, the number of layers",
             fmt::join(cuts, ", "), layers);
    }
    before = cut;
  }
}

std::vector<int64_t> part_begins(const LayerTable& table, const ParallelConfig& parallel, const Mesh& mesh) {
  const auto layers = static_cast<int64_t>(table.layers.size());
  const int parts = mesh.parts();
  if (parts > layers) {
    if (mesh.chunks == 1)
      refuse("parallel.pipe = {}: the model has {}, and a stage needs at least one", mesh.stages,
             counted(layers, "layer"));
    refuse("parallel.pipe = {} with {} chunks on each rank: the model has {}, and a chunk needs at least one",
           mesh.stages, mesh.chunks, counted(layers, "layer"));
  }
  if (parallel.cuts.empty()) {
    std::vector<int> sharers;
    for (int part = 0; part < parts; ++part) sharers.push_back(mesh.replicas(mesh.stage_of_part(part)));
    return balanced(table, sharers);
  }
  if (static_cast<int>(parallel.cuts.size()) != parts - 1) {
    refuse("parallel.cuts = [{}]: {} parts of the model need {} cuts", fmt::join(parallel.cuts, ", "), parts,
           parts - 1);
  }
  check_cuts(parallel.cuts, layers);
  std::vector<int64_t> begins{0};
  begins.insert(begins.end(), parallel.cuts.begin(), parallel.cuts.end());
  return begins;
}

}  // namespace trireme
