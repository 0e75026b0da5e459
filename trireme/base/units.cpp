#include "trireme/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <exception>

namespace trireme {
namespace {

std::string scaled(double value, const std::array<const char*, 6>& suffixes) {
  size_t step = 0;
  while (std::abs(value) >= 999.5 && step + 1 < suffixes.size()) {
    value /= 1000;
    ++step;
  }
  const int digits = step == 0 || std::abs(value) >= 99.95 ? 0 : std::abs(value) >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, digits, suffixes[step]);
}

}  // namespace

std::string human_bytes(double bytes) { return scaled(bytes, {"B", "kB", "MB", "GB", "TB", "PB"}); }

std::optional<int64_t> bytes_from(const std::string& text) {
  size_t digits = 0;
  double number = 0;
  try {
    if (text.empty() || !std::isdigit(static_cast<unsigned char>(text.front()))) return std::nullopt;
    number = std::stod(text, &digits);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  auto unit = text.substr(digits);
  if (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  double factor = 1;
  const std::string prefixes = "kMGTP";
  const auto place = unit.empty() ? std::string::npos : prefixes.find(unit.front() == 'K' ? 'k' : unit.front());
  if (place != std::string::npos) {
    unit.erase(0, 1);
    const bool binary = !unit.empty() && unit.front() == 'i';
    if (binary) unit.erase(0, 1);
    factor = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(place + 1));
  }
  const double bytes = number * factor;
  if (unit != "B" || !(bytes >= 1) || bytes > 9e18) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::string human_count(double count) {
  auto text = scaled(count, {"", "k", "M", "G", "T", "P"});
  if (text.back() == ' ') text.pop_back();
  return text;
}

std::string human_seconds(double seconds) {
  if (seconds < 0) return "-" + human_seconds(-seconds);
  // Limits below the next unit's by half of the last digit shown, so that nothing reads "1000 us" or "60.0 s".
  if (seconds < 0.9995e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 0.99995) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
}

}  // namespace trireme
