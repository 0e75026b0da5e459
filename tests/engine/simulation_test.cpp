// Schedules in simulated time: what the formulas say of bubble and memory, and every order in which messages can come.
#include "trireme/engine/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/engine/executor.h"
#include "trireme/spec/action_list.h"
#include "trireme/spec/action_table.h"

namespace trireme {
namespace {

using testing::HasSubstr;

constexpr auto gpipe = ScheduleKind::gpipe, f1b1 = ScheduleKind::one_forward_one_backward,
               arrival = ScheduleKind::arrival;

ScheduleMaker maker(ScheduleKind kind, bool deterministic = false) {
  return [=](const StagePlace& place) { return make_schedule(kind, place, {.deterministic = deterministic}); };
}

PipelineReport simulated(ScheduleKind kind, int stages, int microbatches, double message_s = 0) {
  return simulate_pipeline(maker(kind), microbatches,
                           std::vector<StageCost>(static_cast<size_t>(stages), {1, 2, message_s}));
}

size_t passes_of(const PipelineReport& report) {
  return static_cast<size_t>(
      std::count_if(report.spans.begin(), report.spans.end(), [](const auto& span) { return span.is_pass(); }));
}

// With equal stages and free messages a flush pipeline idles (p-1)/(m+p-1) of the time.
TEST(SimulatedPipeline, HasTheBubbleOfTheFormula) {
  for (const auto kind : {gpipe, f1b1}) {
    for (int stages = 1; stages <= 5; ++stages) {
      for (int microbatches : {1, 2, 3, 7, 16}) {
        const auto report = simulated(kind, stages, microbatches);
        EXPECT_NEAR(report.bubble(), (stages - 1.0) / (microbatches + stages - 1), 1e-12);
        EXPECT_NEAR(report.step_s, 3.0 * (microbatches + stages - 1), 1e-12);
        EXPECT_EQ(passes_of(report), static_cast<size_t>(2 * stages * microbatches));
      }
    }
  }
  EXPECT_NEAR(simulated(f1b1, 8, 24).bubble(), 0.2258, 1e-4);
}

TEST(SimulatedPipeline, HoldsAsManyMicrobatchesAsTheFormulaSays) {
  for (int stages = 1; stages <= 5; ++stages) {
    for (int microbatches : {1, 2, 7}) {
      for (int s = 0; s < stages; ++s) {
        EXPECT_EQ(simulated(gpipe, stages, microbatches).in_flight[static_cast<size_t>(s)], microbatches);
        EXPECT_EQ(simulated(f1b1, stages, microbatches).in_flight[static_cast<size_t>(s)],
                  std::min(stages - s, microbatches));
        EXPECT_LE(simulated(arrival, stages, microbatches).in_flight[static_cast<size_t>(s)],
                  std::min(stages, microbatches));
      }
    }
  }
}

Mesh mesh_of(ScheduleKind kind, int stages, int chunks = 0) {
  return make_mesh({.pipe = stages, .schedule = kind, .options = {.chunks = chunks}}, stages);
}

std::vector<StageCost> thirds(int stages) { return std::vector<StageCost>(static_cast<size_t>(stages), {1, 2, 0}); }

// v chunks a rank: a v-th of zero_bubble's wait, for every number of microbatches that is not below that of stages, in
// the memory of Megatron's first stage.
TEST(SimulatedPipeline, InterleavedHasTheBubbleOfTheFormula) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (const int chunks : {1, 2, 3, 4}) {
      const auto mesh = mesh_of(ScheduleKind::interleaved, stages, chunks);
      for (int microbatches = 1; microbatches < 24; ++microbatches) {
        const auto report = simulate_pipeline(maker(ScheduleKind::interleaved), mesh, microbatches, thirds(stages));
        if (microbatches < stages) continue;  // it ends
        EXPECT_NEAR(report.step_s, 3.0 * microbatches + 1.0 * (stages - 1) / chunks, 1e-9)
            << stages << " stages, " << chunks << " chunks, " << microbatches << " microbatches";
        // Warm-up and one more, of chunks.
        const int ahead = 2 * (stages - 1) + (chunks - 1) * (microbatches / (microbatches / stages)) + 1;
        if (microbatches % stages == 0) {
          EXPECT_EQ(report.in_flight[0], std::min(ahead, chunks * microbatches));
        }
        for (const int held : report.in_flight) EXPECT_LE(held, report.in_flight[0]);
        // Where nothing may be put off, passes of the same order with whole backward passes.
        const ScheduleMaker frugal = [](const StagePlace& place) {
          return make_schedule(ScheduleKind::interleaved, place, {}, /*frugal=*/true);
        };
        const auto whole = simulate_pipeline(frugal, mesh, microbatches, thirds(stages));
        EXPECT_NEAR(whole.step_s, 3.0 * microbatches + 3.0 * (stages - 1) / chunks, 1e-9);
        EXPECT_EQ(whole.in_flight[0], report.in_flight[0]);
        EXPECT_EQ(passes_of(whole), static_cast<size_t>(2 * stages * chunks * microbatches));
      }
    }
  }
}

// A third of 1f1b's bubble in its memory (H1); with more in flight a rank waits only before its first and after its
// last pass (H2); as a V half of H1's wait in H1's memory.
TEST(SimulatedPipeline, ZeroBubbleHasTheBubbleOfTheFormula) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (const int more : {0, 1, 2}) {
      const int microbatches = stages * (more + 1);
      const auto h1 = simulate_pipeline(maker(ScheduleKind::zero_bubble), microbatches, thirds(stages));
      EXPECT_NEAR(h1.step_s, 3.0 * microbatches + stages - 1, 1e-9) << stages << " stages, " << microbatches;
      for (const int held : h1.in_flight) EXPECT_LE(held, stages);
      const ScheduleMaker roomy = [](const StagePlace& place) {
        return make_schedule(ScheduleKind::zero_bubble, place, {.in_flight = 2 * place.stages - 1});
      };
      const auto h2 = simulate_pipeline(roomy, 2 * microbatches, thirds(stages));
      for (int s = 0; s < stages; ++s) {
        double first = 1e9, last = 0, busy = 0;
        for (const auto& span : h2.spans) {
          if (span.rank != s || !span.is_pass()) continue;
          first = std::min(first, span.begin_s);
          last = std::max(last, span.end_s);
          busy += span.end_s - span.begin_s;
        }
        EXPECT_NEAR(last - first, busy, 1e-9) << "stage " << s << " of " << stages;
        EXPECT_LE(h2.in_flight[static_cast<size_t>(s)], 2 * stages - 1);
      }
      const auto vee = mesh_of(ScheduleKind::zero_bubble_v, stages);
      const auto v = simulate_pipeline(maker(ScheduleKind::zero_bubble_v), vee, 2 * microbatches, thirds(stages));
      EXPECT_LE(v.step_s, 6.0 * microbatches + (stages - 1) / 2.0 + 1e-9) << stages << " stages as a V";
      for (const int held : v.in_flight) EXPECT_LE(held, 2 * stages);
    }
  }
}

// Whatever the replicas of each stage and the microbatches: every schedule ends, and deals each pass once.
TEST(SimulatedPipeline, EndsWithUnequalReplicas) {
  const std::vector<std::vector<int64_t>> layouts{{3, 1}, {1, 3}, {2, 1, 1}, {1, 2, 3}, {4, 1, 2}, {5, 3}, {15, 1}};
  for (const auto kind :
       {gpipe, f1b1, arrival, ScheduleKind::interleaved, ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v}) {
    for (const auto& replicas : layouts) {
      const auto stages = static_cast<int>(replicas.size());
      int ranks = 0;
      for (const int64_t one : replicas) ranks += static_cast<int>(one);
      const auto mesh = make_mesh({.pipe = stages, .schedule = kind, .replicas = replicas}, ranks);
      for (int microbatches = 1; microbatches <= 21; microbatches += 4) {
        const auto report = simulate_pipeline(maker(kind), mesh, microbatches, thirds(stages));
        const bool split = kind != gpipe && kind != f1b1 && kind != arrival;
        EXPECT_EQ(passes_of(report),
                  static_cast<size_t>((split ? 2 + weight_slices : 2) * stages * mesh.chunks * microbatches));
      }
    }
  }
}

// PipeDream's 15-1: fifteen ranks with fifteen times the work of the last one keep it busy.
TEST(SimulatedPipeline, ManyReplicasFeedOne) {
  const auto mesh = make_mesh({.pipe = 2, .replicas = {15, 1}}, 16);
  const auto report = simulate_pipeline(maker(f1b1), mesh, 150, {{15, 30, 0}, {1, 2, 0}});
  EXPECT_LT(report.idle_s.back() / report.step_s, 0.12);
}

TEST(ActionTable, ReadsWhatItWrites) {
  for (const auto kind :
       {gpipe, f1b1, ScheduleKind::interleaved, ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v}) {
    const auto mesh = mesh_of(kind, 4);
    std::vector<ActionList> rows;
    for (int s = 0; s < 4; ++s) {
      const auto schedule = make_schedule(kind, place_of(mesh, s, 0, 8), {});
      rows.push_back(*schedule->plan());
    }
    const auto table = parse_action_table(action_table_text(rows, mesh.vee), "table");
    EXPECT_EQ(table.rows, rows);
    EXPECT_EQ(table.vee, mesh.vee);
    EXPECT_EQ(table.chunks, mesh.chunks);
    EXPECT_EQ(table.microbatches, 8);
    const ScheduleMaker listed = [&](const StagePlace& place) {
      return std::make_unique<ListSchedule>("table", table.actions_of(place));
    };
    EXPECT_EQ(simulate_pipeline(listed, mesh, 8, thirds(4)).step_s,
              simulate_pipeline(maker(kind), mesh, 8, thirds(4)).step_s);
  }
}

TEST(ActionTable, RefusesWhatItCannotBe) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      parse_action_table(text, "t.csv");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_status(), 2);
      return error.what();
    }
    return "(accepted)";
  };
  EXPECT_EQ(refusal("0F0,0B0\n1F0,,1B0\n"), "(accepted)");
  EXPECT_EQ(refusal("0F0,0I0,0W0\n1F0,1B0\n"), "(accepted)");
  EXPECT_EQ(refusal(""), "t.csv holds no actions");
  EXPECT_THAT(refusal("0F0,0X0"), HasSubstr("t.csv, row 1, cell 2: '0X0' is no action; one is like 0F3"));
  EXPECT_THAT(refusal("0F0,0B"), HasSubstr("'0B' is no action"));
  EXPECT_THAT(refusal("0F0,0B-1"), HasSubstr("'0B-1' is no action"));
  EXPECT_THAT(refusal("0F0,0F0,0B0"), HasSubstr("row 1: forward of microbatch 0 through part 0 is there twice"));
  EXPECT_THAT(refusal("0F0,0F1,0B0"), HasSubstr("row 1: backward of microbatch 1 through part 0 is missing"));
  EXPECT_THAT(refusal("0F0,0B0\n0F0,1B0\n"), HasSubstr("row 2: part 0 belongs to row 1"));
  EXPECT_THAT(refusal("0F0,0B0\n1F0,1B0,2F0,2B0\n"), HasSubstr("2 rows and speaks of 3 parts"));
}

// What a list forces to wait, arrival fills with other microbatches, if it may have more of them in flight.
TEST(SimulatedPipeline, ArrivalBearsSlowMessages) {
  const ScheduleMaker more = [](const StagePlace& place) {
    return make_schedule(arrival, place, {.in_flight = 2 * place.stages});
  };
  for (const double message_s : {0.5, 2.0}) {
    const double seconds = simulate_pipeline(more, 16, std::vector<StageCost>(4, {1, 2, message_s})).step_s;
    EXPECT_LT(seconds, simulated(f1b1, 4, 16, message_s).step_s);
  }
}

TEST(SimulatedPipeline, ASlowStageSetsThePace) {
  const auto report = simulate_pipeline(maker(f1b1), 20, {{1, 2, 0}, {2, 4, 0}, {1, 2, 0}});
  EXPECT_GE(report.step_s, 20 * 6 + 1 + 2);
  EXPECT_LE(report.step_s, 20 * 6 + 2 * 3);
  EXPECT_LT(report.idle_s[1], report.idle_s[0]);
}

TEST(SimulatedPipeline, SaysWhatAListThatCannotEndIsMissing) {
  // Each stage waits for the other: stage 0 wants B0 before F1, stage 1 F1 before B0.
  const ScheduleMaker make = [](const StagePlace& place) {
    const auto F = TaskKind::forward, B = TaskKind::backward;
    const std::vector<StageAction> lists[] = {{{F, 0}, {B, 0}, {F, 1}, {B, 1}}, {{F, 0}, {F, 1}, {B, 0}, {B, 1}}};
    return std::make_unique<ListSchedule>("crossed", lists[place.stage]);
  };
  try {
    simulate_pipeline(make, 2, {{}, {}});
    ADD_FAILURE() << "it ended";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("schedule crossed cannot end: stage 0 has not done forward 1, stage 1 has not "
                                        "done forward 1"));
  }
}

TEST(SimulatedPipeline, RefusesAScheduleThatHoldsMoreThanItSays) {
  class Modest final : public Schedule {
   public:
    explicit Modest(const StagePlace& place) : list_("", gpipe_actions(place)) {}
    const char* name() const override { return "modest"; }
    size_t choose(std::span<const ReadyTask> ready, const StageState& state) const override {
      return list_.choose(ready, state);
    }
    TaskKind awaited(const StageState& state) const override { return list_.awaited(state); }
    int in_flight() const override { return 2; }

   private:
    ListSchedule list_;
  };
  EXPECT_THROW(simulate_pipeline([](const StagePlace& place) { return std::make_unique<Modest>(place); }, 3, {{}, {}}),
               Error);
}

// Every order in which the messages of a step can arrive and stages can get to run. A world is played from the start
// along a path of choices; states that were seen are not explored again. In every state someone can go on, and in the
// end everything is done, whichever path led there.
class Explorer {
 public:
  Explorer(ScheduleKind kind, int stages, int microbatches, bool deterministic)
      : kind_(kind), stages_(stages), microbatches_(microbatches), deterministic_(deterministic) {}

  void explore() {
    std::vector<int> path;
    visit(path);
  }

  size_t states() const { return seen_.size(); }
  size_t ends() const { return ends_; }

 private:
  struct Stage {
    Recorder recorder;
    RealClock clock;
    Executor executor{recorder, clock};
    std::unique_ptr<Schedule> schedule;
    Graph graph;
    std::map<int, TaskId> wires;  // by message: m for activations, m + 100 for gradients
    std::set<int> done, came;     // passes (m, or m + 100 for backward) and messages
    std::vector<int> ready;       // passes in the order in which they became ready, as the executor has them
    int in_flight = 0, most = 0;
    bool ended = false;

    void came_to_be_ready(int pass) { ready.push_back(pass); }
  };
  struct Message {
    int to, key;
    bool operator<(const Message& other) const { return std::tie(to, key) < std::tie(other.to, other.key); }
  };
  struct World {
    std::vector<std::unique_ptr<Stage>> stages;
    std::set<Message> under_way;
  };

  std::unique_ptr<World> start() {
    auto world = std::make_unique<World>();
    for (int s = 0; s < stages_; ++s) {
      auto stage = std::make_unique<Stage>();
      stage->schedule = make_schedule(kind_, {s, stages_, microbatches_}, {.deterministic = deterministic_});
      for (int m = 0; m < microbatches_; ++m) {
        std::vector<TaskId> before;
        const auto wait_for = [&](int key) {
          const auto wire = stage->graph.add(TaskKind::receive, m, Lane::wire, [] {});
          stage->wires[key] = wire;
          return wire;
        };
        if (s > 0) {
          before.push_back(wait_for(m));
        } else {
          stage->came_to_be_ready(m);
        }
        const auto note = [world = world.get(), stage = stage.get(), s, m, this](int pass, int way) {
          stage->done.insert(pass);
          std::erase(stage->ready, pass);
          if (way > 0 && (s + 1 == stages_ || stage->came.count(m + 100))) stage->came_to_be_ready(m + 100);
          stage->in_flight += way;
          stage->most = std::max(stage->most, stage->in_flight);
          const int to = s + way;
          if (to >= 0 && to < stages_) world->under_way.insert({to, way > 0 ? m : m + 100});
        };
        const auto forward = stage->graph.add(TaskKind::forward, m, Lane::compute, [note, m] { note(m, 1); }, before);
        before = {forward};
        if (s + 1 < stages_) before.push_back(wait_for(m + 100));
        stage->graph.add(TaskKind::backward, m, Lane::compute, [note, m] { note(m + 100, -1); }, before);
      }
      stage->executor.begin(stage->graph, *stage->schedule);
      world->stages.push_back(std::move(stage));
    }
    return world;
  }

  // Choices below the number of stages let that stage run one task; the others deliver a message.
  static bool take(World& world, int choice) {
    const int stages = static_cast<int>(world.stages.size());
    if (choice < stages) {
      auto& stage = *world.stages[static_cast<size_t>(choice)];
      if (stage.ended) return false;
      const auto progress = stage.executor.run_one();
      stage.ended = progress == Executor::Progress::done;
      return progress == Executor::Progress::ran;
    }
    if (static_cast<size_t>(choice - stages) >= world.under_way.size()) return false;
    const auto message = std::next(world.under_way.begin(), choice - stages);
    auto& stage = *world.stages[static_cast<size_t>(message->to)];
    stage.executor.complete(stage.wires.at(message->key));
    stage.came.insert(message->key);
    if (message->key < 100 || stage.done.count(message->key - 100)) stage.came_to_be_ready(message->key);
    world.under_way.erase(message);
    return true;
  }

  static std::string describe(const World& world) {
    std::string text;
    for (const auto& stage : world.stages) {
      for (const int pass : stage->done) text += std::to_string(pass) + ",";
      text += "/";
      for (const int pass : stage->ready) text += std::to_string(pass) + ",";
      text += "|";
    }
    for (const auto& message : world.under_way)
      text += std::to_string(message.to) + ":" + std::to_string(message.key) + " ";
    return text;
  }

  void visit(std::vector<int>& path) {
    bool moved = false;
    for (int choice = 0; choice < stages_ + 2 * stages_ * microbatches_; ++choice) {
      auto world = start();
      for (const int earlier : path) take(*world, earlier);
      if (choice >= stages_ && static_cast<size_t>(choice - stages_) >= world->under_way.size()) break;
      if (!take(*world, choice)) continue;
      moved = true;
      for (const auto& stage : world->stages) ASSERT_LE(stage->most, stage->schedule->in_flight());
      if (!seen_.insert(describe(*world)).second) continue;
      path.push_back(choice);
      visit(path);
      path.pop_back();
    }
    if (moved) return;
    ++ends_;
    auto world = start();
    for (const int earlier : path) take(*world, earlier);
    EXPECT_TRUE(world->under_way.empty());
    for (auto& stage : world->stages) {
      EXPECT_EQ(stage->executor.run_one(), Executor::Progress::done) << describe(*world);
      EXPECT_EQ(stage->done.size(), static_cast<size_t>(2 * microbatches_));
    }
  }

  ScheduleKind kind_;
  int stages_, microbatches_;
  bool deterministic_;
  std::set<std::string> seen_;
  size_t ends_ = 0;
};

TEST(EveryOrder, EndsForEverySchedule) {
  for (const int stages : {2, 3}) {
    for (const int microbatches : {1, 2, 3, 4}) {
      for (const auto kind : {gpipe, f1b1, arrival}) {
        for (const bool deterministic : {false, true}) {
          if (deterministic && kind != arrival) continue;
          Explorer explorer(kind, stages, microbatches, deterministic);
          explorer.explore();
          EXPECT_GT(explorer.ends(), 0u);
          std::printf("  %d stages, %d microbatches, schedule %d%s: %zu states\n", stages, microbatches,
                      static_cast<int>(kind), deterministic ? " in order" : "", explorer.states());
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme
