#include "trireme/bench/rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "trireme/base/statistics.h"
#include "trireme/observe/bench_line.h"

namespace trireme {

namespace {
constexpr int blocks = 5;
constexpr double block_s = 0.02;
}  // namespace

std::vector<double> BenchRank::times(const std::vector<std::function<void()>>& calls) {
  std::vector<int> rounds;
  for (const auto& call : calls) rounds.push_back(rounds_of(call));
  std::vector<std::vector<double>> seconds(calls.size());
  for (int block = 0; block < blocks; ++block) {
    std::vector<std::function<void()>> sides;
    for (size_t i = 0; i < calls.size(); ++i)
      sides.push_back([&, i] { seconds[i].push_back(block_of(calls[i], rounds[i])); });
    alternate(block, sides);
  }
  std::vector<double> medians;
  for (const auto& one : seconds) medians.push_back(median(one));
  return medians;
}

std::pair<double, double> BenchRank::time(const Sides& sides) {
  const auto medians = times(std::vector{sides.ours, sides.peer});
  return {medians[0], medians[1]};
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
