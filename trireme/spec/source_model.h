// A folder whose weights a training starts from (model.from) or that is converted: in Hugging Face's layout, a run's
// folder (its newest checkpoint) or one checkpoint. This file knows what model it holds and where its tensors lie.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "trireme/base/tensor_files.h"
#include "trireme/spec/config.h"

namespace trireme {

struct SourceModel {
  enum class Layout { hugging_face, trireme };

  Layout layout = Layout::hugging_face;
  std::filesystem::path folder;  // that holds the files: of a run, its newest checkpoint
  std::filesystem::path config;  // the file that says what the model is
  ModelConfig model;             // vocab set
  std::vector<std::filesystem::path> files;
  bool bytes = false;  // its tokens are the bytes of a text

  // Whether only adapters lie here; the weights they belong to are those of model.from.
  bool adapters() const { return model.lora_rank > 0; }
};

// Refuses what is none of the three.
SourceModel open_source_model(const std::filesystem::path& path);

// The checkpoints under `run_dir`/checkpoints, newest first; incomplete ones (.partial) are no checkpoints.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run_dir);
// N of a folder step-N, or -1.
int64_t step_of_checkpoint(const std::filesystem::path& folder);

// The version of a checkpoint's format: of its manifest, its files and their names.
inline constexpr int64_t checkpoint_version = 1;
// The manifest of a checkpoint, with values that can be. Refuses what is damaged, of another program or of a newer
// version.
nlohmann::ordered_json read_manifest(const std::filesystem::path& folder);

// Of a manifest's values, which it keeps as `xxh3` itself.
std::string manifest_checksum(nlohmann::ordered_json manifest);

// Reads the files of a checkpoint whose names begin with `prefix`. Refuses those that are missing, or have another size
// or checksum than the manifest says.
void verify_files(const std::filesystem::path& folder, const nlohmann::ordered_json& manifest,
                  const std::string& prefix = "");

// Takes the settings of `model` that were not given from model.from; refuses those that contradict it.
void adopt_source_model(RunConfig& config, Settings& settings);

}  // namespace trireme
