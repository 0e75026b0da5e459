#include "trireme/engine/simulation.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/engine/step_graph.h"

namespace trireme {

namespace {

class SimulatedClock final : public Clock {
 public:
  double now_s() const override { return now; }
  double now = 0;
};

bool is_pass(TaskKind kind) {
  return kind == TaskKind::forward || kind == TaskKind::backward || kind == TaskKind::weights;
}

// One rank: its executor, and the step that it is in.
struct Rank {
  Rank(const Clock& clock, int number, const Plan& plan, const LayerTable& table, std::unique_ptr<Schedule> given,
       const StageCost& cost)
      : executor(recorder, clock),
        number(number),
        stage(plan.mesh.stage_of(number)),
        plays(std::move(given)),
        builder(plan, table, number, *plays),
        cost(cost),
        splits(plays->splits()),
        may_hold(plays->in_flight()) {}

  Recorder recorder;
  Executor executor;
  const int number, stage;
  const std::unique_ptr<Schedule> plays;
  const StepBuilder builder;
  const StageCost cost;
  const bool splits;
  int may_hold;  // microbatches in flight

  std::optional<Flow> flow;  // of a pipeline that never drains,
  FlowPosition position;     // where it stands in it,
  std::unique_ptr<Schedule> flow_schedule;  // and the order of the step
  int step = 0;
  StepGraph tasks;
  Graph graph;
  std::vector<bool> done_tasks;
  std::vector<int> unwritten;  // by round: passes that have not written their gradients
  bool busy = false, done = false;
  double free_s = 0, busy_s = 0;  // when its last task ends, and how long all of them took
  int in_flight = 0, most_in_flight = 0, slices = 0;
};

class Pipeline {
 public:
  Pipeline(const Plan& plan, const LayerTable& table, const ScheduleMaker& make, const std::vector<StageCost>& costs,
           bool all_ranks)
      : plan_(plan), places_(static_cast<size_t>(plan.mesh.ranks()), -1) {
    for (const int number : played(all_ranks)) {
      places_[static_cast<size_t>(number)] = static_cast<int>(ranks_.size());
      ranks_.push_back(std::make_unique<Rank>(clock_, number, plan, table, make(plan.dealing.place(number)),
                                              costs[static_cast<size_t>(plan.mesh.stage_of(number))]));
      if (!plan.drains()) enter(*ranks_.back(), plan.flow_of(number));
    }
    for (size_t tie = 0; const auto& one : find_ties(plan, table)) sharers_[static_cast<int>(tie++)] = one.stages;
  }

  PipelineReport run() {
    for (auto& rank : ranks_) begin_step(*rank);
    for (auto& rank : ranks_) advance(*rank);
    std::set<int> moved;
    while (!events_.empty()) {
      const auto event = events_.top();
      events_.pop();
      clock_.now = event.time_s;
      happen(event);
      moved.insert(event.place);
      // What happens at one time is known before anybody chooses.
      if (!events_.empty() && events_.top().time_s <= clock_.now + 1e-12) continue;
      for (const int place : moved) advance(*ranks_[static_cast<size_t>(place)]);
      moved.clear();
    }
    check_that_all_ended();
    report_.step_s = clock_.now;
    for (const auto& rank : ranks_) {
      report_.in_flight.push_back(rank->most_in_flight);
      report_.idle_s.push_back(report_.step_s - rank->busy_s);
    }
    return std::move(report_);
  }

 private:
  enum class EventKind : uint8_t { free, message, wire };
  struct Event {
    double time_s;
    int64_t number;  // earlier ones first where times are equal
    int place;       // of the rank
    EventKind kind;  // the rank has ended its task, a message comes in, or a wire task ends
    TaskId task;
    StepMessage message;

    bool operator>(const Event& other) const { return std::tie(time_s, number) > std::tie(other.time_s, other.number); }
  };
  // Messages that have come and are not expected yet, or the task that expects one.
  struct Box {
    int waiting = 0;
    std::optional<TaskId> expected;
  };
  // A sum that some of its ranks have begun.
  struct Meeting {
    std::vector<std::pair<int, TaskId>> joined;
    double last_s = 0;
  };
  using MeetingKey = std::tuple<StepSum::Group, int, int, int>;  // of which stage or tie, step, number of the sum

  std::vector<int> played(bool all_ranks) const {
    const auto& mesh = plan_.mesh;
    std::vector<int> ranks(static_cast<size_t>(mesh.ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
    if (all_ranks || !mesh.even()) return ranks;
    ranks.clear();
    std::set<int> counts;
    for (int replica = 0; replica < mesh.replicas(); ++replica) {
      if (!counts.insert(plan_.dealing.numbers(mesh.rank_of(0, replica))).second) continue;
      for (int stage = 0; stage < mesh.stages; ++stage) ranks.push_back(mesh.rank_of(stage, replica));
    }
    return ranks;
  }

  int place_of(int rank) const { return places_[static_cast<size_t>(rank)]; }

  // Of a pipeline that never drains as many steps are played as may be in flight at once, and one more.
  static void enter(Rank& rank, const Flow& flow) {
    rank.flow = flow;
    rank.position.total = flow.per_step() * (flow.steps_in_flight() + 1);
    rank.may_hold = flow.ahead() + 1;
  }

  void begin_step(Rank& rank) {
    rank.tasks = rank.flow ? rank.builder.flow_step(rank.position) : rank.builder.step();
    rank.done_tasks.assign(rank.tasks.tasks.size(), false);
    rank.unwritten.assign(rank.tasks.rounds.size(), 0);
    for (const auto& task : rank.tasks.tasks) {
      if (writes(rank, task)) ++rank.unwritten[round_of(rank, task)];
    }
    rank.graph = bind(rank.tasks, [&](TaskId id, const StepTask& task) -> std::function<void()> {
      if (lane_of(task.work) == Lane::compute) return [this, &rank, id] { play(rank, id); };
      if (task.work == Work::receive) return [this, &rank, id] { expect(rank, id); };
      return [this, &rank, id] { join(rank, id); };
    });
    if (rank.flow) {
      const auto& [forwarded, returned, total, obeys, owes] = rank.position;
      rank.flow_schedule =
          std::make_unique<ListSchedule>(rank.plays->name(), rank.flow->actions(forwarded, returned, total));
    }
    rank.executor.begin(rank.graph, rank.flow ? *rank.flow_schedule : *rank.plays);
  }

  // False where that was the last one.
  bool begin_next_step(Rank& rank) {
    if (!rank.flow) return false;
    auto& position = rank.position;
    for (const auto& task : rank.tasks.tasks) position.forwarded += task.work == Work::forward;
    position.returned += rank.flow->per_step();
    if (position.returned == position.total) return false;
    ++rank.step;
    position.obeys = rank.step >= rank.flow->steps_in_flight();
    position.owes = rank.builder.has_ties();
    begin_step(rank);
    return true;
  }

  // Whether a task is one of those after which a round of gradients is whole.
  static bool writes(const Rank& rank, const StepTask& task) {
    return !rank.tasks.rounds.empty() && task.work == (rank.splits ? Work::weights : Work::backward);
  }
  static size_t round_of(const Rank& rank, const StepTask& task) {
    return rank.tasks.rounds.size() > 1 ? static_cast<size_t>(task.index) : 0;
  }

  double seconds_of(const Rank& rank, Work work) const {
    const double chunk = 1.0 / plan_.mesh.chunks;
    switch (work) {
      case Work::forward: return rank.cost.forward_s * chunk;
      case Work::backward: return rank.cost.backward_s * chunk / (rank.splits ? 2 : 1);
      case Work::weights: return rank.cost.backward_s * chunk / 2 / weight_slices;
      default: return 0;
    }
  }

  // The executor has chosen a task: it takes its time, and its messages leave at the end.
  void play(Rank& rank, TaskId id) {
    const auto& task = rank.tasks.tasks[id];
    const double end = clock_.now + seconds_of(rank, task.work);
    span(rank, id, end);
    rank.busy_s += end - clock_.now;
    rank.free_s = end;
    if (end > clock_.now) {
      rank.busy = true;
      add_event(end, place_of(rank.number), EventKind::free);
    }
    count_in_flight(rank, task);
    for (const auto& message : task.sends) {
      if (place_of(message.to) < 0) continue;
      const bool far = plan_.mesh.stage_of(message.to) != rank.stage;
      add_event(end + (far ? rank.cost.message_s : 0), place_of(message.to), EventKind::message, 0, message);
    }
    if (!writes(rank, task)) return;
    const size_t round = round_of(rank, task);
    if (--rank.unwritten[round] > 0) return;
    for (const TaskId sum : rank.tasks.rounds[round]) rank.executor.signal(sum);
  }

  void count_in_flight(Rank& rank, const StepTask& task) {
    if (task.work == Work::forward) ++rank.in_flight;
    if (task.work == Work::backward && !rank.splits) --rank.in_flight;
    if (task.work == Work::weights && ++rank.slices % weight_slices == 0) --rank.in_flight;
    rank.most_in_flight = std::max(rank.most_in_flight, rank.in_flight);
    if (rank.in_flight > rank.may_hold && too_many_.empty()) {
      too_many_ = fmt::format("schedule {}: stage {} holds {} microbatches at forward {}, more than the {} that it said",
                              rank.plays->name(), rank.stage, rank.in_flight, task.index, rank.may_hold);
    }
  }

  void expect(Rank& rank, TaskId id) {
    const auto& message = rank.tasks.tasks[id].message;
    auto& box = boxes_[message];
    if (place_of(message.from) >= 0 && box.waiting == 0) {
      box.expected = id;
      return;
    }
    box.waiting = std::max(0, box.waiting - 1);
    add_event(begun_s(rank), place_of(rank.number), EventKind::wire, id);
  }

  void join(Rank& rank, TaskId id) {
    const auto& sum = rank.tasks.tasks[id].sum;
    const int where = sum.group == StepSum::Group::stage ? rank.stage : sum.tie;
    auto& meeting = meetings_[{sum.group, where, rank.step, sum.number}];
    meeting.joined.emplace_back(place_of(rank.number), id);
    meeting.last_s = std::max(meeting.last_s, begun_s(rank));
    if (meeting.joined.size() < ranks_in(sum, rank)) return;
    for (const auto& [place, task] : meeting.joined) add_event(meeting.last_s, place, EventKind::wire, task);
    meetings_.erase({sum.group, where, rank.step, sum.number});
  }

  // Ranks that are played and make a sum together.
  size_t ranks_in(const StepSum& sum, const Rank& rank) const {
    const auto count = [&](const auto& takes_part) {
      return static_cast<size_t>(
          std::count_if(ranks_.begin(), ranks_.end(), [&](const auto& one) { return takes_part(one->stage); }));
    };
    switch (sum.group) {
      case StepSum::Group::own: return 1;
      case StepSum::Group::stage: return count([&](int stage) { return stage == rank.stage; });
      case StepSum::Group::tie: {
        const auto& stages = sharers_.at(sum.tie);
        return count([&](int stage) { return std::find(stages.begin(), stages.end(), stage) != stages.end(); });
      }
      case StepSum::Group::everybody: return ranks_.size();
    }
    return 1;
  }

  // When a wire task begins: after the task that the rank is in, which made it ready.
  double begun_s(const Rank& rank) const { return std::max(clock_.now, rank.free_s); }

  void happen(const Event& event) {
    auto& rank = *ranks_[static_cast<size_t>(event.place)];
    switch (event.kind) {
      case EventKind::free: rank.busy = false; return;
      case EventKind::wire: return complete(rank, event.task);
      case EventKind::message: {
        auto& box = boxes_[event.message];
        if (!box.expected) {
          ++box.waiting;
          return;
        }
        complete(rank, *std::exchange(box.expected, std::nullopt));
        return;
      }
    }
  }

  void complete(Rank& rank, TaskId id) {
    span(rank, id, clock_.now);
    rank.executor.complete(id);
  }

  void span(Rank& rank, TaskId id, double end_s) {
    const auto& task = rank.tasks.tasks[id];
    rank.done_tasks[id] = true;
    report_.spans.push_back({rank.number,
                             rank.step,
                             lane_of(task.work),
                             {kind_of(task.work), task.index, task.chunk},
                             clock_.now,
                             end_s});
  }

  void add_event(double time_s, int place, EventKind kind, TaskId task = 0, const StepMessage& message = {}) {
    events_.push({time_s, ++number_, place, kind, task, message});
  }

  // Lets a rank that is free choose its next tasks.
  void advance(Rank& rank) {
    try {
      while (!rank.busy && !rank.done) {
        const auto progress = rank.executor.run_one();
        if (!too_many_.empty()) break;
        if (progress == Executor::Progress::waiting) return;
        if (progress == Executor::Progress::done) rank.done = !begin_next_step(rank);
      }
    } catch (const Error&) {
      describe_what_is_missing();  // an executor without messages under way knows that it cannot end
      throw;
    }
    if (!too_many_.empty()) fail("{}", too_many_);
  }

  void check_that_all_ended() const {
    for (const auto& rank : ranks_) {
      if (!rank->done) describe_what_is_missing();
    }
  }

  // Passes; or, where all of these are done, other tasks.
  void describe_what_is_missing() const {
    for (const bool passes : {true, false}) {
      std::string missing;
      for (const auto& rank : ranks_) {
        const auto first = first_missing(*rank, passes);
        if (!first.empty()) missing += (missing.empty() ? "" : ", ") + first;
      }
      if (!missing.empty()) fail("schedule {} cannot end: {}", ranks_[0]->plays->name(), missing);
    }
  }

  static std::string first_missing(const Rank& rank, bool passes) {
    std::optional<std::tuple<TaskKind, int32_t, int32_t>> first;  // kinds of passes are in their order
    for (size_t i = 0; i < rank.done_tasks.size(); ++i) {
      const auto& task = rank.tasks.tasks[i];
      const TaskKind kind = kind_of(task.work);
      if (rank.done_tasks[i] || is_pass(kind) != passes) continue;
      const auto found = std::tuple(kind, task.chunk, task.index);
      if (!first || found < *first) first = found;
    }
    if (!first) return "";
    const auto [kind, chunk, index] = *first;
    const auto where = rank.builder.chunks().size() > 1 ? fmt::format(" (chunk {})", chunk) : "";
    const auto which = index < 0 ? "" : fmt::format(" {}", index);
    return fmt::format("stage {}{} has not done {}{}", rank.stage, where, name(kind), which);
  }

  const Plan& plan_;
  SimulatedClock clock_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<int> places_;                   // in ranks_, by rank; -1: not played
  std::map<int, std::vector<int>> sharers_;   // stages, by tie
  std::map<StepMessage, Box> boxes_;
  std::map<MeetingKey, Meeting> meetings_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t number_ = 0;
  std::string too_many_;  // microbatches in flight, and where
  PipelineReport report_;
};

}  // namespace

bool TaskSpan::is_pass() const { return trireme::is_pass(action.kind); }

double PipelineReport::bubble() const {
  double idle = 0;
  for (const double seconds : idle_s) idle += seconds;
  return step_s > 0 ? idle / (step_s * static_cast<double>(idle_s.size())) : 0;
}

std::string PipelineReport::brief() const {
  return fmt::format("bubble {:.1f} %, microbatches in flight by rank {}", 100 * bubble(), fmt::join(in_flight, " "));
}

PipelineReport simulate(const Plan& plan, const LayerTable& table, const std::vector<StageCost>& costs,
                        bool all_ranks) {
  return Pipeline(plan, table, [&](const StagePlace& place) { return plan.schedule_at(place); }, costs, all_ranks).run();
}

PipelineReport simulate_pipeline(const ScheduleMaker& make, const Mesh& mesh, int microbatches,
                                 const std::vector<StageCost>& costs) {
  Mesh played = mesh;
  if (mesh.even()) played.replicas_by_stage.clear();
  LayerTable table;
  table.layers.resize(static_cast<size_t>(mesh.parts()));
  std::vector<int64_t> begins(table.layers.size());
  std::iota(begins.begin(), begins.end(), 0);
  const Plan plan{.mesh = played, .begins = begins, .dealing = Dealing(played, microbatches, {.most = 1})};
  return Pipeline(plan, table, make, costs, /*all_ranks=*/true).run();
}

PipelineReport simulate_pipeline(const ScheduleMaker& make, int microbatches, const std::vector<StageCost>& costs) {
  Mesh mesh;
  mesh.stages = static_cast<int>(costs.size());
  return simulate_pipeline(make, mesh, microbatches, costs);
}

}  // namespace trireme
