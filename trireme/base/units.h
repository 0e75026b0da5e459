// Amounts as people read them: "33.6 MB", "4.2 ms", "12 min 5 s", "8.4 M".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

std::string human_bytes(double bytes);      // powers of 1000, as disks and networks are sold
// "80GiB", "1.5 GB", "512 MB": at least a byte, with its unit (kB, MiB, …); nothing where the text is no size.
std::optional<int64_t> bytes_from(const std::string& text);
std::string human_count(double count);      // 8407050 -> "8.41 M"
std::string human_seconds(double seconds);  // 0.0042 -> "4.2 ms", 725 -> "12 min 5 s"

}  // namespace trireme
