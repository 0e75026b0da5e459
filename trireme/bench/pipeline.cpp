#include "trireme/bench/pipeline.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/log.h"
#include "trireme/comm/launch.h"
#include "trireme/engine/executor.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/plan.h"
#include "trireme/bench/bubbles.h"
#include "trireme/bench/peer.h"
#include "trireme/bench/torch_peer.h"
#include "trireme/train/run.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

constexpr int64_t file_batches = 4;
constexpr int usual_context = 128;

// A GPT of 25.5 M parameters, as anyone may train it.
std::vector<std::string> gpt(const PipelineBenchOptions& options, int context, int64_t microbatches, int64_t microbatch,
                             int steps) {
  return {"model.kind=gpt",
          "model.layers=8",
          "model.width=512",
          "model.heads=8",
          fmt::format("model.context={}", context),
          "model.vocab=256",
          "optimizer.lr=3e-4",
          "optimizer.schedule=constant",
          "optimizer.warmup=0",
          "optimizer.clip=1.0",
          "checkpoint.every=0",
          "train.eval_batches=0",
          "data.validation=0",
          "data.kind=synthetic",
          "log.tensorboard=false",
          fmt::format("train.batch={}", microbatches * microbatch),
          fmt::format("train.microbatch={}", microbatch),
          fmt::format("train.steps={}", steps),
          fmt::format("train.threads={}", options.threads),
          fmt::format("parallel.pipe={}", options.stages)};
}

class PipelineBench {
 public:
  PipelineBench(const PipelineBenchOptions& options, fs::path folder)
      : options_(options), folder_(std::move(folder)), torch_(options.python, folder_) {}

  // Our schedule beside torch's 1F1B (or GPipe), both with the same delays.
  BenchLine beside_torch(const std::string& what, const std::string& schedule, const std::string& peer_schedule,
                         int context, int64_t microbatches, int64_t microbatch, double jitter_ms) {
    const auto name = name_of(context, what);
    auto overrides = gpt(options_, context, microbatches, microbatch, options_.steps);
    overrides.push_back("parallel.schedule=" + schedule);
    overrides.push_back(fmt::format("comm.jitter_ms={}", jitter_ms));
    if (schedule == "arrival") overrides.push_back(fmt::format("parallel.in_flight={}", 2 * options_.stages));
    const auto config = load_config({}, overrides);
    const auto inputs = folder_ / fmt::format("{}-{}-{}.safetensors", context, microbatches, microbatch);
    if (!fs::exists(inputs)) write_inputs(config, file_batches, inputs);
    const int threads = threads_per_rank(config, options_.stages);
    const auto peer = [&](int peer_threads) {
      return run_peer(config, inputs, peer_schedule, microbatches, peer_threads, jitter_ms);
    };
    int best = options_.peer_threads > 0 ? options_.peer_threads : threads;
    double seconds = options_.peer_threads > 0 ? 0 : peer(threads).step_s;
    for (int fewer = threads / 2; fewer >= 1 && options_.peer_threads == 0; fewer /= 2) {
      if (const double time = peer(fewer).step_s; time < seconds) {
        seconds = time;
        best = fewer;
      }
    }
    BenchLine line;
    line.bench = "pipeline";
    line.bench_case = name;
    line.peer_name = fmt::format("torch.distributed.pipelining {} (Gloo)", peer_schedule);
    line.matrices = our_matrices();
    line.peer_matrices = torch_.matrices(torch_.fastest_eager(), false);
    line.remark = fmt::format("matrix products: ours {}, peer {}", line.matrices, line.peer_matrices);
    line.settings = {
        {"stages", options_.stages},    {"context", context},       {"schedule", schedule},
        {"microbatches", microbatches}, {"microbatch", microbatch}, {"threads", threads},
        {"peer_threads", best},         {"jitter_ms", jitter_ms},   {"in_flight", config.parallel.options.in_flight}};
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      log::info("{}: repeat {} of {}", name, repeat + 1, options_.repeats);
      Measured mine, theirs;
      alternate(repeat,
                {[&] { mine = run_ours(options_.stages, overrides, next_run()); }, [&] { theirs = peer(best); }});
      compare_losses(name, mine, theirs, std::min<int64_t>(file_batches, options_.steps));
      line.ours.push_back(mine.step_s);
      line.peer.push_back(theirs.step_s);
    }
    return line;
  }

  // Two of our own schedules, with delays on every message.
  BenchLine beside_ourselves(const std::string& what, const std::string& schedule, const std::string& other,
                             int context, int64_t microbatches, int64_t microbatch, double jitter_ms) {
    const auto name = name_of(context, what);
    BenchLine line;
    line.bench = "pipeline";
    line.bench_case = name;
    line.peer_name = "our " + other;
    line.settings = {{"stages", options_.stages},
                     {"context", context},
                     {"microbatches", microbatches},
                     {"microbatch", microbatch},
                     {"jitter_ms", jitter_ms}};
    const auto run = [&](const std::string& one) {
      auto overrides = gpt(options_, context, microbatches, microbatch, options_.steps);
      overrides.push_back("parallel.schedule=" + one);
      overrides.push_back(fmt::format("comm.jitter_ms={}", jitter_ms));
      if (one == "arrival") overrides.push_back(fmt::format("parallel.in_flight={}", 2 * options_.stages));
      return run_ours(options_.stages, overrides, next_run()).step_s;
    };
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      log::info("{}: repeat {} of {}", name, repeat + 1, options_.repeats);
      alternate(repeat, {[&] { line.ours.push_back(run(schedule)); }, [&] { line.peer.push_back(run(other)); }});
    }
    return line;
  }

  // All train the same model without clipping, so that no stage waits for all others at the end of a step.
  std::vector<BenchLine> bubbles(int context) {
    auto lines = measure_bubbles(options_.stages, options_.repeats, [&](const std::vector<std::string>& settings) {
      auto overrides = gpt(options_, context, 8, 8, 2 * options_.steps);
      for (const auto* one : {"model.untied=true", "optimizer.clip=0", "train.nonfinite_limit=0"})
        overrides.emplace_back(one);
      overrides.insert(overrides.end(), settings.begin(), settings.end());
      return run_ours(options_.stages, overrides, next_run());
    });
    const int threads =
        threads_per_rank(load_config({}, gpt(options_, context, 8, 8, options_.steps)), options_.stages);
    for (auto& line : lines) {
      line.bench_case = name_of(context, line.bench_case + ", bubble of 8 microbatches of 8");
      line.settings["threads"] = threads;
    }
    return lines;
  }

  // What a task costs besides its work. Nobody's numbers stand beside it.
  BenchLine engine() const {
    constexpr int tasks = 10'000;
    Recorder recorder;
    const RealClock clock;
    Executor executor(recorder, clock);
    Graph graph;
    std::vector<TaskId> after;
    std::vector<StageAction> actions;
    for (int i = 0; i < tasks; ++i) {
      after = {graph.add(TaskKind::forward, i, Lane::compute, [] {}, after)};
      actions.push_back({TaskKind::forward, i});
    }
    const ListSchedule schedule("in order", actions);
    BenchLine line;
    line.bench = "pipeline";
    line.bench_case = "engine, an empty task";
    for (int repeat = 0; repeat < std::max(5, options_.repeats); ++repeat) {
      const double begun = clock.now_s();
      executor.run(graph, schedule);
      line.ours.push_back((clock.now_s() - begun) / tasks);
    }
    return line;
  }

  // The timeline of one step of each schedule.
  void plot() {
    make_folder(options_.plot);
    for (const std::string schedule :
         {"gpipe", "1f1b", "arrival", "interleaved", "zero-bubble", "zero-bubble-v", "pipedream", "pipedream-2bw"}) {
      auto overrides = gpt(options_, options_.context > 0 ? options_.context : usual_context, 8, 1, 5);
      overrides.push_back("parallel.schedule=" + schedule);
      if (schedule.rfind("pipedream", 0) == 0) overrides.push_back("model.untied=true");
      overrides.push_back("log.trace_steps=1");
      overrides.push_back("log.trace_from=4");
      const auto run = next_run();
      run_ours(options_.stages, overrides, run, /*keep=*/true);
      const auto picture = fs::path(options_.plot) / fmt::format("timeline-{}.svg", schedule);
      fs::copy_file(run / "timeline.svg", picture, fs::copy_options::overwrite_existing);
      remove_tree(run);
      log::info("{}", picture.string());
    }
  }

 private:
  Measured run_peer(const RunConfig& config, const fs::path& inputs, const std::string& schedule, int64_t microbatches,
                    int threads, double jitter_ms) {
    const auto table = model_table(config.model, config.model.vocab);
    const auto plan = make_plan(config, table, {.ranks = options_.stages});
    std::vector<std::string> cuts;
    for (size_t i = 1; i < plan.begins.size(); ++i) cuts.push_back(std::to_string(plan.begins[i]));
    auto words = torch_.words(torch_.fastest_eager(), "torch_pipeline.py");
    words.insert(words.end(), {"--inputs",       inputs.string(),
                               "--heads",        std::to_string(config.model.heads),
                               "--stages",       std::to_string(options_.stages),
                               "--schedule",     schedule,
                               "--chunks",       std::to_string(plan.mesh.chunks),
                               "--microbatches", std::to_string(microbatches),
                               "--threads",      std::to_string(threads),
                               "--steps",        std::to_string(options_.steps),
                               "--batches",      std::to_string(file_batches),
                               "--lr",           fmt::format("{}", config.optimizer.lr),
                               "--weight-decay", fmt::format("{}", config.optimizer.weight_decay),
                               "--cuts",         fmt::format("{}", fmt::join(cuts, ",")),
                               "--jitter-ms",    fmt::format("{}", jitter_ms)});
    const auto result = run_command(words);
    Measured measured;
    measured.step_s = result.at("step_s").get<double>();
    measured.losses = result.at("losses").get<std::vector<double>>();
    return measured;
  }

  std::string name_of(int context, const std::string& what) const {
    return fmt::format("gpt 25.5M, {} tokens, {} stages, {}", context, options_.stages, what);
  }

  fs::path next_run() { return folder_ / fmt::format("run-{}", ++runs_); }

  const PipelineBenchOptions& options_;
  fs::path folder_;
  TorchPeer torch_;
  int runs_ = 0;
};

}  // namespace

void run_pipeline_bench(const PipelineBenchOptions& options, const std::function<void(const BenchLine&)>& each) {
  if (::access(options.python.c_str(), X_OK) != 0)
    refuse("--python {}: not found; the peer runs in the Python that holds torch", options.python);
  const BenchFolder made;
  const auto& folder = made.path();
  PipelineBench bench(options, folder);
  const auto wanted = [&](const char* name) { return options.only.empty() || options.only == name; };
  const int context = options.context > 0 ? options.context : usual_context;
  if (!options.plot.empty()) bench.plot();
  if (wanted("engine")) each(bench.engine());
  if (wanted("large")) each(bench.beside_torch("1f1b, 8 microbatches of 8", "1f1b", "1f1b", context, 8, 8, 0));
  if (wanted("small")) {
    // What a message and an operation cost weighs the more, the shorter the sequence.
    const auto contexts = options.context > 0 ? std::vector{options.context} : std::vector{64, usual_context, 256};
    for (const int one : contexts)
      each(bench.beside_torch("1f1b, 16 microbatches of 1", "1f1b", "1f1b", one, 16, 1, 0));
  }
  if (wanted("jitter")) {
    const auto what = fmt::format("arrival, 16 microbatches of 1, 0-{} ms on every message", options.jitter_ms);
    each(bench.beside_ourselves(what, "arrival", "1f1b", context, 16, 1, options.jitter_ms));
    each(bench.beside_torch(what, "arrival", "1f1b", context, 16, 1, options.jitter_ms));
  }
  if (wanted("schedules")) {
    for (const std::string schedule : {"interleaved", "zero-bubble", "zero-bubble-v"})
      each(bench.beside_torch(schedule + ", 8 microbatches of 8", schedule, schedule, context, 8, 8, 0));
  }
  if (wanted("bubble")) {
    for (const auto& line : bench.bubbles(context)) each(line);
  }
}

}  // namespace trireme
