// The queue in front of a transport: order, callbacks, several waiting threads, helping, and what a failure does to the
// calls behind it.
#include "trireme/comm/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "tests/engine/in_order.h"
#include "trireme/base/error.h"
#include "trireme/comm/world.h"
#include "trireme/engine/executor.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CommunicatorTest, ManyQueuedCallsEndInOrder) {
  constexpr int calls = 3000;  // more than the queue holds
  World::run_threads(2, [&](World& world) {
    auto& communicator = world.communicator();
    std::vector<int> ended;
    std::vector<at::Tensor> tensors;
    Communicator::Ticket last = 0;
    for (int i = 0; i < calls; ++i) {
      tensors.push_back(at::full({3}, i + world.rank()));
      const auto ticket =
          communicator.all_reduce(tensors.back(), ReduceOp::sum, "queued", [&ended, i](std::exception_ptr error) {
            if (!error) ended.push_back(i);
          });
      EXPECT_EQ(ticket, last + 1);
      last = ticket;
    }
    communicator.wait(last);
    ASSERT_EQ(ended.size(), static_cast<size_t>(calls));
    for (int i = 0; i < calls; ++i) {
      EXPECT_EQ(ended[static_cast<size_t>(i)], i);
      EXPECT_EQ(tensors[static_cast<size_t>(i)][2].item<int64_t>(), 2 * i + 1);
    }
    EXPECT_EQ(world.recorder().sent_bytes(), calls * 3 * static_cast<int64_t>(tensors[0].element_size()));
  });
}

TEST(CommunicatorTest, ItsThreadCarriesWhatNobodyWaitsFor) {
  World::run_threads(2, [](World& world) {
    std::promise<void> ended;
    auto tensor = at::ones({5});
    world.communicator().all_reduce(tensor, ReduceOp::sum, "alone", [&](std::exception_ptr) { ended.set_value(); });
    EXPECT_EQ(ended.get_future().wait_for(60s), std::future_status::ready);
    EXPECT_EQ(tensor[4].item<double>(), 2);
  });
}

TEST(CommunicatorTest, WhatACallbackQueuesIsCarriedToo) {
  // The waiting thread carries the first call, whose callback queues the second, and then leaves: the communicator's
  // own thread has to wake up for it.
  for (int ranks : {1, 2}) {
    for (int round = 0; round < 100; ++round) {
      World::run_threads(ranks, [](World& world) {
        auto& communicator = world.communicator();
        auto first = at::ones({5}), second = at::ones({5});
        std::promise<void> ended;
        communicator.wait(communicator.all_reduce(first, ReduceOp::sum, "first", [&](std::exception_ptr) {
          communicator.all_reduce(second, ReduceOp::sum, "second", [&](std::exception_ptr) { ended.set_value(); });
        }));
        ASSERT_EQ(ended.get_future().wait_for(60s), std::future_status::ready);
        EXPECT_EQ(second[0].item<double>(), world.size());
      });
    }
  }
}

TEST(CommunicatorTest, SeveralThreadsWait) {
  World::run_threads(2, [](World& world) {
    auto& communicator = world.communicator();
    for (int round = 0; round < 50; ++round) {
      std::vector<at::Tensor> tensors;
      std::vector<Communicator::Ticket> tickets;
      for (int i = 0; i < 4; ++i) {
        tensors.push_back(at::full({100}, i + 1.0));
        tickets.push_back(communicator.all_reduce(tensors.back(), ReduceOp::sum, "shared out"));
      }
      std::vector<std::jthread> waiters;
      for (size_t i = 0; i < 4; ++i) {
        waiters.emplace_back([&, i] {
          communicator.wait(tickets[3 - i]);
          EXPECT_EQ(tensors[3 - i][99].item<double>(), 2.0 * static_cast<double>(4 - i));
        });
      }
    }
  });
}

TEST(CommunicatorTest, HelpDoesOnePieceOfWork) {
  World::run_threads(2, [](World& world) {
    auto& communicator = world.communicator();
    EXPECT_FALSE(communicator.help(true)) << "there is nothing to do";
    std::atomic<int> ended{0};
    for (int i = 0; i < 500; ++i) {
      communicator.barrier("help", [&](std::exception_ptr) { ++ended; });
    }
    while (ended < 500) communicator.help(true);
    communicator.wait(500);
    EXPECT_FALSE(communicator.help(true));
  });
}

TEST(CommunicatorTest, AStepOnTheEngineIsHelpedByIt) {
  // The shape of a training step: backward sends buckets off from inside, optimize waits for each.
  World::run_threads(2, [](World& world) {
    auto& communicator = world.communicator();
    InOrder schedule;
    RealClock clock;
    Executor executor(world.recorder(), clock, &communicator);
    Graph graph;
    constexpr int buckets = 4;
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < buckets; ++i) tensors.push_back(at::zeros({50'000 * i + 10}));
    for (int i = 0; i < buckets; ++i) {
      const auto id = static_cast<TaskId>(i);
      graph.add(
          TaskKind::reduce, i, Lane::wire,
          [&, i, id] {
            communicator.all_reduce(tensors[static_cast<size_t>(i)], ReduceOp::sum, "bucket",
                                    [&, id](std::exception_ptr error) { executor.complete(id, error); });
          },
          {}, 1);
    }
    graph.add(TaskKind::backward, 0, Lane::compute, [&] {
      for (TaskId i = 0; i < buckets; ++i) {
        tensors[i].fill_(1.0 + i);
        executor.signal(i);
      }
    });
    for (int i = 0; i < buckets; ++i) {
      graph.add(TaskKind::optimize, i, Lane::compute,
                [&, i] {
                  const auto& tensor = tensors[static_cast<size_t>(i)];
                  if (!at::equal(tensor, at::full_like(tensor, 2.0 * (i + 1)))) fail("bucket {} is wrong", i);
                },
                {static_cast<TaskId>(i)});
    }
    for (int step = 0; step < 100; ++step) executor.run(graph, schedule);
  });
}

TEST(CommunicatorTest, AFailureReachesTheCallsBehindIt) {
  // Callbacks of calls that are still queued come too, with the error: the engine waits for each.
  for (int round = 0; round < 20; ++round) {
    World::run_threads(2, [](World& world) {
      auto& communicator = world.communicator();
      const auto before = communicator.barrier("before");
      std::atomic<int> told{0};
      const auto count = [&](std::exception_ptr error) {
        if (error) ++told;
      };
      Communicator::Ticket last = 0;
      const auto text = error_of([&] {
        communicator.all_reduce(at::ones({10 + world.rank()}), ReduceOp::sum, "bad", count);
        for (int i = 0; i < 5; ++i) last = communicator.barrier("behind", count);
      });
      // The failure may already be known while these are being queued: then they are refused.
      if (text.empty()) {
        EXPECT_THAT(error_of([&] { communicator.wait(last); }), HasSubstr("ranks disagree"));
        EXPECT_EQ(told.load(), 6);
      } else {
        EXPECT_THAT(text, HasSubstr("ranks disagree"));
      }
      EXPECT_EQ(error_of([&] { communicator.wait(before); }), "") << "an earlier call ended well";
      EXPECT_THAT(error_of([&] { communicator.wait(before + 1); }), HasSubstr("ranks disagree"));
      EXPECT_THAT(error_of([&] { communicator.barrier("later"); }),
                  AllOf(HasSubstr("ranks disagree"), HasSubstr("\"bad\"")));
      EXPECT_THAT(error_of([&] { communicator.allocate(10); }), HasSubstr("ranks disagree"));
    });
  }
}

TEST(CommunicatorTest, AStepWhoseWireFailsEnds) {
  World::run_threads(2, [](World& world) {
    auto& communicator = world.communicator();
    InOrder schedule;
    RealClock clock;
    Executor executor(world.recorder(), clock, &communicator);
    Graph graph;
    for (int i = 0; i < 6; ++i) {
      const auto id = static_cast<TaskId>(i);
      graph.add(TaskKind::reduce, i, Lane::wire, [&, id, i] {
        const int64_t count = i == 2 ? 10 + world.rank() : 10;
        communicator.all_reduce(at::ones({count}), ReduceOp::sum, "bucket",
                                [&, id](std::exception_ptr error) { executor.complete(id, error); });
      });
    }
    EXPECT_THAT(error_of([&] { executor.run(graph, schedule); }), HasSubstr("ranks disagree"));
  });
}

TEST(CommunicatorTest, RanksMayLeaveWithCallsStillQueued) {
  for (int round = 0; round < 20; ++round) {
    World::run_threads(3, [&](World& world) {
      // The slower ones may hear, while they queue, that a quicker one has left.
      const auto text = error_of([&] {
        for (int i = 0; i < 20 + 7 * ((world.rank() + round) % 3); ++i) {
          world.communicator().all_reduce(at::ones({10}), ReduceOp::sum, "left behind");
        }
      });
      EXPECT_THAT(text, AnyOf("", HasSubstr("has left")));
    });
  }
}

TEST(CommunicatorTest, WhoWaitsForARankThatHasLeftIsTold) {
  for (int round = 0; round < 20; ++round) {
    World::run_threads(3, [](World& world) {
      auto& communicator = world.communicator();
      communicator.wait(communicator.barrier("all"));
      if (world.rank() == 1) return;
      EXPECT_THAT(error_of([&] { communicator.wait(communicator.barrier("not all")); }),
                  HasSubstr("\"not all\": rank 1 has left and will not take part"));
    });
  }
}

TEST(CommunicatorTest, RefusesWhatCannotBeCommunicated) {
  World::run_threads(2, [](World& world) {
    auto& communicator = world.communicator();
    EXPECT_THAT(error_of([&] { communicator.all_reduce(at::ones({4, 4}).t(), ReduceOp::sum, "turned"); }),
                HasSubstr("\"turned\": only contiguous tensors can be communicated"));
    EXPECT_THAT(error_of([&] { communicator.all_gather(at::ones({3}), at::ones({7}), "odd"); }),
                HasSubstr("all_gather \"odd\" of 3 elements from 2 ranks needs an output of 6, not 7"));
    EXPECT_THAT(error_of([&] { communicator.broadcast(at::ones({3}), 2, "far"); }),
                HasSubstr("broadcast \"far\" from rank 2: there are 2 ranks"));
    EXPECT_THAT(error_of([&] { communicator.broadcast(at::ones({3}), -1, "far"); }), HasSubstr("from rank -1"));
    communicator.wait(communicator.barrier("a refusal leaves the communicator as it was"));
  });
}

TEST(CommunicatorTest, ALongNameIsCut) {
  World::run_threads(2, [](World& world) {
    auto& communicator = world.communicator();
    const std::string name(100, 'n');
    communicator.wait(communicator.barrier(name.c_str()));
    EXPECT_EQ(world.board()->slot(world.rank()).last_operation(), std::string(35, 'n') + " 0");
  });
}

}  // namespace
}  // namespace trireme
