#include "trireme/data/synthetic.h"

#include <gtest/gtest.h>
#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "tests/data/temporary.h"

namespace trireme {
namespace {

std::vector<int64_t> all_of(const Dataset& dataset) {
  std::vector<int64_t> samples(static_cast<size_t>(dataset.size()));
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}

// A sample is the same whichever batch it is read in.
void expect_pure(const Dataset& dataset) {
  const Batch whole = dataset.get(all_of(dataset));
  for (const int64_t sample : {int64_t{0}, dataset.size() / 2, dataset.size() - 1}) {
    const Batch alone = dataset.get(std::vector<int64_t>{sample});
    EXPECT_TRUE(at::equal(alone.inputs[0], whole.inputs[sample]));
    EXPECT_TRUE(at::equal(alone.targets[0], whole.targets[sample]));
  }
}

TEST(SyntheticTokens, IsAPureFunctionOfSeedAndSample) {
  const SyntheticTokens tokens(50, 16, 100, 1), same(50, 16, 100, 1), other(50, 16, 100, 2);
  expect_pure(tokens);
  EXPECT_TRUE(at::equal(tokens.get(all_of(tokens)).inputs, same.get(all_of(same)).inputs));
  EXPECT_FALSE(at::equal(tokens.get(all_of(tokens)).inputs, other.get(all_of(other)).inputs));
  EXPECT_EQ(tokens.items(), "tokens");
  EXPECT_EQ(tokens.items_per_sample(), 16);
  EXPECT_EQ(tokens.describe(), "synthetic tokens: a Markov chain over 100 tokens, 50 samples of 16");
}

TEST(SyntheticTokens, KeepsInsideTheVocabularyAndShiftsTargets) {
  const SyntheticTokens tokens(200, 64, 37, 3);
  const Batch batch = tokens.get(all_of(tokens));
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<int64_t>{200, 64}));
  EXPECT_GE(batch.inputs.min().item<int64_t>(), 0);
  EXPECT_LT(batch.targets.max().item<int64_t>(), 37);
  EXPECT_TRUE(at::equal(batch.inputs.narrow(1, 1, 63), batch.targets.narrow(1, 0, 63)));
}

// The pattern to learn: at most four successors a token, the first of them half of the time.
TEST(SyntheticTokens, FollowsAMarkovChain) {
  const SyntheticTokens tokens(500, 200, 50, 7);
  const Batch batch = tokens.get(all_of(tokens));
  const auto inputs = batch.inputs.flatten(), targets = batch.targets.flatten();
  std::map<int64_t, std::map<int64_t, int>> follows;
  const int64_t *from = inputs.const_data_ptr<int64_t>(), *to = targets.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < inputs.numel(); ++i) ++follows[from[i]][to[i]];
  double nats = 0;  // the entropy of the next token given this one: what a model's loss can fall to
  for (const auto& [token, successors] : follows) {
    EXPECT_LE(successors.size(), 4u);
    double total = 0;
    for (const auto& [successor, count] : successors) total += count;
    for (const auto& [successor, count] : successors) nats -= count * std::log(count / total);
  }
  nats /= static_cast<double>(inputs.numel());
  EXPECT_LT(nats, 1.22);
  EXPECT_GT(nats, 0.9);
}

TEST(SyntheticTokens, RefusesBadSizes) {
  EXPECT_EQ(refusal_of([] { SyntheticTokens(0, 8, 16, 1); }),
            "synthetic data needs a number of samples of at least 1, not 0");
  EXPECT_EQ(refusal_of([] { SyntheticTokens(8, 0, 16, 1); }), "synthetic data needs a context of at least 1, not 0");
  EXPECT_EQ(refusal_of([] { SyntheticTokens(8, 8, 1, 1); }), "synthetic data needs a vocabulary of at least 2, not 1");
}

TEST(SyntheticVectors, IsAPureFunctionOfSeedAndSample) {
  const SyntheticVectors vectors(40, 12, 5, 1), same(40, 12, 5, 1), other(40, 12, 5, 2);
  expect_pure(vectors);
  EXPECT_TRUE(at::equal(vectors.get(all_of(vectors)).inputs, same.get(all_of(same)).inputs));
  EXPECT_FALSE(at::equal(vectors.get(all_of(vectors)).inputs, other.get(all_of(other)).inputs));
  EXPECT_EQ(vectors.vocab(), 5);
  EXPECT_EQ(vectors.items(), "samples");
  EXPECT_EQ(vectors.items_per_sample(), 1);
  EXPECT_EQ(vectors.describe(), "synthetic vectors: 12 features in 5 classes by a linear teacher, 40 samples");
}

TEST(SyntheticVectors, AreStandardNormal) {
  const SyntheticVectors vectors(2000, 20, 4, 1);
  const Batch batch = vectors.get(all_of(vectors));
  EXPECT_EQ(batch.inputs.scalar_type(), at::kFloat);
  EXPECT_NEAR(batch.inputs.mean().item<double>(), 0, 0.02);
  EXPECT_NEAR(batch.inputs.std().item<double>(), 1, 0.02);
  EXPECT_EQ(batch.targets.sizes(), (std::vector<int64_t>{2000}));
  EXPECT_EQ(at::bincount(batch.targets).numel(), 4);
  EXPECT_GT(at::bincount(batch.targets).min().item<int64_t>(), 100);  // no class is empty
}

// A linear teacher can be learnt: least squares on one-hot labels alone is right far more often than one in four.
TEST(SyntheticVectors, CanBeLearnt) {
  const SyntheticVectors vectors(2000, 20, 4, 1);
  const Batch batch = vectors.get(all_of(vectors));
  const auto labels = at::one_hot(batch.targets, 4).to(at::kFloat);
  const auto weights = std::get<0>(at::linalg_lstsq(batch.inputs, labels, std::nullopt, std::nullopt));
  const auto right = batch.inputs.matmul(weights).argmax(1).eq(batch.targets).to(at::kFloat).mean();
  EXPECT_GT(right.item<double>(), 0.8);
}

TEST(SyntheticVectors, RefusesBadSizes) {
  EXPECT_EQ(refusal_of([] { SyntheticVectors(0, 8, 4, 1); }),
            "synthetic data needs a number of samples of at least 1, not 0");
  EXPECT_EQ(refusal_of([] { SyntheticVectors(8, 0, 4, 1); }),
            "synthetic data needs a number of features of at least 1, not 0");
  EXPECT_EQ(refusal_of([] { SyntheticVectors(8, 8, 1, 1); }),
            "synthetic data needs a number of classes of at least 2, not 1");
}

}  // namespace
}  // namespace trireme
