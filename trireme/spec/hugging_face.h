// Hugging Face's layout of a model's folder: config.json says what the model is; model.safetensors, or several files
// with model.safetensors.index.json, hold the weights. GPT-2 and Llama have our names there, up to a prefix.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trireme/spec/config.h"

namespace trireme::hugging_face {

// Whether the folder has that layout.
bool holds_model(const std::filesystem::path& folder);

// What config.json says; model.context and model.vocab too. Refuses architectures and variants that we do not have.
ModelConfig read_config(const std::filesystem::path& folder);
nlohmann::ordered_json config_of(const ModelConfig& model, const std::string& dtype);

// The files that hold the weights. Refuses an index whose files are missing.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder);

// The tokenizer of a model whose tokens are the bytes of a text, as the library tokenizers reads it (tokenizer.json),
// and whether a folder holds that one.
nlohmann::ordered_json byte_tokenizer();
bool reads_bytes(const std::filesystem::path& folder);

// Our name for a tensor of such a file; nothing for those that are no parameters, such as the masks of old files.
std::optional<std::string> our_name(const ModelConfig& model, const std::string& name);
std::string their_name(const ModelConfig& model, const std::string& name);

}  // namespace trireme::hugging_face
