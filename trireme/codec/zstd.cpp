#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_c_literalCompressionMode
#include <zstd.h>

#include <memory>

#include "trireme/base/error.h"
#include "trireme/codec/entropy.h"

namespace trireme {

namespace {

// Codes of numbers have no repetitions that are worth looking for, and what is found only breaks up the rest: what
// helps is that some are more frequent than others. So the search is as short as zstd makes it, and all bytes are coded
// by their frequency (Huffman), which it would leave out with so short a search. Measured beside level 1: on normal
// codes of 0.5 to 2 steps of deviation 3 to 8 % shorter and packed 1.4 to 2.3 times as fast, on wider ones the same; on
// the gradients of a small GPT 10 to 13 % longer.
constexpr int level = -100;

size_t checked(size_t result, const char* what) {
  if (ZSTD_isError(result)) fail("{}: {}", what, ZSTD_getErrorName(result));
  return result;
}

using Context = std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)>;

Context make_context() {
  Context context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  checked(ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level), "zstd");
  checked(ZSTD_CCtx_setParameter(context.get(), ZSTD_c_literalCompressionMode, ZSTD_ps_enable), "zstd");
  return context;
}

}  // namespace

void require_entropy() {}

int64_t most_packed(int64_t bytes) { return static_cast<int64_t>(ZSTD_compressBound(static_cast<size_t>(bytes))); }

int64_t pack_bytes(std::span<const uint8_t> from, uint8_t* to) {
  thread_local const Context context = make_context();
  const size_t room = ZSTD_compressBound(from.size());
  return static_cast<int64_t>(checked(ZSTD_compress2(context.get(), to, room, from.data(), from.size()), "packing"));
}

void unpack_bytes(std::span<const uint8_t> from, std::span<uint8_t> to) {
  thread_local const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  const size_t taken = checked(ZSTD_decompressDCtx(context.get(), to.data(), to.size(), from.data(), from.size()),
                               "the message cannot be unpacked");
  if (taken != to.size()) fail("the message unpacks to {} bytes instead of {}", taken, to.size());
}

}  // namespace trireme
