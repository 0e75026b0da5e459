#include "trireme/train/stage.h"

#include <ATen/ATen.h>

namespace trireme {

void note_sharing(const Model& whole, const LayerTable& table, const Plan& plan, int stage) {
  const auto parameters = whole.parameters();
  for (const auto& held : held_parameters(plan, table, stage)) {
    auto& parameter = *parameters[held.number];
    parameter.uses = held.uses;
    parameter.tie = held.tie;
    parameter.owned = held.owned;
  }
}

Stage::Stage(const Model& whole, const std::vector<int64_t>& begins, int part)
    : part_(part), parts_(static_cast<int>(begins.size())), crossings_(crossings_of(part, begins, whole.skips)) {
  begin_ = begins[static_cast<size_t>(part)];
  end_ = last() ? static_cast<int64_t>(whole.layers.size()) : begins[static_cast<size_t>(part) + 1];
  model_ = std::make_unique<Model>();
  model_->skips = whole.skips;
  model_->loss = whole.loss;
  model_->layers.assign(whole.layers.begin() + begin_, whole.layers.begin() + end_);
}

std::vector<at::Tensor> Stage::forward(const std::vector<at::Tensor>& inputs, const Pass& pass) const {
  std::vector<at::Tensor> skipped(model_->skips.size());
  for (size_t i = 0; i < incoming().size(); ++i) {
    if (incoming()[i].way > 0) skipped[incoming()[i].way - 1u] = inputs[i];
  }
  const auto x = model_->forward(inputs[0], pass, static_cast<size_t>(begin_), skipped);
  if (last()) return {x};
  std::vector<at::Tensor> outputs;
  for (const auto& crossing : outgoing()) outputs.push_back(crossing.way == 0 ? x : skipped[crossing.way - 1u]);
  return outputs;
}

}  // namespace trireme
