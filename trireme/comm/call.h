// What a rank asks of its peers. Every collective carries its Call ahead of the data as a fingerprint; ranks that
// disagree get an error that names both calls, never wrong data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

enum class Collective : uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  barrier,
  reduce,
  reduce_scatter,
  gather_parts,
  all_to_all,
  allocate,
  split,
  open_mail
};
enum class ReduceOp : uint8_t { sum, max, min };

// Where the parts of a tensor lie, one for each rank: part r is [offsets[r], offsets[r + 1]), in elements.
using Offsets = std::vector<int64_t>;

// Parts that differ by one at most.
Offsets even_offsets(int64_t count, int ranks);

// Parts as equal as whole cache lines allow; where one of them begins, and all.
int64_t part_begin(int64_t count, int rank, int ranks, int64_t element_bytes);
Offsets even_parts(int64_t count, int ranks, int64_t element_bytes);

// A number that stands for the parts.
uint64_t fingerprint_of(const Offsets& offsets);

struct Call {
  uint64_t sequence = 0;
  int64_t count = 0;  // elements of the tensor that this rank gives
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  at::ScalarType dtype = at::kByte;
  bool on_card = false;  // the tensor stays there
  int16_t root = 0;
  char name[36] = {};
  uint64_t parts = 0;  // fingerprint of the parts, where all ranks must see the same

  bool agrees_with(const Call& other) const;
  std::string describe() const;  // operation 17: all_reduce(sum, Float, 1000 elements) "bucket 0"
};
static_assert(sizeof(Call) == 72 && std::is_trivially_copyable_v<Call>);

// Throws unless all ranks made the same call; `calls[r]` is rank r's.
void check_agreement(const std::vector<Call>& calls);

// Throws unless the parts follow each other and every rank expects of every other what that one gives it. For each rank
// in turn: where the parts that it gives begin, and where those that it takes do, each `ranks` + 1 offsets in bytes.
void check_exchange(const std::vector<int64_t>& parts, int ranks);

}  // namespace trireme
