// Lists of jobs: from traces, from a person's YAML, or drawn by the published generator.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "trireme/fleet/model.h"
#include "trireme/fleet/python_random.h"
#include "trireme/fleet/throughputs.h"

namespace trireme::fleet {

// Tab-separated, one job a line, in the order of arrival. Ten columns: type, command, folder, name of the steps'
// argument, needs data (0/1), steps, scale, weight, SLO (-1: none), arrival in seconds. The old layout has seven: type,
// command, name of the steps' argument, needs data, steps, arrival, scale.
std::vector<Job> read_trace(const std::filesystem::path& path);

// A person's: see docs/fleet.md.
std::vector<Job> read_jobs_yaml(const std::filesystem::path& path);
std::vector<Owner> read_owners_yaml(const std::filesystem::path& path);  // none when the file names none
Cluster read_cluster_yaml(const std::filesystem::path& path);

// By the file's name: .yaml and .yml are a person's, all else is a trace.
std::vector<Job> read_jobs(const std::filesystem::path& path);
std::vector<Owner> read_owners(const std::filesystem::path& path);  // a trace has none

// The text of a cluster, or the name of a YAML file that describes one.
Cluster read_cluster(const std::string& text);

// Poisson arrivals of jobs whose durations and sizes follow those of Microsoft's Philly clusters, with the same seed
// the same jobs as the published generator. Per job, in this order: the scale; the duration on a v100, 60·10^U(3,4) s
// with probability 0.2, else 60·10^U(1.5,3) s; the type, redrawn until it runs on so many devices.
class JobGenerator {
 public:
  struct Options {
    double mean_interarrival_s = 3600;  // 0: all at once
    uint64_t seed = 0;
    bool multi = false;        // scales of 1, 2, 4 and 8 instead of 1
    bool whole_steps = false;  // as a trace file keeps them
  };

  // The table must outlive the generator, and hold the 26 published job types.
  JobGenerator(const Options& options, const Throughputs& table);

  double next_arrival_s() const { return next_arrival_s_; }
  Job next();

 private:
  int draw_scale();
  double draw_duration_s();

  Options options_;
  const Throughputs& table_;
  int reference_type_;
  PythonRandom jobs_, arrivals_;
  double next_arrival_s_ = 0;
  int64_t count_ = 0;
};

}  // namespace trireme::fleet
