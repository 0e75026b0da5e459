// What is simulated before the first step is what runs: the trace of real trainings against the simulated step of their
// plans, and against what really went from rank to rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/engine/simulation.h"
#include "trireme/engine/step_graph.h"

namespace trireme {
namespace {

constexpr auto f1b1 = ScheduleKind::one_forward_one_backward;

struct Case {
  const char* name;
  std::vector<int64_t> replicas;  // of each stage
  std::function<void(RunConfig&)> set = [](RunConfig&) {};
  const char* model = "gpt";
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// What a rank did in a step: kinds of tasks with index and chunk.
using Tasks = std::multiset<std::tuple<std::string, int64_t, int32_t>>;

struct Traced {
  Plan plan;
  LayerTable table;
  std::vector<std::vector<TraceSpan>> spans;  // by rank
};

Traced train_traced(const RunConfig& config, int ranks) {
  const Split data = open_dataset(data_options(config));
  const auto table = table_of(config, *build_model(config.model, data.train->vocab()));
  Traced traced{make_plan(config, table, {ranks, data.train->size()}), table, {}};
  traced.spans.resize(static_cast<size_t>(ranks));
  World::run_threads(ranks, [&](World& world) {
    at::set_num_threads(1);
    Trace trace(50'000);
    StageTrainer trainer(config, world, data);
    EXPECT_TRUE(trainer.plan() == traced.plan);
    EXPECT_EQ(trainer.store().buckets().size(),
              buckets_of(traced.plan, table, trainer.stage_number()).size());
    auto& communicator = world.communicator();
    world.recorder().set_trace(&trace);
    communicator.wait(communicator.barrier("begin"));  // before the first message comes
    while (trainer.progression().step < config.train.steps || !trainer.together()) trainer.step(false);
    communicator.wait(communicator.barrier("end"));
    world.recorder().set_trace(nullptr);
    EXPECT_EQ(trace.dropped(), 0);
    traced.spans[static_cast<size_t>(world.rank())] = trace.spans();
  });
  return traced;
}

RunConfig configuration(const Case& c) {
  auto config = std::string(c.model) == "gpt" ? small_gpt()
                : std::string(c.model) == "mlp" ? small_mlp()
                                                : small_images(ModelKind::resnet18);
  config.train.batch = 8;
  config.train.microbatch = 1;
  config.train.steps = 3;
  config.sync.bucket_mb = 0.004;
  if (config.model.kind == ModelKind::gpt) config.model.layers = 6;  // a head that is tied to the embedding
  if (config.model.kind == ModelKind::mlp) config.model.layers = 6;
  const bool equal = std::adjacent_find(c.replicas.begin(), c.replicas.end(), std::not_equal_to<>()) == c.replicas.end();
  config.parallel.pipe = static_cast<int64_t>(c.replicas.size());
  if (equal) {
    config.parallel.data = c.replicas.front();
  } else {
    config.parallel.replicas = c.replicas;
  }
  c.set(config);
  return config;
}

// How many ranks make a sum together.
int ranks_in(const StepSum& sum, const Plan& plan, const LayerTable& table, int rank) {
  const auto& mesh = plan.mesh;
  switch (sum.group) {
    case StepSum::Group::own: return 1;
    case StepSum::Group::stage: return mesh.replicas(mesh.stage_of(rank));
    case StepSum::Group::tie: {
      int ranks = 0;
      const auto ties = find_ties(plan, table);
      for (const int stage : ties[static_cast<size_t>(sum.tie)].stages) ranks += mesh.replicas(stage);
      return ranks;
    }
    case StepSum::Group::everybody: return mesh.ranks();
  }
  return 0;
}

class StepGraphs : public testing::TestWithParam<Case> {};

TEST_P(StepGraphs, AreWhatRuns) {
  auto config = configuration(GetParam());
  const TemporaryFolder folder;
  if (config.parallel.schedule == ScheduleKind::file) {
    config.parallel.options.file = folder / "table.csv";
    // Whoever has both microbatches forward before any backward.
    std::ofstream(config.parallel.options.file) << "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n";
  }
  const auto& replicas = GetParam().replicas;
  const int ranks = static_cast<int>(std::accumulate(replicas.begin(), replicas.end(), int64_t{0}));
  if (!row_of(config.parallel.schedule).drains) {
    // As many steps as are simulated.
    const auto table = table_of(config, *build_model(config.model, config.model.vocab));
    config.train.steps = make_plan(config, table, {ranks}).flow_of(0).steps_in_flight() + 1;
  }
  const auto traced = train_traced(config, ranks);
  const auto& [plan, table, spans] = traced;
  const auto report = simulate(plan, table, std::vector<StageCost>(replicas.size()), /*all_ranks=*/true);

  std::map<std::pair<int, int>, Tasks> simulated;  // by rank and step
  for (const auto& span : report.spans)
    simulated[{span.rank, span.step}].insert({name(span.action.kind), span.action.microbatch, span.action.chunk});

  size_t passes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    const auto schedule = plan.schedule_of(rank);
    const StepBuilder builder(plan, table, rank, *schedule);
    std::set<int64_t> steps;  // that the rank has done: under some kinds others than its neighbour
    for (const auto& span : spans[static_cast<size_t>(rank)]) {
      if (span.track == TraceTrack::compute) steps.insert(span.step);
    }
    EXPECT_FALSE(steps.empty());
    if (!is_loose(plan.sync.kind)) {
      EXPECT_EQ(std::ssize(steps), config.train.steps);
    }
    for (const int64_t step : steps) {
      SCOPED_TRACE(fmt::format("step {}", step));
      Tasks ran;
      std::multiset<uint64_t> sent;
      size_t bucket_sums = 0, total_sums = 0;
      for (const auto& span : spans[static_cast<size_t>(rank)]) {
        if (span.step != step) continue;
        const std::string what = span.name.text;
        if (span.track == TraceTrack::compute || span.track == TraceTrack::arrivals)
          ran.insert({what, span.index, span.chunk});
        if (span.track != TraceTrack::communication) continue;
        if (what == "send") sent.insert(span.arrow_out);
        bucket_sums += what == "reduce bucket";
        total_sums += what == "reduce loss";
      }
      auto expected = simulated[{rank, plan.drains() ? 0 : static_cast<int>(step - 1)}];
      const bool owes = plan.update == UpdateRule::flow && step == config.train.steps && builder.has_ties();
      const auto owed = owes ? builder.owed_ties() : StepGraph();
      for (const auto& task : owed.tasks)
        expected.insert({name(kind_of(task.work)), task.index, task.chunk});
      EXPECT_EQ(ran, expected);
      passes += ran.count({"forward", 0, 0});

      // What really went over the wires is what the step says of itself.
      if (plan.update == UpdateRule::flow) continue;
      const auto graph = builder.step();
      std::multiset<uint64_t> messages;
      size_t sums_of_buckets = 0, sums_of_totals = 0;
      for (const auto& task : graph.tasks) {
        for (const auto& [from, to, kind, way, number] : task.sends) {
          EXPECT_EQ(from, rank);
          messages.insert(arrow_id(from, to, step, static_cast<int32_t>(kind) * 256 + way, number));
        }
        const bool together = ranks_in(task.sum, plan, table, rank) > 1;
        sums_of_buckets += task.work == Work::sum_bucket && together;
        sums_of_totals += task.work == Work::sum_totals || (task.work == Work::sum_totals_before && step > 1);
      }
      sums_of_totals += plan.totals_come_late() && step == config.train.steps;  // those of the last step are waited for
      if (!LooseSync::sends_messages(plan.sync.kind)) {
        EXPECT_EQ(sent, messages);
      }
      if (plan.sync.codec.kind == CodecKind::none) {
        EXPECT_EQ(bucket_sums, sums_of_buckets);
      }
      if (plan.update != UpdateRule::ahead) {
        EXPECT_EQ(total_sums, sums_of_totals);
      }
    }
  }
  EXPECT_GT(passes, 0u);
}

// Every message that some rank sends is one that another waits for, and the other way round.
TEST_P(StepGraphs, SendWhatIsAwaited) {
  const auto config = configuration(GetParam());
  if (config.parallel.schedule == ScheduleKind::file) return;
  const auto& replicas = GetParam().replicas;
  const int ranks = static_cast<int>(std::accumulate(replicas.begin(), replicas.end(), int64_t{0}));
  const auto table = table_of(config, *build_model(config.model, config.model.vocab));
  const auto plan = make_plan(config, table, {ranks});
  std::multiset<StepMessage> sent, awaited;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto schedule = plan.schedule_of(rank);
    const StepBuilder builder(plan, table, rank, *schedule);
    // All that a whole run of one step sends, in a pipeline that never drains.
    const int64_t own = std::ssize(plan.dealing.pieces(rank));
    const auto graph = plan.drains() ? builder.step() : builder.flow_step({0, 0, own});
    for (const auto& task : graph.tasks) {
      sent.insert(task.sends.begin(), task.sends.end());
      if (task.work == Work::receive) awaited.insert(task.message);
    }
  }
  // Orders that nobody has to obey any more.
  std::erase_if(sent, [](const auto& message) { return message.kind == MessageKind::order; });
  EXPECT_EQ(sent, awaited);
}

void freely(RunConfig& config) {
  config.optimizer.clip = 0;
  config.train.nonfinite_limit = 0;
}

std::function<void(RunConfig&)> with(ScheduleKind schedule, const std::function<void(RunConfig&)>& more = {}) {
  return [=](RunConfig& config) {
    config.parallel.schedule = schedule;
    if (more) more(config);
  };
}

std::function<void(RunConfig&)> with(SyncKind kind, const std::function<void(RunConfig&)>& more = {}) {
  return [=](RunConfig& config) {
    config.sync.kind = kind;
    config.optimizer.clip = 0;
    if (more) more(config);
  };
}

void untied(RunConfig& config) { config.model.untied = true; }

INSTANTIATE_TEST_SUITE_P(
    Schedules, StepGraphs,
    testing::Values(Case{"gpipe", {2, 2}, with(ScheduleKind::gpipe)}, Case{"1f1b", {1, 1, 1}},
                    Case{"arrival", {2, 2}, with(ScheduleKind::arrival)},
                    Case{"interleaved", {2, 2}, with(ScheduleKind::interleaved)},
                    Case{"interleaved on one rank", {1}, with(ScheduleKind::interleaved)},
                    Case{"zero-bubble", {1, 1}, with(ScheduleKind::zero_bubble)},
                    Case{"zero-bubble-v", {2, 2}, with(ScheduleKind::zero_bubble_v)},
                    Case{"file", {1, 1}, with(ScheduleKind::file, [](auto& config) { config.train.microbatch = 4; })},
                    Case{"pipedream", {1, 1, 1}, with(ScheduleKind::pipedream, untied)},
                    Case{"pipedream, replicas", {2, 2}, with(ScheduleKind::pipedream, untied)},
                    Case{"pipedream, uneven", {2, 1}, with(ScheduleKind::pipedream), "mlp"},
                    Case{"pipedream-2bw", {2, 2}, with(ScheduleKind::pipedream_2bw)},
                    Case{"pipedream-2bw, uneven", {2, 1}, with(ScheduleKind::pipedream_2bw, untied)},
                    Case{"recomputed", {1, 1}, with(ScheduleKind::interleaved, [](auto& config) {
                           config.memory.activations = ActivationKind::recompute;
                         })}));

INSTANTIATE_TEST_SUITE_P(
    Layouts, StepGraphs,
    testing::Values(Case{"skips", {1, 1, 1}, with(f1b1), "resnet18"},
                    Case{"skips between chunks", {1, 1}, with(ScheduleKind::zero_bubble_v), "resnet18"},
                    Case{"statistics of replicas", {2, 2}, with(ScheduleKind::zero_bubble_v), "resnet18"},
                    Case{"uneven replicas", {1, 3}}, Case{"uneven replicas, skips", {2, 1}, with(f1b1), "resnet18"},
                    Case{"uneven replicas, arrival", {2, 1, 1}, with(ScheduleKind::arrival)},
                    Case{"uneven replicas, interleaved", {2, 1}, with(ScheduleKind::interleaved)},
                    Case{"uneven shares", {2, 2}, [](auto& config) { config.parallel.shares = {3, 1}; }},
                    Case{"a codec", {2, 2}, [](auto& config) {
                           config.train.precision = Precision::fp32;
                           config.sync.codec.kind = CodecKind::int8;
                         }}));

INSTANTIATE_TEST_SUITE_P(
    Kinds, StepGraphs,
    testing::Values(Case{"allreduce", {2}}, Case{"allreduce, at once", {2}, freely},
                    Case{"allreduce, totals late", {2, 1}, freely},
                    Case{"allreduce, ahead", {2}, [](auto& config) {
                           freely(config);
                           config.sync.order = SyncOrder::forward;
                         }},
                    Case{"root", {3}, with(SyncKind::root)}, Case{"root in stages", {2, 2}, with(SyncKind::root)},
                    Case{"root, uneven", {1, 2}, with(SyncKind::root)}, Case{"stale", {2}, with(SyncKind::stale)},
                    Case{"stale in stages", {2, 2}, with(SyncKind::stale, untied)},
                    Case{"eager", {2}, with(SyncKind::eager)}, Case{"local", {2}, with(SyncKind::local)},
                    Case{"local in stages", {2, 2}, with(SyncKind::local, untied)},
                    Case{"server", {2}, with(SyncKind::server)}, Case{"elastic", {2}, with(SyncKind::elastic)},
                    Case{"gossip", {2}, with(SyncKind::gossip)}, Case{"hogwild", {2}, with(SyncKind::hogwild)}));

}  // namespace
}  // namespace trireme
