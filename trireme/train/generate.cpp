#include "trireme/train/generate.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/nn/model.h"
#include "trireme/optim/store.h"
#include "trireme/train/checkpoint.h"

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

}  // namespace

Generated generate(const fs::path& from, const GenerateOptions& options, const std::function<void(int64_t)>& each) {
  c10::NoGradGuard no_grad;
  if (!fs::exists(from)) refuse("{} does not exist: give a run's folder or a checkpoint", from.string());
  const auto checkpoint = fs::exists(from / "manifest.json") ? open_checkpoint(from) : newest_checkpoint(from);
  RunConfig config;
  auto settings = describe(config);
  settings.read_text(checkpoint.config, (checkpoint.folder / "manifest.json").string());
  if (config.model.kind != ModelKind::gpt)
    refuse("{} holds a model that does not generate text", checkpoint.folder.string());
  const bool text = config.data.kind == DataKind::text;
  if (!text && !options.prompt.empty())
    refuse("this model was trained on token files, which name no tokenizer: leave the prompt out");

  const auto table = checkpoint.shape_of("wte.weight");
  if (table.size() != 2) refuse("{} holds no token embedding", checkpoint.folder.string());
  const auto model = build_model(config.model, /*vocab=*/table[0]);
  ParameterStore store(model->parameters(), config.train.precision, at::kCPU, 1e12,
                       [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  load_checkpoint(checkpoint, model->parameters(), store, /*with_optimizer=*/false);

  Generated result;
  result.checkpoint = checkpoint.folder;
  for (unsigned char byte : options.prompt) result.prompt.push_back(byte);
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
    const auto logits = model->forward(ids, pass).select(0, 0).select(0, -1);
    cache.length += static_cast<int64_t>(pending.size());
    const int64_t token = choose(logits, options, static_cast<uint64_t>(n));
    pending = {token};
    all.push_back(token);
    result.tokens.push_back(token);
    if (text) result.text.push_back(static_cast<char>(token));
    if (each) each(token);
  }
  return result;
}

}  // namespace trireme
