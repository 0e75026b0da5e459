// Collectives made of messages (spec/collective_cost says what each costs). They work on a wire, whatever it is made
// of, in pieces: while one piece is combined the next is on its way. Every rank ends with the same bits, because each
// element is summed up in one order only, and what was summed is passed on.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/call.h"
#include "trireme/comm/wire.h"
#include "trireme/spec/collective_cost.h"

namespace trireme {

// What is reduced: `count` elements, in place.
struct Operand {
  std::byte* data = nullptr;
  int64_t count = 0;
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::sum;
};

// Offsets count elements or bytes, as each function says.
class WireCollectives {
 public:
  explicit WireCollectives(Wire& wire, int64_t piece_bytes = wire_piece_bytes)
      : wire_(wire), rank_(wire.rank()), size_(wire.size()), piece_bytes_(piece_bytes) {}

  void all_reduce(Algorithm algorithm, const Operand& operand);
  // Rank r ends with the reduction of part r, in its place; the other parts hold no results. Offsets in elements.
  void reduce_scatter(const Operand& operand, const Offsets& offsets);
  // The root ends with the reduction; the others' data is used up.
  void reduce(const Operand& operand, int root);
  // Rank r gives part r; all end with all. Offsets in bytes.
  void all_gather(std::byte* data, const Offsets& offsets);
  // The same with equal parts of so many bytes, in the fewest messages (Bruck's): for small ones.
  void all_gather_small(std::byte* data, int64_t part_bytes);
  void broadcast(std::byte* data, int64_t bytes, int root);
  // Part r of `given` goes to rank r, whose `taken` holds in part s what rank s gave it. Offsets in bytes.
  void all_to_all(const std::byte* given, const Offsets& give, std::byte* taken, const Offsets& take);

 private:
  struct Span {
    int64_t begin, end;  // elements
  };

  void by_doubling(const Operand& operand);
  void by_halving(const Operand& operand);
  void by_ring(const Operand& operand);
  void by_trees(const Operand& operand);
  // Ranks beyond a power of two give their data to a partner and wait for the result. Says which of the others this
  // rank is, or -1, and works the other way round at the end.
  int fold(const Operand& operand);
  void unfold(const Operand& operand);
  int unfolded(int place) const;  // the rank that takes that place among a power of two of them

  void combine(const Operand& operand, int64_t begin, int64_t end, const std::byte* with) const;
  // Sends one span and combines what comes into another, piece by piece.
  void exchange_and_combine(const Operand& operand, int to, Span out, int from, Span in);
  void exchange(int to, const std::byte* out, int64_t out_bytes, int from, std::byte* in, int64_t in_bytes);
  std::byte* scratch(int which, int64_t bytes);
  int64_t element(const Operand& operand) const;
  void finish_sends();

  Wire& wire_;
  const int rank_, size_;
  const int64_t piece_bytes_;
  // What comes round a ring, in the order in which it comes.
  struct RingPiece {
    int64_t begin, end;  // elements
    int step;
    Wire::Posted posted;
  };

  std::vector<std::byte> scratch_[2];
  std::vector<Wire::Posted> sends_, unfinished_;
  std::vector<RingPiece> ring_;
};

}  // namespace trireme
