#include "trireme/bench/sync.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/log.h"
#include "trireme/base/statistics.h"
#include "trireme/observe/chart.h"
#include "trireme/bench/peer.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

constexpr int64_t batch = 128;

// A kind with the settings that it is measured with.
struct KnownKind {
  std::string name;
  std::vector<std::string> settings;
  std::vector<std::string> slow_settings;  // instead of these, where a rank is slow
  bool bursts = false;                     // made for ranks that are late now and then, not always
};

const std::vector<KnownKind>& known_kinds() {
  static const std::vector<KnownKind> kinds{{"allreduce", {}, {}},
                                            {"stale",
                                             {"sync.staleness=1", "optimizer.kind=adamw", "optimizer.lr=2e-3",
                                              "optimizer.beta2=0.99", "optimizer.weight_decay=0.01"},
                                             {"sync.staleness=32"},
                                             true},
                                            {"eager", {"sync.eager=majority", "sync.every=4"}, {"sync.every=1000"}},
                                            {"local", {"sync.every=8"}, {"sync.every=32", "sync.overlap=true"}, true},
                                            {"server",
                                             {"sync.staleness=-1", "optimizer.kind=adamw", "optimizer.lr=2e-3",
                                              "optimizer.beta2=0.99", "optimizer.weight_decay=0.01"},
                                             {"sync.staleness=-1"}},
                                            {"elastic", {"sync.every=4", "optimizer.lr=0.1"}, {"sync.every=4"}},
                                            {"gossip", {"sync.every=1"}, {"sync.every=1"}},
                                            {"hogwild", {}, {}}};
  return kinds;
}

// The task, the same for all kinds.
std::vector<std::string> task() {
  return {"model.kind=cnn",
          "model.image=28",
          "model.channels=1",
          "data.kind=images",
          "train.batch=128",
          "train.eval_batches=1000",
          "train.threads=1",
          "optimizer.kind=sgd",
          "optimizer.lr=0.05",
          "optimizer.momentum=0.9",
          "optimizer.weight_decay=5e-4",
          "optimizer.clip=0",
          "optimizer.warmup=50",
          "optimizer.schedule=cosine",
          "optimizer.final_lr=0.02",
          "checkpoint.every=0",
          "watchdog.replicas=0",
          "log.tensorboard=false"};
}

// Loss against time: what a run's metrics say.
struct Trail {
  std::vector<std::pair<double, double>> losses;  // seconds and loss
  double samples_per_s = 0;
  double accuracy = 0;
};

Trail read_trail(const fs::path& metrics) {
  Trail trail;
  std::ifstream file(metrics);
  std::vector<std::pair<double, double>> steps;  // seconds, and batches that all ranks have worked through
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("loss") || !line["loss"].is_number()) continue;
    steps.emplace_back(line["elapsed_s"].get<double>(), line.value("batches", line["step"].get<double>()));
    trail.losses.emplace_back(steps.back().first, line["loss"].get<double>());
    if (line.contains("eval_accuracy")) trail.accuracy = 100 * line["eval_accuracy"].get<double>();
  }
  // Without the first eighth, which pays for caches, and the last line, which waited for everybody and evaluated.
  if (steps.size() < 4) fail("{} tells of {} steps only", metrics.string(), steps.size());
  const auto& first = steps[steps.size() / 8];
  const auto& last = steps[steps.size() - 2];
  trail.samples_per_s = (last.second - first.second) * batch / (last.first - first.first);
  return trail;
}

class Bench {
 public:
  Bench(const SyncBenchOptions& options, fs::path folder) : options_(options), folder_(std::move(folder)) {}

  SyncBenchLine measure(const KnownKind& kind) {
    SyncBenchLine line;
    line.kind = kind.name;
    if (options_.part != "straggler") line.settings = fmt::format("{}", fmt::join(kind.settings, " "));
    if (options_.part != "straggler") {
      for (int seed = 1; seed <= options_.seeds; ++seed) {
        log::info("{}: seed {} of {}", kind.name, seed, options_.seeds);
        const auto trail = run(kind, kind.settings,
                               {fmt::format("train.steps={}", options_.steps), fmt::format("train.seed={}", seed)});
        line.accuracy.push_back(trail.accuracy);
        if (seed == 1) draw(kind.name, trail.losses, false);
      }
    }
    if (options_.part != "accuracy" && kind.name != "hogwild") measure_slow(kind, line);
    return line;
  }

  void plot(const fs::path& path) const {
    const auto picture = [](std::string title, std::vector<Curve> curves, bool log_x) {
      Chart chart{.title = std::move(title), .x_label = "seconds", .y_label = "training loss", .log_x = log_x};
      chart.log_y = true;
      chart.curves = std::move(curves);
      return chart.svg();
    };
    std::string body;
    if (!even_.empty()) body += picture("All ranks equally fast", even_, false);
    const auto late = fmt::format("One rank {:.0f} ms late in every step (stale, local: each rank in every {}th step)",
                                  options_.delay_ms, options_.ranks);
    if (!slow_.empty()) body += picture(late, slow_, true);
    write_atomically(path, html_page("Ways to keep replicas together", body));
  }

 private:
  void measure_slow(const KnownKind& kind, SyncBenchLine& line) {
    log::info("{}: with and without a slow rank", kind.name);
    line.slow_settings = fmt::format("{}", fmt::join(kind.slow_settings, " "));
    std::vector<std::string> steps{fmt::format("train.steps={}", options_.timed_steps), "train.eval_batches=0",
                                   "optimizer.lr=0.01"};
    const auto even = run(kind, kind.slow_settings, steps);
    std::vector<double> delays(static_cast<size_t>(options_.ranks), 0);
    if (kind.bursts) {
      std::fill(delays.begin(), delays.end(), options_.delay_ms);
      steps.push_back("trial.burst=1");
      line.delays =
          fmt::format("{:.0f} ms in every {}th step of each rank, in turn", options_.delay_ms, options_.ranks);
    } else {
      delays.back() = options_.delay_ms;
      line.delays = fmt::format("{:.0f} ms in every step of one rank", options_.delay_ms);
    }
    steps.push_back(fmt::format("trial.delay_ms=[{}]", fmt::join(delays, ",")));
    const auto slow = run(kind, kind.slow_settings, steps);
    draw(kind.name, slow.losses, true);
    line.undisturbed = even.samples_per_s;
    line.slow = slow.samples_per_s;
    const double t = batch / even.samples_per_s;
    for (const double delay_ms : delays) {
      const double d = delay_ms * 1e-3 / (kind.bursts ? options_.ranks : 1);
      line.bound += t / (t + d) / options_.ranks;
    }
  }

  Trail run(const KnownKind& kind, const std::vector<std::string>& settings, const std::vector<std::string>& more) {
    const auto run_dir = folder_ / fmt::format("run-{}", ++runs_);
    std::vector<std::string> words{fs::read_symlink("/proc/self/exe").string(), "train", "--json", "--ranks",
                                   std::to_string(options_.ranks)};
    if (kind.name == "hogwild") words.push_back("--threads");
    const auto add = [&](const std::vector<std::string>& some) { words.insert(words.end(), some.begin(), some.end()); };
    add(task());
    if (!options_.data.empty()) add({"data.path=" + options_.data});
    add({"sync.kind=" + kind.name, "run_dir=" + run_dir.string()});
    add(settings);
    add(more);
    run_command(words);
    const auto trail = read_trail(run_dir / "metrics.jsonl");
    remove_tree(run_dir);
    return trail;
  }

  // Smoothed, so that kinds can be told apart.
  void draw(const std::string& name, const std::vector<std::pair<double, double>>& losses, bool slow) {
    Curve curve{.name = name, .points = {}};
    double mean = losses.front().second;
    for (size_t i = 0; i < losses.size(); ++i) {
      mean += (losses[i].second - mean) * std::max(0.05, 1.0 / static_cast<double>(i + 1));
      curve.points.emplace_back(losses[i].first, mean);
    }
    (slow ? slow_ : even_).push_back(std::move(curve));
  }

  const SyncBenchOptions& options_;
  const fs::path folder_;
  int runs_ = 0;
  std::vector<Curve> even_, slow_;
};

}  // namespace

std::vector<std::string> SyncBenchOptions::known() {
  std::vector<std::string> names;
  for (const auto& kind : known_kinds()) names.push_back(kind.name);
  return names;
}

nlohmann::ordered_json SyncBenchLine::json() const {
  nlohmann::ordered_json line{{"bench", "sync"}, {"case", kind}, {"settings", settings}};
  if (!accuracy.empty()) {
    line["accuracy"] = accuracy;
    line["mean_accuracy"] = mean(accuracy);
  }
  if (undisturbed > 0) {
    line["samples_per_s"] = undisturbed;
    line["slow_samples_per_s"] = slow;
    line["slow_settings"] = slow_settings;
    line["delays"] = delays;
    line["bound"] = bound;
    line["kept_of_bound"] = slow / (undisturbed * bound);
  }
  return line;
}

std::string SyncBenchLine::brief() const {
  const auto told = [](const std::string& settings) { return settings.empty() ? "" : " [" + settings + "]"; };
  auto text = fmt::format("{:<10}", kind);
  if (!accuracy.empty()) text += fmt::format(" accuracy {:.2f} % ({:.2f})", mean(accuracy), fmt::join(accuracy, ", "));
  text += told(settings);
  if (undisturbed > 0) {
    text += fmt::format("  {:.0f} samples/s, slow {:.0f}: {:.0f} % of the bound {:.3f} ({})", undisturbed, slow,
                        100 * slow / (undisturbed * bound), bound, delays);
    text += told(slow_settings);
  }
  return text;
}

void run_sync_bench(const SyncBenchOptions& options, const std::function<void(const SyncBenchLine&)>& each) {
  const ScratchFolder scratch;
  Bench bench(options, scratch.path);
  for (const auto& kind : known_kinds()) {
    const bool wanted = options.kinds.empty() || std::count(options.kinds.begin(), options.kinds.end(), kind.name) > 0;
    const bool one_copy = kind.name == "hogwild" && options.part == "straggler";  // of threads that share it: no delays
    if (wanted && !one_copy) each(bench.measure(kind));
  }
  if (!options.plot.empty()) bench.plot(options.plot);
}

}  // namespace trireme
