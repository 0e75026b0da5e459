#include "trireme/comm/cores.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

namespace trireme {

namespace {

// Of process 0: of this one. Empty where there is no such process.
CoreSet cores_of(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CoreSet cores;
  if (sched_getaffinity(process, sizeof set, &set) != 0) return cores;
  for (size_t i = 0; i < cores.size(); ++i) cores[i] = CPU_ISSET(i, &set);
  return cores;
}

// Of this process's cgroup, in cores.
double quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string limit;
  double period = 0;
  if (file >> limit >> period && limit != "max" && period > 0)
    return std::max(1.0, std::round(std::atof(limit.c_str()) / period));
  return static_cast<double>(CPU_SETSIZE);
}

}  // namespace

int usable_cores() { return std::max(1, static_cast<int>(own_part(cores_of(0), {}, quota()))); }

double own_part(const CoreSet& mine, const std::vector<CoreSet>& all, double quota) {
  const auto meets = [&](const CoreSet& other) { return (mine & other).any(); };
  const auto sharers = std::max<int64_t>(1, std::count_if(all.begin(), all.end(), meets));
  const auto ranks = std::max<size_t>(1, all.size());
  return std::min(static_cast<double>(mine.count()) / static_cast<double>(sharers), quota / static_cast<double>(ranks));
}

double own_cores(const std::vector<pid_t>& ranks) {
  std::vector<CoreSet> all;
  for (const pid_t one : ranks) all.push_back(cores_of(one));
  return own_part(cores_of(0), all, quota());
}

}  // namespace trireme
