#include "trireme/base/pattern.h"

#include <algorithm>

namespace trireme {

std::vector<std::string> split_patterns(const std::string& list) {
  std::vector<std::string> patterns;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const auto first = list.find_first_not_of(' ', begin);
    if (first < end) patterns.push_back(list.substr(first, list.find_last_not_of(' ', end - 1) + 1 - first));
    begin = end + 1;
  }
  return patterns;
}

bool matches(std::string_view pattern, std::string_view name) {
  // Where a character does not fit, the last * takes one more.
  size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return matches(pattern, name); });
}

}  // namespace trireme
