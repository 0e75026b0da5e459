// Prints the lines of run_fleet_bench, or with --json one object a line.
#include <cstdio>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/fleet/bench_fleet.h"

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::string_view(argv[1]) == "--json";
  try {
    trireme::fleet::run_fleet_bench({}, [&](const trireme::BenchLine& line) {
      std::puts(json ? line.json().dump().c_str() : line.brief().c_str());
      std::fflush(stdout);
    });
  } catch (const trireme::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_status();
  }
}
