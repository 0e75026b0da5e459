#include "trireme/device/foreign_error.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <regex>

namespace trireme {

namespace {

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c != '\n' && c != '\t') {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

// LibTorch names the amount in words only: "you tried to allocate 4000 bytes", "Tried to allocate 20.00 GiB".
std::optional<uint64_t> amount_in(const std::string& text) {
  static const std::regex pattern("ried to allocate ([0-9]+(?:\\.[0-9]+)?) (bytes|KiB|MiB|GiB)");
  std::smatch found;
  if (!std::regex_search(text, found, pattern)) return std::nullopt;
  const auto unit = found[2].str();
  const double scale = unit == "KiB" ? 0x1p10 : unit == "MiB" ? 0x1p20 : unit == "GiB" ? 0x1p30 : 1;
  return static_cast<uint64_t>(std::stod(found[1]) * scale);
}

}  // namespace

Explained explain(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::OutOfMemoryError& error) {
    return out_of_memory(amount_in(error.what_without_backtrace()), /*on_card=*/true);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("DefaultCPUAllocator") != std::string::npos) return out_of_memory(amount_in(text));
    return {Error(Error::Kind::failed, "LibTorch: " + one_line(text))};
  } catch (...) {
    return explain_standard(thrown);
  }
}

}  // namespace trireme
