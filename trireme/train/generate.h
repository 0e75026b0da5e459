// Text from a trained model, token by token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trireme/spec/config.h"

namespace trireme {

struct GenerateOptions {
  std::string prompt;
  std::vector<int64_t> ids;  // a prompt in tokens, for models of token files
  int64_t tokens = 200;
  double temperature = 0.8;  // 0 takes the likeliest token
  int64_t top_k = 0;         // 0 considers all
  uint64_t seed = 1;
  std::filesystem::path logits;  // where to write the model's answers to the prompt, [tokens, vocabulary]; empty = not
};

struct Generated {
  std::filesystem::path checkpoint;
  std::vector<int64_t> prompt, tokens;
  std::string text;  // of the new tokens; empty when the data were token files, which name no tokenizer
};

// `from` is a run's folder (its newest checkpoint), a checkpoint, or a folder in Hugging Face's layout. `each` is
// called with every new token.
Generated generate(const std::filesystem::path& from, const GenerateOptions& options,
                   const std::function<void(int64_t)>& each = {});

}  // namespace trireme
