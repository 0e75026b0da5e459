#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "trireme/cli/command.h"
#include "trireme/train/average.h"

namespace trireme {

void add_average(CLI::App& program, Action& chosen) {
  struct Options {
    std::string to;
    std::vector<std::filesystem::path> from;
    std::vector<double> weights;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  auto* command = program.add_subcommand("average", "Make one checkpoint of the mean of several");
  command->footer("Example: trireme average runs/mean runs/gpt-1 runs/gpt-2 --weights 2,1");
  takes_path(command->add_option("out", options->to, "The folder to make: a run's, with the mean as its checkpoint"))
      ->required();
  takes_path(
      command->add_option("checkpoints", options->from, "Checkpoints of one model; a run's folder means its newest"))
      ->required();
  command->add_option("--weights", options->weights, "How much each counts: 2,1 (default: all the same)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, &chosen] {
    chosen = [options] {
      const auto result = average(options->from, options->weights, options->to);
      std::cout << (options->json ? result.json().dump() + "\n" : result.brief()) << std::flush;
      return 0;
    };
  });
}

}  // namespace trireme
