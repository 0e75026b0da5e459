#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/log.h"
#include "trireme/base/paths.h"
#include "trireme/base/words.h"
#include "trireme/base/units.h"
#include "trireme/cli/command.h"
#include "trireme/fleet/report.h"

namespace trireme {

namespace {

// What simulate and explain have in common.
struct FleetOptions {
  std::string trace, cluster, throughputs, failures;
  std::vector<double> generate;
  std::string window;
  int64_t jobs = 0;
  bool multi = false;
  fleet::SimulationOptions simulation;
};

struct SimulateOptions : FleetOptions {
  std::vector<std::string> policies;
  std::string report, gantt = "0:24";
  bool json = false, jct = false;
};

struct ExplainOptions : FleetOptions {
  double at_s = 0;
  std::string job;
  bool json = false;
};

// "400:600"
std::pair<double, double> read_range(const std::string& option, const std::string& text) {
  const size_t colon = text.find(':');
  double from = 0, to = 0;
  if (colon == std::string::npos || !CLI::detail::lexical_cast(text.substr(0, colon), from) ||
      !CLI::detail::lexical_cast(text.substr(colon + 1), to) || !(from >= 0) || !(to > from) || to > 1e9) {
    refuse("{} {}: must be two numbers such as 400:600, the first at least 0 and below the second", option, text);
  }
  return {from, to};
}

fleet::Workload read_workload(const FleetOptions& options, size_t load) {
  fleet::Workload workload;
  if (options.trace.empty() == options.generate.empty()) {
    refuse("give a trace of jobs, or --generate SECONDS between arrivals{}", options.trace.empty() ? "" : ", not both");
  }
  if (!options.window.empty()) {
    const auto [from, to] = read_range("--window", options.window);
    workload.window = {static_cast<int64_t>(from), static_cast<int64_t>(to)};
  }
  if (options.generate.empty()) {
    workload.jobs = fleet::read_jobs(options.trace);
    workload.owners = fleet::read_owners(options.trace);
    const auto count = static_cast<int64_t>(workload.jobs.size());
    if (workload.window.second > count)
      refuse("--window {}: {} has {}", options.window, options.trace, counted(count, "job"));
    return workload;
  }
  workload.generator =
      fleet::JobGenerator::Options{options.generate[load], options.simulation.scheduler.seed, options.multi};
  workload.count = options.jobs;
  if (options.jobs == 0 && options.window.empty()) refuse("--generate needs --jobs N, or --window FIRST:LAST");
  if (options.jobs > 0 && workload.window.second > options.jobs) {
    refuse("--window {} goes beyond --jobs {}", options.window, options.jobs);
  }
  if (options.jobs == 0 && options.generate[load] == 0) refuse("--generate 0 needs --jobs N: all of them come at once");
  return workload;
}

void add_common(CLI::App& command, FleetOptions& options) {
  auto& scheduler = options.simulation.scheduler;
  takes_path(command.add_option("trace", options.trace, "Jobs: a trace, or a YAML file"));
  takes_path(command.add_option("--cluster", options.cluster,
                                "Devices: v100=12,p100=12, v100=3x4 (servers of four), or a YAML file"))
      ->required();
  takes_path(
      command.add_option("--throughputs", options.throughputs, "Steps a second: the published JSON, or a YAML file"))
      ->required();
  command.add_option("--generate", options.generate, "Draw jobs instead: mean seconds between arrivals, one or more")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(at_least(0));
  command.add_option("--jobs", options.jobs, "How many to draw (default: as many as the window needs)")
      ->check(at_least(1));
  command.add_option("--window", options.window, "Count only these jobs, FIRST:LAST, and end when they are done");
  command.add_flag("--multi", options.multi, "Draw jobs of 1, 2, 4 and 8 devices");
  command.add_option("--seed", scheduler.seed, "Of all that is random")->capture_default_str();
  command.add_flag("--reference", scheduler.reference, "Follow the published simulator to the letter");
  command.add_option("--round-s", scheduler.round_s, "Seconds of a round")->capture_default_str()->check(at_least(1));
  command
      .add_option("--solve-every-s", scheduler.solve_every_s, "Seconds between two questions to the policy, at least")
      ->capture_default_str()
      ->check(at_least(0));
  command
      .add_option("--restart-s", options.simulation.restart_s,
                  "Seconds to bring a stopped job back; none in --reference")
      ->capture_default_str()
      ->check(at_least(0));
  command.add_option("--failures", options.failures, "Mean times: device=500h,server=2000h,repair=4h");
}

std::string brief_workload(const FleetOptions& options) {
  if (!options.trace.empty()) return options.trace;
  return fmt::format("generated, {} s between arrivals, seed {}{}{}", fmt::join(options.generate, ", "),
                     options.simulation.scheduler.seed, options.multi ? ", 1 to 8 devices" : "",
                     options.window.empty() ? "" : ", jobs " + options.window);
}

std::string brief_mode(const fleet::SimulationOptions& simulation, const std::string& failures) {
  if (simulation.scheduler.reference) return "as the published simulator";
  return fmt::format("rounds of {} s, policy asked every {} s, restarts cost {} s{}", simulation.scheduler.round_s,
                     simulation.scheduler.solve_every_s, simulation.restart_s,
                     failures.empty() ? "" : ", failures " + failures);
}

void warn_of_rejected(const fleet::SimulationResult& result) {
  int told = 0;
  for (const auto& job : result.ledger.jobs) {
    const bool rejected = job.outcome == fleet::JobRecord::Outcome::rejected;
    const bool dropped = job.outcome == fleet::JobRecord::Outcome::dropped;
    if (!rejected && !dropped) continue;
    if (++told > 5) continue;
    if (rejected) log::warn("job {} is rejected: {}", job.name, job.reason);
    if (dropped) log::warn("job {} is dropped: five rounds in a row gave it fewer steps than devices", job.name);
  }
  if (told > 5) log::warn("and {} more", counted(told - 5, "job"));
}

// Says every ten seconds how far it has come.
fleet::SimulationResult run_telling(fleet::Simulation& simulation, const std::string& policy) {
  using Clock = std::chrono::steady_clock;
  constexpr auto pause = std::chrono::seconds(10);
  auto next = Clock::now() + pause;
  return simulation.run([&] {
    if (Clock::now() < next) return;
    next = Clock::now() + pause;
    const auto& scheduler = simulation.scheduler();
    log::info("{}: {} done, {} there, {} simulated", policy, counted(scheduler.ended(), "job"), scheduler.active(),
              human_seconds(scheduler.now_s()));
  });
}

int run_simulate(const SimulateOptions& options) {
  for (const auto& policy : options.policies) fleet::policy_info(policy);
  const auto cluster = fleet::read_cluster(options.cluster);
  const auto table = fleet::read_throughputs(options.throughputs).select(cluster);
  auto simulation = options.simulation;
  if (!options.failures.empty()) {
    simulation.failures = fleet::parse_failures(options.failures);
    simulation.failures.seed = simulation.scheduler.seed;
  }
  if (!options.report.empty()) {
    prepare_output_file("--report", options.report);
    const auto [from_h, to_h] = read_range("--gantt", options.gantt);
    simulation.keep_samples = true;
    simulation.keep_spans = {3600 * from_h, 3600 * to_h};
  }
  std::vector<fleet::ReportEntry> entries;
  const size_t loads = std::max<size_t>(1, options.generate.size());
  bool told = false;
  for (size_t load = 0; load < loads; ++load) {
    const auto workload = read_workload(options, load);
    for (const auto& policy : options.policies) {
      simulation.scheduler.policy = policy;
      fleet::Simulation one(cluster, table, workload, simulation);
      auto result = run_telling(one, policy);
      const double gap_s = options.generate.empty() ? 0 : options.generate[load];
      if (options.json) {
        auto json = result.json(options.jct);
        if (gap_s > 0) json["mean_interarrival_s"] = gap_s;
        std::cout << json.dump() << std::endl;
      }
      if (!std::exchange(told, true)) warn_of_rejected(result);
      if (result.finished == 0) fail("no job could run");
      entries.push_back({gap_s > 0 ? 3600 / gap_s : 0, std::move(result)});
    }
  }
  if (!options.json) std::cout << fleet::report_table(entries) << std::flush;
  if (!options.report.empty()) {
    const fleet::ReportSubject subject{brief_workload(options), cluster.brief(), options.throughputs,
                                       brief_mode(simulation, options.failures)};
    write_atomically(options.report, fleet::report_page(subject, cluster, entries));
    if (!options.json) std::cout << "report: " << options.report << std::endl;
  }
  return 0;
}

void add_simulate(CLI::App& fleet_command, Action& chosen) {
  auto options = std::make_shared<SimulateOptions>();
  auto* command = fleet_command.add_subcommand("simulate", "Run jobs on a cluster in simulated time, policy by policy");
  command->footer(
      "Example: trireme fleet simulate my.trace --cluster v100=12,p100=12,k80=12 --throughputs speeds.json "
      "--policy fifo --policy isolated --report fleet.html");
  add_common(*command, *options);
  command->add_option("--policy", options->policies, "One or more; trireme fleet policies lists them")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false);
  takes_path(command->add_option("--report", options->report, "Also write a page with pictures into this HTML file"));
  command->add_option("--gantt", options->gantt, "Hours of which the page shows who ran where")->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object a policy");
  command->add_flag("--jct", options->jct, "With the completion time of every job");
  command->callback([options, &chosen] { chosen = [options] { return run_simulate(*options); }; });
}

nlohmann::ordered_json explained(const fleet::Scheduler::Explanation& it) {
  nlohmann::ordered_json types;
  for (const auto& on : it.types) {
    types[on.type] = {{"steps_per_s", on.rate},     {"share", on.share},       {"received_s", on.received_s},
                      {"deficit_s", on.deficit_s},  {"priority", on.priority}, {"rank", on.rank},
                      {"candidates", on.candidates}};
  }
  return {{"job", it.name},
          {"type", it.job_type},
          {"devices_wanted", it.scale},
          {"age_s", it.age_s},
          {"steps_left", it.steps_left},
          {"devices", it.devices},
          {"shares_with", it.partner},
          {"why", it.sentence},
          {"on", types}};
}

void print_explained(const fleet::Scheduler::Explanation& it, bool full) {
  std::cout << fmt::format("job {} ({}, {}, here for {}) {}\n", it.name, it.job_type, counted(it.scale, "device"),
                           human_seconds(it.age_s), it.sentence);
  if (!full) return;
  std::cout << fmt::format("  {:<10} {:>12} {:>8} {:>12} {:>12} {:>12} {:>10}\n", "type", "steps/s", "share",
                           "received", "deficit", "priority", "rank");
  for (const auto& on : it.types) {
    std::cout << fmt::format("  {:<10} {:>12.4g} {:>7.1f}% {:>10.0f} s {:>10.0f} s {:>12.4g} {:>10}\n", on.type,
                             on.rate, 100 * on.share, on.received_s, on.deficit_s, on.priority,
                             on.rank > 0 ? fmt::format("{} of {}", on.rank, on.candidates) : "-");
  }
}

int run_explain(const ExplainOptions& options) {
  const auto cluster = fleet::read_cluster(options.cluster);
  const auto table = fleet::read_throughputs(options.throughputs).select(cluster);
  auto simulation_options = options.simulation;
  if (!options.failures.empty()) {
    simulation_options.failures = fleet::parse_failures(options.failures);
    simulation_options.failures.seed = simulation_options.scheduler.seed;
  }
  const auto workload = read_workload(options, 0);
  fleet::Simulation simulation(cluster, table, workload, simulation_options);
  simulation.run_until(options.at_s);
  const auto all = simulation.scheduler().explain();
  bool found = false;
  for (const auto& it : all) {
    if (!options.job.empty() && it.name != options.job) continue;
    found = true;
    if (options.json) {
      std::cout << explained(it).dump() << std::endl;
    } else {
      print_explained(it, !options.job.empty() || all.size() == 1);
    }
  }
  if (!options.job.empty() && !found) {
    const auto& records = simulation.scheduler().ledger().jobs;
    for (const auto& record : records) {
      if (record.name != options.job) continue;
      if (!record.reason.empty()) refuse("job {} was rejected: {}", options.job, record.reason);
      refuse("job {} was done at {:.0f} s", options.job, record.end_s);
    }
    refuse("there is no job {} at {:.0f} s", options.job, simulation.scheduler().now_s());
  }
  if (!options.json) {
    std::cout << fmt::format("{} at {:.0f} s under {}\n", counted(std::ssize(all), "job"),
                             simulation.scheduler().now_s(), simulation_options.scheduler.policy);
  }
  return 0;
}

void add_explain(CLI::App& fleet_command, Action& chosen) {
  auto options = std::make_shared<ExplainOptions>();
  auto* command = fleet_command.add_subcommand("explain", "Say why a job holds what it holds at some moment");
  command->footer(
      "Example: trireme fleet explain my.trace --cluster v100=2,k80=2 --throughputs speeds.json --policy fifo_perf "
      "--at 7200 --job 3");
  add_common(*command, *options);
  command->add_option("--policy", options->simulation.scheduler.policy, "trireme fleet policies lists them")
      ->required();
  command->add_option("--at", options->at_s, "Seconds after the beginning: the first round from then on")
      ->required()
      ->check(at_least(0));
  command->add_option("--job", options->job, "Only this one, with all its numbers");
  command->add_flag("--json", options->json, "Print one JSON object a job");
  command->callback([options, &chosen] { chosen = [options] { return run_explain(*options); }; });
}

void add_policies(CLI::App& fleet_command, Action& chosen) {
  auto json = std::make_shared<bool>(false);
  auto* command = fleet_command.add_subcommand("policies", "List the policies, what each is for, and its formula");
  command->footer("Example: trireme fleet policies");
  command->add_flag("--json", *json, "Print one JSON object a policy");
  command->callback([json, &chosen] {
    chosen = [json] {
      for (const auto& info : fleet::policies()) {
        if (*json) {
          const nlohmann::ordered_json line{
              {"name", info.name},       {"aliases", info.aliases},           {"objective", info.objective},
              {"formula", info.formula}, {"knows_speeds", info.knows_speeds}, {"shares_devices", info.shares_devices}};
          std::cout << line.dump() << std::endl;
          continue;
        }
        std::cout << fmt::format("{}{}\n    {}\n    {}\n", info.name,
                                 info.aliases.empty() ? "" : fmt::format("  ({})", fmt::join(info.aliases, ", ")),
                                 info.objective, info.formula);
      }
      return 0;
    };
  });
}

}  // namespace

void add_fleet(CLI::App& program, Action& chosen) {
  auto* command = program.add_subcommand("fleet", "Share mixed accelerators among many jobs");
  command->require_subcommand(1);
  command->footer("Example: trireme fleet policies");
  add_simulate(*command, chosen);
  add_explain(*command, chosen);
  add_policies(*command, chosen);
}

}  // namespace trireme
