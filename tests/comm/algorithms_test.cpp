// Collectives made of messages, on random numbers of ranks, sizes, types and pieces, against the plain definition; and
// the bytes that they send, against their formulas.
#include "trireme/comm/algorithms.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/comm/collective_checks.h"
#include "tests/comm/thread_wire.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr int most_ranks = 9;

// Sums in another order differ by rounding; the largest, the smallest and integers do not.
void expect_reduced(const at::Tensor& got, const at::Tensor& expected, ReduceOp op, int ranks) {
  if (op != ReduceOp::sum || !is_real(got.scalar_type())) {
    ASSERT_TRUE(at::equal(got, expected));
    return;
  }
  const double step = got.scalar_type() == at::kDouble  ? 1e-15
                      : got.scalar_type() == at::kFloat ? 1e-6
                      : got.scalar_type() == at::kHalf  ? 2e-3
                                                        : 2e-2;
  const double worst = (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  ASSERT_LE(worst, 2 * step * ranks * ranks);
}

TEST(WireCollectives, AllReduceIsTheReductionOnEveryRankToTheBit) {
  Draw draw(1);
  for (int round = 0; round < 300; ++round) {
    const int ranks = static_cast<int>(draw.from(1, most_ranks));
    const int64_t count = draw.size(), piece = 1 + count * draw.from(1, 40) / 10;  // bytes: many pieces, or one
    const auto dtype = reducible_types[draw.from(0, std::size(reducible_types) - 1)];
    const auto op = reduce_ops[draw.from(0, 2)];
    const auto algorithm = algorithms[draw.from(0, 3)];
    SCOPED_TRACE(fmt::format("round {}: {} of {} elements on {} ranks, pieces of {} bytes", round, name(algorithm),
                             count, ranks, piece));
    std::vector<at::Tensor> given, got(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) given.push_back(given_by(rank, dtype, count));
    ThreadWires wires(ranks);
    on_ranks(wires, ranks, [&](Wire& wire) {
      const auto rank = static_cast<size_t>(wire.rank());
      got[rank] = given[rank].clone();
      WireCollectives(wire, piece).all_reduce(algorithm, operand_of(got[rank], op));
    });
    if (count > 0) expect_reduced(got[0], reduced(given, op), op, ranks);
    for (const auto& one : got) ASSERT_TRUE(at::equal(one, got[0]));
  }
}

TEST(WireCollectives, SendNoMoreThanTheirFormulas) {
  for (int ranks = 2; ranks <= most_ranks; ++ranks) {
    const int64_t count = 5040 * 8, bytes = count * 4;  // divides by every number of ranks
    for (const auto algorithm : algorithms) {
      ThreadWires wires(ranks);
      on_ranks(wires, ranks, [&](Wire& wire) {
        const auto values = given_by(wire.rank(), at::kFloat, count);
        WireCollectives(wire).all_reduce(algorithm, operand_of(values, ReduceOp::sum));
      });
      const bool power = (ranks & (ranks - 1)) == 0;
      const int rounds = static_cast<int>(std::log2(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(fmt::format("{}, rank {} of {}", name(algorithm), rank, ranks));
        const auto sent = static_cast<double>(wires.sent_bytes(rank));
        const double least = least_all_reduce_bytes(ranks, bytes);
        switch (algorithm) {
          case Algorithm::ring: EXPECT_EQ(sent, least); break;
          case Algorithm::halving: EXPECT_LE(sent, power ? least : 3.0 * static_cast<double>(bytes)); break;
          case Algorithm::doubling: EXPECT_LE(sent, (power ? rounds : rounds + 1) * static_cast<double>(bytes)); break;
          case Algorithm::trees: EXPECT_LE(sent, 2.0 * static_cast<double>(bytes)); break;
        }
      }
    }
  }
}

TEST(WireCollectives, ReduceScatterGivesEachItsPart) {
  Draw draw(2);
  for (int round = 0; round < 150; ++round) {
    const int ranks = static_cast<int>(draw.from(1, most_ranks));
    const auto dtype = reducible_types[draw.from(0, std::size(reducible_types) - 1)];
    const auto op = reduce_ops[draw.from(0, 2)];
    Offsets offsets{0};
    for (int rank = 0; rank < ranks; ++rank) offsets.push_back(offsets.back() + draw.from(0, 2000));  // uneven, empty
    SCOPED_TRACE(fmt::format("round {}: {} elements on {} ranks", round, offsets.back(), ranks));
    std::vector<at::Tensor> given, got(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) given.push_back(given_by(rank, dtype, offsets.back()));
    ThreadWires wires(ranks);
    on_ranks(wires, ranks, [&](Wire& wire) {
      const auto rank = static_cast<size_t>(wire.rank());
      got[rank] = given[rank].clone();
      WireCollectives(wire, 777).reduce_scatter(operand_of(got[rank], op), offsets);
    });
    const auto expected = reduced(given, op);
    for (size_t rank = 0; rank < got.size(); ++rank) {
      if (offsets[rank] == offsets[rank + 1]) continue;
      expect_reduced(got[rank].slice(0, offsets[rank], offsets[rank + 1]),
                     expected.slice(0, offsets[rank], offsets[rank + 1]), op, ranks);
    }
  }
}

TEST(WireCollectives, ReduceGivesTheRootAll) {
  Draw draw(3);
  for (int round = 0; round < 150; ++round) {
    const int ranks = static_cast<int>(draw.from(1, most_ranks)), root = static_cast<int>(draw.from(0, ranks - 1));
    const int64_t count = draw.size();
    const auto op = reduce_ops[draw.from(0, 2)];
    SCOPED_TRACE(fmt::format("round {}: {} elements to rank {} of {}", round, count, root, ranks));
    std::vector<at::Tensor> given, got(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) given.push_back(given_by(rank, at::kFloat, count));
    ThreadWires wires(ranks);
    on_ranks(wires, ranks, [&](Wire& wire) {
      const auto rank = static_cast<size_t>(wire.rank());
      got[rank] = given[rank].clone();
      WireCollectives(wire, 4096).reduce(operand_of(got[rank], op), root);
    });
    if (count > 0) expect_reduced(got[static_cast<size_t>(root)], reduced(given, op), op, ranks);
  }
}

TEST(WireCollectives, BroadcastAndAllGatherMoveEveryByte) {
  Draw draw(4);
  for (int round = 0; round < 150; ++round) {
    const int ranks = static_cast<int>(draw.from(1, most_ranks)), root = static_cast<int>(draw.from(0, ranks - 1));
    const int64_t count = draw.size();
    Offsets offsets{0};
    for (int rank = 0; rank < ranks; ++rank) offsets.push_back(offsets.back() + draw.from(0, 3) * draw.from(0, 999));
    SCOPED_TRACE(fmt::format("round {}: {} ranks, root {}", round, ranks, root));
    ThreadWires wires(ranks);
    const auto whole = at::arange(offsets.back(), at::kLong).remainder(251).to(at::kByte);
    on_ranks(wires, ranks, [&](Wire& wire) {
      WireCollectives collectives(wire);
      const auto values = given_by(wire.rank(), at::kFloat, count);
      collectives.broadcast(bytes_of(values), count * 4, root);
      if (!at::equal(values, given_by(root, at::kFloat, count))) fail("the broadcast of rank {} changed", root);
      auto parts = at::zeros_like(whole);
      const auto mine = static_cast<size_t>(wire.rank());
      parts.slice(0, offsets[mine], offsets[mine + 1]).copy_(whole.slice(0, offsets[mine], offsets[mine + 1]));
      collectives.all_gather(bytes_of(parts), offsets);
      if (!at::equal(parts, whole)) fail("the gathered parts are not those that were given");
      auto small = at::full({ranks * 5}, wire.rank(), at::kInt);
      collectives.all_gather_small(bytes_of(small), 5 * 4);
      if (!at::equal(small.view({ranks, 5}), at::arange(ranks, at::kInt).unsqueeze(1).expand({ranks, 5})))
        fail("the small parts are not those that were given");
    });
  }
}

TEST(WireCollectives, AllToAllTakesWhatEachGave) {
  Draw draw(5);
  for (int round = 0; round < 150; ++round) {
    const int ranks = static_cast<int>(draw.from(1, most_ranks));
    std::vector<std::vector<int64_t>> bytes(static_cast<size_t>(ranks));  // [from][to]
    for (auto& row : bytes) {
      for (int to = 0; to < ranks; ++to) row.push_back(draw.from(0, 2) * draw.from(0, 700));
    }
    const auto content = [](size_t from, size_t to, int64_t i) {
      return (from * 31 + to * 7 + static_cast<size_t>(i)) % 253;
    };
    ThreadWires wires(ranks);
    on_ranks(wires, ranks, [&](Wire& wire) {
      const auto me = static_cast<size_t>(wire.rank());
      Offsets give{0}, take{0};
      for (size_t r = 0; r < bytes.size(); ++r) {
        give.push_back(give.back() + bytes[me][r]);
        take.push_back(take.back() + bytes[r][me]);
      }
      std::vector<std::byte> given(static_cast<size_t>(give.back())), taken(static_cast<size_t>(take.back()));
      for (size_t r = 0; r < bytes.size(); ++r) {
        for (int64_t i = 0; i < bytes[me][r]; ++i)
          given[static_cast<size_t>(give[r] + i)] = static_cast<std::byte>(content(me, r, i));
      }
      WireCollectives(wire).all_to_all(given.data(), give, taken.data(), take);
      for (size_t r = 0; r < bytes.size(); ++r) {
        for (int64_t i = 0; i < bytes[r][me]; ++i) {
          if (taken[static_cast<size_t>(take[r] + i)] != static_cast<std::byte>(content(r, me, i)))
            fail("rank {} took byte {} of rank {} wrongly", me, i, r);
        }
      }
    });
  }
}

}  // namespace
}  // namespace trireme
