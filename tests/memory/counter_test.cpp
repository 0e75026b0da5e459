#include "trireme/memory/counter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>

namespace trireme {
namespace {

struct Counted : testing::Test {
  Counted() { count_memory(); }
  int64_t held(Owner owner) const { return ledger.held(Memory::host, owner); }
  int64_t held() const { return ledger.held(Memory::host); }

  Ledger ledger;
  const OwnerScope here{ledger, Owner::other};
};

TEST_F(Counted, BytesAreThoseOfTheTensorsThatAreAlive) {
  {
    const auto small = at::empty({10}), large = at::empty({100'000}, at::kDouble), none = at::empty({0});
    EXPECT_EQ(held(Owner::other), 40 + 800'000);
    const auto view = large.view({100, 1000});
    EXPECT_EQ(held(), 40 + 800'000);
  }
  EXPECT_EQ(held(), 0);
}

TEST_F(Counted, ATensorBelongsToTheOwnerThatAllocatedItWhoeverFreesIt) {
  at::Tensor theirs;
  std::thread([&] {
    const OwnerScope scope(ledger, Owner::messages);
    theirs = at::empty({50'000});
  }).join();
  EXPECT_EQ(held(Owner::messages), 200'000);
  {
    const OwnerScope scope(Owner::gradients);
    const auto ours = at::empty({10});
    EXPECT_EQ(held(Owner::gradients), 40);
  }
  theirs = at::Tensor();
  EXPECT_EQ(held(), 0);
}

TEST_F(Counted, MemoryCanBeHandedOver) {
  const auto message = at::empty({1000});
  hand_over(message.view({10, 100}), Owner::activations);
  EXPECT_EQ(held(Owner::activations), 4000);
  EXPECT_EQ(held(Owner::other), 0);
  std::vector<float> outside(500);
  {
    const OwnerScope scope(Owner::gradients);
    const auto mapped = taken_over(at::from_blob(outside.data(), {500}));
    EXPECT_EQ(mapped.data_ptr(), outside.data());
    EXPECT_EQ(held(Owner::gradients), 2000);
    taken_over(message);
    EXPECT_EQ(held(Owner::gradients), 6000);
    EXPECT_EQ(held(Owner::activations), 0);
  }
  EXPECT_EQ(held(), 4000);
}

// The most is told as it stood at that instant, owner by owner.
TEST_F(Counted, KnowsHowItStoodWhenMostWasHeld) {
  const auto kept = at::empty({1000});
  {
    const OwnerScope scope(Owner::working);
    const auto first = at::empty({5000});
  }
  {
    const OwnerScope scope(Owner::activations);
    const auto second = at::empty({3000});
  }
  const auto most = ledger.most(Memory::host);
  EXPECT_EQ(most.total, 24'000);
  EXPECT_EQ(most.by_owner[static_cast<size_t>(Owner::working)], 20'000);
  EXPECT_EQ(most.by_owner[static_cast<size_t>(Owner::other)], 4000);
  EXPECT_EQ(most.by_owner[static_cast<size_t>(Owner::activations)], 0);
  ledger.begin_most();
  EXPECT_EQ(ledger.most(Memory::host).total, 4000);
}

TEST_F(Counted, ABackwardPassAllocatesForItsOwner) {
  const auto weight = at::ones({100, 100}).requires_grad_(true);
  const auto loss = at::mm(weight, weight).sum();
  ledger.begin_most();
  {
    const PassScope scope(Owner::working);
    loss.backward();
  }
  EXPECT_GE(ledger.most(Memory::host).by_owner[static_cast<size_t>(Owner::working)], 40'000);
}

TEST_F(Counted, ALargeBlockIsUsedAgain) {
#ifdef TRIREME_SANITIZED
  GTEST_SKIP() << "a sanitizer sees every free";
#endif
  auto first = at::full({100'000}, 1.0f);
  const void* place = first.data_ptr();
  first = at::Tensor();
  EXPECT_GE(held(Owner::spare), 400'000);
  EXPECT_EQ(held(), 0);
  const auto second = at::empty({100'000}), third = at::empty({100'000});
  EXPECT_EQ(held(Owner::spare), 0);
  EXPECT_GE(ledger.most(Memory::host).with_spare, 800'000);
  EXPECT_EQ(second.data_ptr(), place);
  EXPECT_NE(third.data_ptr(), place);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(third.data_ptr()) % 64, 0u);
}

}  // namespace
}  // namespace trireme
