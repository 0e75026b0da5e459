#include <iostream>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/cli/command.h"
#include "trireme/comm/world.h"
#include "trireme/train/sweep.h"

namespace trireme {

namespace {

struct Options {
  std::vector<std::string> words;
  std::string folder;
  SweepOptions sweep;
  bool json = false;
};

int run_sweep(Options& options) {
  auto& wanted = options.sweep;
  const auto around = look_around();
  if (around.launcher != Launcher::nobody)
    refuse("a sweep starts its own runs, and this one was {}: start it by itself", around.describe());
  const auto words = sorted(options.words);
  check_configurations(words.paths);
  wanted.files = words.paths;
  wanted.overrides = words.overrides;
  const auto name = wanted.files.empty() ? std::string("sweep") : wanted.files.front().stem().string();
  wanted.folder =
      options.folder.empty() ? std::filesystem::path("sweeps") / name : std::filesystem::path(options.folder);
  wanted.quiet = options.json;
  const auto result = sweep(wanted);
  std::cout << (options.json ? result.json().dump() + "\n" : result.brief()) << std::flush;
  return result.exit_status();
}

}  // namespace

void add_sweep(CLI::App& program, Action& chosen) {
  auto options = std::make_shared<Options>();
  auto& sweep = options->sweep;
  auto* command = program.add_subcommand("sweep", "Train with many settings, several runs at once, and find the best");
  command->footer("Example: trireme sweep examples/gpt.yaml --grid optimizer.lr=3e-4,1e-3,3e-3 --ranks 2");
  command->add_option("config", options->words, "Configuration files (later ones win) and key=value overrides");
  command->add_option("--grid", sweep.grid, "An axis: key=v1,v2,v3; several make their product")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--random", sweep.random,
          "An axis to draw from: key=low..high, key=log:low..high or key=a|b|c; whole bounds give whole numbers")
      ->allow_extra_args(false);
  command->add_option("--trials", sweep.trials, "Points of a random search")->check(at_least(1));
  command->add_option("--seed", sweep.seed, "Which random points")->capture_default_str();
  command->add_option("--ranks", sweep.ranks, "Ranks on this host for all runs together")
      ->capture_default_str()
      ->check(at_least(1));
  command->add_option("--ranks-per-run", sweep.ranks_per_run, "Ranks of each run")
      ->capture_default_str()
      ->check(at_least(1));
  command->add_option("--best", sweep.best, "What is compared: eval_loss, eval_accuracy or loss")
      ->capture_default_str()
      ->check(CLI::IsMember({"eval_loss", "eval_accuracy", "loss"}));
  takes_path(
      command->add_option("--out", options->folder, "Folder of the sweep (default: sweeps/NAME of the configuration)"));
  command->add_flag("--keep-all", sweep.keep_all, "Keep the checkpoints of all points, not only of the best");
  command->add_flag("--resume", sweep.resume, "Go on with a sweep that was stopped: what is done is not run again");
  command->add_flag("--json", options->json, "Print the result as one JSON object, and no progress");
  command->callback([options, &chosen] { chosen = [options] { return run_sweep(*options); }; });
}

}  // namespace trireme
