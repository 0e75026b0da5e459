// The law for pipelines: however the layers are cut into stages, replicated and scheduled, the numbers are those of one
// rank with the same microbatches. fp64, tiny widths, ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include "tests/train/small.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::HasSubstr;

constexpr double law = 1e-9;

RunConfig gpt_for_stages() {
  auto config = small_gpt();
  config.model.layers = 3;  // five layers: embedding, three blocks, head
  config.train.batch = 14;
  config.train.microbatch = 1;
  return config;
}

RunConfig mlp_for_stages() {
  auto config = small_mlp();
  config.model.layers = 5;
  config.train.batch = 14;
  config.train.microbatch = 1;
  return config;
}

double distance(const Outcome& a, const Outcome& b) {
  double squares = 0, norm = 0;
  EXPECT_EQ(a.by_name.size(), b.by_name.size());
  for (const auto& [name, values] : a.by_name) {
    squares += (values - b.by_name.at(name)).square().sum().item<double>();
    norm += values.square().sum().item<double>();
  }
  return std::sqrt(squares / norm);
}

void expect_same(const Outcome& one, const Outcome& other, const std::string& what) {
  ASSERT_EQ(one.reports.size(), other.reports.size()) << what;
  for (size_t i = 0; i < one.reports.size(); ++i) {
    EXPECT_NEAR(other.reports[i].loss / one.reports[i].loss, 1, law) << what << ", step " << i + 1;
    EXPECT_NEAR(other.reports[i].grad_norm / one.reports[i].grad_norm, 1, law) << what << ", step " << i + 1;
  }
  EXPECT_LE(distance(one, other), law) << what;
  ASSERT_EQ(one.evaluation.has_value(), other.evaluation.has_value()) << what;
  EXPECT_NEAR(other.evaluation.value_or(1) / one.evaluation.value_or(1), 1, law) << what;
}

struct Case {
  ScheduleKind schedule;
  int stages, replicas;
  bool uneven;
  int microbatches;
  bool gpt;
};

const char* name(ScheduleKind kind) {
  return kind == ScheduleKind::gpipe ? "gpipe" : kind == ScheduleKind::arrival ? "arrival" : "1f1b";
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << name(c.schedule) << ", " << c.stages << " stages, " << c.replicas << " replicas, "
       << (c.uneven ? "uneven" : "even") << " cuts, " << c.microbatches << " microbatches, " << (c.gpt ? "gpt" : "mlp");
}

RunConfig configuration(const Case& c) {
  auto config = c.gpt ? gpt_for_stages() : mlp_for_stages();
  config.parallel.pipe = c.stages;
  config.parallel.data = c.replicas;
  config.parallel.schedule = c.schedule;
  const int64_t share = config.train.batch / c.replicas;
  config.train.microbatch = (share + c.microbatches - 1) / c.microbatches;
  const std::vector<std::vector<int64_t>> even{{}, {}, {2}, {2, 4}, {1, 2, 4}}, uneven{{}, {}, {4}, {1, 4}, {1, 2, 3}};
  config.parallel.cuts = (c.uneven ? uneven : even)[static_cast<size_t>(c.stages)];
  return config;
}

void check_law(const Case& c) {
  const auto config = configuration(c);
  auto alone = config;
  alone.parallel = {};
  const auto expected = run_trainer(alone, 1, 10);
  const auto found = run_trainer(config, c.stages * c.replicas, 10);
  std::ostringstream what;
  PrintTo(c, &what);
  expect_same(expected, found, what.str());
}

class PipelineLaw : public testing::TestWithParam<Case> {};

TEST_P(PipelineLaw, GivesTheNumbersOfOneRank) { check_law(GetParam()); }

// Every pair of values of two properties occurs at least once.
constexpr auto gpipe = ScheduleKind::gpipe, f1b1 = ScheduleKind::one_forward_one_backward,
               arrival = ScheduleKind::arrival;
INSTANTIATE_TEST_SUITE_P(Pairwise, PipelineLaw,
                         testing::Values(Case{gpipe, 2, 1, false, 1, true}, Case{gpipe, 3, 2, true, 2, false},
                                         Case{gpipe, 4, 1, true, 7, true}, Case{gpipe, 4, 2, false, 1, false},
                                         Case{f1b1, 2, 2, true, 7, false}, Case{f1b1, 3, 1, false, 1, true},
                                         Case{f1b1, 4, 2, true, 2, true}, Case{f1b1, 3, 2, false, 7, true},
                                         Case{arrival, 2, 1, true, 2, true}, Case{arrival, 3, 1, true, 7, false},
                                         Case{arrival, 4, 2, false, 1, true}, Case{arrival, 2, 2, false, 2, false},
                                         Case{f1b1, 4, 1, false, 2, false}, Case{f1b1, 2, 1, true, 1, false},
                                         Case{arrival, 4, 1, true, 7, true}, Case{gpipe, 2, 2, false, 7, true}));

// By hand (make pipelines): every combination, and a thousand steps in which every message and every task is held back
// for a random time.
TEST(PipelineByHand, DISABLED_TheWholeProduct) {
  int runs = 0;
  for (const auto schedule : {gpipe, f1b1, arrival}) {
    for (const int stages : {2, 3, 4}) {
      for (const int replicas : {1, 2}) {
        for (const bool uneven : {false, true}) {
          for (const int microbatches : {1, 2, 7}) {
            for (const bool gpt : {true, false}) {
              check_law({schedule, stages, replicas, uneven, microbatches, gpt});
              ++runs;
            }
          }
        }
      }
    }
  }
  std::printf("%d runs\n", runs);
}

TEST(PipelineByHand, DISABLED_AThousandStepsWithDelaysEverywhere) {
  constexpr int64_t steps = 1000;
  for (const auto schedule : {gpipe, f1b1, arrival}) {
    auto config = gpt_for_stages();
    config.train.batch = 8;
    config.train.microbatch = 2;
    config.train.steps = steps;
    config.optimizer.lr = 1e-3;
    const auto expected = run_trainer(config, 1, steps);
    config.parallel = {.pipe = 3, .schedule = schedule};
    config.comm.jitter_ms = 1;
    std::atomic<uint64_t> draws{0};
    const auto found = run_trainer(config, 3, steps, [&](StageTrainer& trainer, World& world, int64_t step) {
      if (step > 1) return;
      trainer.executor().set_before_task([&draws, rank = world.rank()] {
        const auto key = Key{7}.with("task").with(static_cast<uint64_t>(rank));
        const double drawn = uniform(key, draws++);
        if (drawn < 0.3) std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(3000 * drawn)));
      });
    });
    expect_same(expected, found, name(schedule));
    double worst = 0;
    for (size_t i = 0; i < found.reports.size(); ++i)
      worst = std::max(worst, std::abs(found.reports[i].loss / expected.reports[i].loss - 1));
    std::printf("%s: %lld steps, losses within %.1e, parameters within %.1e\n", name(schedule),
                static_cast<long long>(steps), worst, distance(expected, found));
  }
}

TEST(Pipeline, TensorsMaySkipStages) {
  for (auto config : {gpt_for_stages(), mlp_for_stages()}) {
    config.model.skip = true;
    const auto expected = run_trainer(config, 1, 10);
    config.parallel.pipe = 4;
    for (const auto schedule : {gpipe, f1b1, arrival}) {
      config.parallel.schedule = schedule;
      expect_same(expected, run_trainer(config, 4, 10), name(schedule));
    }
  }
}

TEST(Pipeline, UnevenSharesAndMicrobatchesOfDifferentLength) {
  auto config = gpt_for_stages();
  config.train.batch = 11;
  config.train.microbatch = 2;  // 6 and 5 samples: 2 2 2 and 2 2 1
  const auto expected = run_trainer(config, 1, 10);
  config.parallel.pipe = 2;
  expect_same(expected, run_trainer(config, 4, 10), "2 stages, 2 replicas");
}

TEST(Pipeline, EachBucketMayHaveARoot) {
  for (auto config : {gpt_for_stages(), mlp_for_stages()}) {
    config.sync.bucket_mb = 0.001;
    const auto expected = run_trainer(config, 1, 10);
    config.sync.kind = SyncKind::root;
    for (const int stages : {2, 3}) {
      config.parallel.pipe = stages;
      for (const int replicas : {1, 2})
        expect_same(expected, run_trainer(config, stages * replicas, 10), fmt::format("{} x {}", stages, replicas));
    }
  }
}

// A replica's share is that of its rank in every stage.
TEST(Pipeline, SharesBySpeedGiveTheSameNumbers) {
  for (auto config : {gpt_for_stages(), mlp_for_stages()}) {
    for (const int64_t microbatch : {0, 2}) {
      config.parallel = {};
      config.train.microbatch = microbatch;
      const auto expected = run_trainer(config, 1, 10);
      for (const auto& shares : {std::vector<double>{3, 1}, std::vector<double>{1, 2.5}}) {
        for (const auto schedule : {gpipe, f1b1, arrival}) {
          config.parallel = {.pipe = 2, .shares = shares, .schedule = schedule};
          expect_same(
              expected, run_trainer(config, 4, 10),
              fmt::format("{}, shares {}, microbatches of {}", name(schedule), fmt::join(shares, " "), microbatch));
        }
      }
    }
  }
}

TEST(Pipeline, TheFirstStepAgreesInFp32) {
  auto config = gpt_for_stages();
  config.train.precision = Precision::fp32;
  const auto expected = run_trainer(config, 1, 1);
  config.parallel.pipe = 3;
  const auto found = run_trainer(config, 3, 1);
  EXPECT_NEAR(found.reports[0].loss / expected.reports[0].loss, 1, 1e-4);
  EXPECT_NEAR(found.reports[0].grad_norm / expected.reports[0].grad_norm, 1, 1e-4);
}

// Without clipping, and where the first value that is not finite ends the run, nothing has to wait for the whole
// gradient: buckets are updated as they are reduced.
TEST(Pipeline, BucketsAreUpdatedAsTheyComeWhereNothingDependsOnTheWholeGradient) {
  auto config = gpt_for_stages();
  config.optimizer.clip = 0;
  const auto expected = run_trainer(config, 1, 10);
  config.train.nonfinite_limit = 0;
  expect_same(expected, run_trainer(config, 1, 10), "eager");
  config.parallel.pipe = 2;
  expect_same(expected, run_trainer(config, 4, 10), "eager, in stages");
}

TEST(Pipeline, ArrivalInOrderGivesTheSameBits) {
  auto config = gpt_for_stages();
  config.parallel = {.pipe = 4, .schedule = arrival, .options = {.deterministic = true}};
  config.comm.jitter_ms = 0.2;
  const auto first = run_trainer(config, 4, 10), second = run_trainer(config, 4, 10);
  EXPECT_EQ(first.losses(), second.losses());
  EXPECT_EQ(distance(first, second), 0);
}

TEST(Pipeline, DelaysChangeNothing) {
  for (const auto schedule : {gpipe, f1b1, arrival}) {
    auto config = gpt_for_stages();
    const auto expected = run_trainer(config, 1, 10);
    config.parallel = {.pipe = 3, .schedule = schedule};
    config.comm.jitter_ms = 1;
    expect_same(expected, run_trainer(config, 3, 10), name(schedule));
  }
}

// 1F1B holds p-s microbatches in stage s of p, GPipe all of them: counted in bytes, not in tasks.
TEST(Pipeline, HoldsTheBytesThatTheFormulasSay) {
  for (const auto schedule : {gpipe, f1b1, arrival}) {
    for (const int stages : {1, 2, 4}) {
      auto config = gpt_for_stages();
      config.train.batch = 7;
      config.parallel = {.pipe = stages, .schedule = schedule};
      std::vector<int64_t> most(static_cast<size_t>(stages)), one(static_cast<size_t>(stages));
      run_trainer(config, stages, 4, [&](StageTrainer& trainer, World& world, int64_t) {
        most[static_cast<size_t>(world.rank())] = trainer.activation_bytes();
        one[static_cast<size_t>(world.rank())] = trainer.microbatch_bytes();
      });
      for (int s = 0; s < stages; ++s) {
        const int64_t held = most[static_cast<size_t>(s)], each = one[static_cast<size_t>(s)];
        ASSERT_GT(each, 0);
        if (schedule == arrival) {
          EXPECT_LE(held, stages * each) << "stage " << s;
        } else {
          EXPECT_EQ(held, (schedule == gpipe ? 7 : stages - s) * each) << name(schedule) << ", stage " << s;
        }
      }
    }
  }
}

TEST(Pipeline, RefusesWhatCannotBeLaidOut) {
  auto config = gpt_for_stages();
  config.parallel.pipe = 6;
  EXPECT_EQ(refusal(config, 6), "parallel.pipe = 6: the model has 5 layers, and a stage needs at least one");
  config.parallel.pipe = 2;
  EXPECT_THAT(refusal(config, 3), HasSubstr("3 ranks cannot be laid out as parallel.pipe = 2: start 2 or 4 ranks"));
  config.parallel.data = 3;
  EXPECT_THAT(refusal(config, 4), HasSubstr("parallel.pipe = 2 times parallel.data = 3: start 6 ranks"));
  config.parallel.data = 0;
  config.parallel.cuts = {5};
  EXPECT_THAT(refusal(config, 2), HasSubstr("parallel.cuts = [5]: each must be above the one before and below 5"));
}

// A stage that fails in mid-pipeline takes the others along; nobody waits for its messages.
TEST(Pipeline, AStageThatFailsEndsTheOthers) {
  auto config = gpt_for_stages();
  config.parallel.pipe = 3;
  for (int failing = 0; failing < 3; ++failing) {
    try {
      run_trainer(config, 3, 5, [&](StageTrainer& trainer, World& world, int64_t step) {
        if (world.rank() == failing && step == 3) {
          trainer.model().parameters()[0]->value = at::zeros({1, 1, 1}, at::kDouble);  // no product takes this
        }
      });
      ADD_FAILURE() << "nothing failed";
    } catch (const std::exception&) {
    }
  }
}

}  // namespace
}  // namespace trireme
