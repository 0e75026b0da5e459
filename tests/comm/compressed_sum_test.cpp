// Sums in fewer bytes: the same bits everywhere, what each codec promises, and nothing lost for ever.
#include "trireme/comm/compressed_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/close.h"
#include "trireme/base/error.h"
#include "trireme/comm/world.h"

namespace trireme {
namespace {

constexpr int64_t rows = 40, columns = 25, count = rows * columns + 77;

at::Tensor given(int rank, int step) {
  return numbers({count}, 10 * rank + step, at::kFloat) * at::pow(10.0, numbers({count}, 5, at::kFloat)).to(at::kFloat);
}

struct Summed {
  std::vector<std::vector<at::Tensor>> results;  // by step and rank
  std::vector<at::Tensor> residuals;             // by rank
  std::vector<SumTraffic> traffic;
};

Summed sum(const CodecConfig& config, int ranks, int steps,
           const std::function<at::Tensor(int rank, int step)>& values = given) {
  Summed summed;
  summed.results.assign(static_cast<size_t>(steps), std::vector<at::Tensor>(static_cast<size_t>(ranks)));
  summed.residuals.resize(static_cast<size_t>(ranks));
  summed.traffic.resize(static_cast<size_t>(ranks));
  World::run_threads(ranks, [&](World& world) {
    auto& communicator = world.communicator();
    const Group group = communicator.split(0);
    const auto rank = static_cast<size_t>(world.rank());
    const auto made = make_compressed_sum(config, count, {{13, rows, columns}});
    for (int step = 0; step < steps; ++step) {
      auto tensor = values(world.rank(), step).clone();
      const Key noise = Key{3}.with(rank).with(static_cast<uint64_t>(step));
      communicator.wait(communicator.sum_across(
          tensor,
          [&](const Courier& courier, const at::Tensor& share) {
            made->sum(courier, share, noise, summed.traffic[rank]);
          },
          "sum", {}, group));
      summed.results[static_cast<size_t>(step)][rank] = tensor;
    }
    summed.residuals[rank] = made->residual();
    communicator.wait(communicator.barrier("finish"));
  });
  return summed;
}

at::Tensor exact(int ranks, int step) {
  auto total = at::zeros({count}, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) total += given(rank, step).to(at::kDouble);
  return total;
}

class Compressed : public testing::TestWithParam<std::tuple<CodecKind, int>> {
 protected:
  CodecConfig config() const {
    CodecConfig made{
        .kind = std::get<0>(GetParam()), .block = 64, .keep = 0.1, .threshold = 0.5, .rank = 3, .bound = 0.01};
    return made;
  }
  int ranks() const { return std::get<1>(GetParam()); }
};

TEST_P(Compressed, GivesTheSameBitsEverywhereAndLosesNothingForEver) {
  constexpr int steps = 12;
  const auto summed = sum(config(), ranks(), steps);
  auto said = at::zeros({count}, at::kDouble), wanted = at::zeros({count}, at::kDouble);
  for (int step = 0; step < steps; ++step) {
    for (const auto& mine : summed.results[static_cast<size_t>(step)])
      EXPECT_TRUE(at::equal(mine, summed.results[static_cast<size_t>(step)][0]));
    said += summed.results[static_cast<size_t>(step)][0].to(at::kDouble);
    wanted += exact(ranks(), step);
  }
  // What was said, and what all ranks have left to say, is what was given.
  if (ranks() > 1) {
    for (const auto& residual : summed.residuals) said += residual.to(at::kDouble);
  }
  expect_close(said, wanted, 1e-5);
}

TEST_P(Compressed, SendsNoMoreThanItSays) {
  auto plain = config();
  plain.feedback = false;
  const auto summed = sum(plain, ranks(), 1);
  if (ranks() == 1) return;
  EXPECT_FALSE(summed.residuals[0].defined());
  // Whole messages: of a few elements the headers would outweigh what is spared.
  for (const auto& traffic : summed.traffic) {
    EXPECT_GT(traffic.sent_bytes, 0);
    EXPECT_LT(traffic.sent_bytes, traffic.plain_bytes + 64 * 2 * ranks());
    EXPECT_NEAR(static_cast<double>(traffic.plain_bytes), 2.0 * (ranks() - 1) / ranks() * count * 4, 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Compressed,
                         testing::Combine(testing::Values(CodecKind::fp16, CodecKind::bf16, CodecKind::int8,
                                                          CodecKind::int4, CodecKind::sign, CodecKind::top_k,
                                                          CodecKind::threshold, CodecKind::low_rank, CodecKind::bound),
                                          testing::Values(1, 2, 3, 4)));

// A sparse sum is exactly the dense sum of what was kept, part by part, in the order of the ranks.
TEST(CompressedSum, OfFewElementsIsTheSumOfWhatWasKept) {
  for (const int ranks : {2, 3, 4}) {
    CodecConfig config{.kind = CodecKind::top_k, .keep = 0.05, .feedback = false};
    const auto summed = sum(config, ranks, 1);
    const auto parts = even_parts(count, ranks, 4);
    auto expected = at::zeros({count}, at::kFloat);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto values = given(rank, 0);
      for (size_t part = 0; part + 1 < parts.size(); ++part) {
        const int64_t begin = parts[part], length = parts[part + 1] - begin;
        const auto piece = values.narrow(0, begin, length);
        const auto kept =
            std::get<1>(at::topk(piece.abs(), static_cast<int64_t>(std::ceil(0.05 * static_cast<double>(length)))));
        expected.narrow(0, begin, length).index_add_(0, kept, piece.index({kept}));
      }
    }
    EXPECT_TRUE(at::equal(summed.results[0][0], expected)) << ranks;
  }
}

TEST(CompressedSum, ByABoundIsOffByNoMoreThanOneBoundARank) {
  for (const int ranks : {2, 4}) {
    CodecConfig config{.kind = CodecKind::bound, .bound = 1e-2, .feedback = false};
    const auto summed = sum(config, ranks, 1);
    const auto gap = (summed.results[0][0].to(at::kDouble) - exact(ranks, 0)).abs().max().item<double>();
    EXPECT_LE(gap, ranks * 1e-2 * (1 + 1e-5));
    EXPECT_GT(gap, 1e-3);
  }
}

// Matrices whose sum has rank one are said exactly, once the factors have found it.
TEST(CompressedSum, ByLowRankFindsASumOfLowRank) {
  CodecConfig config{.kind = CodecKind::low_rank, .rank = 2, .feedback = false};
  const auto values = [](int rank, int) {
    auto all = numbers({count}, 1, at::kFloat);
    all.narrow(0, 13, rows * columns)
        .view({rows, columns})
        .copy_(at::outer(numbers({rows}, 20 + rank, at::kFloat), numbers({columns}, 9, at::kFloat)));
    return all;
  };
  const auto summed = sum(config, 3, 2, values);
  auto wanted = at::zeros({count}, at::kDouble);
  for (int rank = 0; rank < 3; ++rank) wanted += values(rank, 0).to(at::kDouble);
  expect_close(summed.results[1][0], wanted, 1e-5);
}

}  // namespace
}  // namespace trireme
