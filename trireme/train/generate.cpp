#include "trireme/train/generate.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/safetensors.h"
#include "trireme/train/loaded_model.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

int64_t choose(const at::Tensor& logits, const GenerateOptions& options, uint64_t place) {
  if (options.temperature <= 0) return logits.argmax().item<int64_t>();
  auto scaled = logits.to(at::kDouble) / options.temperature;
  if (options.top_k > 0 && options.top_k < scaled.numel()) {
    const auto threshold = std::get<0>(scaled.topk(options.top_k)).min();
    scaled = scaled.masked_fill(scaled < threshold, -std::numeric_limits<double>::infinity());
  }
  const auto cumulative = at::cumsum(at::softmax(scaled, 0), 0);
  const double drawn = uniform(Key{options.seed}.with("generate"), place) * cumulative[-1].item<double>();
  return std::min(at::searchsorted(cumulative, drawn, false, true).item<int64_t>(), logits.numel() - 1);
}

LoadedModel load_speaker(const fs::path& from) {
  auto saved = find_model(from);
  if (!reads_tokens(saved.config.model.kind))
    refuse("{} holds a model that does not generate text", saved.folder.string());
  const auto precision = saved.config.train.precision;
  return load_model(std::move(saved), precision, at::kCPU);
}

void write_logits(const fs::path& path, const at::Tensor& logits_TV) {
  const auto values = logits_TV.to(at::kDouble).contiguous();
  SafetensorsWriter writer(path, {{"logits", DType::f64, values.sizes().vec()}});
  writer.append({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  writer.finish();
}

}  // namespace

Generated generate(const fs::path& from, const GenerateOptions& options, const std::function<void(int64_t)>& each) {
  c10::NoGradGuard no_grad;
  const auto speaker = load_speaker(from);
  const auto& config = speaker.saved.config;
  const bool text = speaker.saved.bytes;
  const auto& model = speaker.model;
  if (!text && !options.prompt.empty())
    refuse("the tokens of this model are no bytes of text, and its tokenizer is not ours: give --ids, or no prompt");

  Generated result;
  result.checkpoint = speaker.saved.folder;
  result.prompt = options.ids;
  for (unsigned char byte : options.prompt) result.prompt.push_back(byte);
  for (const int64_t id : options.ids) {
    const int64_t vocab = model->parameters().front()->value.size(0);
    if (id < 0 || id >= vocab) refuse("--ids: {} is outside the vocabulary of {}", id, vocab);
  }
  if (result.prompt.empty()) result.prompt.push_back(text ? '\n' : 0);
  std::vector<int64_t> all = result.prompt;

  KeyValueCache cache;
  std::vector<int64_t> pending = all;
  const auto context = config.model.context;
  for (int64_t n = 0; n < options.tokens; ++n) {
    if (cache.length + static_cast<int64_t>(pending.size()) > context) {
      // The window is full: go on with its newer half, read anew.
      cache = {};
      pending.assign(all.end() - std::min<int64_t>(static_cast<int64_t>(all.size()), std::max<int64_t>(1, context / 2)),
                     all.end());
    }
    Pass pass;
    pass.cache = &cache;
    const auto ids = at::tensor(pending, at::kLong).unsqueeze(0);
    const auto logits_TV = model->forward(ids, pass).select(0, 0);
    if (n == 0 && !options.logits.empty()) write_logits(options.logits, logits_TV);
    cache.length += static_cast<int64_t>(pending.size());
    const int64_t token = choose(logits_TV.select(0, -1), options, static_cast<uint64_t>(n));
    pending = {token};
    all.push_back(token);
    result.tokens.push_back(token);
    if (text) result.text.push_back(static_cast<char>(token));
    if (each) each(token);
  }
  return result;
}

}  // namespace trireme
