// Takes the place of zstd.cpp where the library is missing.
#include "trireme/base/error.h"
#include "trireme/codec/entropy.h"

namespace trireme {

void require_entropy() { refuse("this build has no codec with an error bound: install libzstd-dev and build again"); }

int64_t most_packed(int64_t) { fail("this build has no zstd"); }
int64_t pack_bytes(std::span<const uint8_t>, uint8_t*) { fail("this build has no zstd"); }
void unpack_bytes(std::span<const uint8_t>, std::span<uint8_t>) { fail("this build has no zstd"); }

}  // namespace trireme
