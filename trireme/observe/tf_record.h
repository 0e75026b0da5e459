// The framing of TensorFlow's record files, which hold TensorBoard's events: a length and the data, each followed by
// its checksum. That is CRC-32C, masked because a checksum of data that holds checksums is weak.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

uint32_t crc32c(std::string_view data);
uint32_t masked_crc32c(std::string_view data);

// Little-endian: length (8 bytes), masked_crc32c(length), data, masked_crc32c(data).
std::string tf_record(std::string_view data);

}  // namespace trireme
