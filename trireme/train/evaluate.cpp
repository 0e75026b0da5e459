#include "trireme/train/evaluate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/words.h"
#include "trireme/device/device.h"
#include "trireme/nn/attention.h"
#include "trireme/optim/store.h"
#include "trireme/spec/config_paths.h"
#include "trireme/spec/share.h"
#include "trireme/train/loaded_model.h"
#include "trireme/train/run.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

// A model's sums over the samples so far.
struct Tally {
  double loss = 0, right = 0, judged = 0;

  void add(double more, const at::Tensor& scores, const at::Tensor& targets) {
    loss += more;
    // One row of scores and one class a sample: it can be told right or wrong.
    if (scores.dim() != 2 || targets.dim() != 1) return;
    right += static_cast<double>((scores.argmax(1) == targets).sum().item<int64_t>());
    judged += static_cast<double>(targets.numel());
  }
  Evaluated result(std::string name, int64_t step) const {
    return {std::move(name), step, loss, judged > 0 ? std::optional(right / judged) : std::nullopt};
  }
};

bool overrides_key(const std::vector<std::string>& overrides, const std::string& key) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const auto& one) { return one.rfind(key, 0) == 0; });
}

RunConfig config_with(RunConfig config, const std::vector<std::string>& overrides) {
  auto settings = describe(config);
  for (const auto& one : overrides) {
    settings.override_with(one);
    const bool heard = one.rfind("data.", 0) == 0 || one.rfind("train.", 0) == 0 || one.rfind("model.context=", 0) == 0;
    if (!heard) refuse("{} would change nothing here: settings of data and train, and model.context, are heard", one);
  }
  expand_paths(config);
  settings.check();
  check(config, settings);
  return config;
}

class Evaluator {
 public:
  Evaluator(const std::vector<fs::path>& from, const std::vector<std::string>& overrides) {
    std::vector<SavedModel> found;
    for (const auto& path : from) found.push_back(find_model(path));
    config_ = config_with(found.front().config, overrides);
    at::set_num_threads(threads_per_rank(config_, 1));
    data_ = open_dataset(data_options(config_));
    if (!data_.validation || config_.train.eval_batches == 0)
      refuse("no samples are held out: set data.validation and train.eval_batches above 0");
    device_ = choose_device(config_.train.device == DeviceKind::cuda, 0);
    for (auto& saved : found) {
      check_same_questions(saved, config_.model, found.front().answers());
      const auto precision =
          overrides_key(overrides, "train.precision=") ? config_.train.precision : saved.config.train.precision;
      precisions_.push_back(precision);
      models_.push_back(load_model(saved, precision, device_));
    }
    tallies_.resize(models_.size());
  }

  Evaluation operator()() {
    c10::NoGradGuard no_grad;
    // As many samples at once as a run on one rank takes: the same sums, to the last bit.
    Evaluation result;
    result.samples = std::min(data_.validation->size(), config_.train.eval_batches * config_.train.batch);
    std::vector<int64_t> all(static_cast<size_t>(result.samples));
    std::iota(all.begin(), all.end(), 0);
    items_ = static_cast<double>(std::max<int64_t>(1, data_.validation->learnt_targets(all)));
    const int64_t piece = config_.train.microbatch > 0 ? config_.train.microbatch : config_.train.batch;
    for (const auto& share : microbatches({0, result.samples}, piece)) {
      add(data_.validation->get(
          std::span(all).subspan(static_cast<size_t>(share.first), static_cast<size_t>(share.count))));
    }
    for (size_t i = 0; i < models_.size(); ++i) {
      const auto& saved = models_[i].saved;
      result.models.push_back(tallies_[i].result(saved.folder.string(), saved.checkpoint ? saved.checkpoint->step : 0));
    }
    if (models_.size() > 1) result.ensemble = together_.result(fmt::format("ensemble of {}", models_.size()), 0);
    return result;
  }

 private:
  void add(const Batch& batch) {
    const auto targets = batch.targets.to(device_);
    at::Tensor mixed;  // log of the sum of the models' probabilities
    for (size_t i = 0; i < models_.size(); ++i) {
      auto inputs = data_.validation->decode(batch.inputs.to(device_));
      if (inputs.is_floating_point()) inputs = inputs.to(value_type(precisions_[i]));
      const auto documents = batch.starts.defined() ? documents_from(batch.starts.to(device_)) : Documents{};
      const auto scores = models_[i](inputs, documents);
      tallies_[i].add((models_[i].model->loss(scores, targets) / items_).item<double>(), scores, targets);
      if (models_.size() == 1) continue;
      const auto mine = at::log_softmax(scores.to(at::kDouble), -1);
      mixed = mixed.defined() ? at::logaddexp(mixed, mine) : mine;
    }
    if (!mixed.defined()) return;
    mixed = mixed - std::log(static_cast<double>(models_.size()));
    const auto rows = mixed.reshape({-1, mixed.size(-1)});
    const auto loss = at::nll_loss(rows, targets.reshape({-1}), {}, at::Reduction::Sum);
    together_.add(loss.item<double>() / items_, mixed, targets);
  }

  RunConfig config_;
  Split data_;
  at::Device device_ = at::kCPU;
  std::vector<LoadedModel> models_;
  std::vector<Precision> precisions_;
  std::vector<Tally> tallies_;
  Tally together_;
  double items_ = 1;  // that are learnt, in all samples
};

std::vector<Evaluated> lines_of(const Evaluation& evaluation) {
  auto lines = evaluation.models;
  if (evaluation.ensemble) lines.push_back(*evaluation.ensemble);
  return lines;
}

ordered_json json_of(const Evaluated& one) {
  const auto finite = [](double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); };
  ordered_json line{{"eval_loss", finite(one.loss)}};
  if (one.accuracy) line["eval_accuracy"] = *one.accuracy;
  return line;
}

}  // namespace

std::string Evaluation::brief() const {
  const auto lines = lines_of(*this);
  size_t width = 10;
  for (const auto& line : lines) width = std::max(width, line.checkpoint.size());
  const bool judged = lines.front().accuracy.has_value();
  auto text = fmt::format("{}\n{:<{}}  eval_loss{}\n", counted(samples, "held-out sample"), "checkpoint", width,
                          judged ? "  eval_accuracy" : "");
  for (const auto& line : lines) {
    text += fmt::format("{:<{}}  {:>9}", line.checkpoint, width, fixed(line.loss, 4));
    if (judged) text += fmt::format("  {:>11.2f} %", 100 * line.accuracy.value_or(0));
    text += "\n";
  }
  return text;
}

ordered_json Evaluation::json() const {
  ordered_json listed = ordered_json::array();
  for (const auto& one : models) {
    ordered_json line{{"checkpoint", one.checkpoint}, {"step", one.step}};
    line.update(json_of(one));
    listed.push_back(std::move(line));
  }
  ordered_json result{{"samples", samples}, {"models", std::move(listed)}};
  if (ensemble) result["ensemble"] = json_of(*ensemble);
  return result;
}

Evaluation evaluate(const std::vector<fs::path>& from, const std::vector<std::string>& overrides) {
  return Evaluator(from, overrides)();
}

}  // namespace trireme
