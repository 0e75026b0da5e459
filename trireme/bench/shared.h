// `trireme bench train --case shared shared-tiny`: what is left of a run's speed when it does not have the machine to
// itself, as a share of what it could have.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

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

// One rank alone, beside an endless loop on one core, beside one on each of two cores, and beside a second run of the
// same. Calls `each` with a line for each situation: tokens a second, and as its limit the fair part of the speed
// alone.
void measure_shared(const std::string& name, const SharedBenchOptions& options, const std::filesystem::path& folder,
                    const std::function<void(const BenchLine&)>& each);

}  // namespace trireme
