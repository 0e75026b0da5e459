#include <torch/version.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/cli/command.h"
#include "trireme/comm/cores.h"
#include "trireme/comm/mpi.h"
#include "trireme/comm/world.h"
#include "trireme/device/device.h"
#include "trireme/observe/tensorboard.h"

namespace trireme {

namespace {

struct Finding {
  std::string part;
  bool good;
  std::string what;  // what was found, or what to do
};

std::string on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto candidate = std::filesystem::path(folder) / program;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return "";
}

std::vector<Finding> examine() {
  std::vector<Finding> found;
  const auto program = [&](const char* part, const char* name, const char* remedy) {
    const auto path = on_path(name);
    found.push_back({part, !path.empty(), path.empty() ? remedy : path});
  };
  found.push_back({"cores", true, fmt::format("{} usable", usable_cores())});
  const auto memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  found.push_back({"memory", true, human_bytes(memory)});
  std::error_code error;
  const auto shared = std::filesystem::space("/dev/shm", error);
  const bool enough = !error && shared.available > (256u << 20);
  found.push_back({"shared memory", enough,
                   error ? "no /dev/shm: ranks of one host need comm.transport=mpi"
                         : human_bytes(static_cast<double>(shared.available)) +
                               (enough ? " free" : " free: too little for gradients of several ranks")});
  found.push_back({"LibTorch", true, TORCH_VERSION});
  found.push_back(
      {"CUDA", cuda_available(), cuda_available() ? describe(at::Device(at::kCUDA, 0)) : "none: train.device=cpu"});
  found.push_back({"MPI", mpi_built(),
                   mpi_built() ? "built in" : "not built in: install libopenmpi-dev openmpi-bin and build again"});
  program("mpirun", "mpirun", "not found: install openmpi-bin for jobs on several hosts");
  program("Slurm", "srun", "not found: only needed on Slurm clusters");
  found.push_back({"TensorBoard files", tensorboard_built(),
                   tensorboard_built() ? "built in" : "not built in: install libprotozero-dev and build again"});
  try {
    found.push_back({"launcher", true, look_around().describe()});
  } catch (const Error& error) {
    found.push_back({"launcher", false, error.what()});
  }
  return found;
}

}  // namespace

void add_doctor(CLI::App& program, Action& chosen) {
  auto json = std::make_shared<bool>(false);
  auto* command = program.add_subcommand("doctor", "Say what this machine has and what is missing");
  command->footer("Example: trireme doctor");
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([json, &chosen] {
    chosen = [json] {
      nlohmann::ordered_json all;
      for (const auto& [part, good, what] : examine()) {
        all[part] = {{"good", good}, {"what", what}};
        if (!*json) std::cout << fmt::format("{:<18} {}  {}\n", part, good ? "ok" : "--", what);
      }
      if (*json) std::cout << all.dump() << std::endl;
      return 0;
    };
  });
}

}  // namespace trireme
