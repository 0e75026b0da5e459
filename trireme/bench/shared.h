// `trireme bench train --case shared shared-tiny`: what is left of a run's speed when it does not have the machine to
// itself, as a share of what it could have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/observe/bench_line.h"

namespace trireme {

// "shared" is the default GPT, "shared-tiny" one whose steps take some hundred microseconds.
bool is_shared_case(const std::string& name);

struct SharedBenchOptions {
  int repeats = 4;
  double seconds = 5;  // for which each run is watched
};

// The kernel gives each thread that wants to run the same time, so that of n cores t threads of ours beside k others
// have t n / (t + k). That is the fair part n / (t + k) of what they had alone, where t + k is more than n; else all.
double fair_part(int cores, int threads, int others);

// The steps that a run's metrics.jsonl tells whole between two places in the file.
std::vector<nlohmann::json> steps_between(const std::filesystem::path& metrics, uintmax_t from, uintmax_t to);
// Over all but the first of these steps, and the time since it ended. Not the median of steps: a run that stands still
// now and then is slower by all of that.
double tokens_per_s(const std::vector<nlohmann::json>& steps);

// One rank alone, beside an endless loop on one core, beside one on each of two cores, and beside a second run of the
// same. Calls `each` with a line for each situation: tokens a second, and as its limit the fair part of the speed
// alone.
void measure_shared(const std::string& name, const SharedBenchOptions& options, const std::filesystem::path& folder,
                    const std::function<void(const BenchLine&)>& each);

}  // namespace trireme
