#include "trireme/bench/shared.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace trireme {
namespace {

TEST(Shared, FairPartIsOfAllThreadsThatWantToRun) {
  EXPECT_DOUBLE_EQ(fair_part(2, 2, 0), 1);
  EXPECT_DOUBLE_EQ(fair_part(2, 2, 1), 2.0 / 3);
  EXPECT_DOUBLE_EQ(fair_part(2, 2, 2), 0.5);
  EXPECT_DOUBLE_EQ(fair_part(16, 8, 4), 1);  // cores are left
  EXPECT_DOUBLE_EQ(fair_part(16, 16, 16), 0.5);
}

TEST(Shared, HasTwoCases) {
  EXPECT_TRUE(is_shared_case("shared"));
  EXPECT_TRUE(is_shared_case("shared-tiny"));
  EXPECT_FALSE(is_shared_case("mlp"));
}

TEST(Shared, SpeedIsOfTheStepsBetweenTwoPlacesOfTheMetrics) {
  const auto path = std::filesystem::path(testing::TempDir()) / fmt::format("shared-metrics-{}.jsonl", getpid());
  // Steps of 0.5 s with 50 tokens each, told as they end; the third stood still for a second before it.
  const std::string first = R"({"step": 1, "elapsed_s": 0.5, "step_s": 0.5, "tokens_per_s": 100})" "\n";
  const std::string second = R"({"step": 2, "elapsed_s": 1.0, "step_s": 0.5, "tokens_per_s": 100})" "\n";
  const std::string event = R"({"event": "saved"})" "\n";
  const std::string third = R"({"step": 3, "elapsed_s": 2.5, "step_s": 0.5, "tokens_per_s": 100})" "\n";
  std::ofstream(path) << first << second << event << third << first.substr(0, 20);
  const auto all = std::numeric_limits<uintmax_t>::max();
  EXPECT_EQ(steps_between(path, 0, all).size(), 3u);
  EXPECT_DOUBLE_EQ(tokens_per_s(steps_between(path, 0, all)), 100 / 2.0);
  EXPECT_DOUBLE_EQ(tokens_per_s(steps_between(path, 0, first.size() + second.size())), 50 / 0.5);
  EXPECT_EQ(steps_between(path, 1, all).size(), 2u);  // the first had been begun before
  EXPECT_EQ(steps_between(path, 0, first.size() + second.size() - 1).size(), 1u);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace trireme
