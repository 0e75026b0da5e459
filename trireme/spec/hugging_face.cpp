#include "trireme/spec/hugging_face.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/paths.h"
#include "trireme/base/pattern.h"

namespace trireme::hugging_face {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr const char* config_name = "config.json";
constexpr const char* one_file = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* tokenizer_name = "tokenizer.json";
constexpr const char* gpt_prefix = "transformer.";
constexpr uint64_t most_json_bytes = 100'000'000;  // an index that names millions of tensors

ordered_json read_json(const fs::path& path) {
  const auto text = read_input_text(path, "a JSON file", most_json_bytes);
  auto json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse("{} is damaged: it is not a JSON object", path.string());
  return json;
}

// A config.json, read with the path in every complaint.
class Config {
 public:
  explicit Config(const fs::path& folder)
      : path_((folder / config_name).string()), json_(read_json(folder / config_name)) {}

  template <class Value>
  Value get(const char* key) const {
    if (!json_.contains(key)) refuse("{}: {} is missing", path_, key);
    return convert<Value>(json_.at(key), key);
  }

  template <class Value>
  Value get(const char* key, Value otherwise) const {
    return json_.contains(key) && !json_.at(key).is_null() ? convert<Value>(json_.at(key), key) : otherwise;
  }

  // Refuses a variant that we do not compute.
  template <class Value>
  void require(const char* key, Value otherwise, const std::vector<Value>& known) const {
    const auto value = get<Value>(key, otherwise);
    if (std::find(known.begin(), known.end(), value) != known.end()) return;
    refuse("{}: {} = {} is not supported, only {}", path_, key, value, fmt::join(known, ", "));
  }

  const std::string& path() const { return path_; }
  const ordered_json& json() const { return json_; }

 private:
  template <class Value>
  Value convert(const ordered_json& value, const char* key) const {
    try {
      return value.get<Value>();
    } catch (const nlohmann::json::exception&) {
      refuse("{}: {} = {} is of the wrong type", path_, key, value.dump());
    }
  }

  std::string path_;
  ordered_json json_;
};

ModelConfig read_gpt2(const Config& config) {
  ModelConfig model;
  model.kind = ModelKind::gpt;
  model.layers = config.get<int64_t>("n_layer");
  model.width = config.get<int64_t>("n_embd");
  model.heads = config.get<int64_t>("n_head");
  model.context = config.get<int64_t>("n_positions");
  model.vocab = config.get<int64_t>("vocab_size");
  model.norm_epsilon = config.get<double>("layer_norm_epsilon", 1e-5);
  config.require<std::string>("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  config.require<int64_t>("n_inner", 4 * model.width, {4 * model.width});
  config.require<bool>("scale_attn_weights", true, {true});
  config.require<bool>("scale_attn_by_inverse_layer_idx", false, {false});
  model.untied = !config.get<bool>("tie_word_embeddings", true);
  return model;
}

double rope_theta_of(const Config& config) {
  // Since version 5 beside the kind of angles, before that by itself.
  const auto parameters = config.get<ordered_json>("rope_parameters", ordered_json::object());
  const auto scaling = config.get<ordered_json>("rope_scaling", ordered_json::object());
  for (const auto& one : {parameters, scaling}) {
    const auto type = one.is_object() ? one.value("rope_type", one.value("type", "default")) : "of another kind";
    if (type != "default") refuse("{}: rotary positions of type {} are not supported", config.path(), type);
  }
  return parameters.contains("rope_theta") ? parameters.at("rope_theta").get<double>()
                                           : config.get<double>("rope_theta", 10000.0);
}

ModelConfig read_llama(const Config& config) {
  ModelConfig model;
  model.kind = ModelKind::llama;
  model.layers = config.get<int64_t>("num_hidden_layers");
  model.width = config.get<int64_t>("hidden_size");
  model.heads = config.get<int64_t>("num_attention_heads");
  model.kv_heads = config.get<int64_t>("num_key_value_heads", model.heads);
  model.hidden = config.get<int64_t>("intermediate_size");
  model.context = config.get<int64_t>("max_position_embeddings");
  model.vocab = config.get<int64_t>("vocab_size");
  model.norm_epsilon = config.get<double>("rms_norm_eps", 1e-6);
  model.rope_theta = rope_theta_of(config);
  model.tied = config.get<bool>("tie_word_embeddings", false);
  config.require<std::string>("hidden_act", "silu", {"silu"});
  config.require<bool>("attention_bias", false, {false});
  config.require<bool>("mlp_bias", false, {false});
  if (model.heads < 1 || model.width % model.heads != 0)
    refuse("{}: hidden_size = {} is not divisible by num_attention_heads = {}", config.path(), model.width,
           model.heads);
  config.require<int64_t>("head_dim", model.width / model.heads, {model.width / model.heads});
  return model;
}

}  // namespace

bool holds_model(const fs::path& folder) { return fs::exists(folder / config_name); }

ModelConfig read_config(const fs::path& folder) {
  const Config config(folder);
  const auto type = config.get<std::string>("model_type");
  if (type == "gpt2") return read_gpt2(config);
  if (type == "llama") return read_llama(config);
  refuse("{}: model_type {} is unknown here; known are gpt2 and llama", config.path(), type);
}

ordered_json config_of(const ModelConfig& model, const std::string& dtype) {
  if (model.kind == ModelKind::gpt) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"activation_function", "gelu_new"},
            {"n_layer", model.layers},
            {"n_embd", model.width},
            {"n_head", model.heads},
            {"n_positions", model.context},
            {"n_ctx", model.context},
            {"n_inner", nullptr},
            {"layer_norm_epsilon", model.norm_epsilon},
            {"attn_pdrop", model.dropout},
            {"embd_pdrop", model.dropout},
            {"resid_pdrop", model.dropout},
            {"tie_word_embeddings", !model.untied},
            {"vocab_size", model.vocab},
            {"bos_token_id", nullptr},
            {"eos_token_id", nullptr},
            {"torch_dtype", dtype}};
  }
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"num_hidden_layers", model.layers},
          {"hidden_size", model.width},
          {"intermediate_size", hidden_width(model)},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads > 0 ? model.kv_heads : model.heads},
          {"head_dim", model.width / model.heads},
          {"max_position_embeddings", model.context},
          {"rms_norm_eps", model.norm_epsilon},
          {"rope_theta", model.rope_theta},
          {"rope_parameters", {{"rope_theta", model.rope_theta}, {"rope_type", "default"}}},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", model.tied},
          {"vocab_size", model.vocab},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"torch_dtype", dtype}};
}

ordered_json byte_tokenizer() {
  // GPT-2's way to write bytes: those that print stand for themselves, the others for the characters from 256 on.
  ordered_json vocab = ordered_json::object();
  uint32_t other = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const uint32_t character = prints ? byte : other++;
    const auto text = character < 128 ? std::string(1, static_cast<char>(character))
                                      : std::string{static_cast<char>(0xc0 | (character >> 6)),
                                                    static_cast<char>(0x80 | (character & 0x3f))};
    vocab[text] = byte;
  }
  const ordered_json bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", ordered_json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", ordered_json::array()}}}};
}

bool reads_bytes(const fs::path& folder) {
  const auto path = folder / tokenizer_name;
  if (!fs::exists(path)) return false;
  const auto found = read_json(path), wanted = byte_tokenizer();
  // Compared as values: a library that has written it anew may have other members, in another order.
  const auto same = [&](const char* pointer) {
    const ordered_json::json_pointer place(pointer);
    return found.contains(place) && nlohmann::json(found.at(place)) == nlohmann::json(wanted.at(place));
  };
  return same("/model/vocab") && same("/model/merges") && same("/pre_tokenizer/type") &&
         same("/pre_tokenizer/add_prefix_space") && same("/normalizer") && same("/added_tokens");
}

std::vector<fs::path> weight_files(const fs::path& folder) {
  if (fs::exists(folder / one_file)) return {folder / one_file};
  if (!fs::exists(folder / index_name)) refuse("{} holds neither {} nor {}", folder.string(), one_file, index_name);
  const auto index = read_json(folder / index_name);
  std::set<std::string> names;
  if (index.contains("weight_map") && index.at("weight_map").is_object()) {
    for (const auto& [tensor, file] : index.at("weight_map").items()) {
      if (file.is_string()) names.insert(file.get<std::string>());
    }
  }
  if (names.empty()) refuse("{} is damaged: its weight_map names no files", (folder / index_name).string());
  std::vector<fs::path> files;
  for (const auto& name : names) {
    if (!fs::exists(folder / name)) refuse("{} names {}, which is missing", (folder / index_name).string(), name);
    files.push_back(folder / name);
  }
  return files;
}

std::optional<std::string> our_name(const ModelConfig& model, const std::string& name) {
  if (model.kind == ModelKind::gpt) {
    const auto plain = name.rfind(gpt_prefix, 0) == 0 ? name.substr(std::string(gpt_prefix).size()) : name;
    // Causal masks that old files hold, and the head, where it is the token embedding again.
    if (matches_any({"h.*.attn.bias", "h.*.attn.masked_bias"}, plain)) return std::nullopt;
    if (plain == "lm_head.weight" && !model.untied) return std::nullopt;
    return plain;
  }
  if (matches("*.rotary_emb.inv_freq", name) || (model.tied && name == "lm_head.weight")) return std::nullopt;
  return name;
}

std::string their_name(const ModelConfig& model, const std::string& name) {
  return model.kind == ModelKind::gpt && name != "lm_head.weight" ? gpt_prefix + name : name;
}

}  // namespace trireme::hugging_face
