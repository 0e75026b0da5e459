// Our --reference against the published simulator, job by job. Prints the whole table.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "tests/fleet/published.h"
#include "tests/fleet/solver.h"

namespace trireme::fleet {
namespace {

// Deterministic and without degenerate optima: equal job by job. Gandiva draws pairs at random, but from the same
// numbers; AlloX's assignment is not unique, but its ties are broken as SciPy does.
const std::set<std::string> exact = {"fifo", "fifo_perf", "fifo_packed", "isolated", "allox", "gandiva"};

// Linear programs have many optima, and which one a solver finds moves the mean by so much.
double tolerance(size_t jobs) { return jobs <= 20 ? 0.04 : 0.025; }

double relative(double found, double expected) { return std::abs(found - expected) / expected; }

void print_heading() {
  fmt::print("{:<26} {:<9} {:<36} {:>12} {:>12} {:>8} {:>9} {:>9} {:>8}\n", "workload", "cluster", "policy",
             "mean JCT s", "reference", "mean", "worst job", "end", "CPU ratio");
}

void print_line(const std::string& workload, const std::string& cluster, const std::string& policy,
                const SimulationResult& result, double mean_s, double worst, double end_s, double cpu_s) {
  fmt::print("{:<26} {:<9} {:<36} {:>12.2f} {:>12.2f} {:>+7.2f}% {:>9.1e} {:>+8.2f}% {:>8.0f}\n", workload, cluster,
             policy, result.mean_jct_s, mean_s, 100 * (result.mean_jct_s / mean_s - 1), worst,
             100 * (result.end_s / end_s - 1), cpu_s / std::max(1e-6, result.cpu_s));
}

// The line of results.jsonl for a trace and a policy; the quiet one where there are two.
nlohmann::json reference_line(const std::string& trace, const std::string& cluster, const std::string& policy) {
  std::ifstream file(data_file("reference/results.jsonl"));
  nlohmann::json found;
  for (std::string text; std::getline(file, text);) {
    auto line = nlohmann::json::parse(text);
    if (line["trace"] == trace + ".trace" && line["cluster"] == cluster && line["policy"] == policy) found = line;
  }
  return found;
}

struct Case {
  std::string file, trace, cluster, policy;
};

std::vector<Case> trace_cases() {
  std::vector<Case> cases;
  for (const auto& entry : std::filesystem::directory_iterator(data_file("reference/jct"))) {
    const auto name = entry.path().stem().string();
    const auto first = name.find('.'), second = name.find('.', first + 1);
    cases.push_back({entry.path().filename().string(), name.substr(0, first),
                     name.substr(first + 1, second - first - 1), name.substr(second + 1)});
  }
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.file < b.file; });
  return cases;
}

TEST(Parity, EveryTraceAndPolicyOfTheReference) {
  print_heading();
  int compared = 0;
  for (const auto& one : trace_cases()) {
    if (!runs_here(one.policy)) continue;
    Workload workload;
    workload.jobs = read_trace(data_file("traces/" + one.trace + ".trace"));
    const auto cluster = published_cluster(one.cluster);
    const auto table = published_throughputs().select(cluster);
    const auto result = Simulation(cluster, table, workload, as_reference(one.policy)).run();

    const auto times = read_json("reference/jct/" + one.file);
    std::string counts = one.cluster;
    std::replace(counts.begin(), counts.end(), '-', ':');
    const auto line = reference_line(one.trace, counts, one.policy);
    ASSERT_FALSE(line.is_null()) << one.file;
    ASSERT_EQ(result.counted.size(), times.size()) << one.file;
    double worst = 0;
    for (int64_t id : result.counted) {
      const double expected = times.at(std::to_string(id));
      worst = std::max(worst, relative(result.ledger.jobs[static_cast<size_t>(id)].completion_s(), expected));
    }
    const double mean_s = line["avg_jct_s"], end_s = line["end_time_s"];
    print_line(one.trace, one.cluster, one.policy, result, mean_s, worst, end_s, line["cpu_s"]);
    if (exact.contains(one.policy)) {
      EXPECT_LE(worst, 1e-6) << one.file;
      EXPECT_LE(relative(result.mean_jct_s, mean_s), 1e-6) << one.file;
      EXPECT_LE(relative(result.end_s, end_s), 1e-6) << one.file;
      EXPECT_LE(relative(result.utilisation, line["utilization"]), 1e-6) << one.file;
      EXPECT_EQ(result.ledger.rounds, line["rounds"]) << one.file;
      EXPECT_EQ(result.ledger.solves, line["solves"]) << one.file;
      const double extended =
          100.0 * static_cast<double>(result.ledger.leases_extended) / static_cast<double>(result.ledger.lease_chances);
      EXPECT_NEAR(extended, line["lease_ext_pct"], 1e-9) << one.file;
    } else {
      EXPECT_LE(relative(result.mean_jct_s, mean_s), tolerance(times.size())) << one.file;
    }
    ++compared;
  }
  EXPECT_EQ(compared, have_clp() ? 36 : 33);
}

TEST(Parity, GeneratedExperiments) {
  print_heading();
  int compared = 0;
  std::ifstream file(data_file("reference/results.jsonl"));
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text);
    if (!line["trace"].is_null() || line["solver"] != "ECOS") continue;
    const std::string policy = line["policy"], counts = line["cluster"];
    if (!runs_here(policy)) continue;
    Workload workload;
    workload.generator = JobGenerator::Options{line["lam"], line["seed"], line["multi"]};
    workload.window = {line["window"][0], line["window"][1]};
    if (!line["num_total_jobs"].is_null()) workload.count = line["num_total_jobs"];
    const auto cluster = published_cluster(counts);
    const auto table = published_throughputs().select(cluster);
    const auto result = Simulation(cluster, table, workload, as_reference(policy, line["seed"])).run();
    const double mean_s = line["avg_jct_s"], end_s = line["end_time_s"];
    const auto name = fmt::format("lam {} {}-{}{}", line["lam"].get<double>(), workload.window.first,
                                  workload.window.second, line["multi"] ? " multi" : "");
    print_line(name, counts, policy, result, mean_s, relative(result.mean_jct_s, mean_s), end_s, line["cpu_s"]);
    if (exact.contains(policy)) {
      EXPECT_LE(relative(result.mean_jct_s, mean_s), 1e-6) << text;
      EXPECT_LE(relative(result.end_s, end_s), 1e-6) << text;
      EXPECT_LE(relative(result.p95_jct_s, line["p95"]), 1e-6) << text;
      EXPECT_LE(relative(result.utilisation, line["utilization"]), 1e-6) << text;
    } else {
      EXPECT_LE(relative(result.mean_jct_s, mean_s), tolerance(result.counted.size())) << text;
    }
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

// Who ran where in the first 200 rounds, device by device.
TEST(Parity, FirstRoundsOfTheReference) {
  for (const std::string policy : {"fifo_perf", "isolated"}) {
    Workload workload;
    workload.jobs = read_trace(data_file("traces/single_lam7200_seed0_n20.trace"));
    const auto cluster = published_cluster("2:2:2");
    const auto table = published_throughputs().select(cluster);
    Simulation simulation(cluster, table, workload, as_reference(policy));
    const auto rounds = read_json("reference/sched/single_lam7200_seed0_n20.2-2-2." + policy + ".json");
    ASSERT_EQ(rounds.size(), 200u);
    for (const auto& expected : rounds) {
      simulation.turn();
      const auto& round = simulation.scheduler().round();
      ASSERT_NEAR(simulation.scheduler().now_s(), expected[0].get<double>(), 1e-6);
      std::map<std::string, std::vector<int>> found;
      for (const auto& lease : round.leases) {
        const auto devices = round.devices_of(lease);
        found[std::to_string(lease.jobs[0])].assign(devices.begin(), devices.end());
      }
      ASSERT_EQ(nlohmann::json(found), expected[1]) << policy << " at " << expected[0];
    }
  }
}

}  // namespace
}  // namespace trireme::fleet
