#include "trireme/bench/train.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <regex>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/log.h"
#include "trireme/comm/cores.h"
#include "trireme/comm/process.h"
#include "trireme/device/device.h"
#include "trireme/bench/peer.h"
#include "trireme/bench/script.h"
#include "trireme/bench/shared.h"
#include "trireme/bench/torch_peer.h"
#include "trireme/bench/train_cases.h"
#include "trireme/spec/config.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

const std::string& hosts_tool() {
  static const std::string path = script("tools/hosts.sh");
  return path;
}

// Hosts of this machine's making, for as long as it lives.
class Hosts {
 public:
  Hosts(int count, const std::string& rate) {
    if (::geteuid() != 0) refuse("--hosts makes network namespaces, which needs root");
    if (!run_tool({"start", std::to_string(count), rate}))
      fail("{} could not make {} hosts with links of {}; if others are left from before, {} stop removes them",
           hosts_tool(), count, rate, hosts_tool());
  }
  ~Hosts() {
    if (!run_tool({"stop"}))
      fmt::print(stderr, "trireme: {} stop failed: network namespaces may be left\n", hosts_tool());
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

 private:
  static bool run_tool(std::vector<std::string> words) {
    words.insert(words.begin(), hosts_tool());
    int status = 0;
    output_of(words, status);
    return status == 0;
  }
};

// A number and a unit of tc: 500mbit, 1.5gbit, 64kbps.
bool is_rate(const std::string& text) {
  static const std::regex form(R"(\d+(\.\d+)?([kmgt]i?)?(bit|bps))", std::regex::icase);
  return std::regex_match(text, form);
}

struct PeerSettings {
  TorchVariant variant;
  int threads = 1;
  bool channels_last = false;
  std::string precision = "fp32";  // on a card bf16 throughout, or autocast
  std::string hook = "none";       // of DDP
};

// The batches in the peer's file, and how long it trains on them.
struct PeerRun {
  fs::path inputs;
  int64_t steps = 0, batches = 0;
  double lr = 0;
};

// One peer of a case: its best settings, and the line that is made of it.
struct Row {
  PeerSettings settings;
  BenchLine line;
  double peer_loss = 0;  // with a codec: of the longer run
};

// With a codec losses are compared too: their mean over the last steps of a longer run.
constexpr int64_t loss_steps = 120, last_losses = 30;
constexpr double loss_lr = 1e-3;
// In which the peer's best settings are looked for; two of them warm up.
constexpr int64_t search_steps = 8;

double mean_of_last(const std::vector<double>& losses) {
  return std::accumulate(losses.end() - last_losses, losses.end(), 0.0) / last_losses;
}

class Case {
 public:
  Case(const std::string& name, int ranks, const TrainBenchOptions& options, const std::string& matrices,
       const fs::path& folder, TorchPeer& torch)
      : known_(known_case(name)),
        ranks_(ranks),
        options_(options),
        matrices_(matrices),
        folder_(folder),
        torch_(torch),
        overrides_(overrides_of(known_)) {
    overrides_.push_back(fmt::format("train.steps={}", options.steps));
    config_ = load_config({}, overrides_);
    threads_ = std::max(1, usable_cores() / ranks);
    usual_ = {folder / (name + ".safetensors"), options.steps, known_.file_batches, config_.optimizer.lr};
    if (!fs::exists(usual_.inputs)) write_inputs(config_, usual_.batches, usual_.inputs);
    if (options.hosts > 1) {
      launcher_ = {hosts_tool(), "run", std::to_string(ranks / options.hosts)};
      overrides_.push_back(fmt::format("train.threads={}", threads_));
    }
  }

  // A line for each of the peers, and with a codec for each of DDP's hooks.
  void measure(const std::function<void(const BenchLine&)>& each) {
    if (!options_.settings.empty()) each(measure_ourselves());
    std::vector<Row> rows;
    const bool codec = options_.codec != "none";
    for (const auto& variant : torch_.variants(options_.peers, known_.card)) {
      // The hooks are about bytes between ranks, not about the products of one.
      if (!codec || variant.name == "eager" || !options_.peers.empty()) rows.push_back(row_of(variant));
    }
    if (codec) {
      measure_losses();
      rows = with_hooks(rows);
    }
    measure(rows);
    std::vector<BenchLine> lines;
    for (auto& row : rows) lines.push_back(std::move(row.line));
    mark_best_peer(lines);
    for (const auto& line : lines) each(line);
  }

 private:
  Measured ours() {
    auto more = options_.settings;
    more.push_back("sync.codec=" + options_.codec);
    return ours(more);
  }
  Measured ours(const std::vector<std::string>& more) {
    auto overrides = overrides_;
    overrides.insert(overrides.end(), more.begin(), more.end());
    return run_ours(ranks_, overrides, folder_ / fmt::format("run-{}", ++runs_), false, launcher_);
  }

  Measured peer(const PeerSettings& settings, const PeerRun& run) {
    auto words = launcher_;
    if (options_.hosts > 1)
      words.insert(words.end(),
                   {"env", "GLOO_SOCKET_IFNAME=eth0", fmt::format("OMP_NUM_THREADS={}", settings.threads)});
    const auto start = torch_.words(settings.variant, "torch_train.py");
    words.insert(words.end(), start.begin(), start.end());
    words.insert(words.end(), {"--inputs", run.inputs.string(), "--model", known_.model, "--heads",
                               std::to_string(config_.model.heads), "--ranks", std::to_string(ranks_), "--threads",
                               std::to_string(settings.threads), "--steps", std::to_string(run.steps), "--batches",
                               std::to_string(run.batches), "--lr", fmt::format("{}", run.lr), "--weight-decay",
                               fmt::format("{}", config_.optimizer.weight_decay)});
    if (settings.variant.compiled) words.push_back("--compile");
    if (settings.hook != "none") words.insert(words.end(), {"--hook", settings.hook});
    if (settings.channels_last) words.push_back("--channels-last");
    if (known_.card) words.insert(words.end(), {"--device", "cuda", "--precision", settings.precision});
    if (options_.hosts > 1) words.insert(words.end(), {"--master", "10.78.0.1"});
    const auto result = run_command(words);
    Measured measured;
    measured.failed = result.value("failed", "");
    if (!measured.failed.empty()) return measured;
    measured.step_s = result.at("step_s").get<double>();
    measured.losses = result.at("losses").get<std::vector<double>>();
    measured.sent_bytes = result.value("sent_bytes", 0.0);
    return measured;
  }

  // What may be best for an eager peer: threads, on a card instead of them the precision, and of images the layout.
  // Compilation takes long, so a compiled one has the threads, or the precision, that were best for the eager one.
  std::vector<PeerSettings> choices(const TorchVariant& variant) {
    std::vector<PeerSettings> all;
    if (variant.compiled) {
      all.push_back(best_of({variant.fastest ? "eager-fastest" : "eager", false, variant.fastest}).settings);
      all.back().variant = variant;
      all.back().channels_last = false;
    } else if (known_.card) {
      for (const auto* precision : {"bf16", "autocast"}) all.push_back({variant, threads_, false, precision});
    } else {
      for (int threads = threads_; threads > 0; threads = threads == 1 ? 0 : (threads + 1) / 2)
        all.push_back({variant, threads});
    }
    for (size_t i = 0, count = known_.images ? all.size() : 0; i < count; ++i) {
      all.push_back(all[i]);
      all.back().channels_last = true;
    }
    return all;
  }

  struct Best {
    PeerSettings settings;
    std::string obstacle;  // if it does not run at all
  };
  const Best& best_of(const TorchVariant& variant) {
    if (const auto found = best_.find(variant.name); found != best_.end()) return found->second;
    Best best{{variant}, torch_.obstacle(variant)};
    const auto all = best.obstacle.empty() ? choices(variant) : std::vector<PeerSettings>();
    if (all.size() == 1 && !variant.compiled) {
      best.settings = all.front();
    } else if (!all.empty()) {
      auto run = usual_;
      run.steps = std::min(search_steps, usual_.steps);
      double seconds = std::numeric_limits<double>::infinity();
      for (const auto& tried : all) {
        log::info("{}: {} with {} threads{}", known_.name, variant.name, tried.threads,
                  tried.channels_last ? ", channels last" : "");
        const auto measured = peer(tried, run);
        if (!measured.failed.empty()) best.obstacle = measured.failed;
        if (!measured.failed.empty() || measured.step_s >= seconds) continue;
        seconds = measured.step_s;
        best.settings = tried;
      }
      if (seconds < std::numeric_limits<double>::infinity()) best.obstacle.clear();
    }
    return best_[variant.name] = best;
  }

  // What the peer does best, and its line without measurements yet.
  Row row_of(const TorchVariant& variant) {
    const auto& best = best_of(variant);
    Row row{best.settings, begun()};
    auto& line = row.line;
    line.missing = best.obstacle;
    line.matrices = known_.card ? "cuBLAS" : matrices_;
    line.peer_matrices = torch_.matrices(variant, known_.card);
    line.peer_name = fmt::format("PyTorch {}{}", ranks_ > 1 ? "DDP (Gloo), " : "", variant.name);
    line.settings = {{"batch", config_.train.batch},          {"threads", threads_},
                     {"peer_threads", best.settings.threads}, {"steps", options_.steps},
                     {"compared_losses", compared_losses()},  {"loss_tolerance", known_.tolerance}};
    line.settings["peer_settings"] = variant.compiled ? "fused AdamW, torch.compile" : "fused AdamW";
    if (ranks_ > 1) {
      auto& all = line.settings["peer_settings"].get_ref<std::string&>();
      all += variant.compiled ? ", gradient_as_bucket_view" : ", static_graph, gradient_as_bucket_view";
    }
    line.settings["peer_precision"] = best.settings.precision;
    if (known_.images) line.settings["peer_layout"] = best.settings.channels_last ? "channels last" : "channels first";
    return row;
  }

  BenchLine begun() const {
    BenchLine line;
    line.bench = "train";
    line.bench_case = fmt::format("{}, {} rank{}", known_.title, ranks_, ranks_ > 1 ? "s" : "");
    if (options_.hosts > 1) line.bench_case += fmt::format(" on {} hosts, {}", options_.hosts, options_.rate);
    if (!options_.settings.empty()) line.bench_case += fmt::format(" [{}]", fmt::join(options_.settings, " "));
    return line;
  }

  // With the settings that were given beside those of a plain all-reduce.
  BenchLine measure_ourselves() {
    auto line = begun();
    line.peer_name = "our own all-reduce";
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      log::info("{} beside our own all-reduce: repeat {} of {}", line.bench_case, repeat + 1, options_.repeats);
      alternate(repeat, {[&] { line.ours.push_back(ours().step_s); },
                         [&] { line.peer.push_back(ours({"sync.codec=none"}).step_s); }});
    }
    return line;
  }

  // All sides in turn, and their losses compared before a time counts.
  void measure(std::vector<Row>& rows) {
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      log::info("{}: repeat {} of {}", begun().bench_case, repeat + 1, options_.repeats);
      Measured mine;
      std::vector<Measured> theirs(rows.size());
      std::vector<std::function<void()>> sides{[&] { mine = ours(); }};
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].line.missing.empty()) sides.push_back([&, i] { theirs[i] = peer(rows[i].settings, usual_); });
      }
      alternate(repeat, sides);
      for (size_t i = 0; i < rows.size(); ++i) {
        auto& line = rows[i].line;
        line.ours.push_back(mine.step_s);
        if (!line.missing.empty()) continue;
        if (!theirs[i].failed.empty())
          fail("{}: {} ran before, and now: {}", known_.name, line.peer_name, theirs[i].failed);
        compare_losses(fmt::format("{} beside {}", known_.name, line.peer_name), mine, theirs[i], compared_losses(),
                       known_.tolerance);
        if (options_.codec != "none") tell_codec(rows[i], mine, theirs[i]);
        line.peer.push_back(theirs[i].step_s);
      }
    }
  }

  // The first loss knows of no codec yet; later ones differ by what each leaves out. A pipeline that never drains and
  // replicas that are kept together loosely have their second loss of older weights than the peer.
  int64_t compared_losses() const {
    const auto& settings = options_.settings;
    const bool asynchronous = std::any_of(settings.begin(), settings.end(), [](const auto& one) {
      return one.rfind("parallel.schedule=pipedream", 0) == 0 || one.rfind("sync.kind=", 0) == 0;
    });
    if (options_.codec != "none" || asynchronous) return 1;
    return std::min<int64_t>(known_.file_batches, options_.steps);
  }

  // Our losses of a longer run with and without the codec, and the batches of that run for the peer.
  void measure_losses() {
    const auto steps = fmt::format("train.steps={}", loss_steps), lr = fmt::format("optimizer.lr={}", loss_lr);
    log::info("{}: {} steps with and without the codec", known_.name, loss_steps);
    plain_loss_ = mean_of_last(ours({"sync.codec=none", steps, lr}).losses);
    loss_ = mean_of_last(ours({"sync.codec=" + options_.codec, steps, lr}).losses);
  }

  // Each peer with each of DDP's hooks, and the loss that it comes to.
  std::vector<Row> with_hooks(const std::vector<Row>& rows) {
    const PeerRun longer{folder_ / (known_.name + "-losses.safetensors"), loss_steps, loss_steps, loss_lr};
    if (!fs::exists(longer.inputs)) write_inputs(config_, loss_steps, longer.inputs);
    std::vector<Row> all;
    for (const auto& row : rows) {
      for (const char* hook : {"none", "fp16", "powersgd"}) {
        auto& with = all.emplace_back(row);
        with.settings.hook = hook;
        if (with.settings.hook != "none") with.line.peer_name += fmt::format(", {} hook", hook);
        if (!with.line.missing.empty()) continue;
        log::info("{}: {} steps of the peer, {} hook", known_.name, loss_steps, hook);
        const auto measured = peer(with.settings, longer);
        with.line.missing = measured.failed;
        if (measured.failed.empty()) with.peer_loss = mean_of_last(measured.losses);
      }
    }
    return all;
  }

  // What was saved, and what it cost.
  void tell_codec(Row& row, const Measured& mine, const Measured& theirs) const {
    auto& line = row.line;
    const auto codec = mine.codec.empty() ? options_.codec : mine.codec;
    line.settings["codec"] = codec;
    line.settings["loss"] = loss_;
    line.settings["loss_without_codec"] = plain_loss_;
    line.settings["peer_loss"] = row.peer_loss;
    line.remark = codec;
    if (mine.sent_bytes > 0 && theirs.sent_bytes > 0) {
      const double host_bytes = mine.sent_bytes * ranks_ / options_.hosts;
      line.settings["host_sent_mb"] = host_bytes * 1e-6;
      line.settings["peer_host_sent_mb"] = theirs.sent_bytes * 1e-6;
      line.remark +=
          fmt::format(", a host sends {:.3g} MB a step, peer {:.3g} MB", host_bytes * 1e-6, theirs.sent_bytes * 1e-6);
    }
    line.remark += fmt::format(", mean of the last {} of {} losses {:.4f} (without codec {:.4f}), peer {:.4f}",
                               last_losses, loss_steps, loss_, plain_loss_, row.peer_loss);
  }

  const KnownCase& known_;
  int ranks_;
  const TrainBenchOptions& options_;
  const std::string& matrices_;  // of ours
  fs::path folder_;
  TorchPeer& torch_;
  PeerRun usual_;
  std::vector<std::string> overrides_, launcher_;
  RunConfig config_;
  std::map<std::string, Best> best_;  // by the variant's name
  int threads_ = 1;
  int runs_ = 0;
  double plain_loss_ = 0, loss_ = 0;
};

}  // namespace

void run_train_bench(const TrainBenchOptions& asked, const std::function<void(const BenchLine&)>& each) {
  if (!is_rate(asked.rate)) refuse("--rate {}: a number and a unit, such as 500mbit or 1.5gbit", asked.rate);
  auto options = asked;
  if (options.cases.empty()) options.cases = {"mlp", "gpt", "llama", "resnet18"};
  const auto shared = std::stable_partition(options.cases.begin(), options.cases.end(),
                                            [](const auto& name) { return !is_shared_case(name); });
  const std::vector<std::string> shared_cases(shared, options.cases.end());
  options.cases.erase(shared, options.cases.end());
  auto ranks = options.ranks;
  if (ranks.empty()) ranks = options.hosts > 1 ? std::vector{2 * options.hosts} : std::vector{1, 2};
  for (const int count : ranks) {
    if (count % options.hosts != 0) refuse("--ranks {}: the same number on each of {} hosts", count, options.hosts);
  }
  for (const auto& name : options.cases) {
    if (known_case(name).card && !cuda_available()) refuse("--case {} needs a CUDA device, and there is none", name);
  }
  if (!options.cases.empty() && ::access(options.python.c_str(), X_OK) != 0)
    refuse("--python {}: not found; the peer runs in the Python that holds torch", options.python);
  const BenchFolder made;
  const auto& folder = made.path();
  TorchPeer torch(options.python, folder);
  for (const auto& name : options.cases) torch.variants(options.peers, known_case(name).card);  // may refuse
  const auto matrices = options.cases.empty() ? "" : our_matrices();
  const auto hosts = options.hosts > 1 ? std::make_unique<Hosts>(options.hosts, options.rate) : nullptr;
  for (const auto& name : options.cases) {
    for (int count : ranks) {
      if (known_case(name).card && count > 1) continue;  // NCCL, and so DDP, wants a card for each rank
      Case(name, count, options, matrices, folder, torch).measure(each);
    }
  }
  for (const auto& name : shared_cases) measure_shared(name, {options.repeats, options.seconds}, folder, each);
}

}  // namespace trireme
