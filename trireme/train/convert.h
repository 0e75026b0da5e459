// `trireme convert`: a model from one layout into another. A checkpoint of any mesh becomes a folder in Hugging Face's
// layout, and back; adapters are merged into the weights they belong to, or written by themselves as peft does it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trireme/spec/source_model.h"

namespace trireme {

struct ConvertOptions {
  std::optional<SourceModel::Layout> layout;  // none: the one that the source has not
  double max_shard_mb = 5000;                 // a larger model is cut into several files
  bool adapters_only = false;
};

struct Converted {
  std::filesystem::path from, to;
  SourceModel::Layout layout = SourceModel::Layout::hugging_face;
  std::vector<std::string> files;  // with weights
  int64_t tensors = 0, parameters = 0, merged = 0;
  uint64_t bytes = 0;

  std::string brief() const;
  nlohmann::ordered_json json() const;
};

// `to` must not exist, or be empty; it appears when everything in it is on the disk.
Converted convert(const std::filesystem::path& from, const std::filesystem::path& to, const ConvertOptions& options);

}  // namespace trireme
