#include "trireme/device/foreign_error.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

template <class Action>
Explained explained(Action action) {
  try {
    action();
  } catch (...) {
    return explain(std::current_exception());
  }
  ADD_FAILURE() << "nothing was thrown";
  return {Error(Error::Kind::failed, "")};
}

TEST(ForeignErrorTest, MemoryThatTheHostHasNotIsToldWithItsAmount) {
  const auto [error, out_of_memory] = explained([] { at::empty({int64_t{1} << 50}, at::kByte); });
  EXPECT_STREQ(error.what(), "out of memory: 1.13 PB were asked for, more than is free");
  EXPECT_EQ(error.exit_status(), 1);
  EXPECT_TRUE(out_of_memory);
}

TEST(ForeignErrorTest, MemoryThatACardHasNotToo) {
  const auto [error, out_of_memory] = explained([] {
    TORCH_CHECK_WITH(OutOfMemoryError, false,
                     "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.00 GiB");
  });
  EXPECT_STREQ(error.what(), "out of memory on the card: 21.5 GB were asked for, more than is free");
  EXPECT_TRUE(out_of_memory);
}

TEST(ForeignErrorTest, LibTorchsErrorsAreOneLineWithoutFrames) {
  const auto [error, out_of_memory] = explained([] { at::mm(at::zeros({2, 3}), at::zeros({2, 3})); });
  const std::string told = error.what();
  EXPECT_THAT(told, testing::StartsWith("LibTorch: "));
  EXPECT_THAT(told, testing::HasSubstr("(2x3 and 2x3)"));
  EXPECT_THAT(told, testing::Not(testing::HasSubstr("frame #")));
  EXPECT_EQ(told.find('\n'), std::string::npos);
  EXPECT_FALSE(out_of_memory);
}

TEST(ForeignErrorTest, OthersAreThoseOfTheStandardLibrary) {
  EXPECT_STREQ(explained([] { throw std::runtime_error("plain"); }).error.what(), "plain");
  EXPECT_EQ(explained([] { refuse("no"); }).error.exit_status(), 2);
}

}  // namespace
}  // namespace trireme
