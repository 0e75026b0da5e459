#include "trireme/spec/source_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/paths.h"
#include "trireme/spec/hugging_face.h"

namespace trireme {

namespace fs = std::filesystem;

int64_t step_of_checkpoint(const fs::path& folder) {
  const auto name = folder.filename().string();
  if (name.rfind("step-", 0) != 0 || name.find_first_not_of("0123456789", 5) != std::string::npos) return -1;
  if (name.size() == 5 || name.size() > 5 + 18) return -1;  // 18 digits fit into 64 bits
  return std::stoll(name.substr(5));
}

std::vector<fs::path> list_checkpoints(const fs::path& run_dir) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir / "checkpoints", error)) {
    if (entry.is_directory() && step_of_checkpoint(entry.path()) >= 0) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return step_of_checkpoint(a) > step_of_checkpoint(b); });
  return found;
}

namespace {

using nlohmann::ordered_json;

[[noreturn]] void refuse_manifest(const fs::path& path, const std::string& problem) {
  refuse("{}: {}: the checkpoint is damaged, use another one", path.string(), problem);
}

const ordered_json& entry_of(const fs::path& path, const ordered_json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) refuse_manifest(path, key + " is missing");
  return *found;
}

void check_count(const fs::path& path, const ordered_json& manifest, const std::string& key) {
  constexpr int64_t most = 1'000'000'000'000'000;
  const auto& value = entry_of(path, manifest, key);
  const bool possible = value.is_number_unsigned() && value.get<uint64_t>() <= most;
  if (!possible)
    refuse_manifest(path, fmt::format("{} = {} must be a whole number from 0 to {}", key, value.dump(), most));
}

// Each file of a checkpoint lies in its folder, with its size and checksum.
void check_files(const fs::path& path, const ordered_json& files) {
  if (!files.is_object() || files.empty()) refuse_manifest(path, "files must name the files of the checkpoint");
  for (const auto& [name, entry] : files.items()) {
    const bool inside = !name.empty() && name != ".." && name.find('/') == std::string::npos;
    const bool known = entry.is_object() && entry.contains("bytes") && entry.at("bytes").is_number_unsigned() &&
                       entry.contains("xxh3") && entry.at("xxh3").is_string();
    if (!inside || !known)
      refuse_manifest(path, fmt::format("files: {} must be the name of a file with its bytes and xxh3", name));
  }
}

void check_size(const fs::path& path, const ordered_json& entry) {
  const auto expected = entry.at("bytes").get<uint64_t>();
  std::error_code error;
  const auto found = fs::file_size(path, error);
  if (error) refuse("{} is missing from the checkpoint", path.string());
  if (found != expected) refuse("{} has {} bytes where {} were written", path.string(), found, expected);
}

}  // namespace

ordered_json read_manifest(const fs::path& folder) {
  constexpr uint64_t most_bytes = 16'000'000;
  const auto path = folder / "manifest.json";
  if (!fs::exists(path)) refuse("{} is no checkpoint: it has no manifest.json", folder.string());
  const auto text = read_input_text(path, "a manifest", most_bytes);
  auto manifest = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || manifest.value("format", nlohmann::ordered_json()) != "trireme-checkpoint" ||
      !manifest.contains("version") || !manifest.at("version").is_number_integer()) {
    refuse("{} is damaged, or not a checkpoint of this program", path.string());
  }
  const auto version = manifest.at("version").get<int64_t>();
  if (version > checkpoint_version) {
    refuse("{} was made by a newer Trireme: it has version {}, this program reads up to {}: use the newer program",
           folder.string(), version, checkpoint_version);
  }
  for (const char* key : {"step", "updates", "skipped", "skipped_in_a_row"}) check_count(path, manifest, key);
  if (!entry_of(path, manifest, "config").is_string()) refuse_manifest(path, "config must be text");
  if (manifest.contains("codec") && !manifest.at("codec").is_string()) refuse_manifest(path, "codec must be text");
  check_files(path, entry_of(path, manifest, "files"));
  if (manifest.contains("xxh3") && manifest.at("xxh3") != manifest_checksum(manifest))
    refuse_manifest(path, "it is not as it was written");
  return manifest;
}

std::string manifest_checksum(ordered_json manifest) {
  manifest.erase("xxh3");
  const auto text = manifest.dump();
  return hex(checksum(std::as_bytes(std::span(text))));
}

void verify_files(const fs::path& folder, const ordered_json& manifest, const std::string& prefix) {
  for (const auto& [name, entry] : manifest.at("files").items()) {
    if (!name.starts_with(prefix)) continue;
    const auto path = folder / name;
    check_size(path, entry);
    const MappedFile file(path);
    if (hex(checksum(file.bytes())) == entry.at("xxh3").get<std::string>()) continue;
    refuse(
        "{} is damaged: the checksum of its {} bytes is not the one in manifest.json. Copy it anew from where it is "
        "whole, or use another checkpoint",
        path.string(), file.bytes().size());
  }
}

namespace {

SourceModel open_hugging_face(const fs::path& folder) {
  SourceModel source;
  source.layout = SourceModel::Layout::hugging_face;
  source.folder = folder;
  source.config = folder / "config.json";
  source.model = hugging_face::read_config(folder);
  source.files = hugging_face::weight_files(folder);
  source.bytes = hugging_face::reads_bytes(folder);
  return source;
}

SourceModel open_trireme(const fs::path& folder) {
  SourceModel source;
  source.layout = SourceModel::Layout::trireme;
  source.folder = folder;
  source.config = folder / "manifest.json";
  const auto manifest = read_manifest(folder);
  RunConfig config;
  describe(config).read_text(manifest.at("config").get<std::string>(), source.config.string());
  source.model = config.model;
  source.bytes = config.data.kind == DataKind::text;
  if (!reads_tokens(source.model.kind))
    refuse("{} holds a model that is no language model: only those are taken over", folder.string());
  for (const auto& [name, entry] : manifest.at("files").items()) {
    if (name.rfind("model", 0) != 0) continue;
    check_size(folder / name, entry);
    source.files.push_back(folder / name);
  }
  if (source.adapters()) {
    source.model.vocab = open_source_model(source.model.from).model.vocab;
  } else {
    const TensorFiles files(source.files);
    const auto table = files.find(source.model.kind == ModelKind::llama ? "model.embed_tokens.weight" : "wte.weight");
    if (!table || table.info->shape.size() != 2) refuse("{} holds no token embedding", folder.string());
    source.model.vocab = table.info->shape[0];
  }
  return source;
}

}  // namespace

SourceModel open_source_model(const fs::path& path) {
  if (!fs::exists(path)) refuse_missing(path, "folder");
  if (hugging_face::holds_model(path)) return open_hugging_face(path);
  if (fs::exists(path / "manifest.json")) return open_trireme(path);
  const auto checkpoints = list_checkpoints(path);
  if (!checkpoints.empty()) return open_trireme(checkpoints.front());
  refuse("{} is no model: it holds neither config.json (Hugging Face's layout) nor a checkpoint", path.string());
}

void adopt_source_model(RunConfig& config, Settings& settings) {
  SourceModel source;
  try {
    source = open_source_model(config.model.from);
  } catch (Error& error) {
    error.add_context("model.from");
    throw;
  }
  if (source.adapters()) {
    refuse("model.from: {} holds adapters only: merge them into a model with trireme convert", source.folder.string());
  }
  RunConfig theirs;
  theirs.model = source.model;
  const auto known = describe(theirs);
  for (const char* key :
       {"model.kind", "model.layers", "model.width", "model.heads", "model.vocab", "model.norm_epsilon",
        "model.kv_heads", "model.hidden", "model.rope_theta", "model.tied", "model.untied", "model.context"}) {
    const auto value = known.text(key);
    if (!settings.is_set(key)) {
      settings.take(key, value, source.config.string());
    } else if (std::string(key) == "model.context" && config.model.context < source.model.context) {
      continue;  // shorter sequences than the model could read
    } else if (settings.text(key) != value) {
      settings.refuse_together(
          key, fmt::format("must be {}, as {} says, or left out, with", value, source.config.string()), "model.from");
    }
  }
}

}  // namespace trireme
