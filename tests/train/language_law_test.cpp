// The law for language models and fine-tuning: Llama, frozen parameters, adapters, and packed documents with masks give
// the same numbers on any number of ranks and stages. fp64, tiny widths, ranks as threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <string>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/base/random.h"

namespace trireme {
namespace {

constexpr double law = 1e-9;

double distance(const Outcome& a, const Outcome& b) {
  double squares = 0, norm = 0;
  EXPECT_EQ(a.by_name.size(), b.by_name.size());
  for (const auto& [name, values] : a.by_name) {
    squares += (values - b.by_name.at(name)).square().sum().item<double>();
    norm += values.square().sum().item<double>();
  }
  return std::sqrt(squares / norm);
}

void expect_same(const Outcome& found, const Outcome& expected) {
  ASSERT_EQ(found.reports.size(), expected.reports.size());
  for (size_t i = 0; i < found.reports.size(); ++i) {
    EXPECT_NEAR(found.reports[i].loss / expected.reports[i].loss, 1, law) << "step " << i + 1;
    EXPECT_NEAR(found.reports[i].grad_norm / expected.reports[i].grad_norm, 1, law) << "step " << i + 1;
  }
  EXPECT_LE(distance(found, expected), law);
  ASSERT_TRUE(found.evaluation && expected.evaluation);
  EXPECT_NEAR(*found.evaluation / *expected.evaluation, 1, law);
}

// Tokens of documents of all lengths, and a mask that leaves some samples with hardly a target to learn.
void write_documents(const TemporaryFolder& folder) {
  std::vector<uint16_t> tokens;
  std::vector<uint8_t> mask;
  const Key key = Key{7}.with("documents");
  for (uint64_t i = 0; i < 400; ++i) {
    const bool begins = bits32(key.with("begin"), static_cast<uint32_t>(i)) % 5 == 0;
    tokens.push_back(begins ? 0 : static_cast<uint16_t>(1 + bits32(key, static_cast<uint32_t>(i)) % 19));
    const uint32_t often = i / 8 % 4;  // a sample has 8 tokens
    mask.push_back(bits32(key.with("mask"), static_cast<uint32_t>(i)) % 4 < often ? 1 : 0);
  }
  append(folder / "tokens.bin", tokens);
  append(folder / "tokens.mask", mask);
}

struct Variant {
  std::string name;
  RunConfig config;
};

std::vector<Variant> variants(const TemporaryFolder& folder) {
  std::vector<Variant> all;
  all.push_back({"llama", small_llama()});
  auto tied = small_llama();
  tied.model.tied = true;
  tied.model.dropout = 0.1;
  all.push_back({"llama, tied, with dropout", tied});
  auto frozen = small_llama();
  frozen.model.freeze = "model.embed_tokens.weight,*.0.*,model.norm.weight";  // the first stage has nothing to train
  all.push_back({"llama, frozen", frozen});
  auto gains = small_gpt();
  gains.model.freeze = "*.attn.*,*.weight";  // biases alone
  all.push_back({"gpt, frozen", gains});
  auto lora = small_llama();
  lora.model.lora_rank = 2;
  lora.model.lora_targets = "*_proj";
  all.push_back({"llama, adapters", lora});
  auto gpt_lora = small_gpt();
  gpt_lora.model.lora_rank = 2;
  all.push_back({"gpt, adapters", gpt_lora});
  for (auto [name, packed] : {Variant{"llama", small_llama()}, Variant{"gpt", small_gpt()}}) {
    packed.data.kind = DataKind::tokens;
    packed.data.path = folder / "tokens.bin";
    packed.data.mask = folder / "tokens.mask";
    packed.data.separator = 0;
    all.push_back({name + ", packed and masked", packed});
  }
  return all;
}

TEST(LanguageLaw, HoldsOnEveryNumberOfRanksAndStages) {
  const TemporaryFolder folder;
  write_documents(folder);
  for (const auto& [name, config] : variants(folder)) {
    const auto expected = run_trainer(config, 1, 10);
    EXPECT_GT(std::abs(expected.reports[9].loss - expected.reports[0].loss), 1e-4) << name;
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", name, ranks));
      auto split = config;
      split.train.microbatch = ranks == 1 ? 2 : ranks == 2 ? 0 : 1;
      split.sync.bucket_mb = ranks == 2 ? 8 : 0.001;
      expect_same(run_trainer(split, ranks, 10), expected);
    }
    for (const int replicas : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, 3 stages of {} replicas", name, replicas));
      auto staged = config;
      staged.parallel.pipe = 3;
      staged.parallel.cuts = {2, 3};  // of embedding, two blocks and head
      staged.train.microbatch = 2;
      expect_same(run_trainer(staged, 3 * replicas, 10), expected);
    }
  }
}

TEST(LanguageLaw, HoldsForAdaptersWithRoots) {
  auto config = small_llama();
  config.model.lora_rank = 2;
  config.sync.bucket_mb = 0.0001;
  const auto expected = run_trainer(config, 1, 6);
  config.sync.kind = SyncKind::root;
  expect_same(run_trainer(config, 3, 6), expected);
}

// A masked mean by hand: the first loss is that of the targets that count, over the whole batch.
TEST(LanguageLaw, TheLossIsTheMeanOverWhatIsLearnt) {
  const TemporaryFolder folder;
  write_documents(folder);
  auto config = variants(folder).back().config;
  config.model.dropout = 0;
  const double loss = run_trainer(config, 2, 1).reports[0].loss;
  const auto data = open_dataset(data_options(config));
  const auto model = build_model(config.model, data.train->vocab());
  model->initialize(static_cast<uint64_t>(config.train.seed));
  std::vector<int64_t> samples;
  SampleOrder(data.train->size(), config.train.batch, 1).fill(0, 0, config.train.batch, samples);
  c10::NoGradGuard no_grad;
  double sum = 0;
  int64_t count = 0;
  for (const int64_t sample : samples) {
    // Each token's document by itself, and the last answer of it.
    const auto batch = data.train->get(std::vector{sample});
    for (int64_t t = 0; t < config.model.context; ++t) {
      const auto target = batch.targets[0][t].item<int64_t>();
      if (target == ignored_target) continue;
      const auto start = batch.starts[0][t].item<int64_t>();
      const auto logits = model->forward(batch.inputs.narrow(1, start, t + 1 - start), {})[0][-1];
      sum -= at::log_softmax(logits, 0)[target].item<double>();
      ++count;
    }
  }
  EXPECT_GT(count, 0);
  EXPECT_LT(count, config.train.batch * config.model.context);
  EXPECT_NEAR(loss, sum / static_cast<double>(count), 1e-12);
}

// What is frozen keeps its bits, has no state and sends nothing.
TEST(Frozen, CostsNothingAndStaysWhatItWas) {
  auto config = small_gpt();
  const auto parameters = [](StageTrainer& trainer) {
    std::map<std::string, at::Tensor> values;
    for (const auto& parameter : trainer.model().parameters())
      values[parameter->name] = parameter->value.detach().clone();
    return values;
  };
  const auto bytes_of = [](StageTrainer& trainer) {
    int64_t bytes = 0;
    for (const auto& bucket : trainer.store().buckets()) {
      bytes += static_cast<int64_t>(bucket.gradients.nbytes());
      for (const auto& [name, tensor] : bucket.state) bytes += static_cast<int64_t>(tensor.nbytes());
    }
    return bytes;
  };
  std::map<std::string, at::Tensor> before, after;
  int64_t all_bytes = 0, some_bytes = 0;
  std::atomic<int64_t> all_sent{0}, some_sent{0};
  const auto watch = [&](int64_t& bytes, std::atomic<int64_t>& sent) {
    return [&](StageTrainer& trainer, World& world, int64_t step) {
      if (world.rank() != 0) return;
      if (step == 1) before = parameters(trainer);
      after = parameters(trainer);
      bytes = bytes_of(trainer);
      sent = world.recorder().sent_bytes();
    };
  };
  run_trainer(config, 2, 4, watch(all_bytes, all_sent));
  config.model.freeze = "wte.*,wpe.*,h.0.*";
  run_trainer(config, 2, 4, watch(some_bytes, some_sent));
  int64_t trained = 0, all = 0;
  for (const auto& [name, value] : before) {
    const bool frozen = name.rfind("w", 0) == 0 || name.rfind("h.0.", 0) == 0;
    EXPECT_EQ(at::equal(value, after.at(name)), frozen) << name;
    all += value.numel();
    if (!frozen) trained += value.numel();
  }
  EXPECT_LT(trained * 2, all);
  EXPECT_EQ(all_bytes, 3 * 8 * all);
  EXPECT_EQ(some_bytes, 3 * 8 * trained);
  EXPECT_LT(some_sent * 2, all_sent.load());
}

}  // namespace
}  // namespace trireme
