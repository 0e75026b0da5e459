#include "trireme/engine/simulation.h"

#include <algorithm>
#include <queue>
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

// One stage: its executor, and the graph of its passes.
struct Stage {
  Stage(const Clock& clock, std::unique_ptr<Schedule> schedule, StageCost cost)
      : executor(recorder, clock), schedule(std::move(schedule)), cost(cost) {}

  Recorder recorder;
  Executor executor;
  std::unique_ptr<Schedule> schedule;
  StageCost cost;
  Graph graph;
  std::vector<TaskId> forward_message, backward_message;  // wires that end when the microbatch's message comes
  std::vector<bool> passed[2];                            // by forward and backward: which microbatches
  bool busy = false, done = false;
  int in_flight = 0;
};

class Pipeline {
 public:
  Pipeline(const ScheduleMaker& make, int microbatches, const std::vector<StageCost>& costs)
      : microbatches_(microbatches) {
    const int stages = static_cast<int>(costs.size());
    for (int s = 0; s < stages; ++s) {
      auto schedule = make({s, stages, microbatches});
      stages_.push_back(std::make_unique<Stage>(clock_, std::move(schedule), costs[static_cast<size_t>(s)]));
    }
    report_.in_flight.resize(costs.size());
    report_.idle_s.resize(costs.size());
    for (int s = 0; s < stages; ++s) build(s);
  }

  PipelineReport run() {
    for (auto& stage : stages_) stage->executor.begin(stage->graph, *stage->schedule);
    for (size_t s = 0; s < stages_.size(); ++s) advance(static_cast<int>(s));
    while (!events_.empty()) {
      const auto event = events_.top();
      events_.pop();
      clock_.now = event.time_s;
      auto& stage = *stages_[static_cast<size_t>(event.stage)];
      if (event.message) {
        stage.executor.complete(event.task);
      } else {
        stage.busy = false;
      }
      advance(event.stage);
    }
    check_that_all_ended();
    report_.step_s = clock_.now;
    for (size_t s = 0; s < stages_.size(); ++s) {
      double busy = 0;
      for (const auto& span : report_.spans) busy += span.stage == static_cast<int>(s) ? span.end_s - span.begin_s : 0;
      report_.idle_s[s] = report_.step_s - busy;
    }
    return std::move(report_);
  }

 private:
  struct Event {
    double time_s;
    int64_t number;  // earlier ones first where times are equal
    int stage;
    bool message;  // or the end of a pass
    TaskId task;
    bool operator>(const Event& other) const { return std::tie(time_s, number) > std::tie(other.time_s, other.number); }
  };

  void build(int s) {
    auto& stage = *stages_[static_cast<size_t>(s)];
    const bool first = s == 0, last = s + 1 == static_cast<int>(stages_.size());
    for (auto& passed : stage.passed) passed.assign(static_cast<size_t>(microbatches_), false);
    for (int32_t m = 0; m < microbatches_; ++m) {
      const auto message = [&] { return stage.graph.add(TaskKind::receive, m, Lane::wire, [] {}); };
      std::vector<TaskId> before_forward, before_backward;
      if (!first) before_forward.push_back(stage.forward_message.emplace_back(message()));
      const auto forward = stage.graph.add(
          TaskKind::forward, m, Lane::compute, [this, s, m] { pass(s, {TaskKind::forward, m}); }, before_forward);
      before_backward.push_back(forward);
      if (!last) before_backward.push_back(stage.backward_message.emplace_back(message()));
      stage.graph.add(
          TaskKind::backward, m, Lane::compute, [this, s, m] { pass(s, {TaskKind::backward, m}); }, before_backward);
    }
  }

  // The executor has chosen a pass: it takes its time, and its message leaves at the end.
  void pass(int s, StageAction action) {
    auto& stage = *stages_[static_cast<size_t>(s)];
    const bool forward = action.kind == TaskKind::forward;
    const double end = clock_.now + (forward ? stage.cost.forward_s : stage.cost.backward_s);
    report_.spans.push_back({s, action, clock_.now, end});
    stage.busy = true;
    stage.passed[forward ? 0 : 1][static_cast<size_t>(action.microbatch)] = true;
    stage.in_flight += forward ? 1 : -1;
    auto& most = report_.in_flight[static_cast<size_t>(s)];
    most = std::max(most, stage.in_flight);
    if (stage.in_flight > stage.schedule->in_flight()) {
      fail("schedule {}: stage {} holds {} microbatches at forward {}, more than the {} that it said",
           stage.schedule->name(), s, stage.in_flight, action.microbatch, stage.schedule->in_flight());
    }
    events_.push({end, ++number_, s, false, 0});
    const int to = forward ? s + 1 : s - 1;
    if (to < 0 || to >= static_cast<int>(stages_.size())) return;
    auto& receiver = *stages_[static_cast<size_t>(to)];
    const auto& messages = forward ? receiver.forward_message : receiver.backward_message;
    events_.push({end + stage.cost.message_s, ++number_, to, true, messages[static_cast<size_t>(action.microbatch)]});
  }

  // Lets a stage that is free choose its next pass.
  void advance(int s) {
    auto& stage = *stages_[static_cast<size_t>(s)];
    if (stage.busy || stage.done) return;
    try {
      stage.done = stage.executor.run_one() == Executor::Progress::done;
    } catch (const Error&) {
      say_what_is_missing();  // an executor without messages under way knows that it cannot end
      throw;
    }
  }

  void check_that_all_ended() const {
    for (const auto& stage : stages_) {
      if (!stage->done) say_what_is_missing();
    }
  }

  void say_what_is_missing() const {
    std::string missing;
    for (size_t s = 0; s < stages_.size(); ++s) {
      for (const int way : {0, 1}) {
        const auto& passed = stages_[s]->passed[way];
        const auto place = std::find(passed.begin(), passed.end(), false);
        if (place == passed.end()) continue;
        missing += fmt::format("{}stage {} has not done {} {}", missing.empty() ? "" : ", ", s,
                               way == 0 ? "forward" : "backward", place - passed.begin());
        break;
      }
    }
    if (!missing.empty()) fail("schedule {} cannot end: {}", stages_[0]->schedule->name(), missing);
  }

  const int microbatches_;
  SimulatedClock clock_;
  std::vector<std::unique_ptr<Stage>> stages_;
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
  return fmt::format("bubble {:.1f} %, microbatches in flight by stage {}", 100 * bubble(), fmt::join(in_flight, " "));
}

PipelineReport simulate_pipeline(const ScheduleMaker& make, int microbatches, const std::vector<StageCost>& costs) {
  return Pipeline(make, microbatches, costs).run();
}

}  // namespace trireme
