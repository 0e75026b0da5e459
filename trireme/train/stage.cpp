#include "trireme/train/stage.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>

namespace trireme {

namespace {

// The part that holds a layer.
int holder(const std::vector<int64_t>& begins, size_t layer) {
  const auto after = std::upper_bound(begins.begin(), begins.end(), static_cast<int64_t>(layer));
  return static_cast<int>(after - begins.begin()) - 1;
}

}  // namespace

std::vector<Tie> find_ties(const Model& whole, const std::vector<int64_t>& begins, const Mesh& mesh, int stage) {
  std::map<const Parameter*, std::set<int>> users;
  std::map<const Parameter*, int> uses;
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    const int user = mesh.stage_of_part(holder(begins, i));
    for (const auto& parameter : whole.layers[i]->parameters()) {
      users[parameter.get()].insert(user);
      if (user == stage) parameter->uses = ++uses[parameter.get()];
    }
  }
  std::vector<Tie> ties;
  for (const auto& parameter : whole.parameters()) {
    const auto& stages = users[parameter.get()];
    if (stages.size() < 2) continue;
    const std::vector<int> listed(stages.begin(), stages.end());
    const auto known = std::find_if(ties.begin(), ties.end(), [&](const auto& tie) { return tie.stages == listed; });
    parameter->tie = static_cast<int>(known - ties.begin());
    parameter->owned = listed.front() == stage;
    if (known == ties.end()) ties.push_back({listed});
  }
  return ties;
}

Stage::Stage(const Model& whole, const std::vector<int64_t>& begins, int part)
    : part_(part), parts_(static_cast<int>(begins.size())) {
  begin_ = begins[static_cast<size_t>(part)];
  end_ = last() ? static_cast<int64_t>(whole.layers.size()) : begins[static_cast<size_t>(part) + 1];
  if (!first()) incoming_.push_back({part - 1, part, 0});
  if (!last()) outgoing_.push_back({part, part + 1, 0});
  for (size_t k = 0; k < whole.skips.size(); ++k) {
    const Crossing crossing{holder(begins, whole.skips[k].from), holder(begins, whole.skips[k].to),
                            static_cast<uint16_t>(k + 1)};
    if (crossing.from == crossing.to) continue;
    if (crossing.to == part) incoming_.push_back(crossing);
    if (crossing.from == part) outgoing_.push_back(crossing);
  }
  model_ = std::make_unique<Model>();
  model_->skips = whole.skips;
  model_->loss = whole.loss;
  model_->layers.assign(whole.layers.begin() + begin_, whole.layers.begin() + end_);
}

std::vector<at::Tensor> Stage::forward(const std::vector<at::Tensor>& inputs, const Pass& pass) const {
  std::vector<at::Tensor> skipped(model_->skips.size());
  for (size_t i = 0; i < incoming_.size(); ++i) {
    if (incoming_[i].way > 0) skipped[incoming_[i].way - 1u] = inputs[i];
  }
  const auto x = model_->forward(inputs[0], pass, static_cast<size_t>(begin_), skipped);
  if (last()) return {x};
  std::vector<at::Tensor> outputs;
  for (const auto& crossing : outgoing_) outputs.push_back(crossing.way == 0 ? x : skipped[crossing.way - 1u]);
  return outputs;
}

}  // namespace trireme
