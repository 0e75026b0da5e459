#include "trireme/train/average.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/paths.h"
#include "trireme/base/tensor_files.h"
#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/train/loaded_model.h"
#include "trireme/train/weights.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

struct Source {
  CheckpointInfo checkpoint;
  RunConfig config;
  std::unique_ptr<TensorFiles> files;

  std::string name() const { return checkpoint.folder.string(); }
};

Source open_source(const fs::path& path) {
  Source source;
  source.checkpoint = find_checkpoint(path);
  describe(source.config).read_text(source.checkpoint.config, (source.checkpoint.folder / "manifest.json").string());
  source.files = std::make_unique<TensorFiles>(source.checkpoint.model_files);
  return source;
}

// Settings of a model that its tensors' names and shapes do not show, or that say what adapters belong to. How it was
// trained may differ.
bool makes_the_model(const std::string& key, const RunConfig& config) {
  if (key.rfind("model.", 0) != 0) return false;
  if (key == "model.from") return config.model.lora_rank > 0;
  for (const char* free : {"model.vocab", "model.dropout", "model.freeze", "model.batch_norm", "model.lora_targets"}) {
    if (key == free) return false;
  }
  return true;
}

// Refuses two checkpoints of different models, with the first difference.
void check_same_model(Source& first, Source& other) {
  const auto mine = describe(first.config), theirs = describe(other.config);
  for (const auto& key : mine.keys()) {
    if (!makes_the_model(key, first.config) || mine.text(key) == theirs.text(key)) continue;
    refuse("{} and {} are of different models: {} is {} in the first and {} in the other", first.name(), other.name(),
           key, Setting::shown(mine.text(key)), Setting::shown(theirs.text(key)));
  }
  for (const auto& tensor : first.files->all()) {
    const auto found = other.files->find(tensor.info->name);
    if (!found) {
      refuse("{} and {} are of different models: only the first has {}", first.name(), other.name(), tensor.info->name);
    }
    if (found.info->shape != tensor.info->shape) {
      refuse("{} and {} are of different models: {} has shape [{}] in the first and [{}] in the other", first.name(),
             other.name(), tensor.info->name, fmt::join(tensor.info->shape, ", "), fmt::join(found.info->shape, ", "));
    }
    if ((found.info->dtype == DType::i64) != (tensor.info->dtype == DType::i64)) {
      refuse("{} and {} are of different models: {} is of type {} in the first and {} in the other", first.name(),
             other.name(), tensor.info->name, dtype_name(tensor.info->dtype), dtype_name(found.info->dtype));
    }
  }
  for (const auto& tensor : other.files->all()) {
    if (!first.files->find(tensor.info->name))
      refuse("{} and {} are of different models: only the other has {}", first.name(), other.name(), tensor.info->name);
  }
}

void check_weights_of(const std::vector<double>& weights, size_t checkpoints) {
  if (weights.empty()) return;
  if (weights.size() != checkpoints)
    refuse("--weights names {} for {}: give one for each", counted(std::ssize(weights), "weight"),
           counted(static_cast<int64_t>(checkpoints), "checkpoint"));
  for (const double weight : weights) {
    if (!(weight >= 0) || !std::isfinite(weight)) refuse("--weights: {} is no weight: give numbers from 0 on", weight);
  }
  if (std::accumulate(weights.begin(), weights.end(), 0.0) <= 0) refuse("--weights: one of them must be above 0");
}

class Averaging {
 public:
  Averaging(const std::vector<fs::path>& from, std::vector<double> weights) : weights_(std::move(weights)) {
    check_weights_of(weights_, from.size());
    if (weights_.empty()) weights_.assign(from.size(), 1.0);
    for (const auto& path : from) {
      sources_.push_back(open_source(path));
      check_same_model(sources_.front(), sources_.back());
      step_ = std::max(step_, sources_.back().checkpoint.step);
    }
    for (const auto& tensor : sources_.front().files->all()) {
      auto type = type_of(tensor.info->dtype);
      for (const auto& source : sources_)
        type = at::promote_types(type, type_of(source.files->find(tensor.info->name).info->dtype));
      tensors_.push_back({tensor.info->name, dtype_of(type), tensor.info->shape});
    }
  }

  // As a run's folder: the average stands there as the checkpoint of the latest step. The optimizer has made no update
  // of it yet, so its corrections for a short history begin anew.
  void write(const fs::path& folder, Averaged& result) {
    result.step = step_;
    result.weights = weights_;
    for (const auto& source : sources_) result.from.push_back(source.checkpoint.folder);
    const auto checkpoint = fs::path("checkpoints") / fmt::format("step-{}", step_);
    make_folder(folder / checkpoint);
    SafetensorsWriter writer(folder / checkpoint / "model.safetensors", tensors_, {{"format", "pt"}});
    for (const auto& tensor : tensors_) {
      const auto mean = mean_of(tensor);
      writer.append({static_cast<const std::byte*>(mean.const_data_ptr()), mean.nbytes()});
      ++result.tensors;
      result.parameters += mean.numel();
    }
    const auto written = writer.finish();
    const auto& config = sources_.front().checkpoint.config;
    write_manifest(folder / checkpoint,
                   {{"model.safetensors", {{"bytes", written.bytes}, {"xxh3", hex(written.checksum)}}}},
                   Progression{.step = step_}, config);
    sync_folder(folder / checkpoint);
    write_atomically(folder / "config.yaml", config);
    result.checkpoint = result.to / checkpoint;
    write_atomically(folder / "average.json", result.json().dump(1) + "\n");
  }

 private:
  at::Tensor mean_of(const TensorInfo& tensor) const {
    c10::NoGradGuard no_grad;
    auto sum = at::zeros(tensor.shape, at::kDouble);
    double weight = 0;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const auto value = tensor_of(sources_[i].files->find(tensor.name)).to(at::kDouble);
      sum.add_(value * weights_[i]);
      weight += weights_[i];
    }
    sum.div_(weight);
    const auto type = type_of(tensor.dtype);
    return (at::isIntegralType(type, /*includeBool=*/false) ? sum.round_() : sum).to(type);
  }

  std::vector<double> weights_;
  std::vector<Source> sources_;
  std::vector<TensorInfo> tensors_;  // of the result, in the order of the first
  int64_t step_ = 0;
};

}  // namespace

std::string Averaged::brief() const {
  return fmt::format(
      "averaged {}: {}, {} numbers\nfolder: {}\ncheckpoint: {} (no optimizer state: a run "
      "that goes on from it starts its optimizer anew)\n",
      counted(std::ssize(from), "checkpoint"), counted(tensors, "tensor"), human_count(static_cast<double>(parameters)),
      to.string(), checkpoint.string());
}

ordered_json Averaged::json() const {
  ordered_json sources = ordered_json::array();
  for (size_t i = 0; i < from.size(); ++i)
    sources.push_back({{"checkpoint", from[i].string()}, {"weight", weights[i]}});
  return {{"to", to.string()},     {"checkpoint", checkpoint.string()},
          {"step", step},          {"tensors", tensors},
          {"numbers", parameters}, {"from", sources}};
}

Averaged average(const std::vector<fs::path>& from, const std::vector<double>& weights, const fs::path& to) {
  check_new_folder(to);
  Averaging averaging(from, weights);
  Averaged result;
  result.to = to;
  const fs::path partial = fs::path(to).string() + ".partial";
  remove_tree(partial);
  try {
    averaging.write(partial, result);
    sync_folder(partial);
    rename_durably(partial, to);
  } catch (...) {
    remove_tree(partial);
    throw;
  }
  return result;
}

}  // namespace trireme
