#include "trireme/spec/source_model.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
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

nlohmann::ordered_json read_manifest(const fs::path& folder) {
  const auto path = folder / "manifest.json";
  std::ifstream stream(path);
  if (!stream) refuse("{} is no checkpoint: it has no manifest.json", folder.string());
  auto manifest = nlohmann::ordered_json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || manifest.value("format", nlohmann::ordered_json()) != "trireme-checkpoint" ||
      !manifest.contains("version") || !manifest.at("version").is_number_integer()) {
    refuse("{} is damaged, or not a checkpoint of this program", path.string());
  }
  const auto version = manifest.at("version").get<int64_t>();
  if (version > checkpoint_version) {
    refuse("{} was made by a newer Trireme: it has version {}, this program reads up to {}: use the newer program",
           folder.string(), version, checkpoint_version);
  }
  return manifest;
}

namespace {

SourceModel open_hugging_face(const fs::path& folder) {
  SourceModel source;
  source.layout = SourceModel::Layout::hugging_face;
  source.folder = folder;
  source.config = folder / "config.json";
  source.model = hugging_face::read_config(folder);
  source.files = hugging_face::weight_files(folder);
  return source;
}

SourceModel open_trireme(const fs::path& folder) {
  SourceModel source;
  source.layout = SourceModel::Layout::trireme;
  source.folder = folder;
  source.config = folder / "manifest.json";
  const auto manifest = read_manifest(folder);
  if (!manifest.contains("config") || !manifest.at("config").is_string() || !manifest.contains("files") ||
      !manifest.at("files").is_object()) {
    refuse("{} is damaged, or not a checkpoint of this program", source.config.string());
  }
  RunConfig config;
  describe(config).read_text(manifest.at("config").get<std::string>(), source.config.string());
  source.model = config.model;
  if (!reads_tokens(source.model.kind))
    refuse("{} holds a model that is no language model: only those are taken over", folder.string());
  for (const auto& [name, entry] : manifest.at("files").items()) {
    if (name.rfind("model", 0) == 0) source.files.push_back(folder / name);
  }
  for (const auto& file : source.files) {
    if (!fs::exists(file)) refuse("{} is missing from the checkpoint", file.string());
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
  if (!fs::exists(path)) refuse("{}: there is no such folder", path.string());
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
