#include "trireme/bench/train.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
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

namespace trireme {

namespace fs = std::filesystem;

namespace {

// A case as anyone may run it with `trireme train`, and what its peer is compared by.
struct KnownCase {
  std::string name, title;
  std::vector<std::string> settings;
  bool card = false;          // bf16 there; fp32 on the host
  bool images = false;        // the peer may lay them out in two ways
  int64_t file_batches = 10;  // in the peer's file: losses of as many steps are compared, later ones only timed
  double tolerance = 1e-4;    // of these losses, relative
};

const std::vector<KnownCase>& known_cases() {
  static const std::vector<KnownCase> cases{
      // 8,407,050 parameters.
      {"mlp",
       "mlp 8x1024",
       {"model.kind=mlp", "model.layers=8", "model.width=1024", "model.inputs=1024", "model.classes=10",
        "train.batch=64", "optimizer.lr=1e-4"}},
      {"gpt",
       "gpt 10.8M",
       {"model.kind=gpt", "model.layers=6", "model.width=384", "model.heads=6", "model.context=256", "model.vocab=256",
        "train.batch=4", "optimizer.lr=3e-4"}},
      // The GPT's width and depth, with a third of its heads for keys and values.
      {"llama",
       "llama 9.6M",
       {"model.kind=llama", "model.layers=6", "model.width=384", "model.heads=6", "model.kv_heads=2",
        "model.context=256", "model.vocab=256", "train.batch=4", "optimizer.lr=3e-4"}},
      // 11,173,962 parameters, 3.3 GFLOP a sample. PyTorch has synchronised BatchNorm for cards alone: beside DDP, both
      // sides normalise by each rank's own samples.
      {"resnet18",
       "resnet18 32x32",
       {"model.kind=resnet18", "model.image=32", "model.classes=10", "train.batch=64", "model.batch_norm=local",
        "optimizer.lr=1e-5"},
       false,
       true},
      // 132,863,336 parameters, of which 123.6 M are in the three last layers: little to compute, much to send. Dropout
      // off, as the peer's masks are others.
      {"vgg11",
       "vgg11 224x224",
       {"model.kind=vgg11", "model.image=224", "model.classes=1000", "model.dropout=0", "train.batch=32",
        "optimizer.lr=1e-5", "data.samples=256"},
       false,
       true,
       2},
      {"llama-162m",
       "llama 162M on a card",
       {"model.kind=llama", "model.layers=12", "model.width=768", "model.heads=12", "model.context=1024",
        "model.vocab=50304", "model.hidden=2048", "train.batch=16", "optimizer.lr=1e-4"},
       true,
       false,
       2,
       2e-2},
      {"resnet50",
       "resnet50 224x224 on a card",
       {"model.kind=resnet50", "model.image=224", "model.classes=1000", "train.batch=256", "model.batch_norm=local",
        "optimizer.lr=1e-5", "data.samples=2048"},
       true,
       true,
       2,
       2e-2}};
  return cases;
}

const KnownCase& known_case(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& known : known_cases()) {
    if (known.name == name) return known;
    names.push_back(known.name);
  }
  refuse("--case {}: there are {}", name, fmt::join(names, ", "));
}

std::vector<std::string> overrides_of(const KnownCase& known) {
  std::vector<std::string> all = known.settings;
  all.insert(all.end(),
             {"optimizer.schedule=constant", "optimizer.warmup=0", "optimizer.clip=1.0", "checkpoint.every=0",
              "train.eval_batches=0", "data.validation=0", "data.kind=synthetic", "log.tensorboard=false"});
  if (known.card) all.insert(all.end(), {"train.device=cuda", "train.precision=bf16"});
  return all;
}

const char* const hosts_tool = TRIREME_SOURCE "/tools/hosts.sh";

// Hosts of this machine's making, for as long as it lives.
class Hosts {
 public:
  Hosts(int count, const std::string& rate) {
    if (::geteuid() != 0) refuse("--hosts makes network namespaces, which needs root");
    if (!run_tool({"start", std::to_string(count), rate}))
      fail("{} could not make {} hosts with links of {}; if others are left from before, {} stop removes them",
           hosts_tool, count, rate, hosts_tool);
  }
  ~Hosts() {
    if (!run_tool({"stop"}))
      fmt::print(stderr, "trireme: {} stop failed: network namespaces may be left\n", hosts_tool);
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

 private:
  static bool run_tool(std::vector<std::string> words) {
    words.insert(words.begin(), hosts_tool);
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
  int threads = 1;
  bool channels_last = false;
  std::string precision = "fp32";  // on a card bf16 throughout, or autocast
  std::string hook = "none";       // of DDP
};

// With a codec losses are compared too: their mean over the last steps of a longer run.
constexpr int64_t loss_steps = 120, last_losses = 30;
constexpr double loss_lr = 1e-3;

double mean_of_last(const std::vector<double>& losses) {
  return std::accumulate(losses.end() - last_losses, losses.end(), 0.0) / last_losses;
}

class Case {
 public:
  Case(const std::string& name, int ranks, const TrainBenchOptions& options, const fs::path& folder)
      : known_(known_case(name)), ranks_(ranks), options_(options), folder_(folder), overrides_(overrides_of(known_)) {
    overrides_.push_back(fmt::format("train.steps={}", options.steps));
    config_ = load_config({}, overrides_);
    threads_ = std::max(1, usable_cores() / ranks);
    inputs_ = folder / (name + ".safetensors");
    if (!fs::exists(inputs_)) write_inputs(config_, known_.file_batches, inputs_);
    if (options.hosts > 1) {
      launcher_ = {hosts_tool, "run", std::to_string(ranks / options.hosts)};
      overrides_.push_back(fmt::format("train.threads={}", threads_));
    }
  }

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

  Measured peer(const PeerSettings& settings) {
    return peer(settings, inputs_, options_.steps, known_.file_batches, config_.optimizer.lr);
  }
  Measured peer(const PeerSettings& settings, const fs::path& inputs, int64_t steps, int64_t batches, double lr) {
    const int threads = settings.threads;
    auto words = launcher_;
    if (options_.hosts > 1)
      words.insert(words.end(), {"env", "GLOO_SOCKET_IFNAME=eth0", fmt::format("OMP_NUM_THREADS={}", threads)});
    words.insert(words.end(), {options_.python,  TRIREME_SOURCE "/bench/torch_train.py",
                               "--inputs",       inputs.string(),
                               "--model",        config_.model.kind == ModelKind::llama ? "llama" : known_.name,
                               "--heads",        std::to_string(config_.model.heads),
                               "--ranks",        std::to_string(ranks_),
                               "--threads",      std::to_string(threads),
                               "--steps",        std::to_string(steps),
                               "--batches",      std::to_string(batches),
                               "--lr",           fmt::format("{}", lr),
                               "--weight-decay", fmt::format("{}", config_.optimizer.weight_decay)});
    if (settings.hook != "none") words.insert(words.end(), {"--hook", settings.hook});
    if (settings.channels_last) words.push_back("--channels-last");
    if (known_.card) words.insert(words.end(), {"--device", "cuda", "--precision", settings.precision});
    if (options_.hosts > 1) words.insert(words.end(), {"--master", "10.78.0.1"});
    const auto result = run_command(words);
    Measured measured{result.at("step_s").get<double>(), result.at("losses").get<std::vector<double>>()};
    measured.sent_bytes = result.value("sent_bytes", 0.0);
    return measured;
  }

  // What may be best for the peer: threads, on a card instead of them the precision, and of images the layout.
  std::vector<PeerSettings> choices() const {
    std::vector<PeerSettings> all;
    if (known_.card) {
      for (const auto* precision : {"bf16", "autocast"}) all.push_back({threads_, false, precision});
    } else {
      for (int threads = threads_; threads > 0; threads = threads == 1 ? 0 : (threads + 1) / 2)
        all.push_back({threads});
    }
    for (size_t i = 0, count = known_.images ? all.size() : 0; i < count; ++i) {
      all.push_back(all[i]);
      all.back().channels_last = true;
    }
    return all;
  }

  PeerSettings best_of_peer() {
    PeerSettings best;
    double seconds = std::numeric_limits<double>::infinity();
    for (const auto& tried : choices()) {
      const double taken = peer(tried).step_s;
      if (taken < seconds) best = tried;
      seconds = std::min(seconds, taken);
    }
    return best;
  }

  // A line beside each of DDP's hooks, where ours uses a codec too.
  void measure(const std::function<void(const BenchLine&)>& each) {
    auto best = best_of_peer();
    if (!options_.settings.empty()) each(measure_ourselves());
    if (options_.codec == "none") return each(measure(best));
    const auto steps = fmt::format("train.steps={}", loss_steps), lr = fmt::format("optimizer.lr={}", loss_lr);
    log::info("{}: {} steps with and without the codec", known_.name, loss_steps);
    plain_loss_ = mean_of_last(ours({"sync.codec=none", steps, lr}).losses);
    loss_ = mean_of_last(ours({"sync.codec=" + options_.codec, steps, lr}).losses);
    const auto inputs = folder_ / (known_.name + "-losses.safetensors");
    if (!fs::exists(inputs)) write_inputs(config_, loss_steps, inputs);
    for (const char* hook : {"none", "fp16", "powersgd"}) {
      best.hook = hook;
      log::info("{}: {} steps of the peer, {} hook", known_.name, loss_steps, hook);
      peer_loss_ = mean_of_last(peer(best, inputs, loss_steps, loss_steps, loss_lr).losses);
      each(measure(best));
    }
  }

 private:
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
    line.peer_name = "our all-reduce";
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      log::info("{} beside our own all-reduce: repeat {} of {}", line.bench_case, repeat + 1, options_.repeats);
      line.ours.push_back(ours().step_s);
      line.peer.push_back(ours({"sync.codec=none"}).step_s);
    }
    return line;
  }

  BenchLine measure(const PeerSettings& best) {
    auto line = begun();
    line.peer_name = ranks_ > 1 ? "PyTorch DDP (Gloo)" : "PyTorch eager";
    if (best.hook != "none") line.peer_name += ", " + best.hook + " hook";
    line.settings = {{"batch", config_.train.batch},
                     {"threads", threads_},
                     {"peer_threads", best.threads},
                     {"steps", options_.steps},
                     {"peer_settings", ranks_ > 1 ? "fused AdamW, static_graph, gradient_as_bucket_view"
                                                  : "fused AdamW, zero_grad(set_to_none)"}};
    if (known_.card) line.settings["peer_precision"] = best.precision;
    if (known_.images) line.settings["peer_layout"] = best.channels_last ? "channels last" : "channels first";
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      log::info("{}: repeat {} of {}", line.bench_case, repeat + 1, options_.repeats);
      const auto mine = ours();
      const auto theirs = peer(best);
      // The first loss knows of no codec yet; later ones differ by what each leaves out.
      const bool plain = options_.codec == "none", drains = mine.losses.size() > 1 && !asynchronous();
      compare_losses(known_.name, mine, theirs,
                     plain && drains ? std::min<int64_t>(known_.file_batches, options_.steps) : 1, known_.tolerance);
      if (!plain) tell_codec(line, mine, theirs);
      line.ours.push_back(mine.step_s);
      line.peer.push_back(theirs.step_s);
    }
    return line;
  }

  // Whose second loss is of older weights than the peer's.
  bool asynchronous() const {
    const auto& settings = options_.settings;
    return std::any_of(settings.begin(), settings.end(), [](const auto& one) {
      return one.rfind("parallel.schedule=pipedream", 0) == 0 || one.rfind("sync.kind=", 0) == 0;
    });
  }

  // What was saved, and what it cost.
  void tell_codec(BenchLine& line, const Measured& mine, const Measured& theirs) const {
    const auto codec = mine.codec.empty() ? options_.codec : mine.codec;
    line.settings["codec"] = codec;
    line.settings["loss"] = loss_;
    line.settings["loss_without_codec"] = plain_loss_;
    line.settings["peer_loss"] = peer_loss_;
    line.remark = codec;
    if (mine.sent_bytes > 0 && theirs.sent_bytes > 0) {
      const double host_bytes = mine.sent_bytes * ranks_ / options_.hosts;
      line.settings["host_sent_mb"] = host_bytes * 1e-6;
      line.settings["peer_host_sent_mb"] = theirs.sent_bytes * 1e-6;
      line.remark +=
          fmt::format(", a host sends {:.3g} MB a step, peer {:.3g} MB", host_bytes * 1e-6, theirs.sent_bytes * 1e-6);
    }
    line.remark += fmt::format(", mean of the last {} of {} losses {:.4f} (without codec {:.4f}), peer {:.4f}",
                               last_losses, loss_steps, loss_, plain_loss_, peer_loss_);
  }

  const KnownCase& known_;
  int ranks_;
  const TrainBenchOptions& options_;
  fs::path folder_, inputs_;
  std::vector<std::string> overrides_, launcher_;
  RunConfig config_;
  int threads_ = 1;
  int runs_ = 0;
  double plain_loss_ = 0, loss_ = 0, peer_loss_ = 0;
};

}  // namespace

void run_train_bench(const TrainBenchOptions& options, const std::function<void(const BenchLine&)>& each) {
  if (!is_rate(options.rate)) refuse("--rate {}: a number and a unit, such as 500mbit or 1.5gbit", options.rate);
  if (::access(options.python.c_str(), X_OK) != 0)
    refuse("--python {}: not found; the peer runs in the Python that holds torch", options.python);
  const auto cases =
      options.cases.empty() ? std::vector<std::string>{"mlp", "gpt", "llama", "resnet18"} : options.cases;
  auto ranks = options.ranks;
  if (ranks.empty()) ranks = options.hosts > 1 ? std::vector{2 * options.hosts} : std::vector{1, 2};
  for (const int count : ranks) {
    if (count % options.hosts != 0) refuse("--ranks {}: the same number on each of {} hosts", count, options.hosts);
  }
  for (const auto& name : cases) {
    if (known_case(name).card && !cuda_available()) refuse("--case {} needs a CUDA device, and there is none", name);
  }
  const ScratchFolder scratch;
  const auto hosts = options.hosts > 1 ? std::make_unique<Hosts>(options.hosts, options.rate) : nullptr;
  for (const auto& name : cases) {
    for (int count : ranks) {
      if (known_case(name).card && count > 1) continue;  // NCCL, and so DDP, wants a card for each rank
      Case(name, count, options, scratch.path).measure(each);
    }
  }
}

}  // namespace trireme
