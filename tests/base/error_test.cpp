#include "trireme/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace trireme {
namespace {

template <class Action>
Error thrown_by(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(Error::Kind::failed, "(nothing was thrown)");
}

TEST(ErrorTest, AFailureEndsWithOneAndARefusalWithTwo) {
  const auto failed = thrown_by([] { fail("rank {} is gone", 3); });
  EXPECT_STREQ(failed.what(), "rank 3 is gone");
  EXPECT_EQ(failed.kind(), Error::Kind::failed);
  EXPECT_EQ(failed.exit_status(), 1);
  const auto refused = thrown_by([] { refuse("{} must be {}", "a", "b"); });
  EXPECT_STREQ(refused.what(), "a must be b");
  EXPECT_EQ(refused.kind(), Error::Kind::refused);
  EXPECT_EQ(refused.exit_status(), 2);
}

TEST(ErrorTest, ContextIsPutInFrontOnTheWayUp) {
  Error error(Error::Kind::refused, "wrong size");
  error.add_context("bucket 3").add_context("rank 1");
  EXPECT_STREQ(error.what(), "rank 1: bucket 3: wrong size");
  EXPECT_EQ(error.exit_status(), 2);
}

TEST(ErrorTest, FailErrnoSaysWhatTheSystemSaid) {
  const auto error = thrown_by([] {
    errno = ENOENT;
    fail_errno("a.bin");
  });
  EXPECT_STREQ(error.what(), "a.bin: No such file or directory");
  EXPECT_EQ(error.exit_status(), 1);
}

TEST(NearestTest, FindsSlipsOfTheFingers) {
  const std::vector<std::string> keys = {"model.layers", "model.width", "train.steps", "train.batch"};
  EXPECT_EQ(nearest("model.layer", keys), "model.layers");
  EXPECT_EQ(nearest("mdoel.width", keys), "model.width");
  EXPECT_EQ(nearest("train.stpes", keys), "train.steps");
  EXPECT_EQ(nearest("tran.batch", keys), "train.batch");
  EXPECT_EQ(nearest("train.batch", keys), "train.batch");
}

TEST(NearestTest, TakesTheClosestAndOfEquallyCloseTheFirst) {
  EXPECT_EQ(nearest("steps", {"stops!", "step", "stripes"}), "step");
  EXPECT_EQ(nearest("bat", {"cat", "hat"}), "cat");
}

TEST(NearestTest, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(nearest("embedding", {"model.layers", "train.steps"}), "");
  EXPECT_EQ(nearest("precision", {}), "");
  EXPECT_EQ(nearest("", {"layers", "width"}), "");
}

TEST(NearestTest, LongWordsMayDifferByAThird) {
  EXPECT_EQ(nearest("abcdefghi", {"abcdefxyz"}), "abcdefxyz");
  EXPECT_EQ(nearest("abcdefghi", {"abcdewxyz"}), "");
}

}  // namespace
}  // namespace trireme
