// Layers that keep their inputs alone: the same numbers, and the bytes that the plan foresees.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/close.h"
#include "tests/train/small.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/stage_plan.h"

namespace trireme {
namespace {

RunConfig configuration(const std::string& model) {
  if (model == "llama") return small_llama();
  if (model == "mlp") return small_mlp();
  if (model == "resnet18") return small_images(ModelKind::resnet18);
  if (model == "vgg11") return small_images(ModelKind::vgg11, 32);
  auto config = small_gpt();
  if (model == "gpt with a skip") config.model.skip = true;
  if (model == "gpt in part") config.model.freeze = "wte.*, wpe.*, h.0.*";
  return config;
}

class Recompute : public testing::TestWithParam<const char*> {};

// To the last bit, unless a skip adds a third term to a gradient, in another order.
TEST_P(Recompute, GivesTheSameNumbers) {
  auto config = configuration(GetParam());
  for (const int ranks : {1, 2}) {  // BatchNorms ask the replicas
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    config.train.microbatch = 2;
    config.memory.activations = ActivationKind::keep;
    const auto expected = run_trainer(config, ranks, 3);
    config.memory.activations = ActivationKind::recompute;
    const auto found = run_trainer(config, ranks, 3);
    if (config.model.skip) {
      expect_close(found.parameters[0], expected.parameters[0], 1e-12);
      continue;
    }
    EXPECT_EQ(found.losses(), expected.losses());
    EXPECT_EQ(found.reports.back().grad_norm, expected.reports.back().grad_norm);
    for (size_t rank = 0; rank < expected.parameters.size(); ++rank)
      EXPECT_TRUE(at::equal(found.parameters[rank], expected.parameters[rank])) << rank;
    EXPECT_EQ(found.evaluation, expected.evaluation);  // by the running statistics too
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Recompute,
                         testing::Values("gpt", "gpt with a skip", "gpt in part", "llama", "mlp", "resnet18", "vgg11"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

// Counted while it runs, held against what was said before the first step; on one stage, and on each of two.
TEST(RecomputedBytes, AreThoseOfThePlan) {
  struct Case {
    const char* model;
    int stages;
    ScheduleKind schedule = ScheduleKind::one_forward_one_backward;
    double within = 0.05, most = 0.4;
  };
  // Between stages a gradient may be on its way at any moment, of which the counter does not know whose it is. What a
  // zero-bubble schedule puts off keeps what was computed again, and is put off as long as there is no time.
  for (const auto& [model, stages, schedule, within, most] :
       {Case{"gpt", 1}, Case{"llama", 1}, Case{"gpt", 2, ScheduleKind::one_forward_one_backward, 0.12},
        Case{"llama", 2, ScheduleKind::one_forward_one_backward, 0.12}, Case{"gpt", 2, ScheduleKind::gpipe, 0.12},
        Case{"gpt", 2, ScheduleKind::zero_bubble, 0.12, 1.2}}) {
    auto config = configuration(model);
    config.parallel.schedule = schedule;
    config.model.layers = 12;
    config.model.width = 64;
    config.model.hidden = std::string(model) == "llama" ? 192 : 0;
    config.model.context = 64;
    config.model.dropout = 0;
    config.train.precision = Precision::fp32;
    config.train.batch = 8;
    config.train.microbatch = 4;
    config.parallel.pipe = stages;
    std::map<ActivationKind, std::vector<int64_t>> held;
    for (const auto kept : {ActivationKind::keep, ActivationKind::recompute}) {
      config.memory.activations = kept;
      const auto table = model_table(config.model, 0);
      const auto plan = plan_stages(config, table, make_plan(config, table, {.ranks = stages}));
      held[kept].resize(static_cast<size_t>(stages));
      run_trainer(config, stages, 2, [&](StageTrainer& trainer, World& world, int64_t step) {
        if (step == 1) return;
        const auto rank = static_cast<size_t>(world.rank());
        held[kept][rank] = trainer.activation_bytes();
        const double part = static_cast<double>(held[kept][rank]) / static_cast<double>(plan[rank].activation_bytes);
        EXPECT_LE(part, 1 + within) << model << ", stage " << rank << ", schedule " << static_cast<int>(schedule);
        if (schedule == ScheduleKind::zero_bubble) return;
        EXPECT_GE(part, 1 - within)
            << model << ", stage " << rank << " of " << stages << ", schedule " << static_cast<int>(schedule)
            << (kept == ActivationKind::keep ? ", kept" : ", again");
      });
    }
    for (size_t rank = 0; rank < held[ActivationKind::keep].size(); ++rank)
      EXPECT_LT(static_cast<double>(held[ActivationKind::recompute][rank]),
                static_cast<double>(held[ActivationKind::keep][rank]) * most)
          << model << ", rank " << rank;
  }
}

}  // namespace
}  // namespace trireme
