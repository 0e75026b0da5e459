#include <zstd.h>

#include <memory>

#include "trireme/base/error.h"
#include "trireme/codec/entropy.h"

namespace trireme {

namespace {

// Codes of numbers have no repetitions that are worth looking for: what helps is that some are more frequent. Level 1
// looks for few, and codes the rest by their frequency.
constexpr int level = 1;

size_t checked(size_t result, const char* what) {
  if (ZSTD_isError(result)) fail("{}: {}", what, ZSTD_getErrorName(result));
  return result;
}

}  // namespace

void require_entropy() {}

int64_t most_packed(int64_t bytes) { return static_cast<int64_t>(ZSTD_compressBound(static_cast<size_t>(bytes))); }

int64_t pack_bytes(std::span<const uint8_t> from, uint8_t* to) {
  thread_local const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  const size_t room = ZSTD_compressBound(from.size());
  return static_cast<int64_t>(
      checked(ZSTD_compressCCtx(context.get(), to, room, from.data(), from.size(), level), "packing"));
}

void unpack_bytes(std::span<const uint8_t> from, std::span<uint8_t> to) {
  thread_local const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  const size_t taken = checked(ZSTD_decompressDCtx(context.get(), to.data(), to.size(), from.data(), from.size()),
                               "the message cannot be unpacked");
  if (taken != to.size()) fail("the message unpacks to {} bytes instead of {}", taken, to.size());
}

}  // namespace trireme
