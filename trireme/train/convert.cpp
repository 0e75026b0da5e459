#include "trireme/train/convert.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/paths.h"
#include "trireme/base/safetensors.h"
#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/spec/hugging_face.h"
#include "trireme/spec/models/models.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/weights.h"

namespace trireme {

namespace fs = std::filesystem;
using Layout = SourceModel::Layout;
using nlohmann::ordered_json;

namespace {

// What is read beside the weights by those who use the model, and travels with them.
constexpr const char* companions[] = {
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "vocab.json",
    "merges.txt",     "generation_config.json"};

// A tensor of the result under our name: one of a file, and the adapter that is merged into it.
struct Piece {
  std::string name;
  FoundTensor found, lora_a, lora_b;
};

class Conversion {
 public:
  Conversion(const fs::path& from, const ConvertOptions& options)
      : options_(options), source_(open_source_model(from)), base_(source_.adapters() ? open_base() : source_) {
    files_ = open_weights(source_);
    if (source_.adapters()) base_files_ = open_weights(base_);
    if (options.adapters_only && !source_.adapters())
      refuse("{} holds a whole model, and no adapters by themselves", source_.folder.string());
    model_ = base_.model;
    model_.vocab = source_.model.vocab;
    model_.context = source_.model.context;
    options_.adapters_only ? collect_adapters() : collect();
  }

  Converted write(const fs::path& from, const fs::path& to) {
    Converted result;
    result.from = from;
    result.to = to;
    result.layout =
        options_.layout.value_or(source_.layout == Layout::trireme ? Layout::hugging_face : Layout::trireme);
    if (options_.adapters_only && result.layout != Layout::hugging_face)
      refuse("--adapters-only writes Hugging Face's layout");
    const fs::path partial = fs::path(to).string() + ".partial";
    remove_tree(partial);
    make_folder(partial);
    try {
      if (options_.adapters_only) {
        write_adapters(partial, result);
      } else {
        result.layout == Layout::hugging_face ? write_hugging_face(partial, result) : write_trireme(partial, result);
      }
      sync_folder(partial);
      rename_durably(partial, to);
    } catch (...) {
      remove_tree(partial);
      throw;
    }
    return result;
  }

 private:
  SourceModel open_base() const {
    try {
      auto base = open_source_model(source_.model.from);
      if (base.adapters()) refuse("{} holds adapters only", base.folder.string());
      return base;
    } catch (Error& error) {
      error.add_context(fmt::format("the base of {} (model.from)", source_.folder.string()));
      throw;
    }
  }

  // All tensors of the model, in its order; names and shapes are those of the model that the settings describe.
  void collect() {
    auto settings = model_;
    settings.lora_rank = 0;
    settings.freeze.clear();
    const auto table = model_table(settings, settings.vocab);
    auto known = by_our_names(base_, base_files_ ? *base_files_ : *files_);
    auto adapters = source_.adapters() ? by_our_names(source_, *files_) : std::map<std::string, FoundTensor>();
    for (const auto& parameter : table.weights) {
      Piece piece{parameter.name, {}, {}, {}};
      const auto found = known.find(parameter.name);
      if (found == known.end()) refuse("{} has no {}", base_.folder.string(), parameter.name);
      piece.found = found->second;
      const bool cut = parameter.name == "wpe.weight" && piece.found.info->shape.size() == 2 &&
                       piece.found.info->shape[0] > parameter.shape[0];
      if (!cut && piece.found.info->shape != parameter.shape) {
        refuse("{} has shape [{}] in {}, and the settings say [{}]", parameter.name,
               fmt::join(piece.found.info->shape, ", "), piece.found.path->string(), fmt::join(parameter.shape, ", "));
      }
      known.erase(found);
      const auto [a, b] = adapter_names(parameter.name.substr(0, parameter.name.rfind(".weight")));
      if (adapters.contains(a)) {
        piece.lora_a = take(adapters, a);
        piece.lora_b = take(adapters, b);
      }
      shapes_[piece.name] = parameter.shape;
      pieces_.push_back(piece);
    }
    if (!known.empty())
      refuse("{} holds {}, which the model has not", known.begin()->second.path->string(), known.begin()->first);
    if (!adapters.empty()) refuse("{}: {} belongs to no weight", source_.folder.string(), adapters.begin()->first);
  }

  void collect_adapters() {
    for (const auto& found : files_->all()) {
      pieces_.push_back({found.info->name, found, {}, {}});
      shapes_[found.info->name] = found.info->shape;
    }
  }

  FoundTensor take(std::map<std::string, FoundTensor>& from, const std::string& name) const {
    const auto found = from.find(name);
    if (found == from.end()) refuse("{} has no {}", source_.folder.string(), name);
    const auto tensor = found->second;
    from.erase(found);
    return tensor;
  }

  // W + (alpha / rank) B A, in fp32 or better; GPT-2's matrices lie the other way round.
  at::Tensor value_of(const Piece& piece) const {
    c10::NoGradGuard no_grad;
    auto value = tensor_of(piece.found);
    if (piece.name == "wpe.weight") value = value.narrow(0, 0, shapes_.at(piece.name)[0]).contiguous();
    if (!piece.lora_a) return value;
    const auto type =
        at::promote_types(at::promote_types(value.scalar_type(), type_of(piece.lora_a.info->dtype)), at::kFloat);
    const auto a = tensor_of(piece.lora_a).to(type), b = tensor_of(piece.lora_b).to(type);
    auto delta = at::mm(b, a) * (source_.model.lora_alpha / static_cast<double>(source_.model.lora_rank));
    if (model_.kind == ModelKind::gpt) delta = delta.t();
    return (value.to(type) + delta).to(value.scalar_type()).contiguous();
  }

  TensorInfo info_of(const Piece& piece, const std::string& name) const {
    return {name, piece.found.info->dtype, shapes_.at(piece.name)};
  }

  // Writes some of the pieces as one file; their sum goes into the result.
  SafetensorsWriter::Written write_file(const fs::path& path, size_t first, size_t last,
                                        const std::function<std::string(const std::string&)>& named,
                                        Converted& result) {
    std::vector<TensorInfo> infos;
    for (size_t i = first; i < last; ++i) infos.push_back(info_of(pieces_[i], named(pieces_[i].name)));
    SafetensorsWriter writer(path, infos, {{"format", "pt"}});
    for (size_t i = first; i < last; ++i) {
      const auto value = value_of(pieces_[i]);
      writer.append({static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()});
      ++result.tensors;
      result.parameters += value.numel();
      result.bytes += value.nbytes();
      if (pieces_[i].lora_a) ++result.merged;
    }
    result.files.push_back(path.filename().string());
    return writer.finish();
  }

  void write_hugging_face(const fs::path& folder, Converted& result) {
    const auto named = [&](const std::string& name) { return hugging_face::their_name(model_, name); };
    // Where each file ends: before the tensor that would make it too large.
    std::vector<size_t> ends;
    double bytes = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const auto more = static_cast<double>(tensor_bytes(pieces_[i].found.info->dtype, shapes_.at(pieces_[i].name)));
      if (bytes > 0 && bytes + more > options_.max_shard_mb * 1e6) {
        ends.push_back(i);
        bytes = 0;
      }
      bytes += more;
    }
    ends.push_back(pieces_.size());
    ordered_json map = ordered_json::object();
    size_t first = 0;
    for (size_t k = 0; k < ends.size(); ++k) {
      const auto file = ends.size() == 1 ? std::string("model.safetensors")
                                         : fmt::format("model-{:05}-of-{:05}.safetensors", k + 1, ends.size());
      write_file(folder / file, first, ends[k], named, result);
      for (; first < ends[k]; ++first) map[named(pieces_[first].name)] = file;
    }
    if (ends.size() > 1) {
      const ordered_json index{{"metadata", {{"total_parameters", result.parameters}, {"total_size", result.bytes}}},
                               {"weight_map", map}};
      write_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
    }
    const auto dtype = type_of(pieces_.front().found.info->dtype);
    const auto dtype_text = dtype == at::kDouble     ? "float64"
                            : dtype == at::kBFloat16 ? "bfloat16"
                            : dtype == at::kHalf     ? "float16"
                                                     : "float32";
    write_atomically(folder / "config.json", hugging_face::config_of(model_, dtype_text).dump(2) + "\n");
    for (const char* name : companions) {
      if (base_.layout != Layout::hugging_face || !fs::exists(base_.folder / name)) continue;
      const MappedFile file(base_.folder / name);
      write_atomically(folder / name, file.bytes());
    }
    if (source_.bytes && !fs::exists(folder / "tokenizer.json")) write_byte_tokenizer(folder);
  }

  void write_byte_tokenizer(const fs::path& folder) const {
    const ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                              {"clean_up_tokenization_spaces", false},
                              {"model_max_length", model_.context}};
    write_atomically(folder / "tokenizer.json", hugging_face::byte_tokenizer().dump(2) + "\n");
    write_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
  }

  // A checkpoint before the first step: a run starts from it with model.from.
  void write_trireme(const fs::path& folder, Converted& result) {
    RunConfig config;
    config.model = model_;
    config.model.from.clear();
    config.model.freeze.clear();
    config.model.lora_rank = 0;
    if (source_.bytes) {
      config.data = {.kind = DataKind::text, .path = "text.txt"};
    } else {
      config.data = {.kind = DataKind::tokens, .path = "tokens.bin"};
    }
    const auto written =
        write_file(folder / "model.safetensors", 0, pieces_.size(), [](const auto& name) { return name; }, result);
    write_manifest(folder, {{"model.safetensors", {{"bytes", written.bytes}, {"xxh3", hex(written.checksum)}}}},
                   Progression{}, resolved_yaml(config));
  }

  // As peft writes adapters: adapter_config.json and adapter_model.safetensors.
  void write_adapters(const fs::path& folder, Converted& result) {
    write_file(
        folder / "adapter_model.safetensors", 0, pieces_.size(),
        [&](const std::string& name) { return "base_model.model." + hugging_face::their_name(model_, name); }, result);
    std::vector<std::string> targets;
    for (const auto& piece : pieces_) {
      const auto name = adapted_by(piece.name);
      if (!name.empty()) targets.push_back(hugging_face::their_name(model_, name));
    }
    const ordered_json config{{"peft_type", "LORA"},
                              {"task_type", "CAUSAL_LM"},
                              {"base_model_name_or_path", source_.model.from},
                              {"r", source_.model.lora_rank},
                              {"lora_alpha", source_.model.lora_alpha},
                              {"lora_dropout", 0.0},
                              {"bias", "none"},
                              {"fan_in_fan_out", model_.kind == ModelKind::gpt},
                              {"target_modules", targets}};
    write_atomically(folder / "adapter_config.json", config.dump(2) + "\n");
  }

  ConvertOptions options_;
  SourceModel source_, base_;  // the same where there are no adapters
  std::unique_ptr<TensorFiles> files_, base_files_;
  ModelConfig model_;  // what the result is
  std::vector<Piece> pieces_;
  std::map<std::string, std::vector<int64_t>> shapes_;
};

const char* layout_name(Layout layout) { return layout == Layout::hugging_face ? "hf" : "trireme"; }

}  // namespace

std::string Converted::brief() const {
  auto text = fmt::format("{} -> {}: {}, {} parameters, {} in {}", from.string(), to.string(),
                          counted(tensors, "tensor"), human_count(static_cast<double>(parameters)),
                          human_bytes(static_cast<double>(bytes)), counted(std::ssize(files), "file"));
  if (merged > 0) text += fmt::format(", {} merged", counted(merged, "adapter"));
  return text + "\n";
}

ordered_json Converted::json() const {
  return {{"from", from.string()}, {"to", to.string()},  {"layout", layout_name(layout)},
          {"files", files},        {"tensors", tensors}, {"parameters", parameters},
          {"merged", merged},      {"bytes", bytes}};
}

Converted convert(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  check_new_folder(to);
  return Conversion(from, options).write(from, to);
}

}  // namespace trireme
