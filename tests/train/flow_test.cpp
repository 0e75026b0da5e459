// Pipelines that never drain, against the sequential algorithm that their stated delays describe. fp64, ranks as
// threads.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/base/error.h"
#include "trireme/data/step_loader.h"
#include "trireme/optim/optimizer.h"
#include "trireme/spec/action_list.h"

namespace trireme {
namespace {

using testing::HasSubstr;

constexpr auto pipedream = ScheduleKind::pipedream, two = ScheduleKind::pipedream_2bw;

struct Case {
  std::string model;
  ScheduleKind schedule;
  std::vector<int64_t> replicas;
  int64_t microbatch;
  bool vertical = false;
  double clip = 0;
  double predict = 0;
  bool tied = false;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << (c.tied ? "tied " : "") << c.model << (c.schedule == two ? ", 2bw" : ", pipedream")
       << (c.vertical ? " vertical" : "") << (c.predict > 0 ? fmt::format(" predicting {}", c.predict) : "")
       << ", replicas " << fmt::format("{}", fmt::join(c.replicas, "-")) << ", microbatches of " << c.microbatch
       << ", clip " << c.clip;
}

RunConfig configuration(const Case& c) {
  RunConfig config = c.model == "mlp" ? small_mlp() : small_gpt();
  if (c.model == "mlp") {
    config.model.layers = 6;
  } else {
    config.model.layers = 4;
    config.model.untied = !c.tied;
  }
  config.train.batch = 6;
  config.train.microbatch = c.microbatch;
  config.optimizer.clip = c.clip;
  config.optimizer.lr = c.model == "mlp" ? 0.02 : 0.003;
  config.parallel = {.pipe = static_cast<int64_t>(c.replicas.size()),
                     .schedule = c.schedule,
                     .options = {.vertical_sync = c.vertical, .predict = c.predict},
                     .replicas = c.replicas};
  return config;
}

int ranks_of(const std::vector<int64_t>& replicas) {
  return static_cast<int>(std::accumulate(replicas.begin(), replicas.end(), int64_t{0}));
}

// One process, one microbatch after another; each stage's parameters are, for each microbatch, those of as many changes
// as the definition says.
class Reference {
 public:
  explicit Reference(const RunConfig& config)
      : config_(config),
        data_(open_dataset(data_options(config))),
        model_(build_model(config.model, data_.train->vocab())),
        mesh_(make_mesh(config.parallel, ranks_of(config.parallel.replicas))),
        optimizer_(make_optimizer(config.optimizer)) {
    model_->initialize(static_cast<uint64_t>(config.train.seed));
    const auto begins = part_begins(model_->table(8), config.parallel, mesh_);
    for (int s = 0; s < mesh_.stages; ++s) {
      const auto begin = static_cast<size_t>(begins[static_cast<size_t>(s)]);
      const auto end =
          s + 1 < mesh_.stages ? static_cast<size_t>(begins[static_cast<size_t>(s) + 1]) : model_->layers.size();
      ParameterList parameters;
      for (size_t i = begin; i < end; ++i) {
        for (const auto& parameter : model_->layers[i]->parameters()) {
          if (!config.model.untied && parameter->name == "wte.weight") continue;
          parameters.push_back(parameter);
        }
      }
      keep(parameters);
    }
    // What the first and the last stage share changes by itself.
    if (config.model.kind == ModelKind::gpt && !config.model.untied)
      keep({model_->layers.front()->parameters().front()});
  }

  std::vector<double> run(int64_t steps) {
    const int64_t M = (config_.train.batch + config_.train.microbatch - 1) / config_.train.microbatch;
    const auto pieces = microbatches({0, config_.train.batch}, config_.train.microbatch);
    const SampleOrder order(data_.train->size(), config_.train.batch, static_cast<uint64_t>(config_.train.seed));
    StepLoader loader(*data_.train, order, pieces, 0);
    std::vector<double> losses;
    for (int64_t t = 0; t < steps; ++t) {
      auto loaded = loader.next();
      const auto items = static_cast<double>(loaded.learnt_targets);
      const double lr = learning_rate(config_.optimizer, t + 1, config_.train.steps);
      double loss = 0;
      for (int64_t b = 0; b < M; ++b) {
        for (int s = 0; s < std::ssize(stages_); ++s) see(s, t, b, M);
        loss += pass(loaded.microbatches[static_cast<size_t>(b)], t, items);
        for (int s = 0; s < std::ssize(stages_); ++s) {
          const bool once = config_.parallel.schedule == two;
          const int64_t r = once ? 1 : mesh_.replicas(s);
          if (once ? b + 1 < M : (b + 1) % r != 0) continue;
          const double share = once ? 1 : static_cast<double>(r) / mesh_.replicas(0);
          change(s, lr * share, once ? 1 : static_cast<double>(M) / static_cast<double>(r));
        }
      }
      losses.push_back(loss);
    }
    return losses;
  }

  std::map<std::string, at::Tensor> parameters() const {
    std::map<std::string, at::Tensor> found;
    for (const auto& stage : stages_) {
      for (size_t i = 0; i < stage.store->buckets().size(); ++i) {
        for (const auto& stored : stage.store->buckets()[i].parameters)
          found[stored.parameter->name] = ParameterStore::piece(stage.master[i], stored).clone();
      }
    }
    return found;
  }

 private:
  struct StageState {
    std::unique_ptr<ParameterStore> store;
    std::vector<at::Tensor> master;                 // by bucket: the newest
    std::vector<std::vector<at::Tensor>> versions;  // by number of changes
    std::vector<at::Tensor> master_copy() const {
      std::vector<at::Tensor> copies;
      for (const auto& one : master) copies.push_back(one.clone());
      return copies;
    }
  };

  void keep(const ParameterList& parameters) {
    const auto allocate = [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); };
    auto& stage = stages_.emplace_back();
    stage.store = std::make_unique<ParameterStore>(parameters, Precision::fp64, at::kCPU, 1e9, allocate);
    for (auto& bucket : stage.store->buckets()) {
      optimizer_->prepare(bucket);
      stage.master.push_back(bucket.master.clone());
    }
    stage.versions.push_back(stage.master_copy());
  }

  int ahead(int s) const { return warm_up(place_of(mesh_, s, 0, 1000)); }

  // Changes between the weights that a microbatch sees and its own, once the pipeline is full.
  int64_t delay(int s) const {
    if (config_.parallel.schedule == two) return 1;
    return config_.parallel.options.vertical_sync ? mesh_.replicas(0) * ahead(0) / mesh_.replicas(s) : ahead(s);
  }

  // Which version microbatch b of step t sees.
  void see(int s, int64_t t, int64_t b, int64_t M) {
    auto& stage = stages_[static_cast<size_t>(s)];
    int64_t version = std::max<int64_t>(0, t - 1);
    if (config_.parallel.schedule == pipedream) {
      const int64_t number = t * M + b, r = mesh_.replicas(s), r0 = mesh_.replicas(0);
      version = std::max<int64_t>(0, number / r - ahead(s));
      if (config_.parallel.options.vertical_sync) version = r0 * std::max<int64_t>(0, number / r0 - ahead(0)) / r;
    }
    const auto& values = stage.versions.at(static_cast<size_t>(version));
    for (size_t i = 0; i < values.size(); ++i) {
      auto seen = values[i];
      if (config_.parallel.options.predict > 0 && version > 0) {
        const auto& before = stage.versions.at(static_cast<size_t>(version) - 1)[i];
        seen = values[i] + config_.parallel.options.predict * static_cast<double>(delay(s)) * (values[i] - before);
      }
      for (const auto& stored : stage.store->buckets()[i].parameters)
        stored.parameter->value.set_data(ParameterStore::piece(seen, stored));
    }
  }

  double pass(const Microbatch& microbatch, int64_t t, double items) {
    Pass pass;
    pass.training = true;
    pass.dropout = Key{static_cast<uint64_t>(config_.train.seed)}.with("dropout").with(static_cast<uint64_t>(t));
    pass.samples = microbatch.positions;
    auto inputs = data_.train->decode(microbatch.inputs);
    if (inputs.is_floating_point()) inputs = inputs.to(at::kDouble);
    const auto loss = model_->loss(model_->forward(inputs, pass), microbatch.targets);
    loss.backward(at::full({}, 1 / items, loss.options()));
    return loss.item<double>() / items;
  }

  void change(int s, double lr, double scale) {
    c10::NoGradGuard no_grad;
    auto& stage = stages_[static_cast<size_t>(s)];
    auto& buckets = stage.store->buckets();
    double squares = 0;
    for (const auto& bucket : buckets) squares += bucket.gradients.square().sum().item<double>();
    const double norm = scale * std::sqrt(squares), clip = config_.optimizer.clip;
    if (clip > 0 && norm > clip) scale *= clip / norm;
    for (size_t i = 0; i < buckets.size(); ++i) {
      buckets[i].master = stage.master[i];
      optimizer_->update(buckets[i], static_cast<int64_t>(stage.versions.size()), lr, scale);
    }
    stage.versions.push_back(stage.master_copy());
    stage.store->begin_step();
  }

  const RunConfig config_;
  const Split data_;
  std::unique_ptr<Model> model_;
  const Mesh mesh_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<StageState> stages_;
};

double distance(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  double squares = 0, norm = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    squares += (values - b.at(name)).square().sum().item<double>();
    norm += values.square().sum().item<double>();
  }
  return std::sqrt(squares / norm);
}

class FlowLaw : public testing::TestWithParam<Case> {};

TEST_P(FlowLaw, IsTheSequentialAlgorithmOfItsDelays) {
  const auto config = configuration(GetParam());
  Reference reference(config);
  const auto losses = reference.run(config.train.steps);
  const auto found = run_trainer(config, ranks_of(config.parallel.replicas), config.train.steps);
  ASSERT_EQ(found.reports.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(found.reports[i].loss / losses[i], 1, 1e-9) << "step " << i + 1;
  EXPECT_LE(distance(reference.parameters(), found.by_name), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(
    Pairwise, FlowLaw,
    testing::Values(Case{"mlp", pipedream, {1, 1, 1, 1}, 1}, Case{"mlp", pipedream, {1, 1}, 6},
                    Case{"gpt", pipedream, {1, 1, 1}, 2}, Case{"gpt", pipedream, {1, 1, 1, 1}, 3, true},
                    Case{"mlp", pipedream, {3, 1}, 1}, Case{"gpt", pipedream, {1, 2}, 1, false, 0.5},
                    Case{"mlp", pipedream, {2, 1, 1}, 1, true}, Case{"mlp", pipedream, {1, 1, 1}, 2, true, 0.1},
                    Case{"mlp", two, {1, 1, 1, 1}, 1}, Case{"gpt", two, {1, 1, 1, 1}, 1, false, 0.5},
                    Case{"gpt", two, {1, 1}, 3}, Case{"mlp", two, {2, 1}, 1}, Case{"gpt", two, {1, 2, 1}, 1},
                    Case{"mlp", two, {1, 1, 1}, 2}, Case{"gpt", pipedream, {1, 1, 1, 1}, 1, false, 0, 1},
                    Case{"mlp", pipedream, {2, 1, 1}, 1, true, 0, 1}, Case{"mlp", pipedream, {1, 2}, 1, false, 0.1, 1},
                    Case{"gpt", two, {1, 1, 1, 1}, 1, false, 0.5, 1.5}, Case{"mlp", two, {2, 1}, 1, false, 0, 1},
                    Case{"gpt", two, {1, 1, 1, 1}, 1, false, 0.5, 0, true},
                    Case{"gpt", two, {1, 1}, 3, false, 0, 0, true}, Case{"gpt", two, {2, 1, 2}, 1, false, 0, 1, true},
                    Case{"gpt", two, {2, 2}, 1, false, 0.1, 0, true}));

// Delays on every message change nothing: which version a microbatch sees does not depend on time.
TEST(Flow, MessagesMayTakeTheirTime) {
  for (const auto& c : {Case{"mlp", pipedream, {1, 1, 1, 1}, 1}, Case{"mlp", two, {1, 1, 1, 1}, 1},
                        Case{"gpt", two, {1, 1, 1, 1}, 1, false, 0, 0, true}}) {
    auto config = configuration(c);
    config.comm.jitter_ms = 1;
    Reference reference(config);
    reference.run(config.train.steps);
    const auto found = run_trainer(config, 4, config.train.steps);
    EXPECT_LE(distance(reference.parameters(), found.by_name), 1e-9);
  }
}

TEST(Flow, KeepsAsManyVersionsAndMicrobatchesAsTheFormulasSay) {
  for (const bool vertical : {false, true}) {
    auto config = configuration({"mlp", pipedream, {1, 1, 1, 1}, 1, vertical});
    run_trainer(config, 4, config.train.steps, [&](StageTrainer& trainer, World& world, int64_t step) {
      if (step < 4) return;
      const int ahead = 3 - world.rank();
      EXPECT_EQ(trainer.most_versions(), vertical ? 4 : ahead + 1) << "rank " << world.rank();
      EXPECT_EQ(trainer.activation_bytes(), (ahead + 1) * trainer.microbatch_bytes()) << "rank " << world.rank();
    });
  }
  auto config = configuration({"mlp", two, {1, 1, 1, 1}, 1});
  for (const auto kept : {ActivationKind::keep, ActivationKind::recompute}) {
    config.memory.activations = kept;
    run_trainer(config, 4, config.train.steps, [&](StageTrainer& trainer, World& world, int64_t step) {
      if (step < 4) return;
      EXPECT_EQ(trainer.most_versions(), 2) << "rank " << world.rank();
    });
  }
}

// A limit of skipped steps, or none, is nothing to a pipeline that cannot skip.
TEST(Flow, TellsItsOwnTotals) {
  for (const auto schedule : {pipedream, two}) {
    auto config = configuration({"mlp", schedule, {1, 1, 1}, 1});
    config.train.eval_every = 2;
    const auto expected = run_trainer(config, 3, config.train.steps);
    config.train.nonfinite_limit = 0;
    const auto found = run_trainer(config, 3, config.train.steps);
    EXPECT_EQ(found.losses(), expected.losses());
    EXPECT_EQ(found.reports.back().grad_norm, expected.reports.back().grad_norm);
  }
}

// What stages share is put aside once more, while it is summed; and may be summed in fewer bytes.
TEST(Flow, SharedParametersNeedTheirGradientsTwice) {
  for (const auto codec : {CodecKind::none, CodecKind::int8}) {
    auto config = configuration({"gpt", two, {1, 1, 1}, 1, false, 0, 0, true});
    config.sync.codec.kind = codec;
    if (codec != CodecKind::none) config.train.precision = Precision::fp32;
    const auto found = run_trainer(config, 3, config.train.steps, [&](StageTrainer& trainer, World& world, int64_t) {
      int64_t shared = 0, ties = 0;
      for (const auto& bucket : trainer.store().buckets())
        shared += bucket.tie >= 0 ? static_cast<int64_t>(bucket.gradients.nbytes()) : 0;
      ties = world.recorder().memory().held(Memory::host, Owner::ties);
      EXPECT_EQ(shared > 0, world.rank() != 1);
      EXPECT_EQ(ties, shared);
    });
    EXPECT_LT(found.losses().back(), found.losses().front());
  }
}

// Predictions need masters of their own, where there is a delay.
TEST(Flow, PredictionsNeedAsMuchMemoryAsTheMasters) {
  for (const double predict : {0.0, 1.0}) {
    auto config = configuration({"mlp", pipedream, {1, 1, 1, 1}, 1, false, 0, predict});
    run_trainer(config, 4, config.train.steps, [&](StageTrainer&, World& world, int64_t step) {
      if (step < 4) return;
      const int ahead = 3 - world.rank();
      const auto held = [&](Owner owner) { return world.recorder().memory().held(Memory::host, owner); };
      const int64_t values = held(Owner::parameters);
      EXPECT_GT(values, 0);
      EXPECT_EQ(held(Owner::masters), predict > 0 && ahead > 0 ? values : 0) << "rank " << world.rank();
      EXPECT_EQ(held(Owner::versions), ahead * values) << "rank " << world.rank();
    });
  }
}

// Runs a job whole, and again from two of its checkpoints with microbatches in flight: all end with the same bytes.
std::filesystem::path expect_exact_resume(RunConfig& config, int ranks) {
  const auto folder = std::filesystem::path(process_folder()) / "flow-resume";
  std::filesystem::remove_all(folder);
  config.run_dir = folder.string();
  config.checkpoint = {.every = 4, .keep = 9};
  run_whole(config, {}, ranks);
  const auto last = folder / "checkpoints/step-10";
  const auto expected = bytes_of(last);
  EXPECT_FALSE(expected.empty());
  for (const int64_t step : {4, 8}) {
    RunOptions options;
    options.resume = true;
    options.resume_from = folder / fmt::format("checkpoints/step-{}", step);
    // The run from step 4 wrote that of step 8 anew.
    EXPECT_TRUE(std::filesystem::exists(options.resume_from));
    const auto result = run_whole(config, options, ranks);
    EXPECT_EQ(result.steps, 10);
    EXPECT_EQ(bytes_of(last), expected) << "from step " << step;
  }
  return folder;
}

// Weights, versions of them and inputs on their way are all that a checkpoint needs.
TEST(Flow, ResumesExactly) {
  for (const auto& c :
       {Case{"gpt", pipedream, {1, 1, 1, 1}, 2}, Case{"gpt", pipedream, {1, 1, 1}, 1, true},
        Case{"mlp", pipedream, {2, 1}, 1}, Case{"gpt", two, {1, 1, 1, 1}, 1},
        Case{"gpt", pipedream, {1, 1, 1}, 2, false, 0, 1}, Case{"mlp", two, {1, 1, 1, 1}, 1, false, 0, 1},
        Case{"gpt", two, {1, 1, 1}, 1, false, 0, 0, true}}) {
    SCOPED_TRACE(testing::PrintToString(c));
    auto config = configuration(c);
    const int ranks = ranks_of(c.replicas);
    const auto folder = expect_exact_resume(config, ranks);
    // With or without predictions, unlike before, there is nothing in flight that would fit, and in another layout
    // neither: it goes on all the same.
    RunOptions options;
    options.resume = true;
    options.resume_from = folder / "checkpoints/step-4";
    config.train.steps = 12;
    config.parallel.options.predict = c.predict > 0 ? 0 : 1;
    EXPECT_EQ(run_whole(config, options, ranks).steps, 12);
    config.parallel.replicas = {1, 1};
    config.parallel.pipe = 2;
    EXPECT_EQ(run_whole(config, options, 2).steps, 12);
  }
}

// A checkpoint also keeps what codecs have left out, between replicas and of what stages share.
TEST(Flow, ResumesExactlyInFewerBytes) {
  for (const auto& c : {Case{"mlp", pipedream, {2, 1}, 1}, Case{"gpt", two, {1, 1, 1}, 1, false, 0, 0, true}}) {
    SCOPED_TRACE(testing::PrintToString(c));
    auto config = configuration(c);
    config.train.precision = Precision::fp32;
    config.sync.codec = {.kind = CodecKind::int4, .rounding = Rounding::stochastic};
    expect_exact_resume(config, ranks_of(c.replicas));
  }
}

// A version that is kept apart from the masters begins as what they are at the first step.
TEST(Flow, PredictsFromWeightsThatCameLater) {
  std::vector<double> losses;
  for (const double predict : {0.0, 1.0}) {
    auto config = small_images(ModelKind::resnet18);
    config.train.microbatch = 2;
    config.parallel = {.pipe = 2, .schedule = two, .options = {.predict = predict}};
    const auto found = run_trainer(config, 2, 1, [](StageTrainer& trainer, World&, int64_t) {
      c10::NoGradGuard no_grad;
      for (auto& bucket : trainer.store().buckets()) {
        bucket.master.mul_(1.5);
        ParameterStore::publish(bucket);
      }
    });
    losses.push_back(found.reports[0].loss);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(Flow, RefusesWhatCannotBe) {
  auto config = configuration({"gpt", pipedream, {1, 1}, 1});
  config.model.untied = false;
  EXPECT_THAT(refusal(config, 2), HasSubstr("stages would change the parameters that they share"));
  config = configuration({"mlp", two, {1, 1, 1, 1}, 3});
  EXPECT_THAT(refusal(config, 4), HasSubstr("pipedream-2bw needs at least 3 microbatches of a rank of stage 0"));
  config = configuration({"mlp", pipedream, {4, 1}, 1});
  EXPECT_THAT(refusal(config, 5), HasSubstr("the microbatches of a step must divide over the 4 replicas of stage 0"));
}

}  // namespace
}  // namespace trireme
