#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/cli/command.h"
#include "trireme/fleet/simulation.h"

namespace trireme {

void add_fleet(CLI::App& program, Action& chosen) {
  auto* command = program.add_subcommand("fleet", "Share mixed accelerators among many jobs");
  struct Options {
    std::string trace, cluster, table;
    std::vector<std::string> policies;
    bool reference = false;
  };
  auto o = std::make_shared<Options>();
  auto* s = command->add_subcommand("simulate");
  s->add_option("trace", o->trace);
  s->add_option("--cluster", o->cluster);
  s->add_option("--throughputs", o->table);
  s->add_option("--policy", o->policies);
  s->add_flag("--reference", o->reference);
  s->callback([o, &chosen] {
    chosen = [o] {
      using namespace fleet;
      auto cluster = read_cluster(o->cluster);
      auto table = read_throughputs(o->table).select(cluster);
      Workload w;
      w.jobs = read_jobs(o->trace);
      for (auto& p : o->policies) {
        SimulationOptions so;
        so.scheduler.policy = p;
        so.scheduler.reference = o->reference;
        std::cout << Simulation(cluster, table, w, so).run().json(true).dump() << "\n";
      }
      return 0;
    };
  });
}

}  // namespace trireme
