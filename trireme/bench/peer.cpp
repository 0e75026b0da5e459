#include "trireme/bench/peer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/safetensors.h"
#include "trireme/base/statistics.h"
#include "trireme/comm/process.h"
#include "trireme/data/dataset.h"
#include "trireme/data/order.h"
#include "trireme/nn/model.h"
#include "trireme/train/run.h"

namespace trireme {

namespace fs = std::filesystem;

BenchFolder::BenchFolder() {
  auto pattern = (fs::temp_directory_path() / "trireme-bench-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) fail_errno(pattern);
  path_ = pattern;
}

BenchFolder::~BenchFolder() { remove_tree(path_); }

void write_inputs(const RunConfig& config, int64_t batches, const fs::path& path) {
  const auto data = open_dataset(data_options(config));
  const auto model = build_model(config.model, data.train->vocab());
  model->initialize(static_cast<uint64_t>(config.train.seed));
  model->to(at::kFloat, at::kCPU);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const SampleOrder order(data.train->size(), config.train.batch, static_cast<uint64_t>(config.train.seed));
  for (int64_t step = 0; step < batches; ++step) {
    std::vector<int64_t> samples;
    order.fill(step, 0, config.train.batch, samples);
    const auto batch = data.train->get(samples);
    tensors.emplace_back(fmt::format("inputs.{}", step), data.train->decode(batch.inputs).contiguous());
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

nlohmann::json run_command(const std::vector<std::string>& words) {
  int status = 0;
  const auto output = output_of(words, status);
  auto result = nlohmann::json::parse(output, nullptr, false);
  if (status != 0 || !result.is_object())
    fail("{}\nended with status {} and said: {}", fmt::join(words, " "), status, output);
  return result;
}

Measured run_ours(int ranks, const std::vector<std::string>& overrides, const fs::path& run_dir, bool keep,
                  const std::vector<std::string>& launcher) {
  auto words = launcher;
  for (const auto& word : {fs::read_symlink("/proc/self/exe").string(), std::string("train"), std::string("--json")})
    words.push_back(word);
  if (launcher.empty()) {
    words.push_back("--ranks");
    words.push_back(std::to_string(ranks));
  }
  words.insert(words.end(), overrides.begin(), overrides.end());
  words.push_back("run_dir=" + run_dir.string());
  const auto result = run_command(words);
  Measured measured;
  measured.step_s = result.at("step_s").get<double>();
  std::ifstream metrics(run_dir / "metrics.jsonl");
  for (std::string text; std::getline(metrics, text);) {
    const auto line = nlohmann::json::parse(text);
    if (line.contains("loss")) measured.losses.push_back(line.at("loss").get<double>());
    if (line.contains("loss") && line.contains("codec")) measured.sent_bytes = line["codec"].at("sent_bytes");
    if (line.contains("idle")) {
      std::vector<double> work;  // by stage
      for (const auto& stage : line["idle"])
        work.push_back(1 - stage.at("forward").get<double>() - stage.at("backward").get<double>() -
                       stage.at("reduce").get<double>());
      measured.idle.push_back(1 - mean(work));
      measured.unequal.push_back(1 - mean(work) / *std::max_element(work.begin(), work.end()));
    }
    if (line.value("event", "") == "started") measured.codec = line.value("codec", "");
  }
  // The first steps warm up; in the last one a pipeline that never drained before does.
  if (measured.idle.size() > 4) {
    for (auto* steps : {&measured.idle, &measured.unequal}) {
      steps->pop_back();
      steps->erase(steps->begin(), steps->begin() + 2);
    }
  }
  if (!keep) remove_tree(run_dir);
  return measured;
}

void compare_losses(const std::string& name, const Measured& ours, const Measured& theirs, int64_t steps,
                    double tolerance) {
  for (int64_t step = 0; step < steps; ++step) {
    const double a = ours.losses.at(static_cast<size_t>(step)), b = theirs.losses.at(static_cast<size_t>(step));
    if (!(std::abs(a - b) <= tolerance * std::abs(b)))
      fail("{}: the loss of step {} is {} here and {} in PyTorch", name, step + 1, a, b);
  }
}

}  // namespace trireme
