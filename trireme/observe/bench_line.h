// One line of a benchmark: ours beside a peer's, measured in the same run, alternating.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct BenchLine {
  std::string bench;       // "train"
  std::string bench_case;  // "mlp 8x1024, 2 ranks"
  std::string unit = "s";
  bool smaller_is_better = true;
  std::vector<double> ours, peer;  // one value a repeat, ours[i] and peer[i] measured one after the other; or no peer
  std::string peer_name;
  std::string missing;                  // why the peer was not measured, and how it could be
  std::string matrices, peer_matrices;  // the library of each side's matrix products and its speed, where that matters
  bool best_peer = false;               // of several peers of one case, the one whose ratio is quoted
  std::optional<double> floor;          // what nothing could go below (or above), measured in the same runs
  nlohmann::ordered_json settings;
  std::string remark;  // what else was found, for people; machines find it in the settings

  std::optional<double> ratio()
      const;              // of the medians; above 1 where we are better; none without a peer, or of nothing
  double spread() const;  // half the distance between the largest and the smallest ratio of a pair
  nlohmann::ordered_json json() const;
  std::string brief() const;
};

// Marks, among lines of one case, the one whose peer did best. None is marked if no peer was measured.
void mark_best_peer(std::vector<BenchLine>& lines);

// The lines as a table for a page of documentation. The best peer's ratio is bold.
std::string markdown_table(const std::vector<BenchLine>& lines);

// Runs the sides of one repeat: in their order in the first repeat and every other one, backwards in those between, so
// that none of them always runs on a machine that another has just warmed or heated.
void alternate(int repeat, const std::vector<std::function<void()>>& sides);

}  // namespace trireme
