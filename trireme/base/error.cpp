#include "trireme/base/error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

namespace trireme {

void fail_errno(const std::string& what) { fail("{}: {}", what, std::strerror(errno)); }

namespace {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before, previous, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(previous, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& valid) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const auto& candidate : valid) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace trireme
