#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/cli/command.h"
#include "trireme/train/evaluate.h"

namespace trireme {

void add_evaluate(CLI::App& program, Action& chosen) {
  struct Options {
    std::vector<std::string> words;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  auto* command =
      program.add_subcommand("evaluate", "Evaluate checkpoints on held-out samples, each and as an ensemble");
  command->footer("Example: trireme evaluate runs/gpt-1 runs/gpt-2 train.eval_batches=20");
  command
      ->add_option(
          "checkpoints", options->words,
          "Runs' folders (their newest checkpoints), checkpoints or Hugging Face's, and key=value overrides to "
          "the settings of the first")
      ->required();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, &chosen] {
    chosen = [options] {
      const auto [from, overrides] = sorted(options->words);
      if (from.empty()) refuse("evaluate needs a checkpoint: a run's folder, or one of its checkpoints");
      const auto result = evaluate(from, overrides);
      std::cout << (options->json ? result.json().dump() + "\n" : result.brief()) << std::flush;
      return 0;
    };
  });
}

}  // namespace trireme
