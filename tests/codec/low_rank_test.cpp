#include "trireme/codec/low_rank.h"

#include <gmock/gmock.h>

#include "tests/codec/messages.h"

namespace trireme {
namespace {

at::Tensor matrix_of_rank(int64_t rows, int64_t columns, int64_t rank, uint64_t seed) {
  return at::mm(normal_values(rows * rank, seed).view({rows, rank}),
                normal_values(rank * columns, seed + 1).view({rank, columns}));
}

TEST(LowRank, SaysAMatrixOfThatRankExactly) {
  const auto matrix = matrix_of_rank(60, 40, 3, 1);
  const auto values = at::cat({normal_values(5, 3), matrix.reshape({-1}), normal_values(7, 4)});
  auto config = codec_config(CodecKind::low_rank);
  config.rank = 3;
  const auto codec = make_codec(config, {{5, 60, 40}});
  const auto back = there_and_back(*codec, values);
  EXPECT_TRUE(at::allclose(back, values, 1e-4, 1e-4));
  EXPECT_TRUE(at::equal(back.narrow(0, 0, 5), values.narrow(0, 0, 5)));
  EXPECT_TRUE(at::equal(back.narrow(0, 2405, 7), values.narrow(0, 2405, 7)));
  EXPECT_EQ(message_of(*codec, values).numel(), 40 + 4 * (3 * 100 + 12));
}

TEST(LowRank, IsTheProjectionOntoOrthonormalVectors) {
  const LowRank low({{0, 50, 30}}, 4);
  const auto values = normal_values(1500, 5);
  const auto p = at::empty({low.p_count()}), q = at::empty({low.q_count()});
  low.start(Key{1}, q);
  const auto first = q.clone();
  low.multiply(values, q, p);
  const auto product = at::mm(values.view({50, 30}), first.view({4, 30}).t());
  EXPECT_TRUE(at::allclose(p.view({4, 50}), product.t(), 1e-4, 1e-5));
  low.orthogonalise(p);
  const auto basis = p.view({4, 50});
  EXPECT_TRUE(at::allclose(at::mm(basis, basis.t()), at::eye(4), 0, 1e-5));
  low.multiply_back(values, p, q);
  auto back = at::empty({1500});
  low.reconstruct(p, q, back);
  const auto expected = at::mm(basis.t(), at::mm(basis, values.view({50, 30})));
  EXPECT_TRUE(at::allclose(back.view({50, 30}), expected, 1e-4, 1e-5));
  low.add_reconstructed(p, q, back, -1);
  EXPECT_LE(back.abs().max().item<float>(), 1e-5);
}

TEST(LowRank, OfASumIsTheSumOfTheFactors) {
  const LowRank low({{0, 20, 30}}, 2);
  const auto a = normal_values(600, 6), b = normal_values(600, 7);
  const auto q = at::empty({low.q_count()}), pa = at::empty({low.p_count()}), pb = at::empty_like(pa);
  const auto both = at::empty_like(pa);
  low.start(Key{2}, q);
  low.multiply(a, q, pa);
  low.multiply(b, q, pb);
  low.multiply(a + b, q, both);
  EXPECT_TRUE(at::allclose(pa + pb, both, 1e-4, 1e-5));
}

TEST(LowRank, AKeptStartFindsTheLargestDirections) {
  // A matrix with quickly falling singular values: the best approximation is approached as Q is used again.
  auto left = std::get<0>(at::linalg_qr(normal_values(3600, 8).view({60, 60})));
  const auto matrix = at::mm(left * at::pow(0.5, at::arange(60, at::kFloat)), left.t()).reshape({-1});
  const LowRank low({{0, 60, 60}}, 2);
  const auto p = at::empty({low.p_count()}), q = at::empty({low.q_count()}), back = at::empty({3600});
  low.start(Key{3}, q);
  for (int step = 0; step < 15; ++step) {
    low.multiply(matrix, q, p);
    low.orthogonalise(p);
    low.multiply_back(matrix, p, q);
  }
  low.reconstruct(p, q, back);
  EXPECT_NEAR((back - matrix).norm().item<double>(), std::sqrt(1.0 / 16 / (1 - 0.25)), 1e-3);
}

TEST(LowRank, LeavesShortMatricesAsTheyAre) {
  const LowRank low({{0, 4, 4}, {20, 1, 100}, {200, 30, 30}}, 4);
  EXPECT_EQ(low.p_count(), 120);
  EXPECT_EQ(low.rest_count(2000), 1100);
  EXPECT_THROW(LowRank({{0, 4, 4}, {15, 2, 2}}, 1), Error);
}

TEST(LowRank, TakesMatricesWithoutDirections) {
  const auto codec = make_codec(codec_config(CodecKind::low_rank), {{0, 30, 20}});
  EXPECT_TRUE(at::equal(there_and_back(*codec, at::zeros({600})), at::zeros({600})));
  const auto one = matrix_of_rank(30, 20, 1, 9).reshape({-1});
  EXPECT_TRUE(at::allclose(there_and_back(*codec, one), one, 1e-4, 1e-5));
}

}  // namespace
}  // namespace trireme
