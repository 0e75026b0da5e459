// What a rank asks of its peers. Every collective carries its Call ahead of the data as a fingerprint; ranks that
// disagree get an error that names both calls, never wrong data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

enum class Collective : uint8_t { all_reduce, broadcast, all_gather, barrier, allocate, split, open_mail };
enum class ReduceOp : uint8_t { sum, max, min };

struct Call {
  uint64_t sequence = 0;
  int64_t count = 0;  // elements of the tensor that this rank gives
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  at::ScalarType dtype = at::kByte;
  int16_t root = 0;
  char name[44] = {};

  bool agrees_with(const Call& other) const;
  std::string describe() const;  // operation 17: all_reduce(sum, Float, 1000 elements) "bucket 0"
};
static_assert(sizeof(Call) == 72 && std::is_trivially_copyable_v<Call>);

// Throws unless all ranks made the same call; `calls[r]` is rank r's.
void check_agreement(const std::vector<Call>& calls);

}  // namespace trireme
