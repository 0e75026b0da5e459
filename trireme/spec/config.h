// What a training run is asked to do. RunConfig is a plain value whose initializers are the defaults; `describe` names
// every field of it for people: the key in a YAML file and on the command line, unit, bounds and meaning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/base/settings.h"
#include "trireme/spec/schedule.h"

namespace trireme {

// The version of the configuration's format: it grows when a key is renamed, removed or given another meaning, not when
// one is added. What files of older versions mean is to be told in Settings::read_text, which knows a file's version;
// there is no older one yet. Files without a version are a person's, who means the present one, or of runs before there
// were versions, which is 1.
inline constexpr int64_t config_version = 1;

enum class ModelKind { gpt, llama, mlp, resnet18, resnet34, resnet50, vgg11, vgg16, alexnet, googlenet, cnn, custom };
enum class BatchNormKind { synchronised, local };
enum class DataKind { text, tokens, images, synthetic, custom };
enum class Augmentation { none, standard };
enum class TokenType { automatic, uint16, uint32 };
enum class Precision { fp64, fp32, bf16 };
// Of an element that a model computes with, and of one that its optimizer works on.
int64_t value_bytes(Precision precision);
int64_t master_bytes(Precision precision);
enum class DeviceKind { cpu, cuda };
enum class OptimizerKind { adamw, sgd };
enum class LrSchedule { constant, cosine, linear };
enum class SyncKind { allreduce, root, stale, eager, local, server, elastic, gossip, hogwild };
enum class GossipGraph { ring, pairs, exponential };
enum class EagerKind { solo, majority };
enum class SyncOrder { backward, forward };
enum class CodecKind { none, automatic, fp16, bf16, int8, int4, sign, top_k, threshold, low_rank, bound };
enum class BoundKind { absolute, relative };
enum class Rounding { nearest, stochastic };
enum class TransportKind { automatic, shared, mpi, nccl };

struct ModelConfig {
  ModelKind kind = ModelKind::gpt;
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;
  int64_t context = 128;
  int64_t vocab = 0;
  double dropout = 0;
  int64_t inputs = 1024;
  int64_t classes = 10;
  bool skip = false;
  int64_t image = 32;
  int64_t channels = 3;
  BatchNormKind batch_norm = BatchNormKind::synchronised;
  int64_t kv_heads = 0;
  int64_t hidden = 0;
  double rope_theta = 10000;
  double norm_epsilon = 1e-5;
  bool tied = false;
  bool untied = false;
  std::string from;
  std::string freeze;
  int64_t lora_rank = 0;
  double lora_alpha = 16;
  std::string lora_targets = "*attn.*";
};

// Whether a model predicts tokens.
inline bool reads_tokens(ModelKind kind) { return kind == ModelKind::gpt || kind == ModelKind::llama; }
// The width inside a Llama's blocks.
int64_t hidden_width(const ModelConfig& model);

struct DataConfig {
  DataKind kind = DataKind::text;
  std::string path = "data/text.txt";
  TokenType dtype = TokenType::automatic;
  double validation = 0.05;
  int64_t samples = 65536;
  Augmentation augment = Augmentation::none;
  int64_t threads = 0;
  std::string mask;
  int64_t separator = -1;
};

struct TrainConfig {
  int64_t steps = 500;
  int64_t batch = 32;
  int64_t microbatch = 0;
  Precision precision = Precision::fp32;
  int64_t seed = 1;
  DeviceKind device = DeviceKind::cpu;
  int64_t threads = 0;
  int64_t eval_every = 0;
  int64_t eval_batches = 8;
  int64_t nonfinite_limit = 10;
};

// What a student learns from a teacher beside its targets (train/teacher.h).
struct DistillConfig {
  std::string from;  // empty: there is none
  double weight = 0.5;
  double temperature = 2;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 1e-3;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;
  double clip = 1.0;
  LrSchedule schedule = LrSchedule::cosine;
  int64_t warmup = 20;
  double final_lr = 0.1;
};

struct ParallelConfig {
  int64_t pipe = 1;
  int64_t data = 0;
  std::vector<double> shares;
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;
  ScheduleOptions options;
  std::vector<int64_t> cuts;
  std::vector<int64_t> replicas;
};

enum class ActivationKind { keep, recompute };

struct MemoryConfig {
  ActivationKind activations = ActivationKind::keep;
  double limit_mb = 0;
};

// How a tensor is said in fewer bytes (codec/codec.h).
struct CodecConfig {
  CodecKind kind = CodecKind::none;
  int64_t block = 256;                         // elements that share a scale (int8, int4, sign)
  Rounding rounding = Rounding::nearest;       // int8, int4
  double keep = 0.01;                          // top_k: share of the elements
  double threshold = 1e-3;                     // threshold: what is smaller stays
  int64_t rank = 4;                            // low_rank
  double bound = 1e-3;                         // bound: the largest error of an element,
  BoundKind bound_kind = BoundKind::absolute;  // itself, or as a share of the element
  bool feedback = true;                        // what was lost is added to what is said next

  bool operator==(const CodecConfig&) const = default;
};

struct SyncConfig {
  SyncKind kind = SyncKind::allreduce;
  CodecConfig codec;
  double bucket_mb = 8;
  SyncOrder order = SyncOrder::backward;
  double credit_mb = 4;
  int64_t staleness = 4;
  int64_t every = 8;
  bool adapt_lr = false;
  EagerKind eager = EagerKind::solo;
  double outer_lr = 1;
  double outer_momentum = 0;
  bool overlap = false;
  int64_t servers = 0;
  double elasticity = 0.2;
  GossipGraph graph = GossipGraph::exponential;

  bool operator==(const SyncConfig&) const = default;
};

// Whether a rank goes on without waiting, in every step, for what all the others did in it.
bool is_loose(SyncKind kind);

struct CommConfig {
  TransportKind transport = TransportKind::automatic;
  std::string links;
  double jitter_ms = 0;
};

// What a run is made to bear, to see how it does.
struct TrialConfig {
  std::vector<double> delay_ms;
  int64_t burst = 0;
};

struct CheckpointConfig {
  int64_t every = 200;
  int64_t keep = 3;
  double rate_mb = 0;
};

struct WatchdogConfig {
  double heartbeat = 5;
  double stop = 600;
  int64_t replicas = 100;
};

struct LogConfig {
  int64_t every = 10;
  bool tensorboard = true;
  int64_t trace_steps = 0;
  int64_t trace_from = 3;
};

struct RunConfig {
  std::string run_dir;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  DistillConfig distill;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  MemoryConfig memory;
  SyncConfig sync;
  CommConfig comm;
  TrialConfig trial;
  CheckpointConfig checkpoint;
  WatchdogConfig watchdog;
  LogConfig log;
};

// Whether a model learns from images, and whether its BatchNorms need the samples of all replicas.
bool takes_images(ModelKind kind);
bool shares_statistics(const ModelConfig& model);

// The settings of `config`, which must outlive them; its values at this moment count as the defaults.
Settings describe(RunConfig& config);

// Every setting of `config` as YAML that reads back as exactly the same values.
std::string resolved_yaml(const RunConfig& config);

// Refuses values that are each within their bounds but do not go together; `settings` says where they came from.
void check(const RunConfig& config, const Settings& settings);

struct PlanFile;

// Defaults, then the files in their order, then what a plan decides, then the "key=value" overrides; all of it checked.
RunConfig load_config(const std::vector<std::filesystem::path>& files, const std::vector<std::string>& overrides,
                      const PlanFile* plan = nullptr);

}  // namespace trireme
