#include "trireme/train/bench_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "trireme/base/statistics.h"

namespace trireme {

namespace {
constexpr int blocks = 5;
constexpr double block_s = 0.02;
}  // namespace

std::pair<double, double> BenchRank::time(const Sides& sides) {
  const int rounds = rounds_of(sides.ours), peer_rounds = rounds_of(sides.peer);
  std::vector<double> mine, theirs;
  for (int block = 0; block < blocks; ++block) {
    mine.push_back(block_of(sides.ours, rounds));
    theirs.push_back(block_of(sides.peer, peer_rounds));
  }
  return {median(mine), median(theirs)};
}

double BenchRank::longest(double value) {
  const auto tensor = at::full({1}, value, at::kDouble);
  communicator_.now([&] { return communicator_.all_reduce(tensor, ReduceOp::max, "longest"); });
  return tensor.item<double>();
}

int BenchRank::rounds_of(const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  const double begun = clock_.now_s();
  call();
  const double once = longest(clock_.now_s() - begun);
  return static_cast<int>(std::clamp(block_s / std::max(once, 1e-6), 2.0, 5000.0));
}

double BenchRank::block_of(const std::function<void()>& call, int rounds) {
  communicator_.now([&] { return communicator_.barrier("begin"); });
  const double begun = clock_.now_s();
  for (int i = 0; i < rounds; ++i) call();
  return longest((clock_.now_s() - begun) / rounds);
}

}  // namespace trireme
