#include "trireme/spec/analysis.h"

#include <gmock/gmock.h>

namespace trireme {
namespace {

using testing::HasSubstr;

// Two equal layers and a small one, of 8-byte elements.
Analysis sample() {
  Analysis analysis;
  analysis.name = "three";
  analysis.batch = 10;
  analysis.ranks = {2, 4};
  analysis.table.element_bytes = 8;
  const auto layer = [](const char* name, double forward, int64_t parameters, int64_t output) {
    LayerSpec spec;
    spec.name = name;
    spec.forward_flops = forward;
    spec.backward_flops = 2 * forward;
    spec.depth = 5;
    spec.parameters = parameters;
    spec.output = output;
    return spec;
  };
  analysis.table.layers = {layer("a", 100, 30, 4), layer("b", 100, 10, 6), layer("c", 10, 0, 2)};
  return analysis;
}

TEST(Analysis, AddsUpWorkAndDepth) {
  const auto analysis = sample();
  EXPECT_DOUBLE_EQ(analysis.work(), 10 * 3 * 210.0);
  EXPECT_DOUBLE_EQ(analysis.depth(), 2 * 15.0);
}

TEST(Analysis, SaysWhatEachSplitSends) {
  const auto splits = sample().splits();
  ASSERT_EQ(splits.size(), 2u);
  EXPECT_DOUBLE_EQ(splits[0].data_bytes, 2 * 0.5 * 40 * 8);
  EXPECT_EQ(splits[0].begins, (std::vector<int64_t>{0, 1}));
  EXPECT_DOUBLE_EQ(splits[0].pipe_bytes, 2 * 4 * 8 * 10.0);  // what a hands to b, there and back
  EXPECT_DOUBLE_EQ(splits[0].pipe_imbalance, 110.0 / 105);
  EXPECT_DOUBLE_EQ(splits[1].data_bytes, 2 * 0.75 * 40 * 8);
  EXPECT_TRUE(splits[1].begins.empty());  // three layers make no four stages
}

TEST(Analysis, IsATableAnObjectAndAPicture) {
  const auto analysis = sample();
  EXPECT_THAT(analysis.full(), HasSubstr("average parallelism 210"));
  EXPECT_THAT(analysis.full(), HasSubstr("too few layers"));
  const auto json = analysis.json();
  EXPECT_EQ(json["layers"].size(), 3u);
  EXPECT_DOUBLE_EQ(json["layers"][0]["parallelism"].get<double>(), 20);
  EXPECT_EQ(json["splits"][0]["begins"], (std::vector<int64_t>{0, 1}));
  EXPECT_THAT(analysis.svg(), HasSubstr("<title>b: 300</title>"));
}

}  // namespace
}  // namespace trireme
