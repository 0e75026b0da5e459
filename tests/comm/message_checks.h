// Checks of groups and messages that hold on every transport; each throws what it finds wrong.
#pragma once

#include <ATen/ATen.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/postbox.h"

namespace trireme {

// Even and odd ranks, the first two ranks, and everybody: sums in each are those of its members.
inline void check_groups(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  const Group parity = communicator.split(rank % 2);
  const Group few = communicator.split(rank < 2 ? 0 : -1);
  if ((few == nobody) != (rank >= 2)) fail("rank {} is in a group that it did not join", rank);
  if (communicator.rank(parity) != rank / 2) fail("rank {} is number {} of its group", rank, communicator.rank(parity));
  for (int round = 0; round < 5; ++round) {
    for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{100'000}}) {
      const auto sum = [&](Group group, double expected) {
        auto values = at::full({count}, rank + 1.0, at::kDouble);
        communicator.wait(communicator.all_reduce(values, ReduceOp::sum, "sum", {}, group));
        if (!at::equal(values, at::full_like(values, expected)))
          fail("rank {}: the sum over group {} is {}, not {}", rank, group, values[0].item<double>(), expected);
      };
      double same = 0;
      for (int i = rank % 2; i < size; i += 2) same += i + 1;
      sum(parity, same);
      if (few != nobody) sum(few, size == 1 ? 1 : 3);
      sum(everybody, size * (size + 1) / 2.0);
    }
  }
}

// Every rank sends each other one tensors of many shapes and types, out of order; each must come as it was sent.
inline void check_messages(Communicator& communicator, Recorder& recorder, double jitter_s) {
  const int rank = communicator.rank(), size = communicator.size();
  MailPeers peers;
  for (int i = 0; i < size; ++i) {
    if (i != rank) peers.to.push_back(i);
  }
  peers.from = peers.to;
  peers.message_bytes = 10'000;  // some messages are longer, and travel in pieces
  const std::vector<std::vector<int64_t>> shapes{{}, {0}, {5}, {3, 4}, {2, 3, 4}, {1000, 7}, {300, 300}};
  const std::vector<at::ScalarType> types{at::kFloat, at::kDouble, at::kBFloat16, at::kLong};
  const auto content = [&](int from, int to, int round, int64_t m) {
    const auto& shape = shapes[static_cast<size_t>((m + round) % static_cast<int64_t>(shapes.size()))];
    const auto type = types[static_cast<size_t>((m + from + to) % static_cast<int64_t>(types.size()))];
    return (at::arange(at::empty(shape).numel(), at::kLong) % 97 + from * 7 + to * 3 + round + m).view(shape).to(type);
  };
  constexpr int rounds = 12;
  constexpr int32_t microbatches = 6;
  std::mutex mutex;
  std::condition_variable changed;
  Postbox postbox(communicator.open_mail(peers), recorder, {rank, at::kCPU, jitter_s, 5});
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::vector<at::Tensor>> got(static_cast<size_t>(size), std::vector<at::Tensor>(microbatches));
    int missing = (size - 1) * microbatches;
    for (const int from : peers.from) {
      for (int32_t m = microbatches - 1; m >= 0; --m) {
        const auto box = postbox.open(from, {1, 0, m}, [&, from, m](PendingTensor message, std::exception_ptr error) {
          std::lock_guard lock(mutex);
          if (!error) got[static_cast<size_t>(from)][static_cast<size_t>(m)] = message.take();
          --missing;
          changed.notify_one();
        });
        postbox.expect(box);
      }
    }
    for (int32_t m = 0; m < microbatches; ++m) {
      for (const int to : peers.to) postbox.send(to, {1, 0, m}, content(rank, to, round, m));
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return missing == 0; });
    for (const int from : peers.from) {
      for (int32_t m = 0; m < microbatches; ++m) {
        const auto& tensor = got[static_cast<size_t>(from)][static_cast<size_t>(m)];
        const auto expected = content(from, rank, round, m);
        if (!tensor.defined() || tensor.scalar_type() != expected.scalar_type() || !at::equal(tensor, expected))
          fail("rank {}: message {} of rank {} in round {} is not what was sent", rank, m, from, round);
      }
    }
  }
  communicator.wait(communicator.barrier("all messages came"));
}

}  // namespace trireme
