#include "trireme/bench/shared.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/statistics.h"
#include "trireme/comm/cores.h"
#include "trireme/comm/process.h"
#include "trireme/engine/executor.h"

namespace trireme {

namespace fs = std::filesystem;

double fair_part(int cores, int threads, int others) {
  return std::min(1.0, static_cast<double>(cores) / (threads + others));
}

std::vector<nlohmann::json> steps_between(const fs::path& metrics, uintmax_t from, uintmax_t to) {
  std::ifstream file(metrics);
  std::vector<nlohmann::json> steps;
  uintmax_t at = 0;
  for (std::string text; at < to && std::getline(file, text);) {
    const uintmax_t begun = at;
    at += text.size() + 1;
    if (begun < from || at > to) continue;
    auto line = nlohmann::json::parse(text, nullptr, false);
    if (line.is_object() && line.contains("tokens_per_s")) steps.push_back(std::move(line));
  }
  return steps;
}

double tokens_per_s(const std::vector<nlohmann::json>& steps) {
  double tokens = 0;
  for (size_t i = 1; i < steps.size(); ++i)
    tokens += steps[i].at("tokens_per_s").get<double>() * steps[i].at("step_s").get<double>();
  return tokens / (steps.back().at("elapsed_s").get<double>() - steps.front().at("elapsed_s").get<double>());
}

namespace {

constexpr double warmup_s = 1;  // of a run that takes steps already
constexpr double longest_wait_s = 120;
constexpr size_t least_steps = 5;  // a run that hardly moves is watched until it has taken so many

struct SharedModel {
  std::string name, title;  // the case's name
  std::vector<std::string> settings;
};

const std::vector<SharedModel>& models() {
  static const std::vector<SharedModel> models{
      {"shared", "default gpt", {}},
      // A step of a few hundred microseconds, in which threads meet dozens of times.
      {"shared-tiny",
       "tiny gpt",
       {"model.layers=2", "model.width=32", "model.heads=2", "model.context=32", "model.vocab=256", "train.batch=4"}}};
  return models;
}

struct Situation {
  std::string title;
  int loops = 0, runs = 1;
};

const std::vector<Situation>& situations() {
  static const std::vector<Situation> situations{{"alone"},
                                                 {"beside an endless loop on one core", 1},
                                                 {"beside endless loops on two cores", 2},
                                                 {"beside a second run of the same", 0, 2}};
  return situations;
}

// The cores that this process may use.
std::vector<int> own_core_numbers() {
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) fail_errno("sched_getaffinity");
  std::vector<int> numbers;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mine)) numbers.push_back(core);
  }
  return numbers;
}

// A process that does nothing but use one core, for as long as this object lives.
class EndlessLoop {
 public:
  explicit EndlessLoop(int core) {
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) fail_errno("fork");
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) _exit(1);
    volatile uint64_t turns = 0;
    while (true) turns = turns + 1;
  }
  ~EndlessLoop() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  EndlessLoop(const EndlessLoop&) = delete;
  EndlessLoop& operator=(const EndlessLoop&) = delete;

 private:
  pid_t pid_ = -1;
};

// A run of `trireme train` without an end, which is asked to stop.
class EndlessRun {
 public:
  EndlessRun(const SharedModel& model, const fs::path& run_dir)
      : run_dir_(run_dir), metrics_(run_dir / "metrics.jsonl"), output_(run_dir.string() + ".txt") {
    std::vector<std::string> words{own_program(),
                                   "train",
                                   "--json",
                                   "--ranks",
                                   "1",
                                   "data.kind=synthetic",
                                   "train.steps=1000000000",
                                   "train.eval_batches=0",
                                   "data.validation=0",
                                   "checkpoint.every=0",
                                   "log.tensorboard=false",
                                   "run_dir=" + run_dir_.string()};
    words.insert(words.end(), model.settings.begin(), model.settings.end());
    pid_ = start_process({words, {}, output_});
  }
  ~EndlessRun() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    std::error_code ignored;
    fs::remove_all(run_dir_, ignored);
    fs::remove(output_, ignored);
  }
  EndlessRun(const EndlessRun&) = delete;
  EndlessRun& operator=(const EndlessRun&) = delete;

  // Whether it takes steps; fails if it has ended instead.
  bool steps() {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      fail("a run ended by itself with status {} and said: {}", status, said());
    }
    return !lines(0, written()).empty();
  }

  // How much of its metrics is written: a moment of the run.
  uintmax_t written() const {
    std::error_code not_yet;
    const auto size = fs::file_size(metrics_, not_yet);
    return not_yet ? 0 : size;
  }

  size_t steps_since(uintmax_t moment) const { return lines(moment, written()).size(); }

  void ask_to_stop() const { ::kill(pid_, SIGTERM); }
  void wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 128 + SIGTERM)
      fail("a run that was asked to stop ended with status {} and said: {}", status, said());
  }

  // Tokens a second between two moments.
  double speed(uintmax_t from, uintmax_t to) const { return tokens_per_s(lines(from, to)); }

 private:
  std::vector<nlohmann::json> lines(uintmax_t from, uintmax_t to) const { return steps_between(metrics_, from, to); }

  std::string said() const {
    std::ifstream file(output_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path run_dir_, metrics_, output_;
  pid_t pid_ = -1;
};

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The speeds of the runs of one situation, which share the machine in the same seconds.
std::vector<double> speeds_of(const SharedModel& model, const Situation& situation, double seconds,
                              const fs::path& folder) {
  const auto cores = own_core_numbers();
  std::vector<std::unique_ptr<EndlessLoop>> loops;
  for (int i = 0; i < situation.loops; ++i)
    loops.push_back(std::make_unique<EndlessLoop>(cores[static_cast<size_t>(i) % cores.size()]));
  std::vector<std::unique_ptr<EndlessRun>> runs;
  for (int i = 0; i < situation.runs; ++i)
    runs.push_back(std::make_unique<EndlessRun>(model, folder / fmt::format("shared-{}", i)));
  const RealClock clock;
  const double begun = clock.now_s();
  while (!std::all_of(runs.begin(), runs.end(), [](const auto& run) { return run->steps(); })) {
    if (clock.now_s() - begun > longest_wait_s) fail("a run took no step within {} s", longest_wait_s);
    sleep_for(0.1);
  }
  sleep_for(warmup_s);
  std::vector<uintmax_t> from;
  for (const auto& run : runs) from.push_back(run->written());
  sleep_for(seconds);
  const double watched = clock.now_s();
  for (size_t i = 0; i < runs.size(); ++i) {
    while (runs[i]->steps_since(from[i]) < least_steps) {
      if (clock.now_s() - watched > longest_wait_s)
        fail("a run took less than {} steps within {} s", least_steps, longest_wait_s);
      sleep_for(0.1);
    }
  }
  std::vector<double> speeds;
  for (size_t i = 0; i < runs.size(); ++i) speeds.push_back(runs[i]->speed(from[i], runs[i]->written()));
  for (const auto& run : runs) run->ask_to_stop();
  for (const auto& run : runs) run->wait();
  return speeds;
}

}  // namespace

bool is_shared_case(const std::string& name) {
  return std::any_of(models().begin(), models().end(), [&](const auto& model) { return model.name == name; });
}

void measure_shared(const std::string& name, const SharedBenchOptions& options, const fs::path& folder,
                    const std::function<void(const BenchLine&)>& each) {
  const int cores = usable_cores(), threads = cores;  // of one rank
  for (const auto& model : models()) {
    if (model.name != name) continue;
    std::vector<std::vector<double>> runs(situations().size());
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      log::info("{} on a shared machine: repeat {} of {}", model.title, repeat + 1, options.repeats);
      std::vector<std::function<void()>> sides;
      for (size_t i = 0; i < runs.size(); ++i) {
        sides.push_back(
            [&, i] { runs[i].push_back(mean(speeds_of(model, situations()[i], options.seconds, folder))); });
      }
      alternate(repeat, sides);
    }
    const double alone = median(runs[0]);
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto& situation = situations()[i];
      const int others = situation.loops + (situation.runs - 1) * threads;
      const double fair = fair_part(cores, threads, others), reached = median(runs[i]) / (fair * alone);
      BenchLine line;
      line.bench = "train";
      line.bench_case = fmt::format("{} {}", model.title, situation.title);
      line.unit = "tokens/s";
      line.smaller_is_better = false;
      line.ours = runs[i];
      line.settings = {{"cores", cores},    {"threads", threads},        {"other_threads", others},
                       {"fair_part", fair}, {"of_fair_part", reached},   {"all", runs[i]},
                       {"alone", alone},    {"seconds", options.seconds}};
      if (others > 0) {
        line.floor = fair * alone;
        line.remark =
            fmt::format("{:.0f} % of the fair part, {:.2f} of the speed alone: {} cores / ({} threads + {} others)",
                        100 * reached, fair, cores, threads, others);
      }
      each(line);
    }
  }
}

}  // namespace trireme
