// What a pipeline that never drains has in flight: into a checkpoint, and back. Nobody else has the inputs of forward
// passes whose microbatches are not back yet, nor the weights that they saw; the rest is computed again.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "trireme/train/stage_trainer.h"

namespace trireme {

OwnState StageTrainer::flow_state() {
  auto& flow = *flow_;
  OwnState state;
  const auto number = [](int64_t value) { return at::full({1}, value, at::kLong); };
  state["flow.newest"] = number(flow.versions.newest());
  state["flow.forwarded"] = number(flow.forwarded);
  state["flow.total"] = number(flow.total);
  for (const auto& [version, values] : flow.versions.all()) {
    if (version == flow.versions.newest() && !flow.versions.predicts()) continue;  // the masters
    for (size_t b = 0; b < values.values.size(); ++b)
      state[fmt::format("version.{}.{}", version, b)] = values.values[b];
    for (const auto& [parameter, value] : values.wide)
      state[fmt::format("version.{}.{}", version, parameter->name)] = value;
  }
  for (int64_t n = flow.returned; n < flow.forwarded; ++n) {
    const auto& flight = chunks_.front().flights[slot_of(n)];
    state[fmt::format("flight.{}.version", n)] = number(flight.version);
    if (first_) continue;
    for (size_t i = 0; i < flight.inputs.size(); ++i)
      state[fmt::format("flight.{}.input.{}", n, i)] = flight.inputs[i].detach();
  }
  if (sums_) state.merge(sums_->own_state());
  return state;
}

// Goes on with what was in flight. Collective: where the state of any rank is of another layout, all fill the pipeline
// anew.
bool StageTrainer::go_on(const OwnState& state) {
  auto& flow = *flow_;
  flow.returned = flow.forwarded = flow.next = progression_.step * flow.plan.per_step();
  flow.versions.restore(progression_.updates, {});
  const auto fits = at::full({1}, fits_flow(state) ? 1 : 0, at::kLong);
  auto& communicator = world_.communicator();
  communicator.now([&] { return communicator.all_reduce(fits, ReduceOp::min, "agree on what is in flight"); });
  if (fits.item<int64_t>() == 0) return false;
  const auto& buckets = store_->buckets();
  const int64_t newest = state.at("flow.newest").item<int64_t>();
  std::map<int64_t, WeightVersions::Version> older;
  for (int64_t version = std::max<int64_t>(0, newest - flow.plan.most_versions()); version <= newest; ++version) {
    if (!state.count(fmt::format("version.{}.0", version))) continue;
    auto& kept = older[version];
    for (size_t b = 0; b < buckets.size(); ++b) {
      kept.values.push_back(state.at(fmt::format("version.{}.{}", version, b)).to(buckets[b].values.options()));
      for (const auto& stored : buckets[b].parameters) {
        const auto wide = state.find(fmt::format("version.{}.{}", version, stored.parameter->name));
        if (wide != state.end()) kept.wide[stored.parameter.get()] = wide->second.to(buckets[b].master.options());
      }
    }
  }
  flow.versions.restore(newest, std::move(older));
  if (sums_) {
    c10::NoGradGuard no_grad;
    for (const auto& [name, tensor] : sums_->own_state()) tensor.copy_(state.at(name));
  }
  flow.forwarded = flow.next = state.at("flow.forwarded").item<int64_t>();
  flow.total_then = state.at("flow.total").item<int64_t>();
  flow.replays = flow.forwarded > flow.returned;
  auto& chunk = chunks_.front();
  for (int64_t n = flow.returned; n < flow.forwarded; ++n) {
    auto& flight = chunk.flights[slot_of(n)];
    flight.version = state.at(fmt::format("flight.{}.version", n)).item<int64_t>();
    for (size_t i = 0; i < chunk.stage->incoming().size(); ++i)
      flight.arrived[i] = {state.at(fmt::format("flight.{}.input.{}", n, i)).to(device_), {}};
  }
  return true;
}

// Whether a state is one of this rank's part of the model, at this step.
bool StageTrainer::fits_flow(const OwnState& state) const {
  const auto& flow = *flow_;
  for (const char* name : {"flow.newest", "flow.forwarded", "flow.total"}) {
    if (!state.count(name)) return false;
  }
  const int64_t forwarded = state.at("flow.forwarded").item<int64_t>();
  if (forwarded < flow.returned || forwarded - flow.returned > flow.plan.ahead()) return false;
  const auto& buckets = store_->buckets();
  const auto holds = [&](int64_t version) {
    for (size_t b = 0; b < buckets.size(); ++b) {
      const auto found = state.find(fmt::format("version.{}.{}", version, b));
      if (found == state.end() || found->second.sizes() != buckets[b].values.sizes()) return false;
    }
    return !state.count(fmt::format("version.{}.{}", version, buckets.size()));
  };
  const int64_t newest = state.at("flow.newest").item<int64_t>();
  if (holds(newest) != flow.versions.predicts()) return false;
  for (const auto& [name, tensor] : sums_ ? sums_->own_state() : OwnState{}) {
    const auto found = state.find(name);
    if (found == state.end() || found->second.sizes() != tensor.sizes()) return false;
  }
  for (int64_t n = flow.returned; n < forwarded; ++n) {
    const auto seen = state.find(fmt::format("flight.{}.version", n));
    if (seen == state.end()) return false;
    const int64_t version = seen->second.item<int64_t>();
    if (version != newest && !holds(version)) return false;
    for (size_t i = 0; i < chunks_.front().stage->incoming().size(); ++i) {
      if (!state.count(fmt::format("flight.{}.input.{}", n, i))) return false;
    }
  }
  return true;
}

// The forward passes that had been done are done again, with what they saw then; the others have had their messages.
void StageTrainer::replay() {
  auto& flow = *flow_;
  const int64_t forwarded = flow.forwarded, K = flow.plan.per_step();
  std::vector<at::Tensor> remembered;
  for (const auto& buffer : model_->buffers()) remembered.push_back(buffer->value.clone());
  flow.forwarded = flow.returned;
  load_ahead(forwarded - flow.returned);
  for (int64_t n = flow.returned; n < forwarded; ++n) {
    auto& flight = chunks_.front().flights[slot_of(n)];
    auto& loaded = flow.loaded[static_cast<size_t>(n / K - flow.loaded.front().step)];
    flight.data = std::move(loaded.microbatches[static_cast<size_t>(n % K)]);
    flight.step = loaded.step;
    flight.items = static_cast<double>(std::max<int64_t>(1, loaded.learnt_targets));
    flow.versions.hold(flight.version);
    flow.replayed = n;
    forward(0, slot_of(n));
  }
  flow.replayed = -1;
  flow.replays = false;
  flow.forwarded = forwarded;
  c10::NoGradGuard no_grad;
  size_t i = 0;
  for (const auto& buffer : model_->buffers()) buffer->value.copy_(remembered[i++]);
}

// Whether a later part of the model had passed the microbatch that is being replayed.
bool StageTrainer::had_passed(int part) const {
  const auto& flow = *flow_;
  const int64_t K = flow.plan.per_step();
  const int own = static_cast<int>(flow.replayed % K);
  const int holder = plan_.dealing.holder(world_.rank(), own, mesh_.stage_of_part(part));
  const auto other = plan_.flow_of(holder);
  const int64_t there = other.per_step();
  const int64_t number = flow.replayed / K * there + plan_.dealing.own_of(holder, number_of(static_cast<size_t>(own)));
  return number < other.forwarded(progression_.step * there, flow.total_then / K * there);
}

}  // namespace trireme
