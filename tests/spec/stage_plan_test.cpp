#include "trireme/spec/stage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::HasSubstr;

// Two stages of two replicas each: rank 0 and 1 need 600 bytes, 2 and 3 need 60.
class FitsTest : public testing::Test {
 protected:
  FitsTest() : stages_(2) {
    mesh_.stages = 2;
    mesh_.replicas_by_stage = {2, 2};
    stages_[0] = {.stage = 0, .replicas = 2, .parameter_bytes = 100, .gradient_bytes = 100, .optimizer_bytes = 400};
    stages_[1] = {.stage = 1, .replicas = 2, .parameter_bytes = 10, .gradient_bytes = 10, .optimizer_bytes = 40};
    for (auto& stage : stages_) stage.activation_bytes = 1 << 20;  // not counted: not sure
    config_.train.batch = 8;
  }

  // The least pool that these ranks fit into.
  int64_t least(const std::vector<int>& ranks, int64_t sample_bytes = 0) {
    for (int64_t bytes = 0;; ++bytes) {
      try {
        check_fits(config_, stages_, mesh_, {"here", bytes, ranks}, sample_bytes);
        return bytes;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), Error::Kind::refused);
      }
    }
  }

  RunConfig config_;
  Mesh mesh_;
  std::vector<StagePlan> stages_;
};

TEST_F(FitsTest, CountsWhatRanksSurelyNeed) {
  EXPECT_EQ(least({0, 1, 2, 3}), 1320);
  EXPECT_EQ(least({0}), 600);
  EXPECT_EQ(least({2, 3}), 120);
  EXPECT_EQ(least({}), 0);
}

TEST_F(FitsTest, CountsTheSamplesOfABatch) {
  EXPECT_EQ(least({0, 1, 2, 3}, 10), 1320 + 80);
  EXPECT_EQ(least({0, 1}, 10), 1200 + 40);
}

TEST_F(FitsTest, CountsWhatLiesInAPoolAlone) {
  const auto fits = [&](const MemoryPool& pool) {
    try {
      check_fits(config_, stages_, mesh_, pool, 10);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  // A card has the state, and of the samples a microbatch at most; its host has the samples.
  EXPECT_TRUE(fits({"card 0", 1200, {0, 1}, /*state=*/true, /*samples=*/false}));
  EXPECT_FALSE(fits({"card 0", 1199, {0, 1}, /*state=*/true, /*samples=*/false}));
  EXPECT_TRUE(fits({"this host", 80, {0, 1, 2, 3}, /*state=*/false, /*samples=*/true}));
  EXPECT_FALSE(fits({"this host", 79, {0, 1, 2, 3}, /*state=*/false, /*samples=*/true}));
}

TEST_F(FitsTest, CountsOnceWhatRanksShare) {
  config_.sync.kind = SyncKind::root;  // each parameter's state has one owner among two replicas
  EXPECT_EQ(least({0, 1}), 2 * 200 + 400);
  config_.sync.kind = SyncKind::hogwild;  // gradients alone are a rank's own
  EXPECT_EQ(least({0, 1}), 2 * 100 + 500);
}

TEST_F(FitsTest, TellsWhatIsNeededAndWhatThereIs) {
  try {
    check_fits(config_, stages_, mesh_, {"this host", 1000, {0, 1, 2, 3}}, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs at least 1.32 kB of memory on this host, which has 1.00 kB"));
    EXPECT_THAT(error.what(), HasSubstr("parameters 220 B, gradients 220 B, optimizer state 880 B"));
  }
}

}  // namespace
}  // namespace trireme
