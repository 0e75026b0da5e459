#include "trireme/observe/bench_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/statistics.h"

namespace trireme {

std::optional<double> BenchLine::ratio() const {
  if (ours.empty() || peer.empty()) return std::nullopt;
  const double mine = median(ours), theirs = median(peer);
  const double value = smaller_is_better ? theirs / mine : mine / theirs;
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
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
  nlohmann::ordered_json line{{"bench", bench}, {"case", bench_case}, {"ours", median(ours)}};
  if (!peer.empty()) line["peer"] = median(peer);
  if (!peer_name.empty()) line["peer_name"] = peer_name;
  if (const auto value = ratio()) {
    line["ratio"] = *value;
    line["spread"] = spread();
  }
  if (!missing.empty()) line["missing"] = missing;
  if (!matrices.empty()) line["matrices"] = matrices;
  if (!peer_matrices.empty()) line["peer_matrices"] = peer_matrices;
  if (best_peer) line["best_peer"] = true;
  line["unit"] = unit;
  line["repeats"] = ours.size();
  line["settings"] = settings;
  if (floor) line["floor"] = *floor;
  return line;
}

std::string BenchLine::brief() const {
  auto values = fmt::format("{:<8} {:<24} ours {:.4g} {}", bench, bench_case, median(ours), unit);
  if (!peer.empty()) values += fmt::format("  {} {:.4g} {}", peer_name, median(peer), unit);
  if (!missing.empty()) values += fmt::format("  {} not measured: {}", peer_name, missing);
  if (floor) values += fmt::format("  {} {:.4g} {}", smaller_is_better ? "floor" : "limit", *floor, unit);
  if (const auto value = ratio()) values += fmt::format("  ratio {:.3f} ± {:.3f}", *value, spread());
  if (best_peer) values += " (the best peer)";
  return remark.empty() ? values : values + "; " + remark;
}

void mark_best_peer(std::vector<BenchLine>& lines) {
  BenchLine* best = nullptr;
  for (auto& line : lines) {
    if (line.peer.empty()) continue;
    const bool better = best && (line.smaller_is_better ? median(line.peer) < median(best->peer)
                                                        : median(line.peer) > median(best->peer));
    if (!best || better) best = &line;
  }
  if (best) best->best_peer = true;
}

namespace {

std::string amount(double value, const std::string& unit) {
  const bool short_time = unit == "s" && value < 1;
  return fmt::format("{:.4g} {}", short_time ? 1e3 * value : value, short_time ? "ms" : unit);
}

std::string or_dash(const std::string& text) { return text.empty() ? "–" : text; }

}  // namespace

std::string markdown_table(const std::vector<BenchLine>& lines) {
  std::string table =
      "| case | ours | our matrix products | peer | its time | its matrix products | times faster (± half the range) "
      "|\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const auto& line : lines) {
    const auto theirs = line.peer.empty() ? or_dash(line.missing) : amount(median(line.peer), line.unit);
    std::string ratio = "–";
    if (const auto value = line.ratio()) {
      ratio = fmt::format("{:.2f} ± {:.2f}", *value, line.spread());
      if (line.best_peer) ratio = "**" + ratio + "**";
    }
    table +=
        fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", line.bench_case, amount(median(line.ours), line.unit),
                    or_dash(line.matrices), or_dash(line.peer_name), theirs, or_dash(line.peer_matrices), ratio);
  }
  return table;
}

void alternate(int repeat, const std::vector<std::function<void()>>& sides) {
  if (repeat % 2 == 0) {
    for (auto side = sides.begin(); side != sides.end(); ++side) (*side)();
  } else {
    for (auto side = sides.rbegin(); side != sides.rend(); ++side) (*side)();
  }
}

}  // namespace trireme
