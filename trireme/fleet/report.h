// What a person sees of simulations: a table, and a page with pictures that needs nothing but itself.
#pragma once

#include <string>
#include <vector>

#include "trireme/fleet/simulation.h"

namespace trireme::fleet {

// One policy at one load.
struct ReportEntry {
  double jobs_per_hour = 0;  // of generated workloads; 0: a trace
  SimulationResult result;
};

std::string report_table(const std::vector<ReportEntry>& entries);

// What was simulated, for the page's heading.
struct ReportSubject {
  std::string workload, cluster_text, throughputs;
  std::string mode;  // "reference" or "default" and its settings
};

std::string report_page(const ReportSubject& subject, const Cluster& cluster, const std::vector<ReportEntry>& entries);

}  // namespace trireme::fleet
