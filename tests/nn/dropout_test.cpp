#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/close.h"
#include "trireme/base/error.h"
#include "trireme/nn/functions.h"

namespace trireme {
namespace {

at::Tensor identities(std::vector<int64_t> samples) { return at::tensor(samples, at::kLong); }

// 1 where an element is kept, 0 where it is dropped; a row for each sample.
at::Tensor mask(double probability, Key key, const at::Tensor& samples, int64_t elements) {
  return dropout(at::ones({samples.numel(), elements}, at::kDouble), probability, key, samples).ne(0).to(at::kDouble);
}

TEST(Dropout, DependsOnlyOnKeySampleAndPlace) {
  const Key key = Key{1}.with("dropout").with(17);
  const auto samples = at::arange(100, 108, at::kLong);
  const auto x = numbers({8, 3, 5}, 1);
  const auto whole = dropout(x, 0.3, key, samples);
  for (const auto& pieces : {std::vector<int64_t>{8}, {4, 4}, {1, 1, 1, 1, 1, 1, 1, 1}, {5, 3}, {2, 1, 4, 1}}) {
    std::vector<at::Tensor> parts;
    int64_t first = 0;
    for (const int64_t count : pieces) {
      parts.push_back(dropout(x.narrow(0, first, count), 0.3, key, samples.narrow(0, first, count)));
      first += count;
    }
    EXPECT_TRUE(at::equal(at::cat(parts), whole));
  }
  // Samples in another order take their masks along.
  const auto order = identities({6, 2, 7, 0, 1, 5, 3, 4});
  EXPECT_TRUE(at::equal(dropout(x.index_select(0, order), 0.3, key, samples.index_select(0, order)),
                        whole.index_select(0, order)));
  // Another shape of a sample with as many elements, and another type: the same places.
  EXPECT_TRUE(at::equal(dropout(x.view({8, 15}), 0.3, key, samples), whole.view({8, 15})));
  EXPECT_TRUE(at::equal(dropout(x.to(at::kBFloat16), 0.3, key, samples).ne(0), whole.ne(0)));
}

TEST(Dropout, ReadsElementsByPlaceWhateverTheStrides) {
  const auto samples = at::arange(4, at::kLong);
  const auto x = numbers({5, 4}, 1);
  EXPECT_TRUE(at::equal(dropout(x.t(), 0.5, Key{3}, samples), dropout(x.t().contiguous(), 0.5, Key{3}, samples)));
}

TEST(Dropout, DropsItsShareAndKeepsTheMean) {
  const int64_t elements = 100'000;
  for (const double probability : {0.01, 0.1, 0.5, 0.9}) {
    const auto y = dropout(at::ones({2, elements}, at::kDouble), probability, Key{5}, identities({3, 4}));
    const double spread = std::sqrt(probability * (1 - probability) / (2.0 * static_cast<double>(elements)));
    EXPECT_NEAR(y.eq(0).to(at::kDouble).mean().item<double>(), probability, 4 * spread);
    EXPECT_NEAR(y.mean().item<double>(), 1, 4 * spread / (1 - probability));
    EXPECT_TRUE(at::allclose(y.masked_select(y.ne(0)), at::ones({}, at::kDouble) / (1 - probability)));
  }
}

TEST(Dropout, UsesTheSameMaskInTheBackwardPass) {
  const auto x = at::ones({4, 50}, at::kDouble).set_requires_grad(true);
  const auto y = dropout(x, 0.4, Key{9}, identities({1, 5, 2, 8}));
  const auto pull = numbers({4, 50}, 1);
  y.backward(pull);
  EXPECT_TRUE(at::equal(x.grad(), pull * y));  // y of ones is the mask with its scale
}

TEST(Dropout, PassesEverythingAtProbabilityZero) {
  const auto x = numbers({2, 3}, 1);
  EXPECT_TRUE(dropout(x, 0, Key{1}, identities({0, 1})).is_same(x));
}

// Neighbours of every kind: keys, steps, layers, samples, and places a little further on.
TEST(Dropout, DrawsUncorrelatedMasks) {
  const int64_t elements = 100'000;
  const Key base = Key{1}.with("dropout");
  const auto row = [&](Key key, int64_t sample) { return mask(0.5, key, identities({sample}), elements)[0] * 2 - 1; };
  const auto one = row(base.with(0).with("h.0"), 0);
  const std::vector<at::Tensor> others{row(base.with(1).with("h.0"), 0),
                                       row(base.with(0).with("h.1"), 0),
                                       row(base.with(0).with("h.0"), 1),
                                       row(Key{2}.with("dropout").with(0).with("h.0"), 0),
                                       row(base.with("h.0").with(0), 0),
                                       one.roll(1),
                                       one.roll(2),
                                       one.roll(16),
                                       one.roll(64),
                                       one.roll(1024)};
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_LT(std::abs((one * others[i]).mean().item<double>()), 4 / std::sqrt(static_cast<double>(elements))) << i;
  }
}

// The masks of runs that exist must not change with the code: computed once by an independent program.
TEST(Dropout, IsFrozen) {
  const auto found = mask(0.5, Key{1}.with("dropout").with(3).with("h.0"), identities({42}), 32)[0];
  std::string text;
  for (int64_t i = 0; i < 32; ++i) text.push_back(found[i].item<double>() > 0 ? '1' : '0');
  EXPECT_EQ(text, "01011010000000011111011101001100");
}

TEST(Dropout, ChecksItsIdentities) {
  const auto x = at::ones({3, 4}, at::kDouble);
  EXPECT_THROW(dropout(x, 0.5, Key{1}, identities({1, 2})), Error);
}

}  // namespace
}  // namespace trireme
