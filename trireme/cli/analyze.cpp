#include <filesystem>
#include <iostream>
#include <memory>

#include "trireme/base/files.h"
#include "trireme/base/paths.h"
#include "trireme/cli/command.h"
#include "trireme/spec/analysis.h"
#include "trireme/spec/config.h"
#include "trireme/train/vocabulary.h"

namespace trireme {

namespace {

struct AnalyzeOptions {
  std::vector<std::string> words;
  std::vector<int> ranks{2, 4, 8};
  std::string plot;
  bool json = false;
};

int run_analyze(const AnalyzeOptions& options) {
  const auto words = sorted(options.words);
  check_configurations(words.paths);
  if (!options.plot.empty()) prepare_output_file("--plot", options.plot);
  const auto config = load_config(words.paths, words.overrides);
  auto analysis = analyze(config, vocabulary_of(config));
  analysis.ranks = options.ranks;
  if (!options.plot.empty()) write_atomically(options.plot, analysis.svg());
  std::cout << (options.json ? analysis.json().dump() + "\n" : analysis.full()) << std::flush;
  if (!options.plot.empty() && !options.json) std::cout << "picture: " << options.plot << std::endl;
  return 0;
}

}  // namespace

void add_analyze(CLI::App& program, Action& chosen) {
  auto options = std::make_shared<AnalyzeOptions>();
  auto* command = program.add_subcommand("analyze", "Say what a model costs, layer by layer, without running it");
  command->footer("Example: trireme analyze examples/gpt.yaml model.layers=12 --plot gpt.svg");
  command->add_option("config", options->words, "Configuration files (later ones win) and key=value overrides");
  command->add_option("--ranks", options->ranks, "Numbers of ranks to split it over")->check(at_least(2));
  takes_path(command->add_option("--plot", options->plot, "Also draw it, into this SVG file"));
  command->add_flag("--json", options->json, "Print it as one JSON object");
  command->callback([options, &chosen] { chosen = [options] { return run_analyze(*options); }; });
}

}  // namespace trireme
