// Ranks agree on an order: every item is summed once, whenever each of them is ready where, and what is urgent
// overtakes.
#include "trireme/parallel/agreed_order.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/comm/world.h"
#include "trireme/observe/trace.h"

namespace trireme {
namespace {

std::string text_of(const std::vector<OrderedPiece>& pieces) {
  std::string text;
  for (const auto& piece : pieces) text += fmt::format("{}[{},{}) ", piece.item, piece.begin, piece.end);
  return text;
}

TEST(AgreedOrder, TheLastOfThoseThatAreReadyGoesFirst) {
  const std::vector<at::Tensor> items{at::zeros({10}), at::zeros({4}), at::zeros({6})};
  EXPECT_EQ(text_of(next_pieces(items, {0, 0, 0}, 1, 24)), "0[0,6) ");
  EXPECT_EQ(text_of(next_pieces(items, {6, 0, 0}, 3, 24)), "2[0,6) ");
  EXPECT_EQ(text_of(next_pieces(items, {6, 0, 6}, 3, 24)), "1[0,4) 0[6,8) ");
  EXPECT_EQ(text_of(next_pieces(items, {8, 4, 6}, 3, 24)), "0[8,10) ");
  EXPECT_EQ(text_of(next_pieces(items, {10, 4, 6}, 3, 24)), "");
  EXPECT_EQ(text_of(next_pieces(items, {0, 0, 0}, 2, 1)), "1[0,1) ") << "something moves, however small the credit";
  EXPECT_EQ(text_of(next_pieces({at::zeros({0}), at::zeros({2})}, {0, 0}, 2, 100)), "1[0,2) ");
}

TEST(AgreedOrder, SumsEverythingWheneverItIsReady) {
  constexpr size_t items = 7;
  for (const int ranks : {1, 2, 3, 5}) {
    World::run_threads(ranks, [&](World& world) {
      std::mt19937 random(static_cast<unsigned>(17 * ranks + world.rank()));
      std::vector<at::Tensor> tensors;
      for (size_t i = 0; i < items; ++i) tensors.push_back(at::empty({static_cast<int64_t>(1 + 37 * i % 100)}));
      std::promise<void> last;
      std::atomic<std::promise<void>*> waiting{&last};
      AgreedOrder order(world.communicator(), everybody, tensors, 128, [&](std::exception_ptr error) {
        error ? waiting.load()->set_exception(error) : waiting.load()->set_value();
      });
      for (int step = 0; step < 50; ++step) {
        std::promise<void> done;
        waiting = &done;
        for (auto& tensor : tensors) tensor.fill_(world.rank() + step);
        order.begin();
        for (size_t count = 1; count <= items; ++count) {
          if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
          if (random() % 4 != 0 || count == items) order.ready(count);  // several may become ready at once
        }
        for (size_t i = 0; i < items; ++i) {
          const size_t item = (i + random()) % items;
          order.await(item);
        }
        for (size_t item = 0; item < items; ++item) order.await(item);
        done.get_future().get();
        const double sum = ranks * (ranks - 1) / 2.0 + ranks * step;
        for (const auto& tensor : tensors) {
          if (!at::equal(tensor, at::full_like(tensor, sum))) fail("rank {}, step {}: not {}", world.rank(), step, sum);
        }
      }
    });
  }
}

// While the first item, of many pieces, is on its way, a later one becomes ready on all ranks: it does not wait.
TEST(AgreedOrder, WhatIsUrgentOvertakes) {
  std::atomic<int> first_done{0}, second_done_first{0};
  World::run_threads(2, [&](World& world) {
    const std::vector<at::Tensor> tensors{at::ones({40'000}), at::ones({8})};
    std::promise<void> last;
    AgreedOrder order(world.communicator(), everybody, tensors, 64, [&](std::exception_ptr) { last.set_value(); });
    order.ready(1);
    std::thread second([&] { order.ready(2); });
    last.get_future().get();
    // What is left of the first item has not been summed: its last element is still this rank's.
    if (tensors[0][-1].item<float>() == 1) ++second_done_first;
    second.join();
    order.await(0);
    if (tensors[0][-1].item<float>() == 2) ++first_done;
  });
  EXPECT_EQ(first_done, 2);
  EXPECT_EQ(second_done_first, 2);
}

// One rank's last item comes after the other has left: who waits is told, and nobody hangs.
TEST(AgreedOrder, ARankThatLeavesIsToldOf) {
  std::atomic<int> told{0}, thrown{0};
  EXPECT_THROW(World::run_threads(2,
                                  [&](World& world) {
                                    if (world.rank() == 1) fail("rank 1 gives up");
                                    const std::vector<at::Tensor> tensors{at::ones({100}), at::ones({8})};
                                    AgreedOrder order(world.communicator(), everybody, tensors, 64,
                                                      [&](std::exception_ptr error) { told += error ? 1 : 0; });
                                    order.ready(1);
                                    try {
                                      order.await(0);
                                    } catch (const Error&) {
                                      ++thrown;
                                    }
                                    EXPECT_EQ(told, 0) << "the last item has not been handed in";
                                    order.ready(2);
                                  }),
               Error);
  EXPECT_EQ(thrown, 1);
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace trireme
