#include "trireme/engine/step_graph.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {

TaskKind kind_of(Work work) {
  switch (work) {
    case Work::load: return TaskKind::load;
    case Work::receive: return TaskKind::receive;
    case Work::forward: return TaskKind::forward;
    case Work::backward: return TaskKind::backward;
    case Work::weights: return TaskKind::weights;
    case Work::evaluate: return TaskKind::evaluate;
    case Work::sum_bucket:
    case Work::sum_totals:
    case Work::sum_totals_before:
    case Work::sum_evaluation:
    case Work::sum_tie:
    case Work::exchange: return TaskKind::reduce;
    case Work::measure:
    case Work::share_step: return TaskKind::norm;
    case Work::gather_step:
    case Work::decide:
    case Work::count:
    case Work::adopt:
    case Work::report: return TaskKind::decide;
    case Work::update_bucket:
    case Work::update_at_once:
    case Work::update_and_spread:
    case Work::update_loosely:
    case Work::update_round:
    case Work::update_ties: return TaskKind::optimize;
  }
  fail("no such work");
}

Lane lane_of(Work work) {
  const TaskKind kind = kind_of(work);
  return kind == TaskKind::receive || kind == TaskKind::reduce ? Lane::wire : Lane::compute;
}

TaskId StepGraph::add(StepTask task, const std::vector<TaskId>& after) {
  const auto id = static_cast<TaskId>(tasks.size());
  tasks.push_back(std::move(task));
  for (const TaskId before : after) wait(id, before);
  return id;
}

Graph bind(const StepGraph& step, const Binding& work) {
  Graph graph;
  for (size_t i = 0; i < step.tasks.size(); ++i) {
    const auto& task = step.tasks[i];
    const int32_t signals = task.work == Work::sum_bucket ? 1 : 0;
    graph.add(kind_of(task.work), task.index, lane_of(task.work), work(static_cast<TaskId>(i), task), {}, signals,
              task.chunk);
  }
  for (const auto& wait : step.waits) graph.add_dependency(wait.task, wait.after);
  return graph;
}

StepBuilder::StepBuilder(const Plan& plan, const LayerTable& table, int rank, const Schedule& schedule)
    : plan_(plan),
      rank_(rank),
      stage_(plan.mesh.stage_of(rank)),
      splits_(schedule.splits()),
      microbatches_(plan.dealing.pieces(rank).size()),
      numbers_(plan.dealing.numbers(rank)) {
  for (int chunk = 0; chunk < plan.mesh.chunks; ++chunk)
    chunks_.push_back(crossings_of(plan.mesh.part_of(stage_, chunk), plan.begins, table.skips));
  const auto layouts = buckets_of(plan, table, stage_);
  buckets_.assign(layouts.begin(), layouts.end());
  updates_.assign(buckets_.size(), true);
  if (plan.update == UpdateRule::root) {
    const auto ties = find_ties(plan, table);
    // The ranks of a bucket's group, in order.
    const auto group = [&](int tie) {
      const auto stages = tie < 0 ? std::vector<int>{stage_} : ties[static_cast<size_t>(tie)].stages;
      std::vector<int> ranks;
      for (const int stage : stages) {
        for (int replica = 0; replica < plan.mesh.replicas(stage); ++replica)
          ranks.push_back(plan.mesh.rank_of(stage, replica));
      }
      return ranks;
    };
    const auto roots = bucket_roots(buckets_, [&](int tie) { return static_cast<int>(group(tie).size()); });
    for (size_t b = 0; b < roots.size(); ++b)
      updates_[b] = group(buckets_[b].tie)[static_cast<size_t>(roots[b])] == rank_;
  }
}

bool StepBuilder::has_ties() const {
  return std::any_of(buckets_.begin(), buckets_.end(), [](const auto& bucket) { return bucket.tie >= 0; });
}

// Between two ranks a microbatch may cross several times, each into another chunk; and in a pipeline that never drains
// those of several steps are on their way.
StepMessage StepBuilder::message(MessageKind kind, const Crossing& crossing, size_t m) const {
  const auto& mesh = plan_.mesh;
  const size_t own = kind == MessageKind::evaluation ? m : m % microbatches_;
  const auto step = static_cast<int>((m - own) / std::max<size_t>(1, microbatches_));
  const int number = step * numbers_ + plan_.dealing.number_of(rank_, static_cast<int>(own));
  const auto holder = [&](int part) {
    return plan_.dealing.holder(rank_, static_cast<int>(own), mesh.stage_of_part(part));
  };
  const int from = holder(crossing.from), to = holder(crossing.to);
  const bool back = kind == MessageKind::gradient;
  return {back ? to : from, back ? from : to, kind, crossing.way,
          number * mesh.chunks + mesh.chunk_of_part(crossing.to)};
}

std::vector<StepMessage> StepBuilder::sends_of(MessageKind kind, int32_t c, size_t m) const {
  const auto& chunk = chunks_[static_cast<size_t>(c)];
  std::vector<StepMessage> sends;
  for (const auto& crossing : kind == MessageKind::gradient ? chunk.incoming : chunk.outgoing) {
    const auto message = this->message(kind, crossing, m);
    if (message.to != rank_) sends.push_back(message);
  }
  return sends;
}

// The tasks that a pass waits for: messages, or passes through another chunk of this rank, of `before`.
std::vector<TaskId> StepBuilder::add_arrivals(StepGraph& step, MessageKind kind, int32_t c, size_t m,
                                              const Passes& before) const {
  const bool back = kind == MessageKind::gradient;
  const auto& chunk = chunks_[static_cast<size_t>(c)];
  const auto& crossings = back ? chunk.outgoing : chunk.incoming;
  std::vector<TaskId> tasks;
  for (size_t i = 0; i < crossings.size(); ++i) {
    const auto message = this->message(kind, crossings[i], m);
    if (message.from == rank_) {
      const int part = back ? crossings[i].to : crossings[i].from;
      tasks.push_back(before[static_cast<size_t>(plan_.mesh.chunk_of_part(part))][m]);
    } else {
      tasks.push_back(step.add({.work = Work::receive,
                                .index = static_cast<int32_t>(m),
                                .chunk = c,
                                .piece = static_cast<int32_t>(i),
                                .message = message}));
    }
  }
  return tasks;
}

// All forward and backward passes; the tasks after which a microbatch has left nothing to do.
std::vector<TaskId> StepBuilder::add_passes(StepGraph& step, TaskId load) const {
  std::vector<TaskId> ends;
  Passes forwards(chunks_.size()), backwards(chunks_.size());
  const auto chunks = static_cast<int32_t>(chunks_.size());
  const auto index = [](size_t m) { return static_cast<int32_t>(m); };
  for (int32_t c = 0; c < chunks; ++c) {
    for (size_t m = 0; m < microbatches_; ++m) {
      auto before = add_arrivals(step, MessageKind::activation, c, m, forwards);
      before.push_back(load);
      forwards[static_cast<size_t>(c)].push_back(step.add({.work = Work::forward,
                                                           .index = index(m),
                                                           .chunk = c,
                                                           .sends = sends_of(MessageKind::activation, c, m)},
                                                          before));
    }
  }
  // Replicas that exchange statistics in their passes need one order of these and of their sums, which weights'
  // gradients that fill waits do not give where one chunk's may come before passes through another: there sums come
  // after passes.
  const bool sums_last = plan_.exchanges_statistics() && splits_ && chunks > 1;
  for (int32_t c = chunks; c-- > 0;) {
    auto& passes = backwards[static_cast<size_t>(c)];
    for (size_t m = 0; m < microbatches_; ++m) {
      auto before = add_arrivals(step, MessageKind::gradient, c, m, backwards);
      before.push_back(forwards[static_cast<size_t>(c)][m]);
      passes.push_back(step.add({.work = Work::backward,
                                 .index = index(m),
                                 .chunk = c,
                                 .sends = sends_of(MessageKind::gradient, c, m)},
                                before));
      for (const auto& round : step.rounds) {
        for (const TaskId sum : round) {
          if (sums_last) step.wait(sum, passes.back());
        }
      }
      ends.push_back(passes.back());
      for (int32_t slice = 0; splits_ && slice < weight_slices; ++slice)
        ends.back() = step.add({.work = Work::weights, .index = index(m), .chunk = c, .piece = slice}, {ends.back()});
    }
  }
  return ends;
}

StepSum StepBuilder::sum_of(size_t bucket) const {
  const int tie = buckets_[bucket].tie;
  const auto before = std::count_if(buckets_.begin(), buckets_.begin() + static_cast<std::ptrdiff_t>(bucket),
                                    [&](const auto& other) { return other.tie == tie; });
  return {tie < 0 ? StepSum::Group::stage : StepSum::Group::tie, tie, static_cast<int32_t>(before)};
}

// A round of sums, one for each bucket.
void StepBuilder::add_sums(StepGraph& step) const {
  auto& round = step.rounds.emplace_back();
  for (size_t b = 0; b < buckets_.size(); ++b)
    round.push_back(step.add({.work = Work::sum_bucket, .index = static_cast<int32_t>(b), .sum = sum_of(b)}));
}

StepGraph StepBuilder::step() const {
  StepGraph step;
  const TaskId load = step.add({.work = Work::load});
  const bool sums = plan_.update != UpdateRule::ahead && plan_.update != UpdateRule::loose;
  if (sums) add_sums(step);
  const auto passes = add_passes(step, load);
  switch (plan_.update) {
    case UpdateRule::decided:
    case UpdateRule::root: add_decision(step, passes); break;
    case UpdateRule::as_reduced: add_updates_at_once(step, passes); break;
    case UpdateRule::ahead: add_updates_ahead(step, passes); break;
    case UpdateRule::loose: add_loose_update(step, passes); break;
    case UpdateRule::flow: fail("a pipeline that never drains has other steps");
  }
  return step;
}

constexpr StepSum of_everybody{StepSum::Group::everybody};

// The job's loss and norm, and whether any rank wants to stop, are summed by the same road as the buckets and after
// them; then every rank decides alike.
void StepBuilder::add_decision(StepGraph& step, const std::vector<TaskId>& passes) const {
  const TaskId totals = step.add({.work = Work::sum_totals, .sum = of_everybody}, passes);
  std::vector<TaskId> before{totals};
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (!updates_[b]) continue;
    before.push_back(step.add({.work = Work::measure, .index = static_cast<int32_t>(b)}, {step.rounds[0][b]}));
    // Where each rank knows a part of the gradient, its norm is summed with the rest. Otherwise it is known here.
    if (plan_.sums_squares()) step.wait(totals, before.back());
  }
  const TaskId decision = step.add({.work = Work::decide}, before);
  if (plan_.update == UpdateRule::decided) {
    for (size_t b = 0; b < buckets_.size(); ++b)
      step.add({.work = Work::update_bucket, .index = static_cast<int32_t>(b)}, {decision});
    return;
  }
  // One after another: what is sent leaves in the same order on all ranks.
  TaskId last = decision;
  for (const size_t b : spread_order(buckets_))
    last = step.add({.work = Work::update_and_spread, .index = static_cast<int32_t>(b)}, {last});
}

// An update comes before the decision that counts it. Where totals come late, those of the step before are summed at
// once.
void StepBuilder::add_updates_at_once(StepGraph& step, const std::vector<TaskId>& passes) const {
  const bool late = plan_.totals_come_late();
  const TaskId totals = late ? step.add({.work = Work::sum_totals_before, .sum = of_everybody})
                             : step.add({.work = Work::sum_totals, .sum = of_everybody}, passes);
  std::vector<TaskId> before{totals};
  if (late) before.insert(before.end(), passes.begin(), passes.end());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const auto index = static_cast<int32_t>(b);
    before.push_back(step.add({.work = Work::measure, .index = index}, {step.rounds[0][b]}));
    step.add({.work = Work::update_at_once, .index = index}, {before.back()});
  }
  step.add({.work = late ? Work::count : Work::decide}, before);
}

// Buckets are summed while the next step runs: whoever comes to a layer waits for its own.
void StepBuilder::add_updates_ahead(StepGraph& step, const std::vector<TaskId>& passes) const {
  const TaskId totals = step.add({.work = Work::sum_totals, .sum = of_everybody}, passes);
  step.add({.work = Work::decide}, {totals});
}

void StepBuilder::add_loose_update(StepGraph& step, const std::vector<TaskId>& passes) const {
  auto before = passes;
  if (plan_.mesh.stages > 1) before.push_back(add_step_sharing(step, passes));
  const TaskId updated = step.add({.work = Work::update_loosely}, before);
  const TaskId exchanged = step.add({.work = Work::exchange}, {updated});
  step.add({.work = Work::adopt}, {exchanged});
}

// The stages of a replica tell each other what each knows of the step; the task after which all is known.
TaskId StepBuilder::add_step_sharing(StepGraph& step, const std::vector<TaskId>& passes) const {
  const int replica = plan_.mesh.replica_of(rank_);
  StepTask share{.work = Work::share_step};
  std::vector<StepMessage> coming;
  for (int stage = 0; stage < plan_.mesh.stages; ++stage) {
    const int other = plan_.mesh.rank_of(stage, replica);
    if (other == rank_) continue;
    share.sends.push_back({rank_, other, MessageKind::report});
    coming.push_back({other, rank_, MessageKind::report});
  }
  std::vector<TaskId> before{step.add(std::move(share), passes)};
  for (const auto& message : coming) before.push_back(step.add({.work = Work::receive, .message = message}));
  return step.add({.work = Work::gather_step}, before);
}

// A pass's messages, each awaited by a task of its own.
std::vector<TaskId> StepBuilder::add_receives(StepGraph& step, MessageKind kind, int32_t index,
                                              size_t microbatch) const {
  const auto& chunk = chunks_.front();
  const auto& crossings = kind == MessageKind::gradient ? chunk.outgoing : chunk.incoming;
  std::vector<TaskId> tasks;
  for (size_t i = 0; i < crossings.size(); ++i) {
    tasks.push_back(step.add({.work = Work::receive,
                              .index = index,
                              .piece = static_cast<int32_t>(i),
                              .message = message(kind, crossings[i], microbatch)}));
  }
  return tasks;
}

StepGraph StepBuilder::flow_step(const FlowPosition& position) const {
  const Flow flow = plan_.flow_of(rank_);
  const auto actions = flow.actions(position.forwarded, position.returned, position.total);
  const int64_t lead = position.forwarded - position.returned, returns = flow.per_step();
  const auto forwards = static_cast<int64_t>(actions.size()) - returns;
  StepGraph step;
  const TaskId load = step.add({.work = Work::load});
  const auto add_pass = [&](Work work, int64_t i, int64_t microbatch, MessageKind comes, MessageKind goes) {
    const auto m = static_cast<size_t>(microbatch);
    const auto index = static_cast<int32_t>(i);
    const TaskId pass = step.add({.work = work, .index = index, .sends = sends_of(goes, 0, m)});
    for (const TaskId arrival : add_receives(step, comes, index, m)) step.wait(pass, arrival);
    return pass;
  };
  std::vector<TaskId> forward_tasks, backward_tasks, updates;
  for (int64_t j = 0; j < forwards; ++j) {
    forward_tasks.push_back(add_pass(Work::forward, j, position.forwarded + j, MessageKind::activation,
                                     MessageKind::activation));
    step.wait(forward_tasks.back(), load);
  }
  for (int64_t k = 0; k < returns; ++k) {
    backward_tasks.push_back(
        add_pass(Work::backward, k, position.returned + k, MessageKind::gradient, MessageKind::gradient));
    if (k >= lead) step.wait(backward_tasks.back(), forward_tasks[static_cast<size_t>(k - lead)]);
  }
  for (int64_t u = 0; u < flow.rounds(); ++u) {
    add_sums(step);
    for (const TaskId sum : step.rounds.back()) {
      auto& sums = step.tasks[sum].sum;
      sums.number += static_cast<int32_t>(u * std::ssize(buckets_));
      if (sums.group == StepSum::Group::tie) sums = {};  // which is summed a step later
    }
    updates.push_back(step.add({.work = Work::update_round, .index = static_cast<int32_t>(u)}, step.rounds.back()));
    if (flow.changes_once()) {
      for (const TaskId task : backward_tasks) step.wait(updates.back(), task);
      continue;
    }
    step.wait(updates.back(), backward_tasks[static_cast<size_t>(u)]);
    // The next gradients must not be written before these are used, and the next forward pass sees what they change.
    if (u + 1 < flow.rounds()) step.wait(backward_tasks[static_cast<size_t>(u) + 1], updates.back());
    const int64_t next = u + flow.ahead() + 1 - lead;
    if (next >= 0 && next < forwards) step.wait(forward_tasks[static_cast<size_t>(next)], updates.back());
  }
  if (position.owes) {
    const TaskId tied = add_ties(step);
    step.wait(updates.back(), tied);
    // Microbatches of the next step see what it changes.
    for (int64_t j = std::max<int64_t>(0, returns - lead); j < forwards; ++j)
      step.wait(forward_tasks[static_cast<size_t>(j)], tied);
  }
  add_reports(step, updates.back(), position.obeys);
  return step;
}

StepGraph StepBuilder::owed_ties() const {
  StepGraph step;
  add_ties(step);
  return step;
}

// The sums of what stages share, one after another; the task that then makes the change.
TaskId StepBuilder::add_ties(StepGraph& step) const {
  std::vector<TaskId> before;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].tie < 0) continue;
    before = {step.add({.work = Work::sum_tie, .index = static_cast<int32_t>(b), .sum = sum_of(b)}, before)};
  }
  return step.add({.work = Work::update_ties}, before);
}

// What a rank knows of the step goes to rank 0, whose orders come back.
void StepBuilder::add_reports(StepGraph& step, TaskId last, bool obeys) const {
  std::vector<TaskId> before{last};
  StepTask report{.work = Work::report};
  const auto receive = [&](int from, MessageKind kind) {
    before.push_back(step.add({.work = Work::receive, .message = {from, rank_, kind}}));
  };
  if (rank_ == 0) {
    for (int rank = 1; rank < plan_.mesh.ranks(); ++rank) {
      receive(rank, MessageKind::report);
      report.sends.push_back({0, rank, MessageKind::order});
    }
  } else {
    if (obeys) receive(0, MessageKind::order);
    report.sends.push_back({rank_, 0, MessageKind::report});
  }
  step.add(std::move(report), before);
}

StepGraph StepBuilder::evaluation(size_t microbatches) const {
  StepGraph step;
  Passes passes(chunks_.size());
  std::vector<TaskId> all;
  for (size_t c = 0; c < chunks_.size(); ++c) {
    const auto chunk = static_cast<int32_t>(c);
    for (size_t m = 0; m < microbatches; ++m) {
      const auto before = add_arrivals(step, MessageKind::evaluation, chunk, m, passes);
      passes[c].push_back(step.add({.work = Work::evaluate,
                                    .index = static_cast<int32_t>(m),
                                    .chunk = chunk,
                                    .sends = sends_of(MessageKind::evaluation, chunk, m)},
                                   before));
      all.push_back(passes[c].back());
    }
  }
  step.add({.work = Work::sum_evaluation, .sum = of_everybody}, all);
  return step;
}

}  // namespace trireme
