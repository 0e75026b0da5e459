// Numbers in sentences: "1 rank", "2 ranks", "loss nan".
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

// "rank" or "ranks". Give `many` where an s does not do: plural(n, "class", "classes").
inline std::string plural(int64_t number, std::string_view one, std::string_view many = "") {
  if (number == 1) return std::string(one);
  return many.empty() ? std::string(one) + "s" : std::string(many);
}

// "1 rank" or "2 ranks".
inline std::string counted(int64_t number, std::string_view one, std::string_view many = "") {
  return fmt::format("{} {}", number, plural(number, one, many));
}

// With so many digits behind the point. What is no number has no sign either, whatever its bits say.
inline std::string fixed(double number, int digits) {
  return std::isnan(number) ? "nan" : fmt::format("{:.{}f}", number, digits);
}

}  // namespace trireme
