#include "trireme/train/stage.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>

namespace trireme {

namespace {

// The stage that holds a layer.
int holder(const std::vector<int64_t>& begins, size_t layer) {
  const auto after = std::upper_bound(begins.begin(), begins.end(), static_cast<int64_t>(layer));
  return static_cast<int>(after - begins.begin()) - 1;
}

}  // namespace

Stage::Stage(std::unique_ptr<Model> whole, const std::vector<int64_t>& begins, int stage)
    : stage_(stage), stages_(static_cast<int>(begins.size())) {
  begin_ = begins[static_cast<size_t>(stage)];
  end_ = last() ? static_cast<int64_t>(whole->layers.size()) : begins[static_cast<size_t>(stage) + 1];
  find_ties(*whole, begins);

  if (!first()) incoming_.push_back({stage - 1, stage, 0});
  if (!last()) outgoing_.push_back({stage, stage + 1, 0});
  for (size_t k = 0; k < whole->skips.size(); ++k) {
    const Crossing crossing{holder(begins, whole->skips[k].from), holder(begins, whole->skips[k].to),
                            static_cast<uint16_t>(k + 1)};
    if (crossing.from == crossing.to) continue;
    if (crossing.to == stage) incoming_.push_back(crossing);
    if (crossing.from == stage) outgoing_.push_back(crossing);
  }

  model_ = std::make_unique<Model>();
  model_->skips = whole->skips;
  model_->loss = whole->loss;
  for (int64_t i = begin_; i < end_; ++i) model_->layers.push_back(std::move(whole->layers[static_cast<size_t>(i)]));
  // A parameter that another stage uses too is written here only by the layers that are here.
  std::map<const Parameter*, int> uses;
  for (const auto& layer : model_->layers) {
    for (const auto& parameter : layer->parameters()) parameter->uses = ++uses[parameter.get()];
  }
}

void Stage::find_ties(const Model& whole, const std::vector<int64_t>& begins) {
  std::map<const Parameter*, std::set<int>> users;
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    for (const auto& parameter : whole.layers[i]->parameters()) users[parameter.get()].insert(holder(begins, i));
  }
  for (const auto& parameter : whole.parameters()) {
    const auto& stages = users[parameter.get()];
    if (stages.size() < 2) continue;
    const std::vector<int> listed(stages.begin(), stages.end());
    const auto known = std::find_if(ties_.begin(), ties_.end(), [&](const auto& tie) { return tie.stages == listed; });
    parameter->tie = static_cast<int>(known - ties_.begin());
    parameter->owned = listed.front() == stage_;
    if (known == ties_.end()) ties_.push_back({listed});
  }
}

std::vector<at::Tensor> Stage::forward(const std::vector<at::Tensor>& inputs, const Pass& pass) const {
  std::vector<at::Tensor> skipped(model_->skips.size());
  for (size_t i = 0; i < incoming_.size(); ++i) {
    if (incoming_[i].part > 0) skipped[incoming_[i].part - 1u] = inputs[i];
  }
  const auto x = model_->forward(inputs[0], pass, static_cast<size_t>(begin_), skipped);
  if (last()) return {x};
  std::vector<at::Tensor> outputs;
  for (const auto& crossing : outgoing_) outputs.push_back(crossing.part == 0 ? x : skipped[crossing.part - 1u]);
  return outputs;
}

}  // namespace trireme
