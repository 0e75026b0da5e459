// A trained model that is asked and never changed: an evaluation's, a teacher's, or one that generates. It comes from a
// run's folder (its newest checkpoint), from one checkpoint, or from a folder in Hugging Face's layout.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "trireme/nn/model.h"
#include "trireme/spec/config.h"
#include "trireme/train/checkpoint.h"

namespace trireme {

// The checkpoint that a path means: itself, or the newest one of a run's folder.
CheckpointInfo find_checkpoint(const std::filesystem::path& path);

// What a folder says of its model, before the weights are read.
struct SavedModel {
  std::filesystem::path folder;              // that holds the weights
  std::optional<CheckpointInfo> checkpoint;  // none: Hugging Face's layout
  RunConfig config;                          // of the run that made it, its model's vocabulary set; or the model alone
  bool bytes = false;                        // its tokens are the bytes of a text

  int64_t answers() const;  // tokens of its vocabulary, or classes: how many scores it gives
  int64_t parameter_bytes(Precision precision) const;
};

SavedModel find_model(const std::filesystem::path& path);

// Refuses a model that cannot read what `asked` reads, or gives other answers; `answers` is how many are wanted.
void check_same_questions(const SavedModel& saved, const ModelConfig& asked, int64_t answers);

struct LoadedModel {
  SavedModel saved;
  std::unique_ptr<Model> model;  // its parameters are values alone: no gradients, no masters

  // As in an evaluation: nothing is dropped, BatchNorms use what they remember, and nothing is kept for later.
  at::Tensor operator()(const at::Tensor& inputs, const Documents& documents = {}) const;
};

LoadedModel load_model(SavedModel saved, Precision precision, at::Device device);

}  // namespace trireme
