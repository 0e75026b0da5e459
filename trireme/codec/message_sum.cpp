#include "trireme/codec/message_sum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <new>

#include "trireme/codec/targets.h"

namespace trireme {

namespace {

void add_plain(void* state, std::span<const uint8_t> bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes.data(), bytes.size());
}

}  // namespace

MessageSum::MessageSum() {
  static_assert(sizeof(XXH3_state_t) <= sizeof state_);
  XXH3_64bits_reset(new (state_) XXH3_state_t);
}

void MessageSum::add(std::span<const uint8_t> bytes) {
  static const auto add = widest_target() == Target::avx512 ? add_avx512 : add_plain;
  add(state_, bytes);
  added_ += bytes.size();
}

uint64_t MessageSum::value() const { return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(state_)); }

uint64_t checksum_of(std::span<const uint8_t> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace trireme
