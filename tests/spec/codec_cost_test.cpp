#include "trireme/spec/codec_cost.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

const std::vector<CodecSpeed> codecs{{CodecKind::bf16, 0.5, 1.0e-10, 1.0e-10},
                                     {CodecKind::int8, 0.254, 1.2e-10, 1.0e-10},
                                     {CodecKind::int4, 0.129, 1.0e-10, 0.8e-10}};

SumPlace two_hosts(double bits_per_s) {
  SumPlace place{.hosts = 2, .local = 2};
  place.links.between = {5e-5, 8 / bits_per_s, 1e-10};
  return place;
}

TEST(CodecCost, PlainSumsCostWhatCollectivesDo) {
  SumPlace place{.hosts = 1, .local = 4};
  place.links.inside = {1e-6, 1e-10, 1e-11};
  const auto algorithm = choose_all_reduce(4, 8 << 20, place.links.inside);
  EXPECT_DOUBLE_EQ(plain_sum_seconds(place, 8 << 20), all_reduce_seconds(algorithm, 4, 8 << 20, place.links.inside));
}

// Over a slow link the bytes decide, over a fast one the cores.
TEST(CodecCost, ACodecPaysWhereTheLinkIsSlow) {
  const auto slow = choose_codec(two_hosts(500e6), 8'000'000, codecs);
  EXPECT_EQ(slow.kind, CodecKind::int4);
  EXPECT_NEAR(slow.plain_s, 8e6 * 8 / 500e6 * 1.0, 0.02);  // each host sends its part once, and gets it once
  EXPECT_NEAR(slow.seconds[1] / slow.plain_s, 0.254, 0.1);
  EXPECT_EQ(choose_codec(two_hosts(10e9), 8'000'000, codecs).kind, CodecKind::none);
  EXPECT_EQ(choose_codec(two_hosts(100e9), 8'000'000, codecs).kind, CodecKind::none);
  SumPlace inside{.hosts = 1, .local = 4};
  inside.links.inside = {0, 1e-10, 0};
  EXPECT_EQ(choose_codec(inside, 8'000'000, codecs).kind, CodecKind::none);
}

TEST(CodecCost, OfTwoThatAreAsFastTheOneThatSaysMore) {
  const std::vector<CodecSpeed> alike{{CodecKind::int8, 0.2, 0, 0}, {CodecKind::int4, 0.19, 0, 0}};
  EXPECT_EQ(choose_codec(two_hosts(500e6), 8'000'000, alike).kind, CodecKind::int8);
}

TEST(CodecCost, FewerCoresMakeCodecsSlower) {
  auto place = two_hosts(1e9);
  const double alone = compressed_sum_seconds(place, 8'000'000, codecs[1]);
  place.cores = 0.5;
  EXPECT_GT(compressed_sum_seconds(place, 8'000'000, codecs[1]), alone);
  place.cores = 8;  // one thread codes, whatever there is
  EXPECT_DOUBLE_EQ(compressed_sum_seconds(place, 8'000'000, codecs[1]), alone);
}

}  // namespace
}  // namespace trireme
