#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tests/fleet/published.h"
#include "trireme/base/error.h"

namespace trireme::fleet {
namespace {

struct Published {
  const char* trace;
  double mean_interarrival_s;
  bool multi;
};

class PublishedTraces : public testing::TestWithParam<Published> {};

// The traces that the published generator made, drawn again.
TEST_P(PublishedTraces, AreDrawnAgainFromTheirSeed) {
  const auto& published = GetParam();
  const auto expected = read_trace(data_file(std::string("traces/") + published.trace));
  JobGenerator generator({published.mean_interarrival_s, 0, published.multi, true}, published_throughputs());
  for (const auto& job : expected) {
    const Job drawn = generator.next();
    ASSERT_EQ(drawn.type, job.type) << job.place;
    ASSERT_EQ(drawn.steps, job.steps) << job.place;
    ASSERT_EQ(drawn.scale, job.scale) << job.place;
    char text[64];  // traces keep six digits
    std::snprintf(text, sizeof text, "%f", drawn.arrival_s);
    ASSERT_EQ(std::stod(text), job.arrival_s) << job.place;
  }
}

INSTANTIATE_TEST_SUITE_P(, PublishedTraces,
                         testing::Values(Published{"single_lam7200_seed0_n20.trace", 7200, false},
                                         Published{"single_lam2400_seed0_n600.trace", 2400, false},
                                         Published{"single_lam800_seed0_n600.trace", 800, false},
                                         Published{"multi_lam4500_seed0_n300.trace", 4500, true},
                                         Published{"static_multi_seed0_n100.trace", 0, true},
                                         Published{"static_single_seed0_n60.trace", 0, false}));

TEST(Generator, NeedsTheTypeByWhichItMeasures) {
  Throughputs table("small.yaml");
  table.set_alone(table.add_kind("A3C", 1), table.add_device_type("k80"), 1);
  EXPECT_THROW(JobGenerator({}, table), Error);
}

}  // namespace
}  // namespace trireme::fleet
