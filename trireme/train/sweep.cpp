#include "trireme/train/sweep.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/folder_lock.h"
#include "trireme/base/log.h"
#include "trireme/base/paths.h"
#include "trireme/base/words.h"
#include "trireme/base/units.h"
#include "trireme/comm/cores.h"
#include "trireme/comm/process.h"
#include "trireme/observe/board.h"
#include "trireme/spec/config.h"
#include "trireme/spec/config_paths.h"
#include "trireme/spec/source_model.h"
#include "trireme/train/run.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Status = PointResult::Status;

namespace {

// What all points share, as far as it can be known without them: together they may be refused.
RunConfig shared_config(const SweepOptions& options) {
  RunConfig config;
  auto settings = describe(config);
  for (const auto& file : options.files) settings.read_file(file);
  for (const auto& one : options.overrides) settings.override_with(one);
  expand_paths(config);
  return config;
}

std::vector<SweepAxis> read_axes(const SweepOptions& options) {
  if (options.grid.empty() == options.random.empty())
    refuse("a sweep tries a --grid, or --random values: give axes of one of the two");
  std::vector<SweepAxis> axes;
  for (const auto& text : options.grid) axes.push_back(SweepAxis::grid(text));
  for (const auto& text : options.random) axes.push_back(SweepAxis::random(text));
  if (options.random.empty() && options.trials > 0) refuse("--trials belongs to --random: a grid has all its points");
  if (!options.random.empty() && options.trials < 1) refuse("--random needs --trials: how many points to draw");
  for (size_t i = 0; i < axes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (axes[i].key == axes[j].key) refuse("{} is an axis twice", axes[i].key);
    }
    if (axes[i].key == "run_dir") refuse("run_dir cannot be an axis: each point gets a folder of its own");
  }
  return axes;
}

// Each value by itself must be one that its setting takes.
void check_values(const std::vector<SweepAxis>& axes, const std::vector<SweepPoint>& points) {
  RunConfig scratch;
  auto settings = describe(scratch);
  for (const auto& axis : axes) {
    for (const auto& value : axis.values) {
      settings.override_with(axis.key + "=" + value);
      settings.check();
    }
  }
  for (const auto& point : points) {
    for (const auto& [key, value] : point) settings.override_with(key + "=" + value);
    settings.check();
  }
}

std::vector<std::string> assignments(const SweepOptions& options, const SweepPoint& point) {
  auto words = options.overrides;
  for (const auto& [key, value] : point) words.push_back(key + "=" + value);
  return words;
}

// Settings that do not go together are a matter of a point, and recorded there; a sweep none of whose points could run
// is refused, as is one whose first good point finds no data or reports nothing to compare.
void check_points(const SweepOptions& options, const std::vector<SweepPoint>& points) {
  std::optional<RunConfig> config;
  std::optional<Error> problem;
  for (size_t i = 0; i < points.size() && !config; ++i) {
    try {
      config = load_config(options.files, assignments(options, points[i]));
    } catch (const Error& error) {
      if (!problem) problem = error;
    }
  }
  if (!config) throw *problem;
  const bool evaluates = config->data.validation > 0 && config->train.eval_batches > 0;
  if (options.best != "loss" && !evaluates)
    refuse("--best {} needs held-out samples: set data.validation and train.eval_batches, or use --best loss",
           options.best);
  if (options.best == "eval_accuracy" && reads_tokens(config->model.kind))
    refuse("--best eval_accuracy is of classifiers: use --best eval_loss");
  check_run(*config, options.ranks_per_run);
}

// The last step that a run wrote down.
ordered_json last_step(const fs::path& run_dir) {
  std::ifstream stream(run_dir / "metrics.jsonl");
  ordered_json last;
  for (std::string text; std::getline(stream, text);) {
    auto line = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (line.is_object() && line.contains("loss")) last = std::move(line);
  }
  return last;
}

// Why a run failed: its own last word, or how it ended.
std::string reason(const fs::path& output, int status) {
  std::ifstream stream(output);
  std::string last;
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind("error: ", 0) == 0) last = line.substr(7);
  }
  if (!last.empty()) return last;
  const auto how = WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                                       : fmt::format("ended with status {}", WEXITSTATUS(status));
  return fmt::format("the run {}; what it said is in {}", how, output.string());
}

fs::path folder_of(const SweepResult& result, const PointResult& point) {
  return result.folder / fmt::format("point-{}", point.number);
}

class Sweep {
 public:
  Sweep(const SweepOptions& options, SweepResult& result)
      : options_(options), result_(result), shared_(shared_config(options)) {
    for (auto& point : result_.points) {
      if (point.status != Status::done) waiting_.push_back(&point);
    }
    free_ = options.ranks / options.ranks_per_run;
    tidy();  // the last sweep may have been killed before it did
  }

  void run(const Signals& signals) {
    record();
    while (!running_.empty() || (!waiting_.empty() && result_.stopped_by == 0)) {
      while (free_ > 0 && !waiting_.empty() && result_.stopped_by == 0) {
        auto& point = *waiting_.front();
        waiting_.pop_front();
        try {
          start(point);
        } catch (const Error& error) {  // as where the disk is full
          lose(point, error.what());
          settle(point);
        }
      }
      signals.wait([&](int signal) { ask(signal); }, [&](pid_t pid, int status) { ended(pid, status); });
    }
  }

 private:
  struct Running {
    PointResult* point = nullptr;
    int64_t begun_ns = 0;
  };

  fs::path folder_of(const PointResult& point) const { return trireme::folder_of(result_, point); }

  void start(PointResult& point) {
    const auto folder = folder_of(point);
    make_folder(folder);
    std::vector<std::string> words{own_program(), "train"};
    for (const auto& file : options_.files) words.push_back(file.string());
    // Runs beside each other would all take all cores.
    if (shared_.train.threads == 0)
      words.push_back(fmt::format("train.threads={}", std::max(1, usable_cores() / options_.ranks)));
    const auto given = assignments(options_, point.settings);
    words.insert(words.end(), given.begin(), given.end());
    words.push_back("run_dir=" + folder.string());
    for (const auto& word : {std::string("--json"), std::string("--ranks"), std::to_string(options_.ranks_per_run)})
      words.push_back(word);
    if (!list_checkpoints(folder).empty()) words.emplace_back("--resume");  // it was stopped, and saved
    running_[start_process({words, {}, folder / "output.txt"})] = {&point, monotonic_ns()};
    --free_;
  }

  void ask(int signal) {
    if (signal != SIGTSTP) return ask_to_stop(signal);
    std::vector<pid_t> runs;
    for (const auto& [pid, run] : running_) runs.push_back(pid);
    suspend_together(runs, /*patience_s=*/10);  // each first stops its ranks
  }

  void ask_to_stop(int signal) {
    if (result_.stopped_by == 0 && !options_.quiet) {
      log::info("{}: the runs end their steps and save (again: leave at once); go on with --resume",
                signal == SIGINT ? "ctrl-C" : "asked to stop");
    }
    result_.stopped_by = signal;
    for (const auto& [pid, run] : running_) ::kill(pid, signal);
  }

  void ended(pid_t pid, int status) {
    const auto found = running_.find(pid);
    if (found == running_.end()) return;
    auto& point = *found->second.point;
    const double seconds = static_cast<double>(monotonic_ns() - found->second.begun_ns) * 1e-9;
    running_.erase(found);
    ++free_;
    const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    const bool stopped = result_.stopped_by != 0 && (WIFSIGNALED(status) || WEXITSTATUS(status) > 128);
    if (stopped) return;  // it waits for the sweep to go on
    good ? take(point) : lose(point, reason(folder_of(point) / "output.txt", status));
    point.seconds = seconds;
    settle(point);
  }

  // After a point has ended, however it did.
  void settle(const PointResult& point) {
    tidy();
    record();
    if (!options_.quiet) tell(point);
  }

  void take(PointResult& point) {
    const auto last = last_step(folder_of(point));
    const auto number = [&](const char* key) {
      return last.is_object() && last.contains(key) && last[key].is_number() ? std::optional(last[key].get<double>())
                                                                             : std::nullopt;
    };
    if (!last.is_object() || !last.contains(result_.best))
      return lose(point,
                  fmt::format("it reported no {} in {}", result_.best, (folder_of(point) / "metrics.jsonl").string()));
    point.status = Status::done;
    point.error.clear();
    point.loss = number("loss");
    point.eval_loss = number("eval_loss");
    point.eval_accuracy = number("eval_accuracy");
    const auto checkpoints = list_checkpoints(folder_of(point));
    if (!checkpoints.empty()) point.checkpoint = checkpoints.front().string();
  }

  static void lose(PointResult& point, std::string why) {
    point.status = Status::failed;
    point.error = std::move(why);
  }

  // Of the points that have ended only the best one's checkpoints stay: a sweep must not fill the disk with the
  // others'.
  void tidy() {
    const auto* best = result_.winner();
    for (auto& point : result_.points) {
      if (options_.keep_all || point.status == Status::waiting || &point == best) continue;
      remove_tree(folder_of(point) / "checkpoints");
      point.checkpoint.clear();
    }
  }

  // A full disk must not end the runs: what could not be written now is written with the next point.
  void record() const {
    try {
      result_.write();
    } catch (const Error& error) {
      log::warn("{}: the sweep goes on, and tries again with its next point", error.what());
    }
  }

  void tell(const PointResult& point) const {
    const auto objective = point.objective(result_.best);
    const auto found = point.status == Status::failed ? "failed: " + point.error
                       : objective                    ? fmt::format("{} {:.4f}", result_.best, *objective)
                                                      : fmt::format("{} is not finite", result_.best);
    log::info("point {} ({}): {}{}, {}; {} of {} done, {} failed, {} running", point.number, describe(point.settings),
              found, &point == result_.winner() ? " (the best so far)" : "", human_seconds(point.seconds),
              result_.count(Status::done), result_.points.size(), result_.count(Status::failed), running_.size());
  }

  const SweepOptions& options_;
  SweepResult& result_;
  const RunConfig shared_;
  std::deque<PointResult*> waiting_;
  std::map<pid_t, Running> running_;
  int free_ = 1;  // places for runs
};

void check_folder(const SweepOptions& options) {
  FolderLock::check_free(options.folder);
  const bool holds = fs::exists(options.folder / "sweep.jsonl");
  if (holds && !options.resume) {
    refuse("{} already holds a sweep: go on with --resume, or name another folder with --out", options.folder.string());
  }
  if (!holds && options.resume) refuse("there is no sweep to go on with in {}", options.folder.string());
  check_output_folder(options.folder);
}

}  // namespace

SweepResult sweep(const SweepOptions& options) {
  const Signals signals;  // before anything makes threads
  SweepResult result;
  result.folder = options.folder;
  result.best = options.best;
  result.axes = read_axes(options);
  if (options.ranks_per_run > options.ranks)
    refuse("--ranks-per-run {} is more than --ranks {}: a run cannot have more than there are", options.ranks_per_run,
           options.ranks);
  const auto shared = resolved_yaml(shared_config(options));
  const auto points =
      options.random.empty() ? grid_points(result.axes) : random_points(result.axes, options.trials, options.seed);
  check_values(result.axes, points);
  check_folder(options);
  check_points(options, points);
  for (const auto& point : points) {
    auto& one = result.points.emplace_back();
    one.number = static_cast<int64_t>(result.points.size());
    one.settings = point;
  }
  const auto& axes = options.random.empty() ? options.grid : options.random;
  result.header = {{"best", options.best}, {"axes", axes}, {"seed", options.seed}, {"config", shared}};
  if (options.resume) result.read();
  auto lock = FolderLock::take(options.folder);
  lock.keep();
  // A sweep that was killed leaves runs that are still saving: their points cannot be started again before they end.
  for (const auto& point : result.points) FolderLock::check_free(folder_of(result, point));
  if (!options.quiet) {
    log::info("{}, {} done before; {} of {} at once; folder: {}", counted(std::ssize(points), "point"),
              result.count(Status::done), counted(options.ranks / options.ranks_per_run, "run"),
              counted(options.ranks_per_run, "rank"), options.folder.string());
  }
  Sweep(options, result).run(signals);
  result.write();
  write_atomically(options.folder / "sweep.html", result.page());
  return result;
}

}  // namespace trireme
