// One optimizer step as everybody sees it, and the interface of those who show or keep it: the progress line,
// metrics.jsonl, TensorBoard. The trainer fills one report a step and hands it to every sink.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trireme/observe/ledger.h"

namespace trireme {

// Share of the step in which a stage had nothing to do, by what it waited for.
struct StageIdle {
  double forward = 0, backward = 0, reduce = 0;
};

// What a codec made of what this rank sent in a step.
struct CodecReport {
  int64_t plain_bytes = 0, sent_bytes = 0;  // without it at the least, and with it
  double seconds = 0;                       // encoding and decoding
  std::optional<double> residual_norm;      // of what is left to be said
};

// A rank that others waited for in a step, and how long.
struct AwaitedRank {
  int rank = 0;
  double seconds = 0;
};

struct StepReport {
  int64_t step = 0;   // counted from 1
  int64_t steps = 0;  // of the whole run
  double loss = 0;
  std::optional<double> distillation;  // where there is a teacher: its part of the loss, before it is weighted
  double grad_norm = 0;
  double lr = 0;
  double step_s = 0;
  double items_per_s = 0;
  std::string items = "tokens";  // what is counted: "tokens" or "samples"
  int64_t skipped = 0;           // steps so far whose gradients were not finite and were not applied
  double reduce_wait_s = 0;      // the part of step_s that was spent waiting for reductions
  std::vector<StageIdle> idle;   // by stage, where there are several
  std::vector<double> busy_s;    // by rank, where there are several: what it worked until it gave its part of the loss
  std::optional<AwaitedRank> waits_for;  // where stages have several replicas
  int64_t sent_bytes = 0;
  std::optional<CodecReport> codec;
  std::optional<double> batches;   // that all ranks have worked through, where steps may lack a rank's part of one
  std::vector<int64_t> staleness;  // of this rank: how often its gradients lacked 0, 1, 2 … steps of others so far
  // When the rank held most in the step, by owner, on the device that it computes on; and where that is a card, on its
  // host.
  std::vector<OwnerBytes> memory, host_memory;
  std::optional<double> eval_loss;      // of a step after which the model was evaluated
  std::optional<double> eval_accuracy;  // of classifiers: the part of the held-out samples whose class was told
};

// The short name of a report's throughput: "tps" for tokens, "sps" for samples.
inline std::string throughput_word(const StepReport& report) { return report.items.substr(0, 1) + "ps"; }

// Where reports go. One thread at a time calls a sink; what a sink meets on its way (a full disk) never ends training.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  virtual void step(const StepReport& report) = 0;
  // What happens between steps: a checkpoint saved, a run resumed, a warning. `fields` is a JSON object.
  virtual void event(const std::string& name, const nlohmann::json& fields) = 0;
  virtual void finish() = 0;
};

}  // namespace trireme
