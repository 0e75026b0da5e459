// Bytes that are not evenly distributed in fewer bytes, without loss: zstd. Each thread keeps what it needs for it.
#pragma once

#include <cstdint>
#include <span>

namespace trireme {

// Refuses, with what to install, in a build without zstd.
void require_entropy();

// Room that packing so many bytes takes at most.
int64_t most_packed(int64_t bytes);
// Packs into `to`, which has that room; gives the length.
int64_t pack_bytes(std::span<const uint8_t> from, uint8_t* to);
// The other way: exactly as many as `to` holds, an Error otherwise, whatever the bytes are.
void unpack_bytes(std::span<const uint8_t> from, std::span<uint8_t> to);

}  // namespace trireme
