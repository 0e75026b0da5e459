#include <climits>
#include <cstdlib>
#include <cstring>

#include "trireme/codec/message_sum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,bmi2")
#define XXH_VECTOR 3  // XXH_AVX512
// g++ 12 takes its own intrinsics for readers of what nobody wrote (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme {

void add_avx512(void* state, std::span<const uint8_t> bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes.data(), bytes.size());
}

}  // namespace trireme
