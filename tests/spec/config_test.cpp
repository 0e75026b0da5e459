#include "trireme/spec/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"
#include "trireme/spec/plan_file.h"

namespace trireme {
namespace {

using testing::HasSubstr;

class ConfigTest : public testing::Test {
 protected:
  ConfigTest() : folder_(fmt::format("{}trireme_config_test.{}/", process_folder(), getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~ConfigTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + name) << text;
    return folder_ + name;
  }

  // The message with which the configuration is refused.
  std::string refusal(const std::vector<std::string>& overrides, const std::string& yaml = "") {
    try {
      load_config({file("run.yaml", yaml)}, overrides);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_status(), 2) << error.what();
      return error.what();
    }
    return "(accepted)";
  }

  std::string folder_;
};

TEST_F(ConfigTest, DefaultsAreValid) {
  const auto config = load_config({}, {});
  EXPECT_EQ(config.model.kind, ModelKind::gpt);
  EXPECT_EQ(config.data.path, "data/text.txt");
  EXPECT_EQ(config.train.steps, 500);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.run_dir, "");
}

// The page that people read is the contract: a changed default, unit or bound has to be changed here too.
TEST_F(ConfigTest, EveryKeyHasItsDefault) {
  RunConfig config;
  EXPECT_EQ(describe(config).resolved_yaml(), R"(version: 1
run_dir: ''
model:
  kind: gpt
  layers: 4
  width: 128
  heads: 4
  context: 128
  vocab: 0
  dropout: 0
  inputs: 1024
  classes: 10
  skip: false
  image: 32
  channels: 3
  batch_norm: sync
  kv_heads: 0
  hidden: 0
  rope_theta: 10000
  norm_epsilon: 1e-05
  tied: false
  untied: false
  from: ''
  freeze: ''
  lora_rank: 0
  lora_alpha: 16
  lora_targets: '*attn.*'
data:
  kind: text
  path: data/text.txt
  dtype: auto
  validation: 0.05
  samples: 65536
  augment: none
  threads: 0
  mask: ''
  separator: -1
train:
  steps: 500
  batch: 32
  microbatch: 0
  precision: fp32
  seed: 1
  device: cpu
  threads: 0
  eval_every: 0
  eval_batches: 8
  nonfinite_limit: 10
distill:
  from: ''
  weight: 0.5
  temperature: 2
optimizer:
  kind: adamw
  lr: 0.001
  weight_decay: 0.1
  beta1: 0.9
  beta2: 0.95
  epsilon: 1e-08
  momentum: 0.9
  nesterov: false
  clip: 1
  schedule: cosine
  warmup: 20
  final_lr: 0.1
parallel:
  pipe: 1
  data: 0
  shares: []
  schedule: 1f1b
  cuts: []
  in_flight: 0
  deterministic: false
  replicas: []
  chunks: 0
  schedule_file: ''
  vertical_sync: false
  predict: 0
memory:
  activations: keep
  limit_mb: 0
sync:
  kind: allreduce
  bucket_mb: 8
  order: backward
  credit_mb: 4
  staleness: 4
  every: 8
  adapt_lr: false
  eager: solo
  outer_lr: 1
  outer_momentum: 0
  overlap: false
  servers: 0
  elasticity: 0.2
  graph: exponential
  codec: none
  codec_feedback: true
  codec_block: 256
  codec_rounding: nearest
  codec_keep: 0.01
  codec_threshold: 0.001
  codec_rank: 4
  codec_bound: 0.001
  codec_bound_kind: absolute
comm:
  transport: auto
  links: ''
  jitter_ms: 0
trial:
  delay_ms: []
  burst: 0
checkpoint:
  every: 200
  keep: 3
  rate_mb: 0
watchdog:
  heartbeat: 5
  stop: 600
  replicas: 100
log:
  every: 10
  tensorboard: true
  trace_steps: 0
  trace_from: 3
)");
}

TEST_F(ConfigTest, ReadsAConfigurationThatANewcomerReadsAloud) {
  const auto path = file("gpt.yaml", R"(
model:     {kind: gpt, layers: 12, width: 768, heads: 12, context: 1024}
data:      {kind: tokens, path: data/shakespeare.bin}
train:     {steps: 2000, batch: 64, microbatch: 8, precision: bf16, seed: 1}
optimizer: {kind: adamw, lr: 3e-4, weight_decay: 0.1, warmup: 100}
parallel:  {pipe: 3, data: 1, schedule: 1f1b, cuts: [5, 9]}
sync:      {kind: allreduce}
checkpoint: {every: 200, keep: 3}
)");
  const auto config = load_config({path, file("more.yaml", "train: {batch: 128}")}, {"train.microbatch=16"});
  EXPECT_EQ(config.model.layers, 12);
  EXPECT_EQ(config.model.width, 768);
  EXPECT_EQ(config.data.kind, DataKind::tokens);
  EXPECT_EQ(config.data.path, "data/shakespeare.bin");
  EXPECT_EQ(config.train.batch, 128);
  EXPECT_EQ(config.train.microbatch, 16);
  EXPECT_EQ(config.train.precision, Precision::bf16);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.warmup, 100);
  EXPECT_EQ(config.parallel.pipe, 3);
  EXPECT_EQ(config.parallel.schedule, ScheduleKind::one_forward_one_backward);
  EXPECT_EQ(config.parallel.cuts, (std::vector<int64_t>{5, 9}));
}

TEST_F(ConfigTest, CutsAreAListOfLayers) {
  EXPECT_EQ(load_config({}, {"parallel.pipe=3", "parallel.cuts=2,4"}).parallel.cuts, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(load_config({}, {"parallel.pipe=3", "parallel.cuts=[2, 4]"}).parallel.cuts, (std::vector<int64_t>{2, 4}));
  EXPECT_TRUE(load_config({}, {"parallel.cuts=[]"}).parallel.cuts.empty());
  for (const char* wrong : {"parallel.cuts=2,x", "parallel.cuts=0,1", "parallel.cuts=2"}) {
    EXPECT_THROW(load_config({}, {"parallel.pipe=3", wrong}), Error) << wrong;
  }
  EXPECT_THROW(load_config({file("list.yaml", "parallel: {pipe: 2, cuts: [[1]]}")}, {}), Error);
}

TEST_F(ConfigTest, SharesAreAListOfNumbers) {
  EXPECT_EQ(load_config({}, {"parallel.shares=3,0.5"}).parallel.shares, (std::vector<double>{3, 0.5}));
  EXPECT_EQ(load_config({file("list.yaml", "parallel: {shares: [3, 1e-1]}")}, {}).parallel.shares,
            (std::vector<double>{3, 0.1}));
  EXPECT_TRUE(load_config({}, {"parallel.shares=[]"}).parallel.shares.empty());
  auto config = load_config({}, {"parallel.shares=[0.1234567890123456789, 1]"});
  EXPECT_EQ(load_config({file("resolved.yaml", resolved_yaml(config))}, {}).parallel.shares, config.parallel.shares);
  for (const char* wrong : {"3,x", "3,nan", "[3, inf]", "1e999,1"}) {
    EXPECT_EQ(
        refusal({fmt::format("parallel.shares={}", wrong)}),
        fmt::format("command line: parallel.shares = {} must be a list of finite numbers, such as [2.5, 1]", wrong));
  }
  for (const char* wrong : {"[3, 0]", "[-1, 3]"}) {
    EXPECT_EQ(refusal({fmt::format("parallel.shares={}", wrong)}),
              fmt::format("command line: parallel.shares = {} must be above 0", wrong));
  }
  EXPECT_EQ(refusal({"parallel.shares=3,1", "parallel.data=2"}), "(accepted)");
  EXPECT_EQ(refusal({"parallel.shares=3,1", "parallel.data=3"}),
            "command line: parallel.shares = [3, 1] must be as many numbers as parallel.data = 3");
}

// Every key moves the field that it names, and no other: each override changes exactly its own line.
TEST_F(ConfigTest, EveryKeyMovesItsOwnFieldOnly) {
  RunConfig defaults;
  const auto keys = describe(defaults).keys();
  for (const auto& key : keys) {
    if (key == "version") continue;  // of files, and no field
    RunConfig config;
    Settings settings = describe(config);
    const auto before = settings.text(key);
    for (const char* value : {"7",     "0.25",     "true",     "false", "mlp",        "tokens",   "uint32",   "bf16",
                              "cuda",  "sgd",      "linear",   "mpi",   "root",       "forward",  "gpipe",    "64",
                              "local", "standard", "majority", "ring",  "stochastic", "relative", "recompute"}) {
      try {
        settings.override_with(key + "=" + value);
      } catch (const Error&) {
        continue;  // not of this type
      }
      if (settings.text(key) != before) break;
    }
    EXPECT_NE(settings.text(key), before) << key;
    for (const auto& other : keys) {
      if (other == key) continue;
      EXPECT_EQ(settings.text(other), describe(defaults).text(other)) << key << " moved " << other;
    }
  }
}

// What a synchronised BatchNorm exchanges is part of a pass: replicas must take their passes in one order.
TEST_F(ConfigTest, SynchronisedBatchNormNeedsOneOrder) {
  const std::vector<std::string> ahead{"data.kind=synthetic", "sync.order=forward", "optimizer.clip=0",
                                       "train.nonfinite_limit=0"};
  const auto with = [](std::vector<std::string> words, std::initializer_list<const char*> more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  EXPECT_EQ(refusal(with(ahead, {"model.kind=resnet18"})),
            "command line: model.batch_norm = sync (default) must be local with sync.order = forward");
  EXPECT_EQ(refusal(with(ahead, {"model.kind=resnet18", "model.batch_norm=local"})), "(accepted)");
  EXPECT_EQ(refusal(with(ahead, {"model.kind=vgg11"})), "(accepted)");  // has none
  const std::vector<std::string> arrival{"data.kind=synthetic", "model.kind=googlenet", "parallel.schedule=arrival",
                                         "parallel.pipe=2"};
  EXPECT_EQ(refusal(arrival),
            "command line: model.batch_norm = sync (default) must be local, or parallel.data 1, with "
            "parallel.schedule = arrival");
  EXPECT_EQ(refusal(with(arrival, {"parallel.deterministic=true"})), refusal(arrival));
  EXPECT_EQ(refusal(with(arrival, {"parallel.data=1"})), "(accepted)");
  EXPECT_EQ(refusal(with(arrival, {"model.batch_norm=local"})), "(accepted)");
  EXPECT_EQ(refusal(with(arrival, {"parallel.replicas=[2,2]"})), refusal(arrival));
  EXPECT_EQ(refusal(with(arrival, {"parallel.replicas=[1,1]"})), "(accepted)");
  const std::vector<std::string> flow{"data.kind=synthetic", "model.kind=resnet18", "parallel.schedule=pipedream",
                                      "parallel.pipe=2"};
  const auto refused =
      "command line: model.batch_norm = sync (default) must be local, or parallel.data 1, with parallel.schedule = "
      "pipedream";
  EXPECT_EQ(refusal(flow), refused);
  EXPECT_EQ(refusal(with(flow, {"parallel.replicas=[2,2]"})), refused);
  EXPECT_EQ(refusal(with(flow, {"parallel.replicas=[1,1]"})), "(accepted)");
  EXPECT_EQ(refusal(with(flow, {"parallel.replicas=[2,1]"})), "(accepted)");  // where microbatches are dealt in turn
  EXPECT_EQ(refusal(with(flow, {"parallel.replicas=[2,2]", "model.batch_norm=local"})), "(accepted)");
}

// Wherever a run is started from, and in a copy of its settings in another folder.
TEST_F(ConfigTest, ATableOfActionsIsLookedForBesideTheFileThatNamesIt) {
  const auto table = [&](const RunConfig& config) { return std::filesystem::path(config.parallel.options.file); };
  const auto run = file("run.yaml", "parallel: {pipe: 2, schedule: file, schedule_file: tables/actions.csv}\n");
  const auto config = load_config({run}, {});
  EXPECT_EQ(table(config), run.parent_path() / "tables/actions.csv");
  EXPECT_EQ(table(load_config({file("copy.yaml", resolved_yaml(config))}, {})), table(config));
  EXPECT_EQ(table(load_config({run}, {"parallel.schedule_file=actions.csv"})),
            std::filesystem::current_path() / "actions.csv");
  EXPECT_EQ(table(load_config({run}, {"parallel.schedule_file=/tmp/actions.csv"})), "/tmp/actions.csv");
  const auto plan = file("plan.yaml",
                         "made_for: {ranks: 2, layers: 6, batch: 32}\n"
                         "parallel: {pipe: 2, schedule: file, schedule_file: ../actions.csv}\n");
  const auto read = read_plan(plan);
  EXPECT_EQ(table(load_config({}, {}, &read)), plan.parent_path().parent_path() / "actions.csv");
}

TEST_F(ConfigTest, KnowsWhichSettingsAreRead) {
  RunConfig config;
  const auto settings = describe(config);
  const auto read = [&](const char* key) { return settings.is_read(key); };
  EXPECT_TRUE(read("optimizer.beta1"));
  EXPECT_FALSE(read("optimizer.momentum"));
  config.optimizer.kind = OptimizerKind::sgd;
  EXPECT_FALSE(read("optimizer.beta1"));
  EXPECT_TRUE(read("optimizer.momentum"));
  EXPECT_TRUE(read("model.heads"));
  EXPECT_FALSE(read("model.image"));
  config.model.kind = ModelKind::resnet18;
  EXPECT_FALSE(read("model.heads"));
  EXPECT_TRUE(read("model.image"));
  EXPECT_FALSE(read("sync.codec_keep"));
  config.sync.codec.kind = CodecKind::top_k;
  EXPECT_TRUE(read("sync.codec_keep"));
  EXPECT_FALSE(read("distill.weight"));
  EXPECT_TRUE(read("train.seed"));
}

TEST_F(ConfigTest, TheResolvedCopyIsTheSameConfiguration) {
  auto config = load_config({}, {"model.kind=mlp", "data.kind=synthetic", "optimizer.lr=0.1234567890123456789",
                                 "run_dir=runs/it's mine", "comm.transport=shared", "log.tensorboard=false"});
  const auto yaml = describe(config).resolved_yaml();
  auto copy = load_config({file("resolved.yaml", yaml)}, {});
  EXPECT_EQ(describe(copy).resolved_yaml(), yaml);
  EXPECT_EQ(copy.optimizer.lr, config.optimizer.lr);
  EXPECT_EQ(copy.run_dir, "runs/it's mine");
  EXPECT_EQ(copy.model.kind, ModelKind::mlp);
}

// What runs wrote before there were versions, and what a later program will write.
TEST_F(ConfigTest, FilesOfOtherVersions) {
  const std::filesystem::path old_files = std::filesystem::path(TRIREME_SOURCE) / "tests/old/unversioned";
  for (const char* run : {"gpt", "mlp"}) {
    std::ifstream stream(old_files / run / "config.yaml");
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    EXPECT_THAT(text, testing::StartsWith("run_dir: runs/"));
    // What the file says still is so, in its order; settings that have come since lie between with their defaults.
    std::istringstream now(resolved_yaml(load_config({old_files / run / "config.yaml"}, {}))), then(text);
    for (std::string wanted, line; std::getline(then, wanted);) {
      while (std::getline(now, line) && line != wanted) continue;
      EXPECT_TRUE(now) << run << ": " << wanted;
    }
  }
  EXPECT_EQ(load_config({file("now.yaml", "version: 1\ntrain: {batch: 8}")}, {}).train.batch, 8);
  EXPECT_EQ(refusal({}, "version: 2\ntrain: {batches: 8}"),
            folder_ +
                "run.yaml:1: version = 2: made by a newer Trireme than this one, which reads configurations up to "
                "version 1: use the newer program");
}

TEST_F(ConfigTest, WhatOnlyLanguageModelsHaveIsRefusedOfOthers) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"model.kind=llama", "model.heads=4", "model.kv_heads=3"},
       "model.heads = 4 must be divisible by model.kv_heads = 3"},
      {{"model.kind=llama", "model.width=12", "model.heads=4"}, "model.width = 12 must be an even multiple of"},
      {{"model.kind=llama", "model.width=130"}, "model.width = 130 must be divisible by model.heads = 4"},
      {{"model.kv_heads=2"}, "model.kv_heads = 2 must be 0 with model.kind = gpt"},
      {{"model.hidden=64"}, "model.hidden = 64 must be 0 with model.kind = gpt"},
      {{"model.tied=true"}, "model.tied = true must be false with model.kind = gpt"},
      {{"model.lora_rank=2"}, "model.from = \"\" (default) must name a base with model.lora_rank = 2"},
      {{"model.kind=custom", "data.kind=custom", "distill.from=x"}, "distill.from = x must be empty with model.kind"},
      {{"data.mask=x"}, "data.mask = x must be empty with data.kind = text"},
      {{"data.separator=0"}, "data.separator = 0 must be -1 with data.kind = text"},
  };
  for (const auto& [overrides, complaint] : wrong) EXPECT_THAT(refusal(overrides), HasSubstr(complaint));
}

TEST_F(ConfigTest, WhatOnlySomeSchedulesHaveIsRefusedOfOthers) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"parallel.predict=1"}, "parallel.predict = 1 must be 0 with parallel.schedule = 1f1b"},
      {{"parallel.schedule=zero-bubble", "parallel.predict=1.5"},
       "parallel.predict = 1.5 must be 0 with parallel.schedule = zero-bubble"},
      {{"parallel.schedule=pipedream-2bw", "parallel.vertical_sync=true"},
       "parallel.vertical_sync = true must be false with parallel.schedule = pipedream-2bw"},
      {{"parallel.in_flight=3"}, "parallel.in_flight = 3 must be 0 with parallel.schedule = 1f1b"},
      {{"parallel.chunks=2"}, "parallel.chunks = 2 must be 0 with parallel.schedule = 1f1b"},
      {{"parallel.schedule_file=x.csv"}, "/x.csv must be empty with parallel.schedule = 1f1b"},
      {{"parallel.schedule=file"}, "must name a table of actions with parallel.schedule = file"},
      {{"parallel.schedule=pipedream"}, "must be at least 2 with parallel.schedule = pipedream"},
      {{"parallel.schedule=pipedream", "parallel.pipe=2", "sync.kind=stale"},
       "sync.kind = stale must be allreduce (every replica keeps versions of its own weights) with parallel.schedule "
       "="},
  };
  for (const auto& [overrides, complaint] : wrong) EXPECT_THAT(refusal(overrides), HasSubstr(complaint));
}

TEST_F(ConfigTest, EveryBoundIsKept) {
  const std::vector<std::pair<std::string, std::string>> outside = {
      {"model.layers=0", "at least 1 and at most 10000"},
      {"model.width=0", "at least 1 and at most 1000000"},
      {"model.heads=0", "at least 1"},
      {"model.context=0", "at least 1 and at most 100000000"},
      {"model.vocab=-1", "at least 0 and at most 100000000"},
      {"model.dropout=-0.1", "at least 0 and below 1"},
      {"model.dropout=1", "at least 0 and below 1"},
      {"model.inputs=0", "at least 1 and at most 100000000"},
      {"model.classes=0", "at least 1 and at most 100000000"},
      {"model.image=7", "at least 8 and at most 4096"},
      {"model.channels=0", "at least 1 and at most 1000000"},
      {"model.kv_heads=-1", "at least 0"},
      {"model.hidden=-1", "at least 0 and at most 10000000"},
      {"model.rope_theta=0", "above 0"},
      {"model.norm_epsilon=0", "above 0"},
      {"model.lora_rank=-1", "at least 0 and at most 1000000"},
      {"model.lora_alpha=0", "above 0"},
      {"data.separator=-2", "at least -1"},
      {"parallel.in_flight=-1", "at least 0"},
      {"parallel.chunks=65", "at least 0 and at most 64"},
      {"parallel.predict=-1", "at least 0 and at most 8"},
      {"parallel.predict=9", "at least 0 and at most 8"},
      {"data.validation=-0.01", "at least 0 and at most 0.5"},
      {"data.validation=0.51", "at least 0 and at most 0.5"},
      {"data.samples=0", "at least 1"},
      {"train.steps=0", "at least 1"},
      {"train.batch=0", "at least 1"},
      {"train.microbatch=-1", "at least 0"},
      {"train.seed=-1", "at least 0"},
      {"train.threads=-1", "at least 0 and at most 4096"},
      {"data.threads=257", "at least 0 and at most 256"},
      {"train.eval_every=-1", "at least 0"},
      {"train.eval_batches=-1", "at least 0"},
      {"train.nonfinite_limit=-1", "at least 0"},
      {"distill.weight=-0.1", "at least 0 and at most 1"},
      {"distill.weight=1.1", "at least 0 and at most 1"},
      {"distill.temperature=0", "above 0"},
      {"optimizer.lr=0", "above 0"},
      {"optimizer.weight_decay=-1", "at least 0"},
      {"optimizer.beta1=1", "at least 0 and below 1"},
      {"optimizer.beta2=1", "at least 0 and below 1"},
      {"optimizer.epsilon=0", "above 0"},
      {"optimizer.momentum=1", "at least 0 and below 1"},
      {"optimizer.clip=-1", "at least 0"},
      {"optimizer.warmup=-1", "at least 0"},
      {"optimizer.final_lr=1.1", "at least 0 and at most 1"},
      {"sync.bucket_mb=0", "above 0 and at most 1000000"},
      {"sync.credit_mb=0", "above 0 and at most 1000000"},
      {"sync.staleness=-2", "at least -1 and at most 1000"},
      {"sync.every=0", "at least 1"},
      {"sync.outer_lr=0", "above 0"},
      {"sync.outer_momentum=1", "at least 0 and below 1"},
      {"sync.servers=-1", "at least 0"},
      {"sync.elasticity=1", "above 0 and below 1"},
      {"sync.codec_block=8", "at least 16 and at most 65536"},
      {"sync.codec_keep=0", "above 0 and at most 1"},
      {"sync.codec_threshold=-1", "at least 0"},
      {"sync.codec_rank=0", "at least 1 and at most 1024"},
      {"sync.codec_bound=0", "above 0"},
      {"trial.burst=-1", "at least 0"},
      {"checkpoint.every=-1", "at least 0"},
      {"checkpoint.keep=0", "at least 1"},
      {"checkpoint.rate_mb=-1", "at least 0"},
      {"watchdog.heartbeat=0.5", "at least 1 and at most 9"},
      {"watchdog.heartbeat=9.5", "at least 1 and at most 9"},
      {"watchdog.stop=-1", "at least 0"},
      {"log.every=0", "at least 1"},
  };
  for (const auto& [assignment, rule] : outside) {
    const auto equals = assignment.find('=');
    EXPECT_EQ(refusal({assignment}), fmt::format("command line: {} = {} must be {}", assignment.substr(0, equals),
                                                 assignment.substr(equals + 1), rule));
  }
}

// What makes no sense together is refused with both names.
TEST_F(ConfigTest, SyncKindsAndCodecsThatDoNotGoTogether) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"sync.kind=stale", "sync.staleness=-1"}, "sync.staleness = -1 must be at least 0 with sync.kind = stale"},
      {{"sync.kind=gossip", "parallel.pipe=2"},
       "parallel.pipe = 2 must be 1 (each stage of a replica would meet other ranks at other times) with sync.kind ="},
      {{"sync.kind=local", "parallel.pipe=2", "parallel.replicas=[2,1]"},
       "parallel.replicas = [2, 1] must be empty (a replica of one stage belongs to no replica of the others) with"},
      {{"sync.kind=stale", "parallel.pipe=2", "optimizer.clip=1"},
       "optimizer.clip = 1 must be 0 (a stage does not know the others' part of a stale gradient) with"},
      {{"sync.kind=local", "model.kind=resnet18", "data.kind=synthetic"},
       "model.batch_norm = sync (default) must be local with sync.kind = local"},
      {{"sync.kind=hogwild", "train.device=cuda"}, "train.device = cuda must be cpu with sync.kind = hogwild"},
      {{"sync.kind=gossip", "sync.codec=int8"}, "sync.codec = int8 must be none with sync.kind = gossip"},
      {{"sync.kind=root", "sync.codec=int8"}, "sync.codec = int8 must be none with sync.kind = root"},
      {{"sync.codec=topk", "train.precision=fp64"}, "train.precision = fp64 must be fp32 or bf16 with sync.codec"},
      {{"sync.codec=int8", "sync.codec_block=100"}, "sync.codec_block = 100 must be a multiple of 16 with sync.codec"},
  };
  for (const auto& [overrides, complaint] : wrong) EXPECT_THAT(refusal(overrides), HasSubstr(complaint));
  EXPECT_EQ(refusal({"sync.kind=server", "sync.staleness=-1"}), "(accepted)");
  EXPECT_EQ(refusal({"sync.kind=local", "sync.codec=int8"}), "(accepted)");
}

TEST_F(ConfigTest, HeadsShareTheWidth) {
  EXPECT_EQ(refusal({}, "model:\n  width: 130\n"),
            folder_ + "run.yaml:2: model.width = 130 must be divisible by model.heads = 4 (default)");
  EXPECT_EQ(refusal({"model.heads=3"}, "model:\n  width: 130\n"),
            folder_ + "run.yaml:2: model.width = 130 must be divisible by model.heads = 3 (command line)");
  EXPECT_EQ(refusal({"model.width=130", "model.kind=mlp", "data.kind=synthetic"}), "(accepted)");  // no heads there
}

TEST_F(ConfigTest, AnMlpNeedsSyntheticData) {
  EXPECT_EQ(refusal({"model.kind=mlp"}),
            "command line: data.kind = text (default) must be synthetic with model.kind = mlp");
  EXPECT_EQ(refusal({"data.kind=synthetic"}), "(accepted)");
  EXPECT_EQ(refusal({"data.kind=images"}),
            "command line: data.kind = images must be text, tokens or synthetic with model.kind = gpt (default)");
  EXPECT_EQ(refusal({"model.kind=vgg11"}),
            "command line: data.kind = text (default) must be images or synthetic with model.kind = vgg11");
  EXPECT_EQ(refusal({"model.kind=resnet18", "data.kind=images", "data.augment=standard"}), "(accepted)");
  EXPECT_EQ(refusal({"model.kind=resnet18", "data.kind=synthetic", "data.augment=standard"}),
            "command line: data.augment = standard must be none with data.kind = synthetic");
  EXPECT_EQ(refusal({"model.kind=resnet18", "data.kind=synthetic", "model.skip=true"}),
            "command line: model.skip = true must be false with model.kind = resnet18");
}

TEST_F(ConfigTest, DataFromAFileNeedsItsName) {
  EXPECT_EQ(refusal({"data.path="}), "command line: data.path = \"\" must name a file with data.kind = text (default)");
  EXPECT_EQ(refusal({"data.path=", "data.kind=synthetic"}), "(accepted)");
}

TEST_F(ConfigTest, AMicrobatchIsPartOfABatch) {
  EXPECT_EQ(refusal({"train.microbatch=32"}), "(accepted)");
  EXPECT_EQ(refusal({"train.microbatch=33"}),
            "command line: train.microbatch = 33 must be at most train.batch = 32 (default)");
}

TEST_F(ConfigTest, TheWarmupEndsWithinTheRun) {
  EXPECT_EQ(refusal({"optimizer.warmup=30", "train.steps=30"}), "(accepted)");
  EXPECT_EQ(refusal({"optimizer.warmup=30", "train.steps=29"}),
            "command line: optimizer.warmup = 30 must be at most train.steps = 29");
  // The default is cut short, also where the resolved configuration of a short run repeats it.
  EXPECT_EQ(refusal({"train.steps=19"}), "(accepted)");
  EXPECT_EQ(refusal({"optimizer.warmup=20", "train.steps=19"}), "(accepted)");
}

TEST_F(ConfigTest, NesterovNeedsMomentum) {
  EXPECT_EQ(refusal({"optimizer.kind=sgd", "optimizer.momentum=0"}), "(accepted)");
  EXPECT_EQ(refusal({"optimizer.kind=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"}),
            "command line: optimizer.momentum = 0 must be above 0 with optimizer.nesterov = true");
}

TEST_F(ConfigTest, TheWatchdogIsSlowerThanTheHeartbeat) {
  EXPECT_EQ(refusal({"watchdog.stop=0"}), "(accepted)");
  EXPECT_EQ(refusal({"watchdog.stop=4"}),
            "command line: watchdog.stop = 4 must be 0 or at least watchdog.heartbeat = 5 (default)");
}

TEST_F(ConfigTest, MistakesAreNamedWithFileAndLine) {
  const auto where = folder_ + "run.yaml";
  EXPECT_EQ(refusal({}, "optimizer:\n  kind: adamw\n  lr: -1\n"), where + ":3: optimizer.lr = -1 must be above 0");
  EXPECT_EQ(refusal({}, "train: {lr: 1e-3}"), where + ":1: unknown key train.lr, did you mean optimizer.lr?");
  EXPECT_EQ(refusal({}, "train: {precison: fp32}"),
            where + ":1: unknown key train.precison, did you mean train.precision?");
  EXPECT_EQ(refusal({}, "train: {precision: bf61}"),
            where + ":1: train.precision = bf61 must be one of fp64, fp32, bf16 (did you mean bf16?)");
  EXPECT_EQ(refusal({"sync.kind=ring"}),
            "command line: sync.kind = ring must be one of allreduce, root, stale, eager, "
            "local, server, elastic, gossip, hogwild");
  EXPECT_THROW(load_config({folder_ + "missing.yaml"}, {}), Error);
}

TEST_F(ConfigTest, HelpAndDocsHaveEveryKeyWithinTheirWidth) {
  RunConfig config;
  const auto settings = describe(config);
  const auto help = settings.help(), page = settings.markdown();
  for (const auto& key : settings.keys()) {
    EXPECT_THAT(help, HasSubstr("\n  " + key + " "));
    EXPECT_THAT(page, HasSubstr("| `" + key + "` | "));
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;
}

TEST_F(ConfigTest, EverySettingThatIsAPathMayBeginAtHome) {
  const std::string before = std::getenv("HOME") ? std::getenv("HOME") : "";
  ::setenv("HOME", folder_.c_str(), 1);
  const auto config = load_config({}, {"run_dir=~/a", "data.kind=tokens", "data.path=~/b", "data.mask=~/c", "distill.from=~/d",
                                       "comm.links=~/e", "parallel.schedule=file", "parallel.schedule_file=~/f",
                                       "parallel.pipe=2"});
  const auto home = std::filesystem::path(folder_);
  EXPECT_EQ(config.run_dir, home / "a");
  EXPECT_EQ(config.data.path, home / "b");
  EXPECT_EQ(config.data.mask, home / "c");
  EXPECT_EQ(config.distill.from, home / "d");
  EXPECT_EQ(config.comm.links, home / "e");
  EXPECT_EQ(config.parallel.options.file, home / "f");
  ::setenv("HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace trireme
