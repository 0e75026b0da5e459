#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstring>

#include "trireme/comm/memory_work.h"
#include "trireme/comm/reduction.h"

namespace trireme {

namespace {

// What is longer would not stay in the cache: written past it, memory need not be read first.
constexpr int64_t past_the_cache = 8 << 20;

void copy_past_the_cache(std::byte* to, const std::byte* from, int64_t bytes) {
#ifdef __SSE2__
  constexpr int64_t line = 64, word = sizeof(__m128i);
  const int64_t head = -reinterpret_cast<intptr_t>(to) & (line - 1);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t i = head;
  for (; i + line <= bytes; i += line) {
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    auto* target = reinterpret_cast<__m128i*>(to + i);
    __m128i words[line / word];
    for (int64_t k = 0; k < line / word; ++k) words[k] = _mm_loadu_si128(source + k);
    for (int64_t k = 0; k < line / word; ++k) _mm_stream_si128(target + k, words[k]);
  }
  _mm_sfence();  // others may read it once we have met
  std::memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

class HostWork final : public MemoryWork {
 public:
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    if (bytes >= past_the_cache) return copy_past_the_cache(to, from, bytes);
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void combine(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
               int64_t count) override {
    reduce(dtype, op, sources, targets, count);
  }
};

}  // namespace

MemoryWork& host_work() {
  static HostWork work;
  return work;
}

}  // namespace trireme
