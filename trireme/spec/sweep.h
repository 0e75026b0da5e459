// What a search over settings tries: axes, each a setting and the values it takes, and the points they span. A grid is
// the product of its axes; a random search draws each trial's values as pure functions of (seed, trial, key), so that
// more trials or another axis change no value that was drawn before.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

struct SweepAxis {
  enum class Kind { list, uniform, logarithmic };

  std::string key;
  Kind kind = Kind::list;
  std::vector<std::string> values;  // of a list
  double low = 0, high = 0;         // of a range,
  bool whole = false;               // whose bounds are written as whole numbers: so are its values, both bounds too

  // "optimizer.lr=1e-4,3e-4,1e-3"; a value that is a list stands in brackets.
  static SweepAxis grid(const std::string& text);
  // "optimizer.lr=log:1e-4..1e-2", "model.dropout=0.0..0.3", "model.layers=2..6" or "optimizer.kind=adamw|sgd".
  static SweepAxis random(const std::string& text);

  std::string draw(uint64_t seed, int64_t trial) const;
};

// One run's settings, beside those that all runs share.
using SweepPoint = std::vector<std::pair<std::string, std::string>>;  // key, value

// The first axis changes slowest.
std::vector<SweepPoint> grid_points(const std::vector<SweepAxis>& axes);
std::vector<SweepPoint> random_points(const std::vector<SweepAxis>& axes, int64_t trials, uint64_t seed);

std::string describe(const SweepPoint& point);  // "optimizer.lr=0.01 model.layers=2"

}  // namespace trireme
