#include "trireme/engine/simulation.h"

#include <algorithm>
#include <queue>
#include <set>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/engine/executor.h"

namespace trireme {

namespace {

class SimulatedClock final : public Clock {
 public:
  double now_s() const override { return now; }
  double now = 0;
};

// What a part of the model does on a rank: the wires that end when a microbatch's message comes, and what is done. By
// the rank's own numbers of the microbatches.
struct Part {
  std::vector<TaskId> forward_message, backward_message;
  std::vector<bool> passed[3];  // by forward, backward, weights
};

// One rank: its executor, and the graph of its passes.
struct Rank {
  Rank(const Clock& clock, const StagePlace& place, std::unique_ptr<Schedule> schedule, StageCost cost)
      : executor(recorder, clock), place(place), schedule(std::move(schedule)), cost(cost) {}

  Recorder recorder;
  Executor executor;
  StagePlace place;
  std::unique_ptr<Schedule> schedule;
  StageCost cost;
  Graph graph;
  std::vector<Part> parts;  // by chunk
  bool busy = false, done = false;
  int in_flight = 0, slices = 0;
};

size_t way_of(TaskKind kind) { return kind == TaskKind::forward ? 0 : kind == TaskKind::backward ? 1 : 2; }

class Pipeline {
 public:
  Pipeline(const ScheduleMaker& make, const Mesh& mesh, int microbatches, const std::vector<StageCost>& costs)
      : mesh_(mesh) {
    if (mesh_.even()) mesh_.replicas_by_stage.clear();  // one of each
    for (int r = 0; r < mesh_.ranks(); ++r) {
      const int stage = mesh_.stage_of(r);
      const auto place = place_of(mesh_, stage, mesh_.replica_of(r), microbatches);
      ranks_.push_back(std::make_unique<Rank>(clock_, place, make(place), costs[static_cast<size_t>(stage)]));
    }
    report_.in_flight.resize(ranks_.size());
    report_.idle_s.resize(ranks_.size());
    for (int r = 0; r < mesh_.ranks(); ++r) build(r);
  }

  PipelineReport run() {
    for (auto& rank : ranks_) rank->executor.begin(rank->graph, *rank->schedule);
    for (size_t r = 0; r < ranks_.size(); ++r) advance(static_cast<int>(r));
    std::set<int> moved;
    while (!events_.empty()) {
      const auto event = events_.top();
      events_.pop();
      clock_.now = event.time_s;
      auto& rank = *ranks_[static_cast<size_t>(event.rank)];
      if (event.message) {
        rank.executor.complete(event.task);
      } else {
        rank.busy = false;
      }
      moved.insert(event.rank);
      // What happens at one time is known before anybody chooses.
      if (!events_.empty() && events_.top().time_s <= clock_.now + 1e-12) continue;
      for (const int one : moved) advance(one);
      moved.clear();
    }
    check_that_all_ended();
    report_.step_s = clock_.now;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      double busy = 0;
      for (const auto& span : report_.spans) busy += span.rank == static_cast<int>(r) ? span.end_s - span.begin_s : 0;
      report_.idle_s[r] = report_.step_s - busy;
    }
    return std::move(report_);
  }

 private:
  struct Event {
    double time_s;
    int64_t number;  // earlier ones first where times are equal
    int rank;
    bool message;  // or the end of a pass
    TaskId task;
    bool operator>(const Event& other) const { return std::tie(time_s, number) > std::tie(other.time_s, other.number); }
  };

  void build(int r) {
    auto& rank = *ranks_[static_cast<size_t>(r)];
    const bool splits = rank.schedule->splits();
    rank.parts.resize(static_cast<size_t>(mesh_.chunks));
    for (int32_t chunk = 0; chunk < mesh_.chunks; ++chunk) {
      auto& part = rank.parts[static_cast<size_t>(chunk)];
      const int number = mesh_.part_of(rank.place.stage, chunk);
      for (auto& passed : part.passed) passed.assign(static_cast<size_t>(rank.place.microbatches), false);
      if (!splits) part.passed[2].clear();
      for (int32_t m = 0; m < rank.place.microbatches; ++m) {
        const auto message = [&] { return rank.graph.add(TaskKind::receive, m, Lane::wire, [] {}); };
        const auto add = [&](TaskKind kind, const std::vector<TaskId>& before) {
          return rank.graph.add(
              kind, m, Lane::compute, [this, r, kind, m, chunk] { pass(r, {kind, m, chunk}); }, before, 0, chunk);
        };
        std::vector<TaskId> before;
        if (number > 0) before.push_back(part.forward_message.emplace_back(message()));
        before = {add(TaskKind::forward, before)};
        if (number + 1 < mesh_.parts()) before.push_back(part.backward_message.emplace_back(message()));
        const TaskId backward = add(TaskKind::backward, before);
        for (TaskId slice = backward, i = 0; splits && i < weight_slices; ++i) slice = add(TaskKind::weights, {slice});
      }
    }
  }

  // The executor has chosen a pass: it takes its time, and its message leaves at the end.
  void pass(int r, StageAction action) {
    auto& rank = *ranks_[static_cast<size_t>(r)];
    const bool forward = action.kind == TaskKind::forward, splits = rank.schedule->splits();
    const bool weights = action.kind == TaskKind::weights;
    const double whole = forward ? rank.cost.forward_s : rank.cost.backward_s / (splits ? 2 : 1);
    const double end = clock_.now + whole / mesh_.chunks / (weights ? weight_slices : 1);
    report_.spans.push_back({r, action, clock_.now, end});
    rank.busy = true;
    rank.parts[static_cast<size_t>(action.chunk)].passed[way_of(action.kind)][static_cast<size_t>(action.microbatch)] =
        true;
    if (forward) {
      ++rank.in_flight;
    } else if (weights ? ++rank.slices % weight_slices == 0 : !splits) {
      --rank.in_flight;
    }
    auto& most = report_.in_flight[static_cast<size_t>(r)];
    most = std::max(most, rank.in_flight);
    if (rank.in_flight > rank.schedule->in_flight()) {
      fail("schedule {}: stage {} holds {} microbatches at forward {}, more than the {} that it said",
           rank.schedule->name(), rank.place.stage, rank.in_flight, action.microbatch, rank.schedule->in_flight());
    }
    events_.push({end, ++number_, r, false, 0});
    if (!weights) send(rank, action, end);
  }

  void send(const Rank& rank, StageAction action, double end) {
    const bool forward = action.kind == TaskKind::forward;
    const int part = mesh_.part_of(rank.place.stage, action.chunk) + (forward ? 1 : -1);
    if (part < 0 || part >= mesh_.parts()) return;
    const int stage = mesh_.stage_of_part(part);
    const int microbatch = action.microbatch * mesh_.replicas(rank.place.stage) + rank.place.replica;
    const int to = mesh_.rank_of(stage, microbatch % mesh_.replicas(stage));
    auto& receiver = ranks_[static_cast<size_t>(to)]->parts[static_cast<size_t>(mesh_.chunk_of_part(part))];
    const auto& messages = forward ? receiver.forward_message : receiver.backward_message;
    const double way_s = stage == rank.place.stage ? 0 : rank.cost.message_s;
    events_.push({end + way_s, ++number_, to, true, messages[static_cast<size_t>(microbatch / mesh_.replicas(stage))]});
  }

  // Lets a rank that is free choose its next pass.
  void advance(int r) {
    auto& rank = *ranks_[static_cast<size_t>(r)];
    if (rank.busy || rank.done) return;
    try {
      rank.done = rank.executor.run_one() == Executor::Progress::done;
    } catch (const Error&) {
      say_what_is_missing();  // an executor without messages under way knows that it cannot end
      throw;
    }
  }

  void check_that_all_ended() const {
    for (const auto& rank : ranks_) {
      if (!rank->done) say_what_is_missing();
    }
  }

  void say_what_is_missing() const {
    std::string missing;
    for (const auto& rank : ranks_) {
      const auto first = first_missing(*rank);
      if (!first.empty()) missing += (missing.empty() ? "" : ", ") + first;
    }
    if (!missing.empty()) fail("schedule {} cannot end: {}", ranks_[0]->schedule->name(), missing);
  }

  static std::string first_missing(const Rank& rank) {
    for (size_t way = 0; way < 3; ++way) {
      for (size_t chunk = 0; chunk < rank.parts.size(); ++chunk) {
        const auto& passed = rank.parts[chunk].passed[way];
        const auto place = std::find(passed.begin(), passed.end(), false);
        if (place == passed.end()) continue;
        const auto where = rank.parts.size() > 1 ? fmt::format(" (chunk {})", chunk) : "";
        constexpr TaskKind kinds[] = {TaskKind::forward, TaskKind::backward, TaskKind::weights};
        return fmt::format("stage {}{} has not done {} {}", rank.place.stage, where, name(kinds[way]),
                           place - passed.begin());
      }
    }
    return "";
  }

  Mesh mesh_;
  SimulatedClock clock_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t number_ = 0;
  PipelineReport report_;
};

}  // namespace

double PipelineReport::bubble() const {
  double idle = 0;
  for (const double seconds : idle_s) idle += seconds;
  return step_s > 0 ? idle / (step_s * static_cast<double>(idle_s.size())) : 0;
}

std::string PipelineReport::brief() const {
  return fmt::format("bubble {:.1f} %, microbatches in flight by rank {}", 100 * bubble(), fmt::join(in_flight, " "));
}

PipelineReport simulate_pipeline(const ScheduleMaker& make, const Mesh& mesh, int microbatches,
                                 const std::vector<StageCost>& costs) {
  return Pipeline(make, mesh, microbatches, costs).run();
}

PipelineReport simulate_pipeline(const ScheduleMaker& make, int microbatches, const std::vector<StageCost>& costs) {
  Mesh mesh;
  mesh.stages = static_cast<int>(costs.size());
  return simulate_pipeline(make, mesh, microbatches, costs);
}

}  // namespace trireme
