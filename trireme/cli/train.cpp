#include <filesystem>
#include <iostream>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/paths.h"
#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/cli/command.h"
#include "trireme/comm/core_sharing.h"
#include "trireme/comm/cores.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/world.h"
#include "trireme/spec/config.h"
#include "trireme/train/run.h"

namespace trireme {

namespace {

struct TrainOptions {
  std::vector<std::string> words;
  int ranks = 0, hosts = 0;
  bool resume = false, dry_run = false, json = false, help_config = false, markdown = false, threads = false;
  std::string from, plan, memory;
};

struct Request {
  RunConfig config;
  RunOptions run;
};

// The folder of the run that --from names, itself or by one of its checkpoints.
std::filesystem::path run_of(const std::filesystem::path& from) {
  if (!std::filesystem::exists(from / "manifest.json")) return from;
  const auto run = std::filesystem::canonical(from).parent_path().parent_path();
  return from.is_absolute() ? run : std::filesystem::proximate(run);
}

// A run goes on in its own folder.
void check_run_dir(const std::filesystem::path& from, const std::vector<std::string>& overrides) {
  const auto run = run_of(from);
  for (const auto& word : overrides) {
    if (!word.starts_with("run_dir=")) continue;
    const auto other = expand_home(word.substr(8));
    std::error_code missing;
    if (std::filesystem::equivalent(other, run, missing)) continue;
    refuse(
        "--from {} goes on in that run's folder, and {} names another: leave one of them out, or begin a new run with "
        "these weights (model.from={})",
        from.string(), word, from.string());
  }
}

Request read(const TrainOptions& options) {
  Request request;
  auto [files, overrides] = sorted(options.words);
  request.run.resume = options.resume || !options.from.empty();
  request.run.resume_from = options.from;
  request.run.quiet = options.json;
  if (!options.from.empty() && !std::filesystem::exists(options.from)) {
    const auto link = dangling_link(options.from);
    refuse("--from {}: give a run's folder or a checkpoint", link.empty() ? options.from + " does not exist" : link);
  }
  if (files.empty() && !options.from.empty()) files.push_back(run_of(options.from) / "config.yaml");
  if (!options.from.empty() && options.words.empty() && !std::filesystem::exists(files.front()))
    refuse("--from {} holds no run: there is no {}", options.from, files.front().string());
  check_configurations(files);
  if (!options.from.empty()) check_run_dir(options.from, overrides);
  if (!files.empty()) request.run.name = files.front().stem().string();
  request.run.threads = options.threads;
  if (!options.plan.empty()) request.run.plan = read_plan(options.plan);
  request.config = load_config(files, overrides, request.run.plan ? &*request.run.plan : nullptr);
  return request;
}

// Ranks to start here, and who says so unless the user does.
struct Ranks {
  int count = 1;
  std::string source;  // ", as plan.yaml says"
};

Ranks ranks_of(const TrainOptions& options, const Request& request, int otherwise = 1) {
  if (options.ranks > 0) return {options.ranks, ""};
  auto plan = request.run.plan;
  if (!plan && !options.from.empty()) plan = plan_of_run(run_of(options.from));
  if (!plan) return {otherwise, ""};
  return {static_cast<int>(plan->made_for.ranks), fmt::format(", as {} says", plan->path.string())};
}

void print(const RunForecast& forecast, const TrainOptions& options) {
  std::cout << (options.json ? forecast.json().dump() + "\n" : forecast.full());
}

int train_here(const TrainOptions& options, const Surroundings& around) {
  const auto request = read(options);
  if (request.config.train.device == DeviceKind::cpu) {
    begin_again_with_waiting_environment(command_line());
    take_short_turns();
  }
  if (around.launcher != Launcher::nobody && around.launcher != Launcher::trireme) log::info("{}", around.describe());
  const auto finish = [&](const RunResult& result) {
    if (options.json) {
      std::cout << result.json().dump() << std::endl;
    } else {
      std::cout << result.brief() << std::flush;
    }
  };
  if (options.threads) {
    RunResult result;
    World::run_threads(ranks_of(options, request).count, [&](World& world) {
      const auto mine = train(request.config, world, request.run);
      if (world.rank() == 0) result = mine;
    });
    finish(result);
    return result.stopped_by == 0 ? 0 : 128 + result.stopped_by;
  }
  const auto& comm = request.config.comm;
  const auto world = World::join(around, comm.transport, comm.links.empty() ? Links() : read_links(comm.links));
  const auto result = train(request.config, *world, request.run);
  if (world->rank() == 0) finish(result);
  if (around.ours || world->rank() != 0) log::set_file({});  // the launcher, or rank 0, says how the job ends
  // A rank that ends otherwise than with 0 is a failure to mpirun; our launcher knows that the job was asked to stop.
  if (around.launcher == Launcher::mpirun && around.ours) return 0;
  return result.stopped_by == 0 ? 0 : 128 + result.stopped_by;
}

// A run on other hosts has nothing to do with who started this process.
void describe_elsewhere(const TrainOptions& options) {
  const auto memory = options.memory.empty() ? 0 : bytes_from(options.memory);
  if (!memory) refuse("--memory {}: give a size with its unit, such as 80GiB or 512MB", options.memory);
  const auto request = read(options);
  print(forecast_run(request.config, ranks_of(options, request, options.hosts).count, request.run,
                     OtherHosts{options.hosts, *memory}),
        options);
}

int run_train(const TrainOptions& options) {
  if (options.help_config || options.markdown) {
    RunConfig config;
    const auto settings = describe(config);
    const std::string title =
        "# Configuration\n\nEvery setting of `trireme train`, as YAML or as `key=value`. `make docs` writes this "
        "page.\n\n";
    std::cout << (options.markdown ? title + settings.markdown() : settings.help());
    return 0;
  }
  const auto around = look_around();
  if (options.hosts > 0) {
    if (around.rank == 0) describe_elsewhere(options);
    return 0;
  }
  if (around.launcher != Launcher::nobody) {
    if (options.threads)
      refuse("--threads makes all ranks of a run in one process, but {}: leave --threads out", around.describe());
    if (options.ranks > 0 && options.ranks != around.size) {
      refuse("--ranks {}, but {}: leave --ranks out", options.ranks, around.describe());
    }
    log::set_rank(around.rank);
    if (options.dry_run) {
      if (around.rank == 0) {
        const auto request = read(options);
        print(forecast_run(request.config, around.size, request.run), options);
      }
      return 0;
    }
    return train_here(options, around);
  }
  const auto request = read(options);  // refuse bad input before any rank is started
  const auto [ranks, source] = ranks_of(options, request);
  if (options.dry_run) {
    print(forecast_run(request.config, ranks, request.run), options);
    return 0;
  }
  if (ranks == 1 || options.threads) return train_here(options, around);
  check_run(request.config, ranks, request.run);
  if (ranks > usable_cores() && request.config.train.device == DeviceKind::cpu) {
    log::info("{} ranks share {}: they will take turns", ranks, counted(usable_cores(), "core"));
  }
  LaunchOptions launch_options;
  launch_options.ranks = ranks;
  launch_options.mpirun = request.config.comm.transport == TransportKind::mpi;
  launch_options.threads_per_rank = threads_per_rank(request.config, ranks);
  launch_options.arguments = command_line();
  launch_options.advice = "; continue it with --resume";
  if (!options.json)
    log::info("starting {} ranks{}{}", ranks, launch_options.mpirun ? " by mpirun" : " on this host", source);
  return launch(launch_options);
}

}  // namespace

void add_train(CLI::App& program, Action& chosen) {
  auto options = std::make_shared<TrainOptions>();
  auto* command = program.add_subcommand("train", "Train a model on one or more ranks");
  command->footer("Example: trireme train examples/gpt.yaml train.steps=200 --ranks 2");
  command->add_option("config", options->words, "Configuration files (later ones win) and key=value overrides");
  command
      ->add_option("--ranks", options->ranks,
                   "Ranks to start on this host (default 1, or those of --plan or --from; not under mpirun, srun or "
                   "torchrun)")
      ->check(at_least(1));
  command->add_flag("--resume", options->resume,
                    "Continue the newest run of this configuration from its newest checkpoint");
  takes_path(command->add_option("--from", options->from, "Continue this run (its folder) or this checkpoint"));
  takes_path(command->add_option(
      "--plan", options->plan,
      "Split the work as this plan says (plan.yaml of a run's folder); wins over configuration files"));
  command->add_flag("--threads", options->threads, "Make the ranks threads of one process");
  command->add_flag("--dry-run", options->dry_run, "Check everything and say what the run would be, without training");
  auto* hosts = command
                    ->add_option("--hosts", options->hosts,
                                 "With --dry-run: say what it would be on so many other hosts (a rank each, or --ranks)")
                    ->check(at_least(1))
                    ->needs("--dry-run");
  command
      ->add_option("--memory", options->memory,
                   "What each of these hosts can hold, or on cards each card, such as 80GiB")
      ->needs(hosts);
  command->add_flag("--json", options->json,
                    "Print the result, or what --dry-run finds, as one JSON object, and no progress");
  command->add_flag("--help-config", options->help_config,
                    "List every setting with its meaning, unit, default and bounds");
  command->add_flag("--help-config-markdown", options->markdown, "The same as a page of documentation");
  command->callback([options, &chosen] { chosen = [options] { return run_train(*options); }; });
}

}  // namespace trireme
