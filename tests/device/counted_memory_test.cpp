#include "trireme/device/counted_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace trireme {
namespace {

TEST(CountedMemory, BytesAreThoseOfTheTensorsThatAreAlive) {
  count_memory();
  const int64_t before = counted_bytes();
  {
    const auto small = at::empty({10}), large = at::empty({100'000}, at::kDouble), none = at::empty({0});
    EXPECT_EQ(counted_bytes() - before, 40 + 800'000);
    const auto view = large.view({100, 1000});
    EXPECT_EQ(counted_bytes() - before, 40 + 800'000);
  }
  EXPECT_EQ(counted_bytes(), before);
}

TEST(CountedMemory, AThreadsTensorsAreItsOwnWhoeverFreesThem) {
  count_memory();
  const int64_t before = counted_bytes();
  at::Tensor theirs;
  std::thread([&] {
    theirs = at::empty({50'000});
    EXPECT_EQ(counted_bytes(), 200'000);
  }).join();
  EXPECT_EQ(counted_bytes(), before);
  theirs = at::Tensor();
  EXPECT_EQ(counted_bytes(), before);
}

TEST(CountedMemory, ALargeBlockIsUsedAgain) {
#ifdef TRIREME_SANITIZED
  GTEST_SKIP() << "a sanitizer sees every free";
#endif
  count_memory();
  auto first = at::full({100'000}, 1.0f);
  const void* place = first.data_ptr();
  first = at::Tensor();
  const auto second = at::empty({100'000}), third = at::empty({100'000});
  EXPECT_EQ(second.data_ptr(), place);
  EXPECT_NE(third.data_ptr(), place);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(third.data_ptr()) % 64, 0u);
}

}  // namespace
}  // namespace trireme
