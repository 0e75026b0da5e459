// Feeds the fleet's readers with broken files: pieces of good ones, bent in every way, for as long as somebody wants.
// By hand, in the asan preset:
//
//   fuzz_fleet_readers [rounds] [seed]
//
// A reader may refuse a file by an Error, and nothing else: another exception, a crash or a hang is a finding, and the
// input that made it stays in fuzz-input.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/fleet/failures.h"
#include "trireme/fleet/jobs.h"
#include "trireme/fleet/simulation.h"

namespace trireme::fleet {
namespace {

struct Seed {
  const char* file;
  const char* text;
};

const Seed seeds[] = {
    {"fuzz-input.trace",
     "A3C\tpython3 main.py\trl\t--max-steps\t0\t1000\t1\t1\t-1.000000\t0.000000\n"
     "ResNet-18 (batch size 64)\tx\ty\t-n\t1\t5e6\t2\t5\t1.2\t12.5\r\nLM\tx\t-n\t1\t100\t13\t4\n"},
    {"fuzz-input.trace", "A3C\tx\t-n\t0\t1000\t0.000000\t1\nA3C\tx\t-n\t0\t1000\t6.000000\t8\n"},
    {"fuzz-input.json",
     "{\"k80\": {\"('A3C', 1)\": {\"null\": 1.25, \"('A3C', 1)\": [0.5, 0.25]}, \"('LM (batch size 5)', 2)\": "
     "{\"null\": 0}},"
     "\"v100\": {\"('A3C', 1)\": {\"null\": 4e0, \"('LM (batch size 5)', 2)\": [1, 2]}}}"},
    {"fuzz-input.yaml",
     "types:\n  v100: {cost_per_hour: 2.5, memory_gb: 16}\n  k80:\nservers:\n  - {name: fast, count: 2, devices: "
     "{v100: 4}}\n"
     "owners: {a: {weight: 2, inside: fifo}}\n"
     "jobs:\n  - {id: mine, type: net, steps: 1e4, scale: 2, weight: 3, owner: a, deadline_s: 86400, arrival_s: 5}\n"
     "  - {type: net, steps: 10, arrival_s: 5}\nthroughputs:\n  net: {v100: {1: 10, 2: 19}, k80: 3}\n  tool: {v100: "
     "4}\n"
     "together:\n  - {jobs: [net, tool], devices: 1, v100: [7, 3]}\n"},
    {"cluster", "v100=12,p100=3x4,k80=1"},
    {"failures", "device=500h,server=2000h,repair=4h"},
};

const char* words[] = {"{",
                       "}",
                       "[",
                       "]",
                       ":",
                       ",",
                       "\t",
                       "\n",
                       "\"",
                       "'",
                       "null",
                       "nan",
                       "inf",
                       "-1",
                       "1e999",
                       "1e308",
                       "9999999999999999999999",
                       "0",
                       "0.0",
                       "&a",
                       "*a",
                       "<<: *a",
                       "!!binary",
                       "- ",
                       "? ",
                       "#",
                       "%",
                       "\\u0000",
                       "\xff\xfe",
                       "\x00",
                       "('",
                       "', 1)",
                       "~",
                       "---\n",
                       "=",
                       "x"};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : key_{seed} {}

  std::string bend(std::string text) {
    for (uint64_t times = 1 + below(6); times > 0; --times) once(text);
    return text;
  }
  uint64_t below(uint64_t bound) { return bits64(key_, count_++) % bound; }

 private:
  void once(std::string& text) {
    const size_t place = below(text.size() + 1), length = below(std::min<size_t>(40, text.size() - place + 1) + 1);
    switch (below(7)) {
      case 0:
        if (place < text.size()) text[place] = static_cast<char>(below(256));
        break;
      case 1: text.erase(place, length); break;
      case 2: text.insert(place, text.substr(place, length)); break;
      case 3: text.insert(place, words[below(std::size(words))]); break;
      case 4: text.resize(place); break;
      case 5: {  // deep or long
        std::string many;
        const std::string word = words[below(std::size(words))];
        for (uint64_t i = below(3000); i > 0; --i) many += word;
        text.insert(place, many);
        break;
      }
      default: {
        const size_t from = below(text.size() + 1);
        text.insert(place, text.substr(from, length));
      }
    }
  }

  Key key_;
  uint64_t count_ = 0;
};

// Whatever was read is also used: a table that is read must be fit to be simulated with.
void use(const std::vector<Job>& jobs, const Cluster& cluster, const Throughputs& table) {
  if (cluster.devices.size() > 1000 || jobs.size() > 50) return;
  const auto selected = table.select(cluster);
  Workload workload;
  workload.jobs = jobs;
  SimulationOptions options;
  options.scheduler.policy = "fifo-perf";
  Simulation simulation(cluster, selected, workload, options);
  for (int turn = 0; turn < 200 && !simulation.done(); ++turn) simulation.turn();
}

template <class Action>
bool refused(Action action) {
  try {
    action();
    return false;
  } catch (const Error&) {
    return true;
  }
}

int run(uint64_t rounds, uint64_t seed) {
  uint64_t taken = 0, all = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t round = 0; round < rounds; ++round) {
    Mutator mutator(Key{seed}.with(round).value);
    const auto& chosen = seeds[mutator.below(std::size(seeds))];
    const std::string file = chosen.file, text = mutator.bend(chosen.text);
    std::ofstream("fuzz-input" + std::string(file.find('.') == std::string::npos ? ".txt" : file.substr(10)),
                  std::ios::binary)
        << text;
    alarm(20);  // a hang is a finding too
    if (file == "cluster") {
      taken += !refused([&] { parse_cluster(text); });
    } else if (file == "failures") {
      taken += !refused([&] { parse_failures(text); });
    } else if (file == "fuzz-input.trace") {
      taken += !refused([&] { read_trace(file); });
    } else if (file == "fuzz-input.json") {
      taken += !refused([&] { read_throughputs_json(file); });
    } else {
      taken += !refused([&] { use(read_jobs(file), read_cluster(file), read_throughputs(file)); });
      refused([&] { read_owners(file); });
    }
    ++all;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{} inputs in {:.0f} s, {} of them taken, the others refused\n", all, seconds, taken);
  return 0;
}

}  // namespace
}  // namespace trireme::fleet

int main(int argc, char** argv) {
  const auto number = [&](int place, uint64_t otherwise) {
    return argc > place ? std::strtoull(argv[place], nullptr, 10) : otherwise;
  };
  return trireme::fleet::run(number(1, 100000), number(2, 1));
}
