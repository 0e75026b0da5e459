// What every transport must do, said once: used by ranks that are threads, processes of one host, and MPI ranks. A
// check that is not met throws an Error that names rank, expectation and what came instead.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/algorithms.h"
#include "trireme/comm/communicator.h"

namespace trireme {

constexpr at::ScalarType reducible_types[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong,
                                              at::kInt,    at::kShort, at::kChar,     at::kByte};
constexpr ReduceOp reduce_ops[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min};
constexpr Algorithm algorithms[] = {Algorithm::doubling, Algorithm::halving, Algorithm::ring, Algorithm::trees};

inline bool is_real(at::ScalarType dtype) { return c10::isFloatingType(dtype); }

inline std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

inline Operand operand_of(const at::Tensor& tensor, ReduceOp op) {
  return {bytes_of(tensor), tensor.numel(), tensor.scalar_type(), op};
}

struct Draw {
  explicit Draw(uint64_t seed) : generator(seed) {}
  int64_t from(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator); }
  int64_t size() {  // small, odd and larger ones
    switch (from(0, 3)) {
      case 0: return from(0, 2);
      case 1: return from(3, 40);
      case 2: return from(41, 3000);
      default: return from(3001, 60'000);
    }
  }
  std::mt19937_64 generator;
};

// How near to the reference a transport promises to come. `bits`: reduced in the order of the ranks, in fp32 or wider.
// `rounding`: in any order, and bf16 and fp16 rounded at each step.
enum class Promise { bits, rounding };

// What rank `rank` gives: numbers in [-2, 2), or integers in ±2 million, that differ in every place and on every rank.
// Integers of 8 and 16 bits stay so small that the sum over ten ranks fits.
inline at::Tensor given_by(int rank, at::ScalarType dtype, int64_t count) {
  auto values = at::arange(count, at::kDouble).add_(1 + 0.37 * rank).mul_(0.6180339887498949).frac_().mul_(4).sub_(2);
  if (!is_real(dtype)) values.mul_(c10::elementSize(dtype) < 4 ? 5 : 1e6);
  if (dtype == at::kByte) values.add_(10);
  return values.to(dtype);
}

inline at::Tensor reduced(const std::vector<at::Tensor>& all, ReduceOp op) {
  const auto dtype = all[0].scalar_type();
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  const auto wide = [&](const at::Tensor& tensor) { return narrow ? tensor.to(at::kFloat) : tensor; };
  at::Tensor result = wide(all[0]).clone();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (op == ReduceOp::sum) result.add_(wide(all[rank]));
    if (op == ReduceOp::max) result = at::maximum(result, wide(all[rank]));
    if (op == ReduceOp::min) result = at::minimum(result, wide(all[rank]));
  }
  return result.to(dtype);
}

// Inputs of all ranks and the reference of each operation, made once for all of them.
struct Example {
  Example(at::ScalarType dtype, int64_t count, int ranks) : dtype(dtype), count(count) {
    for (int rank = 0; rank < ranks; ++rank) given.push_back(given_by(rank, dtype, count));
    for (auto op : reduce_ops) results.push_back(reduced(given, op));
  }
  at::ScalarType dtype;
  int64_t count;
  std::vector<at::Tensor> given;    // by rank
  std::vector<at::Tensor> results;  // by operation
};

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
         (a.numel() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

inline void expect_equal(int rank, const at::Tensor& got, const at::Tensor& wanted, const std::string& what) {
  if (same_bits(got, wanted)) return;
  if (got.numel() != wanted.numel())
    fail("rank {}: {}: {} elements instead of {}", rank, what, got.numel(), wanted.numel());
  const auto differs = got.ne(wanted).nonzero();
  const int64_t place = differs.numel() > 0 ? differs[0].item<int64_t>() : 0;
  fail("rank {}: {}: element {} is {}, not {} ({} of {} differ)", rank, what, place, got[place].item<double>(),
       wanted[place].item<double>(), differs.numel(), got.numel());
}

inline void expect_equal(Communicator& communicator, const at::Tensor& got, const at::Tensor& wanted,
                         const std::string& what) {
  expect_equal(communicator.rank(), got, wanted, what);
}

// `tensor` has the same bits on all ranks: its first rank's are sent to the others.
inline void expect_same_everywhere(Communicator& communicator, const at::Tensor& tensor, const std::string& what) {
  auto first = tensor.clone();
  communicator.wait(communicator.broadcast(first, 0, "bits of rank 0"));
  expect_equal(communicator, tensor, first, what + ", compared with rank 0");
}

inline void check_all_reduce(Communicator& communicator, const Example& example, const at::Tensor& place,
                             Promise promise) {
  for (size_t i = 0; i < std::size(reduce_ops); ++i) {
    const auto what = fmt::format("all_reduce {} of {} {} on {} ranks", i, example.count, c10::toString(example.dtype),
                                  communicator.size());
    place.copy_(example.given[static_cast<size_t>(communicator.rank())]);
    communicator.wait(communicator.all_reduce(place, reduce_ops[i], "check all_reduce"));
    if (promise == Promise::bits || reduce_ops[i] != ReduceOp::sum || !is_real(example.dtype)) {
      expect_equal(communicator, place, example.results[i], what);
      continue;
    }
    expect_same_everywhere(communicator, place, what);
    const double epsilon = example.dtype == at::kBFloat16 ? 0x1p-8 : example.dtype == at::kHalf ? 0x1p-11 : 0x1p-22;
    const double error =
        example.count == 0 ? 0 : (place - example.results[i]).abs().to(at::kDouble).max().item<double>();
    // Every partial sum is at most 2 × ranks, and each addition rounds once.
    const double most = 2.0 * communicator.size() * communicator.size() * epsilon;
    if (error > most) fail("rank {}: {}: off by {}, at most {} is rounding", communicator.rank(), what, error, most);
  }
}

inline void check_broadcast(Communicator& communicator, at::ScalarType dtype, int64_t count, const at::Tensor& place) {
  for (int root = 0; root < communicator.size(); ++root) {
    place.copy_(given_by(communicator.rank(), dtype, count));
    communicator.wait(communicator.broadcast(place, root, "check broadcast"));
    expect_equal(communicator, place, given_by(root, dtype, count),
                 fmt::format("broadcast of {} from rank {}", count, root));
  }
}

inline void check_all_gather(Communicator& communicator, at::ScalarType dtype, int64_t count) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < communicator.size(); ++rank) all.push_back(given_by(rank, dtype, count));
  auto mine = given_by(communicator.rank(), dtype, count);
  auto output = at::full({count * communicator.size()}, 9, dtype);
  communicator.wait(communicator.all_gather(mine, output, "check all_gather"));
  expect_equal(communicator, output, at::cat(all), fmt::format("all_gather of {}", count));
  expect_equal(communicator, mine, all[static_cast<size_t>(communicator.rank())], "the input of all_gather");
  // From its own place in the output.
  output.fill_(9);
  const auto place = output.narrow(0, communicator.rank() * count, count);
  place.copy_(mine);
  communicator.wait(communicator.all_gather(place, output, "check all_gather in place"));
  expect_equal(communicator, output, at::cat(all), fmt::format("all_gather of {} in place", count));
}

template <class T>
const T& of(int rank, const std::vector<T>& all) {
  return all[static_cast<size_t>(rank)];
}

inline at::Tensor part(const at::Tensor& tensor, const Offsets& offsets, int rank) {
  return tensor.slice(0, of(rank, offsets), of(rank + 1, offsets));
}

// Parts of random lengths, some empty; the same on all ranks.
inline Offsets random_parts(int64_t count, int ranks, std::mt19937_64& random) {
  Offsets offsets{0};
  for (int rank = 1; rank < ranks; ++rank) {
    const bool empty = random() % 4 == 0;  // in a long tensor chance alone makes none
    offsets.push_back(empty ? offsets.back() : static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1)));
  }
  offsets.push_back(count);
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

// To the root, and scattered and gathered again, in even parts and in others. Of integers, so that sums are exact.
inline void check_parts(Communicator& communicator, at::ScalarType dtype, int64_t count, const at::Tensor& place) {
  const int rank = communicator.rank(), size = communicator.size();
  std::vector<at::Tensor> all;
  const auto content = [&](int r) {
    return at::arange(count, at::kLong).mul_(3).add_(5 * r).remainder_(7).sub_(3).to(dtype);
  };
  for (int r = 0; r < size; ++r) all.push_back(content(r));
  std::mt19937_64 random(static_cast<uint64_t>(count));
  for (const auto op : reduce_ops) {
    const auto expected = reduced(all, op);
    const int root = static_cast<int>(random() % static_cast<uint64_t>(size));
    place.copy_(all[static_cast<size_t>(rank)]);
    communicator.wait(communicator.reduce(place, op, root, "check reduce"));
    if (rank == root) expect_equal(communicator, place, expected, fmt::format("reduce of {} to {}", count, root));
    for (const bool even : {true, false}) {
      const auto parts = even ? Offsets{} : random_parts(count, size, random);
      place.copy_(all[static_cast<size_t>(rank)]);
      communicator.wait(communicator.reduce_scatter(place, op, "check reduce_scatter", {}, everybody, parts));
      const auto known = even ? even_parts(count, size, static_cast<int64_t>(place.element_size())) : parts;
      expect_equal(communicator, part(place, known, rank), part(expected, known, rank),
                   fmt::format("reduce_scatter of {}", count));
      communicator.wait(communicator.gather_parts(place, "check gather_parts", {}, everybody, parts));
      expect_equal(communicator, place, expected, fmt::format("gather_parts of {}", count));
    }
  }
}

// Equal parts, and of random lengths for every pair.
inline void check_all_to_all(Communicator& communicator, at::ScalarType dtype, int64_t most) {
  const int rank = communicator.rank(), size = communicator.size();
  std::mt19937_64 random(static_cast<uint64_t>(most));
  for (const bool even : {true, false}) {
    std::vector<std::vector<int64_t>> counts(static_cast<size_t>(size));  // [from][to]
    for (auto& row : counts) {
      for (int to = 0; to < size; ++to)
        row.push_back(even ? most : static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)));
    }
    const auto content = [&](int from, int to) {
      const auto count = counts[static_cast<size_t>(from)][static_cast<size_t>(to)];
      return at::arange(count, at::kLong).add_(from * 11 + to * 5).remainder_(100).to(dtype);
    };
    std::vector<at::Tensor> given, taken;
    Offsets give{0}, take{0};
    for (int r = 0; r < size; ++r) {
      given.push_back(content(rank, r));
      taken.push_back(content(r, rank));
      give.push_back(give.back() + given.back().numel());
      take.push_back(take.back() + taken.back().numel());
    }
    auto output = at::full({take.back()}, 9, dtype);
    const auto input = at::cat(given);
    communicator.wait(even ? communicator.all_to_all(input, output, "check all_to_all")
                           : communicator.all_to_all(input, output, "check all_to_all", {}, everybody, give, take));
    expect_equal(communicator, output, at::cat(taken), fmt::format("all_to_all of {} at most", most));
  }
}

// Small integers, so that a sum over up to 14 ranks is exact in every type, in any order. All come from one sequence,
// each rank's from another place of it: no two stretches are alike, so that nothing can be taken for something else.
inline at::Tensor small_integers(int rank, int64_t salt, at::ScalarType dtype, int64_t count) {
  constexpr int64_t starts = 65'521, longest = 2 << 20;
  static const at::Tensor sequence = [] {
    auto values = at::empty({starts + longest}, at::kChar);
    std::mt19937_64 random(1);
    for (auto* value = values.data_ptr<int8_t>(); value < values.data_ptr<int8_t>() + values.numel(); ++value)
      *value = static_cast<int8_t>(random() % 19);
    return values;
  }();
  const auto values = sequence.narrow(0, (rank * 7919 + salt * 104'729) % starts, count);
  return (dtype == at::kByte ? values : values - 9).to(dtype, /*non_blocking=*/false, /*copy=*/true);
}

// Random collectives of random types and sizes, many in flight, ended by waiting or helping in an order of each rank's
// own; tensors lie now in `arena` (bytes from allocate()), now elsewhere, and not on all ranks alike.
// A sum of which somebody else does the costly part: every rank's share is summed over those that hold it.
inline void check_sum_across(Communicator& communicator, Group group, int64_t count) {
  std::vector<at::Tensor> given;
  for (int rank = 0; rank < communicator.size(); ++rank) given.push_back(given_by(rank, at::kFloat, count));
  const auto tensor = given[static_cast<size_t>(communicator.rank())].clone();
  const auto [begin, end] = communicator.share_across(group, count, sizeof(float));
  int64_t seen = 0;
  const auto across = [&](const Courier& courier, const at::Tensor& share) {
    seen += share.numel();
    courier.all_reduce(share);
  };
  communicator.wait(communicator.sum_across(tensor, across, "sum across", {}, group));
  if (seen != (communicator.size() > 1 ? end - begin : 0))
    fail("rank {}: was given {} elements of {} to sum, not [{}, {})", communicator.rank(), seen, count, begin, end);
  const auto gap = (tensor - reduced(given, ReduceOp::sum)).abs();
  if (count > 0 && gap.max().item<double>() > 1e-5)
    fail("rank {}: a sum across of {} elements is off by {}", communicator.rank(), count, gap.max().item<double>());
  expect_same_everywhere(communicator, tensor, "sum across");
}

inline void check_random_mix(Communicator& communicator, at::Tensor arena, int operations, uint64_t seed) {
  struct Pending {
    Communicator::Ticket ticket;
    std::function<void()> check;
  };
  constexpr int64_t region_bytes = 80'000 * 8;
  const int64_t regions = arena.numel() / region_bytes;
  std::mt19937_64 together(seed), alone(seed + 1 + static_cast<uint64_t>(communicator.rank()));
  std::deque<Pending> pending;
  int64_t regions_used = 0;
  const auto settle = [&](size_t leave) {
    while (pending.size() > leave) {
      communicator.wait(pending.front().ticket);
      pending.front().check();
      pending.pop_front();
    }
    if (pending.empty()) regions_used = 0;
  };
  for (int64_t k = 0; k < operations; ++k) {
    const auto dtype = reducible_types[together() % std::size(reducible_types)];
    const auto op = reduce_ops[together() % std::size(reduce_ops)];
    const auto collective = static_cast<Collective>(together() % 4);
    const int root = static_cast<int>(together() % static_cast<uint64_t>(communicator.size()));
    const int64_t count = static_cast<int64_t>(together() % 20 == 0 ? together() % 80'000 : together() % 300);
    auto tensor = small_integers(communicator.rank(), k, dtype, count);
    if (alone() % 2 == 0 && regions > 0) {
      if (regions_used == regions) settle(0);
      auto region = arena.narrow(0, regions_used++ * region_bytes, count * static_cast<int64_t>(tensor.element_size()))
                        .view(dtype);
      region.copy_(tensor);
      tensor = region;
    }
    const auto all = [ranks = communicator.size(), k, dtype, count] {
      std::vector<at::Tensor> tensors;
      for (int rank = 0; rank < ranks; ++rank) tensors.push_back(small_integers(rank, k, dtype, count));
      return tensors;
    };
    const auto what = fmt::format("operation {} of the random mix", k);
    if (collective == Collective::all_reduce) {
      pending.push_back({communicator.all_reduce(tensor, op, "mixed all_reduce"),
                         [&, tensor, all, op, what] { expect_equal(communicator, tensor, reduced(all(), op), what); }});
    } else if (collective == Collective::broadcast) {
      pending.push_back({communicator.broadcast(tensor, root, "mixed broadcast"), [&, tensor, all, root, what] {
                           expect_equal(communicator, tensor, all()[static_cast<size_t>(root)], what);
                         }});
    } else if (collective == Collective::all_gather) {
      auto output = at::empty({count * communicator.size()}, tensor.options());
      pending.push_back({communicator.all_gather(tensor, output, "mixed all_gather"),
                         [&, output, all, what] { expect_equal(communicator, output, at::cat(all()), what); }});
    } else {
      pending.push_back({communicator.barrier("mixed barrier"), [] {}});
    }
    const auto choice = alone() % 16;
    if (choice == 0) settle(0);
    if (choice == 1) settle(pending.size() / 2);
    if (choice == 2) communicator.help(true);
  }
  settle(0);
}

// One of the ways in which ranks can disagree: all but the last make the first call, the last one the second.
struct Disagreement {
  const char* what;
  std::function<Communicator::Ticket(Communicator&)> most, last;
  const char* most_described;
  const char* last_described;
};

inline std::vector<Disagreement> disagreements() {
  const auto sum = [](int64_t count, at::ScalarType dtype, ReduceOp op, const char* name) {
    return [=](Communicator& to) { return to.all_reduce(at::ones({count}, dtype), op, name); };
  };
  const auto from = [](int root) {
    return [=](Communicator& to) { return to.broadcast(at::ones({4}), root, "weights"); };
  };
  return {
      {"count", sum(10, at::kFloat, ReduceOp::sum, "norm"), sum(11, at::kFloat, ReduceOp::sum, "loss"),
       "all_reduce(sum, Float, 10 elements) \"norm\"", "all_reduce(sum, Float, 11 elements) \"loss\""},
      {"large count", sum(300'000, at::kFloat, ReduceOp::sum, "a"), sum(300'001, at::kFloat, ReduceOp::sum, "b"),
       "300000 elements", "300001 elements"},
      {"small and large", sum(3, at::kFloat, ReduceOp::sum, "a"), sum(300'001, at::kFloat, ReduceOp::sum, "b"),
       "3 elements", "300001 elements"},
      {"none and some", sum(0, at::kFloat, ReduceOp::sum, "a"), sum(5, at::kFloat, ReduceOp::sum, "b"), "0 elements",
       "5 elements"},
      {"type", sum(10, at::kFloat, ReduceOp::max, "a"), sum(10, at::kBFloat16, ReduceOp::max, "a"), "max, Float",
       "max, BFloat16"},
      {"operation", sum(10, at::kInt, ReduceOp::min, "a"), sum(10, at::kInt, ReduceOp::max, "a"), "min, Int",
       "max, Int"},
      {"root", from(0), from(1), "broadcast(from rank 0, Float, 4 elements)",
       "broadcast(from rank 1, Float, 4 elements)"},
      {"parts", [](Communicator& to) { return to.reduce_scatter(at::ones({8}), ReduceOp::sum, "a"); },
       [](Communicator& to) {
         Offsets parts(static_cast<size_t>(to.size()) + 1, 8);
         parts.front() = 0;
         return to.reduce_scatter(at::ones({8}), ReduceOp::sum, "a", {}, everybody, parts);
       },
       "reduce_scatter(sum, Float, 8 elements in parts", "reduce_scatter(sum, Float, 8 elements in parts"},
      {"destination", [](Communicator& to) { return to.reduce(at::ones({4}), ReduceOp::sum, 0, "a"); },
       [](Communicator& to) { return to.reduce(at::ones({4}), ReduceOp::sum, 1, "a"); },
       "reduce(sum, to rank 0, Float, 4 elements)", "reduce(sum, to rank 1, Float, 4 elements)"},
      {"collective", sum(10, at::kFloat, ReduceOp::sum, "a"), [](Communicator& to) { return to.barrier("end"); },
       "all_reduce(sum, Float, 10 elements) \"a\"", "barrier() \"end\""},
  };
}

// Makes the calls and expects an error that names both, on this rank as on every other. The communicator is of no use
// afterwards.
inline void check_disagreement(Communicator& communicator, const Disagreement& disagreement) {
  const auto before = communicator.barrier("before");
  communicator.wait(before);
  const auto operation = fmt::format("called operation {}: ", communicator.calls());
  const int last = communicator.size() - 1;
  std::string text;
  try {
    communicator.wait((communicator.rank() == last ? disagreement.last : disagreement.most)(communicator));
  } catch (const Error& error) {
    text = error.what();
  }
  for (const auto& part : {fmt::format("rank {}, ", communicator.rank()), std::string("ranks disagree"),
                           "rank 0 " + operation, fmt::format("rank {} {}", last, operation),
                           std::string(disagreement.most_described), std::string(disagreement.last_described)}) {
    if (text.find(part) == std::string::npos) {
      fail("rank {}: ranks that disagree on the {} should hear of \"{}\", not: {}", communicator.rank(),
           disagreement.what, part, text);
    }
  }
}

}  // namespace trireme
