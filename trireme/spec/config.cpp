#include "trireme/spec/config.h"

#include <algorithm>
#include <functional>
#include <initializer_list>

#include "trireme/base/error.h"
#include "trireme/base/paths.h"
#include "trireme/spec/config_paths.h"
#include "trireme/spec/parallel_settings.h"
#include "trireme/spec/plan_file.h"
#include "trireme/spec/source_model.h"
#include "trireme/spec/sync_settings.h"

namespace trireme {
namespace {

void describe_model(Settings& settings, ModelConfig& model) {
  settings.section("model", "The network that is trained.");
  const auto of = [&model](std::initializer_list<ModelKind> kinds) -> std::function<bool()> {
    return [&model, kinds = std::vector<ModelKind>(kinds)] {
      return model.kind == ModelKind::custom || std::find(kinds.begin(), kinds.end(), model.kind) != kinds.end();
    };
  };
  const auto of_tokens = of({ModelKind::gpt, ModelKind::llama}), of_vectors = of({ModelKind::mlp});
  const std::function<bool()> of_images = [&model] {
    return model.kind == ModelKind::custom || takes_images(model.kind);
  };
  const std::function<bool()> of_classes = [&model] { return !reads_tokens(model.kind); };
  settings.add_choice(
      "model.kind", model.kind,
      {{"gpt", ModelKind::gpt},
       {"llama", ModelKind::llama},
       {"mlp", ModelKind::mlp},
       {"resnet18", ModelKind::resnet18},
       {"resnet34", ModelKind::resnet34},
       {"resnet50", ModelKind::resnet50},
       {"vgg11", ModelKind::vgg11},
       {"vgg16", ModelKind::vgg16},
       {"alexnet", ModelKind::alexnet},
       {"googlenet", ModelKind::googlenet},
       {"cnn", ModelKind::cnn},
       {"custom", ModelKind::custom}},
      "A GPT or Llama that predicts the next token; what classifies vectors (mlp) or images; or the model of a "
      "program that uses the library.");
  settings.add("model.layers", model.layers, "Transformer blocks, or hidden layers of an mlp.")
      .at_least(1)
      .at_most(10'000)
      .read_if(of({ModelKind::gpt, ModelKind::llama, ModelKind::mlp}));
  settings.add("model.width", model.width, "Size of the vector that passes from layer to layer.")
      .at_least(1)
      .at_most(1'000'000)
      .read_if(of({ModelKind::gpt, ModelKind::llama, ModelKind::mlp}));
  settings.add("model.heads", model.heads, "Attention heads of each block (gpt, llama); they share the width.")
      .at_least(1)
      .read_if(of_tokens);
  settings.add("model.context", model.context, "Length of a sequence (gpt, llama).")
      .unit("tokens")
      .at_least(1)
      .at_most(100'000'000)
      .read_if(of_tokens);
  settings.add("model.vocab", model.vocab, "Distinct tokens (gpt, llama); 0 = as many as the data needs.")
      .unit("tokens")
      .at_least(0)
      .at_most(100'000'000)
      .read_if(of_tokens);
  settings.add("model.dropout", model.dropout, "Probability that an activation is dropped in training.")
      .at_least(0)
      .below(1);
  settings.add("model.inputs", model.inputs, "Features of a sample (mlp only).")
      .at_least(1)
      .at_most(100'000'000)
      .read_if(of_vectors);
  settings.add("model.classes", model.classes, "Classes to tell apart (not gpt).")
      .at_least(1)
      .at_most(100'000'000)
      .read_if(of_classes);
  settings.add("model.skip", model.skip, "Whether the first layer's output is added to the last layer's input.");
  settings
      .add("model.image", model.image,
           "Height and width of an image (image models only); below 64 their first layers and classifiers are those "
           "for small images.")
      .unit("pixels")
      .at_least(8)
      .at_most(4096)
      .read_if(of_images);
  settings.add("model.channels", model.channels, "Colours of an image (image models only).")
      .at_least(1)
      .at_most(1'000'000)
      .read_if(of_images);
  settings.add_choice("model.batch_norm", model.batch_norm,
                      {{"sync", BatchNormKind::synchronised}, {"local", BatchNormKind::local}},
                      "Whose samples a BatchNorm normalises by: a microbatch of all replicas, or of each alone.");
  settings
      .add("model.kv_heads", model.kv_heads,
           "Heads of keys and values that the query heads share in groups (llama only); 0 = as many as heads.")
      .at_least(0);
  settings
      .add("model.hidden", model.hidden,
           "Width inside a block (llama only); 0 = 8/3 of the width, rounded up to a multiple of 32.")
      .at_least(0)
      .at_most(10'000'000);
  settings
      .add("model.rope_theta", model.rope_theta, "Base of the rotary positions' angles (llama only).")
      .above(0)
      .read_if(of({ModelKind::llama}));
  settings
      .add("model.norm_epsilon", model.norm_epsilon, "Added to the variance in every norm (gpt, llama).")
      .above(0)
      .read_if(of_tokens);
  settings.add("model.tied", model.tied,
               "Whether the head shares the token embedding (llama; gpt does unless untied).");
  settings.add("model.untied", model.untied, "Whether the head has a table of its own (gpt only).");
}

void describe_fine_tuning(Settings& settings, ModelConfig& model) {
  settings.add(
      "model.from", model.from,
      "Folder whose weights the training starts from: Hugging Face's layout, a run or a checkpoint; the model's "
      "settings that are not given are taken from it.");
  settings.add("model.freeze", model.freeze,
               "Parameters that are not trained: names with * for any characters, and commas between them.");
  settings
      .add("model.lora_rank", model.lora_rank,
           "Rank of the adapters that are trained in place of the model's own weights (LoRA); 0 = none.")
      .at_least(0)
      .at_most(1'000'000);
  settings.add("model.lora_alpha", model.lora_alpha, "Adapters are added with the weight lora_alpha / lora_rank.")
      .above(0)
      .read_if([&model] { return model.lora_rank > 0; });
  settings.add("model.lora_targets", model.lora_targets,
               "Matrices that get adapters: names with * for any characters, and commas between them.")
      .read_if([&model] { return model.lora_rank > 0; });
}

void describe_data(Settings& settings, DataConfig& data) {
  settings.section("data", "What it is trained on.");
  settings.add_choice(
      "data.kind", data.kind,
      {{"text", DataKind::text},
       {"tokens", DataKind::tokens},
       {"images", DataKind::images},
       {"synthetic", DataKind::synthetic},
       {"custom", DataKind::custom}},
      "A text file, a file of token numbers, a folder of images, samples made up from the seed, or those "
      "of a program that uses the library.");
  settings.add("data.path", data.path,
               "The file of text or tokens, or the folder of images (files of MNIST or CIFAR-10; without this setting, "
               "Debian's Fashion-MNIST).");
  settings.add_choice("data.dtype", data.dtype,
                      {{"auto", TokenType::automatic}, {"uint16", TokenType::uint16}, {"uint32", TokenType::uint32}},
                      "How a token file stores a token; auto = as its header says, uint16 without a header.")
      .read_if([&data] { return data.kind == DataKind::tokens; });
  settings
      .add("data.validation", data.validation,
           "Share at the end of the data that is held out for evaluation; of images their test set is, unless 0.")
      .unit("fraction")
      .at_least(0)
      .at_most(0.5);
  settings.add("data.samples", data.samples, "Samples in the made-up data (synthetic only).")
      .unit("samples")
      .at_least(1)
      .read_if([&data] { return data.kind == DataKind::synthetic; });
  settings.add_choice("data.augment", data.augment,
                      {{"none", Augmentation::none}, {"standard", Augmentation::standard}},
                      "What is done to images in training: nothing, or a random crop of the padded image and a flip.");
  settings
      .add("data.threads", data.threads,
           "Threads of a rank that build batches, each one ahead of the last; 0 = one, and for a card half of the "
           "rank's "
           "cores, at most 8.")
      .at_least(0)
      .at_most(256);
  settings.add(
      "data.mask", data.mask,
      "File with a byte for each token (tokens only): 1 = it is learnt, 0 = it is only read; empty = all are.");
  settings
      .add("data.separator", data.separator,
           "Token with which each document begins (tokens only): attention and positions start anew there; -1 = none.")
      .at_least(-1);
}

void describe_train(Settings& settings, TrainConfig& train) {
  settings.section("train", "How long, how much at once, and on what.");
  settings.add("train.steps", train.steps, "Updates of the parameters in the whole run.").unit("steps").at_least(1);
  settings.add("train.batch", train.batch, "Samples of one step over all ranks.").unit("samples").at_least(1);
  describe_microbatch(settings, train);
  settings.add_choice("train.precision", train.precision,
                      {{"fp64", Precision::fp64}, {"fp32", Precision::fp32}, {"bf16", Precision::bf16}},
                      "Floating-point format of the forward and backward pass.");
  settings.add("train.seed", train.seed, "Everything random follows from this number.").at_least(0);
  settings.add_choice("train.device", train.device, {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}},
                      "Where the tensors live.");
  settings.add("train.threads", train.threads, "Threads of a rank; 0 = its share of the host's cores.")
      .at_least(0)
      .at_most(4096);
  settings.add("train.eval_every", train.eval_every, "Steps between evaluations; 0 = only at the end.")
      .unit("steps")
      .at_least(0);
  settings.add("train.eval_batches", train.eval_batches, "Batches of one evaluation; 0 = no evaluation.")
      .unit("batches")
      .at_least(0);
  settings
      .add("train.nonfinite_limit", train.nonfinite_limit,
           "Steps in a row with a loss or gradient that is not finite that are skipped before the run stops; "
           "0 = stop at the first.")
      .unit("steps")
      .at_least(0);
}

void describe_distillation(Settings& settings, DistillConfig& distill) {
  settings.section("distill", "What is learnt from a trained model, beside the targets.");
  settings.add("distill.from", distill.from,
               "Folder of the teacher, of the same inputs and answers: a run, a checkpoint or Hugging Face's layout; "
               "empty = none.");
  settings.add("distill.weight", distill.weight, "The teacher's part of the loss; the rest is that of the targets.")
      .unit("fraction")
      .at_least(0)
      .at_most(1)
      .read_if([&distill] { return !distill.from.empty(); });
  settings.add("distill.temperature", distill.temperature, "By what both models' scores are divided to be compared.")
      .above(0)
      .read_if([&distill] { return !distill.from.empty(); });
}

void describe_optimizer(Settings& settings, OptimizerConfig& optimizer) {
  settings.section("optimizer", "How gradients change the parameters.");
  const auto of = [&optimizer](OptimizerKind kind) -> std::function<bool()> {
    return [&optimizer, kind] { return optimizer.kind == kind; };
  };
  settings.add_choice("optimizer.kind", optimizer.kind, {{"adamw", OptimizerKind::adamw}, {"sgd", OptimizerKind::sgd}},
                      "AdamW, or stochastic gradient descent with momentum.");
  settings.add("optimizer.lr", optimizer.lr, "Learning rate after the warmup.").above(0);
  settings.add("optimizer.weight_decay", optimizer.weight_decay, "Decay of the parameters towards zero.").at_least(0);
  settings
      .add("optimizer.beta1", optimizer.beta1, "Decay of the mean of gradients (adamw only).")
      .at_least(0)
      .below(1)
      .read_if(of(OptimizerKind::adamw));
  settings.add("optimizer.beta2", optimizer.beta2, "Decay of the mean of squared gradients (adamw only).")
      .at_least(0)
      .below(1)
      .read_if(of(OptimizerKind::adamw));
  settings
      .add("optimizer.epsilon", optimizer.epsilon, "Added to the denominator of an update (adamw only).")
      .above(0)
      .read_if(of(OptimizerKind::adamw));
  settings.add("optimizer.momentum", optimizer.momentum, "Share of the last update kept in the next (sgd only).")
      .at_least(0)
      .below(1)
      .read_if(of(OptimizerKind::sgd));
  settings.add("optimizer.nesterov", optimizer.nesterov, "Look ahead along the momentum (sgd only).")
      .read_if(of(OptimizerKind::sgd));
  settings.add("optimizer.clip", optimizer.clip, "Largest norm of the whole gradient, longer ones are scaled; 0 = off.")
      .at_least(0);
  settings.add_choice(
      "optimizer.schedule", optimizer.schedule,
      {{"constant", LrSchedule::constant}, {"cosine", LrSchedule::cosine}, {"linear", LrSchedule::linear}},
      "Course of the learning rate from the end of the warmup to the last step.");
  settings.add("optimizer.warmup", optimizer.warmup, "Steps in which the learning rate rises to lr.")
      .unit("steps")
      .at_least(0);
  settings.add("optimizer.final_lr", optimizer.final_lr, "Learning rate at the last step (cosine and linear).")
      .unit("fraction of lr")
      .at_least(0)
      .at_most(1)
      .read_if([&optimizer] { return optimizer.schedule != LrSchedule::constant; });
}

void describe_run(Settings& settings, CheckpointConfig& checkpoint, WatchdogConfig& watchdog, LogConfig& log) {
  settings.section("checkpoint", "What is kept of the run.");
  settings.add("checkpoint.every", checkpoint.every, "Steps between checkpoints; 0 = only at the end.")
      .unit("steps")
      .at_least(0);
  settings.add("checkpoint.keep", checkpoint.keep, "Latest checkpoints that stay on disk.").at_least(1);
  settings.add("checkpoint.rate_mb", checkpoint.rate_mb, "Most that the background save writes; 0 = no limit.")
      .unit("MB/s")
      .at_least(0);
  settings.section("watchdog", "When a rank is given up.");
  settings.add("watchdog.heartbeat", watchdog.heartbeat, "A rank silent for this long is taken for dead.")
      .unit("s")
      .at_least(1)
      .at_most(9);
  settings.add("watchdog.stop", watchdog.stop, "Time without progress after which the job is stopped; 0 = never.")
      .unit("s")
      .at_least(0);
  settings
      .add("watchdog.replicas", watchdog.replicas,
           "How often replicas compare checksums of their parameters, which must be equal; 0 = never.")
      .unit("steps")
      .at_least(0);
  settings.section("log", "What the run tells.");
  settings.add("log.every", log.every, "Steps between progress lines when the output is not a terminal.")
      .unit("steps")
      .at_least(1);
  settings.add("log.tensorboard", log.tensorboard, "Whether to write TensorBoard event files.");
  settings.add("log.trace_steps", log.trace_steps, "Steps whose timeline is written to trace.pftrace; 0 = none.")
      .unit("steps")
      .at_least(0);
  settings.add("log.trace_from", log.trace_from, "First step of that timeline.").unit("steps").at_least(1);
}

}  // namespace

int64_t value_bytes(Precision precision) {
  return precision == Precision::fp64 ? 8 : precision == Precision::fp32 ? 4 : 2;
}

int64_t master_bytes(Precision precision) { return precision == Precision::fp64 ? 8 : 4; }

bool takes_images(ModelKind kind) {
  switch (kind) {
    case ModelKind::gpt:
    case ModelKind::llama:
    case ModelKind::mlp:
    case ModelKind::custom: return false;
    default: return true;
  }
}

bool shares_statistics(const ModelConfig& model) {
  const bool normalises = model.kind == ModelKind::resnet18 || model.kind == ModelKind::resnet34 ||
                          model.kind == ModelKind::resnet50 || model.kind == ModelKind::googlenet ||
                          model.kind == ModelKind::custom;  // may
  return normalises && model.batch_norm == BatchNormKind::synchronised;
}

Settings describe(RunConfig& config) {
  Settings settings;
  describe_model(settings, config.model);
  describe_fine_tuning(settings, config.model);
  describe_data(settings, config.data);
  describe_train(settings, config.train);
  describe_distillation(settings, config.distill);
  describe_optimizer(settings, config.optimizer);
  describe_parallel(settings, config.parallel);
  describe_memory(settings, config.memory);
  describe_sync(settings, config.sync);
  describe_communication(settings, config.comm, config.trial);
  describe_run(settings, config.checkpoint, config.watchdog, config.log);
  settings.add_version(config_version, "Version of these settings that a file was written for; may be left out.");
  settings.add("run_dir", config.run_dir, "Folder of the run; empty = runs/NAME-N with the next free number.");
  return settings;
}

int64_t hidden_width(const ModelConfig& model) {
  return model.hidden > 0 ? model.hidden : ((8 * model.width + 2) / 3 + 31) / 32 * 32;
}

void check(const RunConfig& config, const Settings& settings) {
  const auto require = std::bind_front(&Settings::require, &settings);
  const auto& model = config.model;
  const auto& data = config.data;
  const auto& train = config.train;
  const auto& optimizer = config.optimizer;
  const auto& watchdog = config.watchdog;
  const bool is_llama = model.kind == ModelKind::llama, reads = reads_tokens(model.kind);
  const bool is_custom = model.kind == ModelKind::custom;
  const bool is_synthetic = data.kind == DataKind::synthetic;
  const bool looks_ahead = optimizer.kind == OptimizerKind::sgd && optimizer.nesterov;

  require(!reads || model.width % model.heads == 0, "model.width", "must be divisible by", "model.heads");
  require(!is_llama || model.width / model.heads % 2 == 0, "model.width", "must be an even multiple of", "model.heads");
  require(!is_llama || model.kv_heads == 0 || model.heads % model.kv_heads == 0, "model.heads", "must be divisible by",
          "model.kv_heads");
  require(is_llama || model.kv_heads == 0, "model.kv_heads", "must be 0 with", "model.kind");
  require(is_llama || model.hidden == 0, "model.hidden", "must be 0 with", "model.kind");
  require(is_llama || !model.tied, "model.tied", "must be false with", "model.kind");
  require(model.kind == ModelKind::gpt || !model.untied, "model.untied", "must be false with", "model.kind");
  require(reads || model.from.empty(), "model.from", "must be empty with", "model.kind");
  require(model.lora_rank == 0 || reads, "model.lora_rank", "must be 0 with", "model.kind");
  require(model.lora_rank == 0 || !model.from.empty(), "model.from", "must name a base with", "model.lora_rank");
  require(model.lora_rank == 0 || model.freeze.empty(), "model.freeze", "must be empty with", "model.lora_rank");
  require(is_custom == (data.kind == DataKind::custom), "data.kind", "must be custom exactly with", "model.kind");
  const bool is_image_model = takes_images(model.kind), is_images = data.kind == DataKind::images;
  require(reads || is_custom || is_image_model || is_synthetic, "data.kind", "must be synthetic with", "model.kind");
  require(!reads || !is_images, "data.kind", "must be text, tokens or synthetic with", "model.kind");
  require(!is_image_model || is_images || is_synthetic, "data.kind", "must be images or synthetic with", "model.kind");
  require(!is_image_model || !model.skip, "model.skip", "must be false with", "model.kind");
  require(data.augment == Augmentation::none || is_images, "data.augment", "must be none with", "data.kind");
  require(is_synthetic || is_custom || !data.path.empty(), "data.path", "must name a file with", "data.kind");
  require(data.kind == DataKind::tokens || data.mask.empty(), "data.mask", "must be empty with", "data.kind");
  require(data.kind == DataKind::tokens || data.separator < 0, "data.separator", "must be -1 with", "data.kind");
  require(!is_custom || config.distill.from.empty(), "distill.from", "must be empty with", "model.kind");
  require(train.microbatch <= train.batch, "train.microbatch", "must be at most", "train.batch");
  // The default warmup of a short run is simply cut short, also where its config.yaml repeats it; another one was asked
  // for and must fit.
  if (optimizer.warmup != OptimizerConfig{}.warmup) {
    require(optimizer.warmup <= train.steps, "optimizer.warmup", "must be at most", "train.steps");
  }
  check_parallel(config, settings);
  check_sync(config, settings);
  require(config.comm.transport != TransportKind::nccl || train.device == DeviceKind::cuda, "train.device",
          "must be cuda with", "comm.transport");
  require(!looks_ahead || optimizer.momentum > 0, "optimizer.momentum", "must be above 0 with", "optimizer.nesterov");
  require(watchdog.stop == 0 || watchdog.stop >= watchdog.heartbeat, "watchdog.stop", "must be 0 or at least",
          "watchdog.heartbeat");
}

namespace {

// With the home folder in the place of a leading ~.
void expand(const char* key, std::string& path) {
  try {
    path = expand_home(path).string();
  } catch (Error& error) {
    error.add_context(key);
    throw;
  }
}

}  // namespace

void take_paths_from(const std::filesystem::path& folder, RunConfig& config) {
  auto& table = config.parallel.options.file;
  expand("parallel.schedule_file", table);
  if (!table.empty()) table = std::filesystem::absolute(folder / table).lexically_normal().string();
}

void expand_paths(RunConfig& config) {
  expand("run_dir", config.run_dir);
  expand("data.path", config.data.path);
  expand("data.mask", config.data.mask);
  expand("model.from", config.model.from);
  expand("distill.from", config.distill.from);
  expand("comm.links", config.comm.links);
}

RunConfig load_config(const std::vector<std::filesystem::path>& files, const std::vector<std::string>& overrides,
                      const PlanFile* plan) {
  RunConfig config;
  Settings settings = describe(config);
  for (const auto& file : files) {
    settings.read_file(file);
    take_paths_from(file.parent_path(), config);
  }
  if (plan) {
    take_decisions(*plan, settings);
    take_paths_from(plan->path.parent_path(), config);
  }
  for (const auto& assignment : overrides) settings.override_with(assignment);
  take_paths_from(std::filesystem::path(), config);
  expand_paths(config);
  if (!config.model.from.empty()) adopt_source_model(config, settings);
  settings.check();
  check(config, settings);
  if (plan) check_decisions(*plan, config, settings);
  return config;
}

std::string resolved_yaml(const RunConfig& config) {
  RunConfig copy = config;
  return describe(copy).resolved_yaml();
}

}  // namespace trireme
