#include "trireme/spec/schedule.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

namespace {

bool is_pass(TaskKind kind) { return kind == TaskKind::forward || kind == TaskKind::backward; }

// The earliest listed of the tasks that no schedule orders: loading, norms, updates.
size_t first_other(std::span<const ReadyTask> ready) {
  size_t best = Schedule::none;
  for (size_t i = 0; i < ready.size(); ++i) {
    if (is_pass(ready[i].kind)) continue;
    if (best == Schedule::none || ready[i].order < ready[best].order) best = i;
  }
  return best;
}

}  // namespace

ListSchedule::ListSchedule(std::string name, std::vector<StageAction> actions)
    : name_(std::move(name)), actions_(std::move(actions)) {}

size_t ListSchedule::choose(std::span<const ReadyTask> ready, const StageState& state) const {
  const auto place = static_cast<size_t>(state.forwards + state.backwards);
  if (place < actions_.size()) {
    for (size_t i = 0; i < ready.size(); ++i) {
      if (StageAction{ready[i].kind, ready[i].index} == actions_[place]) return i;
    }
  }
  return first_other(ready);
}

TaskKind ListSchedule::awaited(const StageState& state) const {
  const auto place = static_cast<size_t>(state.forwards + state.backwards);
  return place < actions_.size() ? actions_[place].kind : TaskKind::reduce;
}

int ListSchedule::in_flight() const {
  int now = 0, most = 0;
  for (const auto& action : actions_) {
    now += action.kind == TaskKind::forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

ArrivalSchedule::ArrivalSchedule(StagePlace place, int in_flight, bool in_order)
    : place_(place), in_flight_(std::min(in_flight, place.microbatches)), in_order_(in_order) {
  if (in_flight_ < 1) fail("a pipeline needs at least one microbatch in flight, not {}", in_flight);
}

size_t ArrivalSchedule::choose(std::span<const ReadyTask> ready, const StageState& state) const {
  size_t forward = none;
  for (size_t i = 0; i < ready.size(); ++i) {
    const auto& task = ready[i];
    if (task.kind == TaskKind::backward && (!in_order_ || task.index == state.backwards)) return i;
    if (task.kind == TaskKind::forward && forward == none && (!in_order_ || task.index == state.forwards)) forward = i;
  }
  if (forward != none && state.in_flight() < in_flight_) return forward;
  return first_other(ready);
}

TaskKind ArrivalSchedule::awaited(const StageState& state) const {
  if (state.backwards == place_.microbatches) return TaskKind::reduce;
  const bool may_begin = state.forwards < place_.microbatches && state.in_flight() < in_flight_;
  return may_begin ? TaskKind::forward : TaskKind::backward;
}

std::vector<StageAction> gpipe_actions(StagePlace place) {
  std::vector<StageAction> actions;
  for (const auto kind : {TaskKind::forward, TaskKind::backward}) {
    for (int32_t i = 0; i < place.microbatches; ++i) actions.push_back({kind, i});
  }
  return actions;
}

std::vector<StageAction> one_forward_one_backward_actions(StagePlace place) {
  const int32_t ahead = std::min(place.stages - place.stage - 1, place.microbatches);
  std::vector<StageAction> actions;
  for (int32_t i = 0; i < ahead; ++i) actions.push_back({TaskKind::forward, i});
  for (int32_t i = 0; i < place.microbatches; ++i) {
    if (ahead + i < place.microbatches) actions.push_back({TaskKind::forward, ahead + i});
    actions.push_back({TaskKind::backward, i});
  }
  return actions;
}

std::unique_ptr<Schedule> make_schedule(ScheduleKind kind, StagePlace place, int in_flight, bool deterministic) {
  switch (kind) {
    case ScheduleKind::gpipe: return std::make_unique<ListSchedule>("gpipe", gpipe_actions(place));
    case ScheduleKind::one_forward_one_backward:
      return std::make_unique<ListSchedule>("1f1b", one_forward_one_backward_actions(place));
    case ScheduleKind::arrival:
      return std::make_unique<ArrivalSchedule>(place, in_flight > 0 ? in_flight : place.stages, deterministic);
  }
  fail("no such schedule");
}

}  // namespace trireme
