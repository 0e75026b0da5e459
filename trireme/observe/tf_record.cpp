#include "trireme/observe/tf_record.h"

#include <array>
#include <bit>
#include <concepts>

namespace trireme {
namespace {

constexpr uint32_t castagnoli_reversed = 0x82f63b78;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ (remainder & 1 ? castagnoli_reversed : 0);
    table[byte] = remainder;
  }
  return table;
}

constexpr auto table = make_table();

std::string little_endian(std::unsigned_integral auto value) {
  std::string bytes(sizeof value, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  uint32_t crc = ~uint32_t{0};
  for (const unsigned char byte : data) crc = table[(crc ^ byte) & 0xff] ^ (crc >> 8);
  return ~crc;
}

uint32_t masked_crc32c(std::string_view data) { return std::rotr(crc32c(data), 15) + 0xa282ead8; }

std::string tf_record(std::string_view data) {
  const std::string length = little_endian(uint64_t{data.size()});
  std::string record = length + little_endian(masked_crc32c(length));
  record += data;
  record += little_endian(masked_crc32c(data));
  return record;
}

}  // namespace trireme
