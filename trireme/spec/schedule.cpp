#include "trireme/spec/schedule.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/spec/action_list.h"
#include "trireme/spec/action_table.h"

namespace trireme {

namespace {

bool is_pass(TaskKind kind) {
  return kind == TaskKind::forward || kind == TaskKind::backward || kind == TaskKind::weights;
}

// The earliest listed of the tasks that no schedule orders: loading, norms, updates.
size_t first_other(std::span<const ReadyTask> ready) {
  size_t best = Schedule::none;
  for (size_t i = 0; i < ready.size(); ++i) {
    if (is_pass(ready[i].kind)) continue;
    if (best == Schedule::none || ready[i].order < ready[best].order) best = i;
  }
  return best;
}

size_t place_in_list(const StageState& state) {
  return static_cast<size_t>(state.forwards + state.backwards + state.weights_done());
}

size_t find(std::span<const ReadyTask> ready, const StageAction& action) {
  for (size_t i = 0; i < ready.size(); ++i) {
    if (StageAction{ready[i].kind, ready[i].index, ready[i].chunk} == action) return i;
  }
  return Schedule::none;
}

}  // namespace

ListSchedule::ListSchedule(std::string name, ActionList actions)
    : name_(std::move(name)), actions_(std::move(actions)), splits_(trireme::splits(actions_)) {
  int now = 0;
  for (const auto& action : actions_) {
    if (action.kind == TaskKind::forward) in_flight_ = std::max(in_flight_, ++now);
    if (action.kind == (splits_ ? TaskKind::weights : TaskKind::backward)) --now;
  }
}

size_t ListSchedule::choose(std::span<const ReadyTask> ready, const StageState& state) const {
  const size_t place = place_in_list(state);
  const size_t found = place < actions_.size() ? find(ready, actions_[place]) : none;
  return found != none ? found : first_other(ready);
}

TaskKind ListSchedule::awaited(const StageState& state) const {
  const size_t place = place_in_list(state);
  return place < actions_.size() ? actions_[place].kind : TaskKind::reduce;
}

FillingSchedule::FillingSchedule(std::string name, ActionList plan) : plan_(std::move(name), std::move(plan)) {
  for (const auto& action : *plan_.plan()) {
    if (action.kind != TaskKind::weights) passes_.push_back(action);
  }
}

size_t FillingSchedule::choose(std::span<const ReadyTask> ready, const StageState& state) const {
  const auto place = static_cast<size_t>(state.forwards + state.backwards);
  if (place < passes_.size()) {
    const bool room = passes_[place].kind != TaskKind::forward || state.forwards - state.weights_done() < in_flight();
    const size_t found = room ? find(ready, passes_[place]) : none;
    if (found != none) return found;
  }
  size_t earliest = none;
  for (size_t i = 0; i < ready.size(); ++i) {
    if (ready[i].kind != TaskKind::weights) continue;
    if (earliest == none || ready[i].order < ready[earliest].order) earliest = i;
  }
  return earliest != none ? earliest : first_other(ready);
}

TaskKind FillingSchedule::awaited(const StageState& state) const {
  const auto place = static_cast<size_t>(state.forwards + state.backwards);
  return place < passes_.size() ? passes_[place].kind : TaskKind::reduce;
}

ArrivalSchedule::ArrivalSchedule(StagePlace place, int in_flight, bool in_order)
    : place_(std::move(place)), in_flight_(std::min(in_flight, std::max(1, place_.microbatches))), in_order_(in_order) {
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

namespace {

using Options = ScheduleOptions;

std::unique_ptr<Schedule> listed(const char* name, ActionList actions) {
  return std::make_unique<ListSchedule>(name, std::move(actions));
}

std::unique_ptr<Schedule> filled(const char* name, ActionList actions) {
  return std::make_unique<FillingSchedule>(name, std::move(actions));
}

std::unique_ptr<Schedule> take_turns(const char* name, const StagePlace& place, const Options&) {
  return listed(name, one_forward_one_backward_actions(place));
}

bool same_table(const Options& a, const Options& b) {
  return a.table == b.table || (a.table && b.table && *a.table == *b.table);
}

const ActionTable& table_of(const Options& options) {
  if (!options.table) fail("a schedule from a file has not been read yet: make_plan() does");
  return *options.table;
}

std::vector<ScheduleRow> make_rows() {
  std::vector<ScheduleRow> rows;
  rows.push_back({.kind = ScheduleKind::gpipe,
                  .name = "gpipe",
                  .make = [](const char* name, const StagePlace& place, const Options&) {
                    return listed(name, gpipe_actions(place));
                  }});
  rows.push_back({.kind = ScheduleKind::one_forward_one_backward, .name = "1f1b", .make = take_turns});
  rows.push_back({.kind = ScheduleKind::arrival,
                  .name = "arrival",
                  .make = [](const char*, const StagePlace& place, const Options& options) -> std::unique_ptr<Schedule> {
                    const int64_t most = options.in_flight > 0 ? options.in_flight : first_stage_in_flight(place);
                    return std::make_unique<ArrivalSchedule>(place, static_cast<int>(most), options.deterministic);
                  },
                  .options = {"in_flight"},
                  .follows_arrivals = true});
  rows.push_back({.kind = ScheduleKind::interleaved,
                  .name = "interleaved",
                  .make = [](const char* name, const StagePlace& place, const Options&) {
                    return filled(name, interleaved_actions(place, /*split=*/true));
                  },
                  .make_frugal = [](const char* name, const StagePlace& place, const Options&) {
                    return listed(name, interleaved_actions(place, /*split=*/false));
                  },
                  .options = {"chunks"},
                  .layout = [](const Options& options) {
                    return ChunkLayout{options.chunks > 0 ? static_cast<int>(options.chunks) : 2};
                  }});
  rows.push_back({.kind = ScheduleKind::zero_bubble,
                  .name = "zero-bubble",
                  .make = [](const char* name, const StagePlace& place, const Options& options) {
                    return filled(name, zero_bubble_actions(place, static_cast<int>(options.in_flight)));
                  },
                  .options = {"in_flight"}});
  rows.push_back({.kind = ScheduleKind::zero_bubble_v,
                  .name = "zero-bubble-v",
                  .make = [](const char* name, const StagePlace& place, const Options&) {
                    return filled(name, zero_bubble_v_actions(place));
                  },
                  .layout = [](const Options&) { return ChunkLayout{2, /*vee=*/true}; }});
  // Through all steps those of PipeDream take turns in the order of 1f1b through one.
  rows.push_back({.kind = ScheduleKind::pipedream,
                  .name = "pipedream",
                  .make = take_turns,
                  .options = {"vertical_sync", "predict"},
                  .drains = false});
  rows.push_back({.kind = ScheduleKind::pipedream_2bw,
                  .name = "pipedream-2bw",
                  .make = take_turns,
                  .options = {"predict"},
                  .drains = false,
                  .changes_once = true});
  rows.push_back({.kind = ScheduleKind::file,
                  .name = "file",
                  .make = [](const char* name, const StagePlace& place, const Options& options) {
                    return listed(name, table_of(options).actions_of(place));
                  },
                  .options = {"schedule_file"},
                  .layout = [](const Options& options) { return ChunkLayout{table_of(options).chunks, table_of(options).vee}; }});
  return rows;
}

}  // namespace

bool ScheduleOptions::operator==(const ScheduleOptions& other) const {
  const auto values = [](const ScheduleOptions& o) {
    return std::tie(o.chunks, o.in_flight, o.deterministic, o.file, o.vertical_sync, o.predict);
  };
  return values(*this) == values(other) && same_table(*this, other);
}

bool ScheduleRow::reads(std::string_view option) const {
  return std::any_of(options.begin(), options.end(), [&](const char* one) { return one == option; });
}

const std::vector<ScheduleRow>& all_schedules() {
  static const auto rows = make_rows();
  return rows;
}

const ScheduleRow& row_of(ScheduleKind kind) {
  for (const auto& row : all_schedules()) {
    if (row.kind == kind) return row;
  }
  fail("no such schedule");
}

std::unique_ptr<Schedule> make_schedule(ScheduleKind kind, const StagePlace& place, const ScheduleOptions& options,
                                        bool frugal) {
  const auto& row = row_of(kind);
  const auto make = frugal && row.make_frugal ? row.make_frugal : row.make;
  return make(row.name, place, options);
}

}  // namespace trireme
