#include "trireme/observe/bench_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/statistics.h"

namespace trireme {

double BenchLine::ratio() const {
  const double mine = median(ours), theirs = median(peer);
  return smaller_is_better ? theirs / mine : mine / theirs;
}

double BenchLine::spread() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.size(), peer.size()); ++i) {
    ratios.push_back(smaller_is_better ? peer[i] / ours[i] : ours[i] / peer[i]);
  }
  if (ratios.empty()) return 0;
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  return (*high - *low) / 2;
}

nlohmann::ordered_json BenchLine::json() const {
  nlohmann::ordered_json line{{"bench", bench},       {"case", bench_case},     {"ours", median(ours)},
                              {"peer", median(peer)}, {"peer_name", peer_name}, {"ratio", ratio()},
                              {"spread", spread()},   {"unit", unit},           {"repeats", ours.size()},
                              {"settings", settings}};
  if (floor) line["floor"] = *floor;
  return line;
}

std::string BenchLine::brief() const {
  auto values = fmt::format("{:<8} {:<24} ours {:.4g} {}", bench, bench_case, median(ours), unit);
  if (!peer.empty()) values += fmt::format("  {} {:.4g} {}", peer_name, median(peer), unit);
  if (floor) values += fmt::format("  {} {:.4g} {}", smaller_is_better ? "floor" : "limit", *floor, unit);
  if (std::isfinite(ratio())) values += fmt::format("  ratio {:.3f} ± {:.3f}", ratio(), spread());  // none of nothing
  return remark.empty() ? values : values + "; " + remark;
}

}  // namespace trireme
