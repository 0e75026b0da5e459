#include <iostream>

#include "trireme/cli/command.h"
#include "trireme/fleet/bench_fleet.h"

namespace trireme {

void add_bench_fleet(CLI::App& bench, Action& chosen) {
  auto options = std::make_shared<fleet::FleetBenchOptions>();
  auto json = std::make_shared<bool>(false);
  auto* command = bench.add_subcommand("fleet", "One max-min solve of a fleet's policy beside Clp, cold and warm");
  command->footer("Example: trireme bench fleet --jobs 2048 --types 8");
  command->add_option("--jobs", options->jobs, "Numbers of jobs")->capture_default_str()->check(at_least(1));
  command->add_option("--types", options->types, "Numbers of device types")->capture_default_str()->check(at_least(1));
  command->add_option("--repeats", options->repeats, "Alternating solves of each side")
      ->capture_default_str()
      ->check(at_least(1));
  command->add_flag("--json", *json, "Print one JSON object a line");
  command->callback([options, json, &chosen] {
    chosen = [options, json] {
      fleet::run_fleet_bench(*options, [&](const BenchLine& line) {
        std::cout << (*json ? line.json().dump() : line.brief()) << std::endl;
      });
      return 0;
    };
  });
}

}  // namespace trireme
