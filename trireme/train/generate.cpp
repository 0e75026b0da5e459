#include "trireme/train/generate.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/safetensors.h"
#include "trireme/nn/model.h"
#include "trireme/optim/store.h"
#include "trireme/spec/hugging_face.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/weights.h"

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

namespace {

// A model with its weights, ready to be asked.
struct Speaker {
  fs::path folder;  // that the weights came from
  bool text = false;
  int64_t context = 0;
  std::unique_ptr<Model> model;
  std::unique_ptr<ParameterStore> store;
};

Speaker load_speaker(const fs::path& from) {
  if (!fs::exists(from)) refuse("{} does not exist: give a run's folder or a checkpoint", from.string());
  RunConfig config;
  Speaker speaker;
  const bool foreign = hugging_face::holds_model(from);
  std::optional<CheckpointInfo> checkpoint;
  if (!foreign) {
    checkpoint = fs::exists(from / "manifest.json") ? open_checkpoint(from) : newest_checkpoint(from);
    auto settings = describe(config);
    settings.read_text(checkpoint->config, (checkpoint->folder / "manifest.json").string());
    if (!reads_tokens(config.model.kind))
      refuse("{} holds a model that does not generate text", checkpoint->folder.string());
  }
  const auto source = open_source_model(foreign ? from : checkpoint->folder);
  speaker.folder = source.folder;
  speaker.text = !foreign && config.data.kind == DataKind::text;
  speaker.context = source.model.context;
  speaker.model = build_model(source.model, source.model.vocab);
  const auto parameters = speaker.model->parameters();
  speaker.store = std::make_unique<ParameterStore>(parameters, config.train.precision, at::kCPU, 1e12,
                                                   [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  const bool adapters = !foreign && source.adapters();
  if (foreign || adapters)
    load_weights(foreign ? source : open_source_model(source.model.from), parameters, *speaker.store, true);
  if (!foreign)
    load_checkpoint(*checkpoint, saved_parameters(*speaker.model), *speaker.store, /*with_optimizer=*/false);
  return speaker;
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
  const bool text = speaker.text;
  const auto& model = speaker.model;
  if (!text && !options.prompt.empty())
    refuse("this model was trained on token files, which name no tokenizer: leave the prompt out, or give --ids");

  Generated result;
  result.checkpoint = speaker.folder;
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
  const auto context = speaker.context;
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
