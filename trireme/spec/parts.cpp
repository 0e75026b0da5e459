#include "trireme/spec/parts.h"

#include <algorithm>
#include <set>

namespace trireme {

namespace {

// The part that holds a layer.
int holder(const std::vector<int64_t>& begins, size_t layer) {
  const auto after = std::upper_bound(begins.begin(), begins.end(), static_cast<int64_t>(layer));
  return static_cast<int>(after - begins.begin()) - 1;
}

// By parameter of the table.
std::vector<std::vector<int>> stages_by_parameter(const Plan& plan, const LayerTable& table) {
  std::vector<std::set<int>> users(table.weights.size());
  for (size_t i = 0; i < table.layers.size(); ++i) {
    const int stage = plan.mesh.stage_of_part(holder(plan.begins, i));
    for (const size_t number : table.layers[i].uses) users[number].insert(stage);
  }
  std::vector<std::vector<int>> stages;
  for (const auto& one : users) stages.emplace_back(one.begin(), one.end());
  return stages;
}

}  // namespace

Crossings crossings_of(int part, const std::vector<int64_t>& begins, const std::vector<Skip>& skips) {
  Crossings crossings;
  if (part > 0) crossings.incoming.push_back({part - 1, part, 0});
  if (part + 1 < static_cast<int>(begins.size())) crossings.outgoing.push_back({part, part + 1, 0});
  for (size_t k = 0; k < skips.size(); ++k) {
    const Crossing crossing{holder(begins, skips[k].from), holder(begins, skips[k].to), static_cast<uint16_t>(k + 1)};
    if (crossing.from == crossing.to) continue;
    if (crossing.to == part) crossings.incoming.push_back(crossing);
    if (crossing.from == part) crossings.outgoing.push_back(crossing);
  }
  return crossings;
}

std::vector<Tie> find_ties(const Plan& plan, const LayerTable& table) {
  std::vector<Tie> ties;
  for (const auto& stages : stages_by_parameter(plan, table)) {
    const Tie tie{stages};
    if (stages.size() > 1 && std::find(ties.begin(), ties.end(), tie) == ties.end()) ties.push_back(tie);
  }
  return ties;
}

std::vector<HeldParameter> held_parameters(const Plan& plan, const LayerTable& table, int stage) {
  const auto ties = find_ties(plan, table);
  const auto stages = stages_by_parameter(plan, table);
  std::vector<HeldParameter> held;
  std::vector<size_t> places(table.weights.size(), table.weights.size());  // in `held`, of those that are there
  for (int chunk = 0; chunk < plan.mesh.chunks; ++chunk) {
    const auto [first, last] = plan.layers_of(plan.mesh.part_of(stage, chunk), table.layers.size());
    for (size_t i = first; i < last; ++i) {
      for (const size_t number : table.layers[i].uses) {
        auto& place = places[number];
        if (place < held.size()) {
          ++held[place].uses;
          continue;
        }
        place = held.size();
        HeldParameter one{number};
        if (const auto& all = stages[number]; all.size() > 1) {
          one.tie = static_cast<int>(std::find(ties.begin(), ties.end(), Tie{all}) - ties.begin());
          one.owned = all.front() == stage;
        }
        held.push_back(one);
      }
    }
  }
  return held;
}

}  // namespace trireme
