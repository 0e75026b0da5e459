#include "trireme/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/data/temporary.h"
#include "trireme/data/synthetic.h"

namespace trireme {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

std::shared_ptr<const Dataset> vectors(int64_t samples) { return std::make_shared<SyntheticVectors>(samples, 3, 2, 1); }

TEST(Slice, ViewsPartOfADataset) {
  const auto whole = vectors(10);
  const Slice slice(whole, 4, 5);
  EXPECT_EQ(slice.size(), 5);
  EXPECT_EQ(slice.vocab(), 2);
  EXPECT_EQ(slice.items(), "samples");
  EXPECT_EQ(slice.items_per_sample(), 1);
  EXPECT_THAT(slice.describe(), testing::StartsWith("5 samples from sample 4 of synthetic vectors"));
  const Batch here = slice.get(std::vector<int64_t>{0, 4});
  const Batch there = whole->get(std::vector<int64_t>{4, 8});
  EXPECT_TRUE(at::equal(here.inputs, there.inputs));
  EXPECT_TRUE(at::equal(here.targets, there.targets));
}

TEST(Slice, FailsOutsideItsRange) {
  const auto whole = vectors(10);
  EXPECT_THROW(Slice(whole, 4, 7), Error);
  EXPECT_THROW(Slice(whole, -1, 2), Error);
  EXPECT_THROW(Slice(whole, 2, -1), Error);
  EXPECT_THROW(Slice(whole, 4, 5).get(std::vector<int64_t>{5}), Error);  // exists in the whole, not in the slice
}

TEST(Split, HoldsTheLastSamplesOut) {
  const auto whole = vectors(10);
  const Split parts = split(whole, 0.3);
  EXPECT_EQ(parts.train->size(), 7);
  EXPECT_EQ(parts.validation->size(), 3);
  const std::vector<int64_t> first = {0}, seventh = {7};
  EXPECT_TRUE(at::equal(parts.validation->get(first).inputs, whole->get(seventh).inputs));
}

TEST(Split, HoldsNothingOutUnlessAsked) {
  const auto whole = vectors(10);
  const Split parts = split(whole, 0);
  EXPECT_EQ(parts.train->size(), 10);
  EXPECT_EQ(parts.train->describe(), whole->describe());
  EXPECT_EQ(parts.validation, nullptr);
}

TEST(Split, RoundsToWholeSamplesAndKeepsAtLeastOne) {
  EXPECT_EQ(split(vectors(100), 0.29).validation->size(), 29);  // 0.29 · 100 is a little less than 29
  EXPECT_EQ(split(vectors(10), 0.001).validation->size(), 1);
}

TEST(Split, RefusesImpossibleFractions) {
  EXPECT_EQ(refusal_of([] { split(vectors(10), 1); }),
            "the fraction held out for validation must lie in [0, 1), not 1");
  EXPECT_THAT(refusal_of([] { split(vectors(10), -0.1); }), EndsWith("not -0.1"));
  EXPECT_THAT(refusal_of([] { split(vectors(10), std::nan("")); }), EndsWith("not nan"));
  EXPECT_EQ(refusal_of([] { split(vectors(1), 0.1); }),
            "holding out 1 of 1 sample for validation leaves none to train on");
}

TEST(OpenDataset, OpensEveryKind) {
  const TemporaryFolder folder;
  append(folder / "tokens.bin", std::vector<uint16_t>(101, 3));
  append(folder / "text.txt", std::vector<char>(101, 'x'));

  const Split tokens = open_dataset({.path = folder / "tokens.bin", .context = 10, .validation = 0.2});
  EXPECT_EQ(tokens.train->size(), 8);
  EXPECT_EQ(tokens.validation->size(), 2);
  EXPECT_EQ(tokens.train->vocab(), 4);

  const Split text = open_dataset({.kind = "text", .path = folder / "text.txt", .context = 10});
  EXPECT_EQ(text.train->size(), 10);
  EXPECT_EQ(text.train->vocab(), 256);

  const Split chain = open_dataset({.kind = "synthetic_tokens", .context = 8, .vocab = 50, .samples = 20});
  EXPECT_EQ(chain.train->size(), 20);
  EXPECT_EQ(chain.train->vocab(), 50);

  const Split points = open_dataset({.kind = "synthetic_vectors", .features = 6, .classes = 3, .samples = 20});
  EXPECT_EQ(points.train->get(std::vector<int64_t>{1}).inputs.size(1), 6);
  EXPECT_EQ(points.train->vocab(), 3);
}

TEST(OpenDataset, RefusesBadOptions) {
  EXPECT_EQ(refusal_of([] { open_dataset({.kind = "txt"}); }),
            "unknown kind of data 'txt' (did you mean 'text'?); the kinds are tokens, text, images, "
            "synthetic_tokens, synthetic_vectors, synthetic_images");
  EXPECT_THAT(refusal_of([] { open_dataset({.kind = "imagenet"}); }), HasSubstr("'imagenet'; the kinds are"));
  EXPECT_EQ(refusal_of([] { open_dataset({.kind = "text", .context = 8}); }),
            "data of kind text is read from a file: its path is missing");
}

}  // namespace
}  // namespace trireme
