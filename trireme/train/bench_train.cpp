#include "trireme/train/bench_train.h"

#include <sys/wait.h>
#include <ATen/ATen.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/safetensors.h"
#include "trireme/comm/launch.h"
#include "trireme/data/dataset.h"
#include "trireme/data/order.h"
#include "trireme/nn/model.h"
#include "trireme/train/run.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

constexpr int64_t file_batches = 8;  // batches in the peer's file; their losses are compared, later steps only timed

// The cases, as anyone may run them with `trireme train`.
std::vector<std::string> overrides_of(const std::string& name) {
  const std::vector<std::string> common{"optimizer.schedule=constant", "optimizer.warmup=0",   "optimizer.clip=1.0",
                                        "checkpoint.every=0",          "train.eval_batches=0", "data.validation=0",
                                        "data.kind=synthetic",         "log.tensorboard=false"};
  std::vector<std::string> own;
  if (name == "mlp") {
    // 8,407,050 parameters.
    own = {"model.kind=mlp",   "model.layers=8", "model.width=1024", "model.inputs=1024",
           "model.classes=10", "train.batch=64", "optimizer.lr=1e-4"};
  } else if (name == "gpt") {
    // 10.8 M parameters.
    own = {"model.kind=gpt",    "model.layers=6",  "model.width=384", "model.heads=6",
           "model.context=256", "model.vocab=256", "train.batch=4",   "optimizer.lr=3e-4"};
  } else {
    refuse("--case {}: there are mlp and gpt", name);
  }
  own.insert(own.end(), common.begin(), common.end());
  return own;
}

// Initial parameters and the first batches, for the peer.
void write_inputs(const RunConfig& config, const fs::path& path) {
  const auto data = open_dataset(data_options(config));
  const auto model = build_model(config.model, data.train->vocab());
  model->initialize(static_cast<uint64_t>(config.train.seed));
  model->to(at::kFloat, at::kCPU);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const SampleOrder order(data.train->size(), config.train.batch, static_cast<uint64_t>(config.train.seed));
  for (int64_t step = 0; step < file_batches; ++step) {
    std::vector<int64_t> samples;
    order.fill(step, 0, config.train.batch, samples);
    const auto batch = data.train->get(samples);
    tensors.emplace_back(fmt::format("inputs.{}", step), batch.inputs.contiguous());
    tensors.emplace_back(fmt::format("targets.{}", step), batch.targets.contiguous());
  }
  for (const auto& parameter : model->parameters())
    tensors.emplace_back(parameter->name, parameter->value.detach().contiguous());
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({name, tensor.scalar_type() == at::kLong ? DType::i64 : DType::f32, tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, infos);
  for (const auto& [name, tensor] : tensors) {
    writer.append({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  writer.finish();
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

nlohmann::json run_command(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) line += quoted(word) + " ";
  FILE* pipe = ::popen(line.c_str(), "r");
  if (!pipe) fail_errno("popen");
  std::string output;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, count);
  const int status = ::pclose(pipe);
  auto result = nlohmann::json::parse(output, nullptr, false);
  if (status != 0 || !result.is_object())
    fail("{}\nended with status {} and said: {}", line, WEXITSTATUS(status), output);
  return result;
}

struct Measured {
  double step_s = 0;
  std::vector<double> losses;
};

class Case {
 public:
  Case(const std::string& name, int ranks, const TrainBenchOptions& options, const fs::path& folder)
      : name_(name), ranks_(ranks), options_(options), folder_(folder), overrides_(overrides_of(name)) {
    overrides_.push_back(fmt::format("train.steps={}", options.steps));
    config_ = load_config({}, overrides_);
    threads_ = std::max(1, usable_cores() / ranks);
    inputs_ = folder / (name + ".safetensors");
    if (!fs::exists(inputs_)) write_inputs(config_, inputs_);
  }

  Measured ours() {
    const auto run_dir = folder_ / fmt::format("run-{}", ++runs_);
    std::vector<std::string> words{fs::read_symlink("/proc/self/exe").string(), "train", "--json", "--ranks",
                                   std::to_string(ranks_)};
    words.insert(words.end(), overrides_.begin(), overrides_.end());
    words.push_back("run_dir=" + run_dir.string());
    const auto result = run_command(words);
    Measured measured{result.at("step_s").get<double>(), {}};
    std::ifstream metrics(run_dir / "metrics.jsonl");
    for (std::string text; std::getline(metrics, text);) {
      const auto line = nlohmann::json::parse(text);
      if (line.contains("loss")) measured.losses.push_back(line.at("loss").get<double>());
    }
    fs::remove_all(run_dir);
    return measured;
  }

  Measured peer(int threads) {
    const auto result = run_command({options_.python,  TRIREME_SOURCE "/bench/torch_train.py",
                                     "--inputs",       inputs_.string(),
                                     "--model",        name_,
                                     "--heads",        std::to_string(config_.model.heads),
                                     "--ranks",        std::to_string(ranks_),
                                     "--threads",      std::to_string(threads),
                                     "--steps",        std::to_string(options_.steps),
                                     "--batches",      std::to_string(file_batches),
                                     "--lr",           fmt::format("{}", config_.optimizer.lr),
                                     "--weight-decay", fmt::format("{}", config_.optimizer.weight_decay)});
    return {result.at("step_s").get<double>(), result.at("losses").get<std::vector<double>>()};
  }

  BenchLine measure() {
    // The peer at its best number of threads; then both in turn.
    int best_threads = threads_;
    double best = peer(threads_).step_s;
    for (int threads = 1; threads < threads_; threads *= 2) {
      if (const double seconds = peer(threads).step_s; seconds < best) {
        best = seconds;
        best_threads = threads;
      }
    }
    BenchLine line;
    line.bench = "train";
    line.bench_case =
        fmt::format("{}, {} rank{}", name_ == "mlp" ? "mlp 8x1024" : "gpt 10.8M", ranks_, ranks_ > 1 ? "s" : "");
    line.peer_name = ranks_ > 1 ? "PyTorch DDP (Gloo)" : "PyTorch eager";
    line.settings = {{"batch", config_.train.batch},
                     {"threads", threads_},
                     {"peer_threads", best_threads},
                     {"steps", options_.steps},
                     {"peer_settings", ranks_ > 1 ? "fused AdamW, static_graph, gradient_as_bucket_view"
                                                  : "fused AdamW, zero_grad(set_to_none)"}};
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      log::info("{}: repeat {} of {}", line.bench_case, repeat + 1, options_.repeats);
      const auto mine = ours();
      const auto theirs = peer(best_threads);
      compare(mine.losses, theirs.losses);
      line.ours.push_back(mine.step_s);
      line.peer.push_back(theirs.step_s);
    }
    return line;
  }

 private:
  // The answer before the time: the same batches from the same weights must give the same losses.
  void compare(const std::vector<double>& ours, const std::vector<double>& theirs) const {
    for (int64_t step = 0; step < std::min<int64_t>(file_batches, options_.steps); ++step) {
      const double a = ours.at(static_cast<size_t>(step)), b = theirs.at(static_cast<size_t>(step));
      if (!(std::abs(a - b) <= 1e-4 * std::abs(b)))
        fail("{}: the loss of step {} is {} here and {} in PyTorch", name_, step + 1, a, b);
    }
  }

  std::string name_;
  int ranks_;
  const TrainBenchOptions& options_;
  fs::path folder_, inputs_;
  std::vector<std::string> overrides_;
  RunConfig config_;
  int threads_ = 1;
  int runs_ = 0;
};

}  // namespace

void run_train_bench(const TrainBenchOptions& options, const std::function<void(const BenchLine&)>& each) {
  if (::access(options.python.c_str(), X_OK) != 0)
    refuse("--python {}: not found; the peer runs in the Python that holds torch", options.python);
  const auto cases = options.cases.empty() ? std::vector<std::string>{"mlp", "gpt"} : options.cases;
  const auto ranks = options.ranks.empty() ? std::vector<int>{1, 2} : options.ranks;
  for (const auto& name : cases) overrides_of(name);
  const auto folder = fs::temp_directory_path() / fmt::format("trireme-bench-{}", getpid());
  fs::create_directories(folder);
  for (const auto& name : cases) {
    for (int count : ranks) each(Case(name, count, options, folder).measure());
  }
  fs::remove_all(folder);
}

}  // namespace trireme
