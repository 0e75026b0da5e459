// Messages between ranks, and groups of ranks: on threads here, and by the same checks on processes and MPI elsewhere.
#include "trireme/comm/postbox.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
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
    postbox.cancel(nullptr);
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

// A way on which the test puts what a peer would never send.
class ScriptedMail final : public Mail {
 public:
  explicit ScriptedMail(std::vector<MessageHeader> script) : script_(std::move(script)) {}

  void send(int, const MessageHeader&, const at::Tensor&, DeviceEvent) override {}
  bool poll(MailHandler& handler) override {
    if (next_ == script_.size()) return false;
    const auto header = script_[next_++];
    handler.place_for(1, header);
    handler.arrived(1, header);
    return true;
  }
  void sleep(int64_t) override { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  void wake() override {}

 private:
  std::vector<MessageHeader> script_;
  size_t next_ = 0;
};

MessageHeader header_of(uint64_t sequence, std::vector<int64_t> sizes = {2, 3}, int64_t bytes = 24) {
  MessageHeader header;
  header.sequence = sequence;
  header.bytes = bytes;
  header.dims = static_cast<int8_t>(sizes.size());
  for (size_t dim = 0; dim < std::min<size_t>(sizes.size(), MessageHeader::most_dims); ++dim)
    header.sizes[dim] = sizes[dim];
  return header;
}

// What becomes of so many messages: their number, or what the receiver heard instead.
std::string fate_of(const std::vector<MessageHeader>& script) {
  const auto board = Board::in_memory(1);
  Recorder recorder(&board->slot(0));
  std::atomic<size_t> came{0};
  std::promise<std::string> fate;
  Postbox postbox(std::make_unique<ScriptedMail>(script), recorder, {});
  postbox.listen(
      1, {},
      [&](const at::Tensor&) {
        if (++came == script.size()) fate.set_value(std::to_string(came));
      },
      [&](std::exception_ptr error) {
        try {
          std::rethrow_exception(error);
        } catch (const Error& problem) {
          fate.set_value(problem.what());
        }
      });
  return fate.get_future().get();
}

TEST(Postbox, TakesMessagesOfOnePeerInTheirOrderOnly) {
  EXPECT_EQ(fate_of({header_of(0), header_of(1), header_of(2)}), "3");
  EXPECT_THAT(fate_of({header_of(0), header_of(2), header_of(1)}),
              HasSubstr("message 2 from rank 1 came where 1 was due"));
  EXPECT_THAT(fate_of({header_of(0), header_of(0)}), HasSubstr("message 0 from rank 1 came where 1 was due"));
}

TEST(Postbox, TakesNoMessageWhoseHeaderCannotBeTrue) {
  EXPECT_EQ(fate_of({header_of(0, {}, 4), header_of(1, {0, 5}, 0), header_of(2, {1, 1, 1, 1, 2, 3}, 24)}), "3");
  const auto refused = HasSubstr("a message from rank 1 has a header that cannot be true");
  EXPECT_THAT(fate_of({header_of(0, {2, 3}, 20)}), refused);
  EXPECT_THAT(fate_of({header_of(0, {2, 3}, 1 << 30)}), refused);
  EXPECT_THAT(fate_of({header_of(0, {1, 1, 1, 1, 1, 2, 3}, 24)}), refused);
  EXPECT_THAT(fate_of({header_of(0, {-2, -3}, 24)}), refused);
  EXPECT_THAT(fate_of({header_of(0, {int64_t{1} << 62, 4, 6}, 0)}), refused);
  auto header = header_of(0);
  header.dims = -1;
  EXPECT_THAT(fate_of({header}), refused);
  for (const int type : {-1, 100, static_cast<int>(at::ScalarType::Undefined)}) {
    header = header_of(0);
    header.dtype = static_cast<at::ScalarType>(type);
    EXPECT_THAT(fate_of({header}), refused) << type;
  }
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
