// Messages between ranks, and groups of ranks: on threads here, and by the same checks on processes and MPI elsewhere.
#include "trireme/comm/postbox.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "tests/comm/message_checks.h"
#include "trireme/base/error.h"
#include "trireme/comm/world.h"

namespace trireme {
namespace {

using testing::HasSubstr;

TEST(Groups, EachColorCommunicatesByItself) {
  for (const int ranks : {1, 2, 3, 4, 6})
    World::run_threads(ranks, [](World& world) { check_groups(world.communicator()); });
}

TEST(Groups, AllocatedMemoryIsTheGroups) {
  World::run_threads(4, [](World& world) {
    auto& communicator = world.communicator();
    const Group group = communicator.split(world.rank() / 2);
    auto values = communicator.allocate(800'000, group).view(at::kDouble);
    values.fill_(world.rank());
    communicator.wait(communicator.all_reduce(values, ReduceOp::sum, "sum", {}, group));
    EXPECT_TRUE(at::equal(values, at::full_like(values, world.rank() < 2 ? 1 : 5)));
  });
}

TEST(Postbox, MessagesOfAllShapesArrive) {
  for (const int ranks : {2, 3, 4})
    World::run_threads(ranks, [](World& world) { check_messages(world.communicator(), world.recorder(), 0); });
}

TEST(Postbox, DelaysKeepTheOrderOfATag) {
  World::run_threads(3, [](World& world) { check_messages(world.communicator(), world.recorder(), 0.002); });
}

TEST(Postbox, AMessageMayComeBeforeItIsExpected) {
  World::run_threads(2, [](World& world) {
    const int other = 1 - world.rank();
    Postbox postbox(world.communicator().open_mail({{other}, {other}, 1000}), world.recorder(), {});
    postbox.send(other, {0, 0, 7}, at::full({3}, world.rank() + 10.0));
    world.communicator().wait(world.communicator().barrier("sent"));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    at::Tensor got;
    const auto box =
        postbox.open(other, {0, 0, 7}, [&](PendingTensor message, std::exception_ptr) { got = message.take(); });
    postbox.expect(box);
    ASSERT_TRUE(got.defined());
    EXPECT_TRUE(at::equal(got, at::full({3}, other + 10.0)));
    world.communicator().wait(world.communicator().barrier("received"));
  });
}

TEST(Postbox, WhatIsCancelledIsTold) {
  World::run_threads(2, [](World& world) {
    const int other = 1 - world.rank();
    Postbox postbox(world.communicator().open_mail({{other}, {other}, 1000}), world.recorder(), {});
    std::string problem;
    const auto box = postbox.open(other, {0, 0, 0}, [&](const PendingTensor&, std::exception_ptr error) {
      try {
        if (error) std::rethrow_exception(error);
      } catch (const Error& told) {
        problem = told.what();
      }
    });
    postbox.expect(box);
    postbox.cancel();
    EXPECT_THAT(problem, HasSubstr("given up"));
    world.communicator().wait(world.communicator().barrier("done"));
  });
}

TEST(Postbox, WhoWaitsForARankThatFailedIsTold) {
  std::mutex mutex;
  std::string told;
  try {
    World::run_threads(2, [&](World& world) {
      const int other = 1 - world.rank();
      Postbox postbox(world.communicator().open_mail({{other}, {other}, 1000}), world.recorder(), {});
      if (world.rank() == 1) fail("no more");
      std::atomic<bool> ended{false};
      const auto box = postbox.open(other, {0, 0, 0}, [&](const PendingTensor&, std::exception_ptr error) {
        try {
          if (error) std::rethrow_exception(error);
        } catch (const Error& problem) {
          std::lock_guard lock(mutex);
          told = problem.what();
        }
        ended = true;
      });
      postbox.expect(box);
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no more"));
  }
  EXPECT_THAT(told, HasSubstr("another rank ended"));
}

TEST(Postbox, RefusesAPeerThatWasNotNamed) {
  World::run_threads(3, [](World& world) {
    const int next = (world.rank() + 1) % 3, last = (world.rank() + 2) % 3;
    Postbox postbox(world.communicator().open_mail({{next}, {last}, 1000}), world.recorder(), {});
    EXPECT_THROW(postbox.send(last, {}, at::zeros({1})), Error);
    world.communicator().wait(world.communicator().barrier("done"));
  });
}

}  // namespace
}  // namespace trireme
