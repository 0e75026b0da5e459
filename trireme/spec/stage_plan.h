// What each stage of a run will hold, known before the first step: its layers, its parameters, and the bytes of a rank
// by owner. A run that would need more than it may have is refused with these numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"
#include "trireme/spec/plan.h"

namespace trireme {

struct StagePlan {
  int stage = 0;
  int replicas = 1;
  std::vector<std::string> chunks;  // names of the layers that each begins and ends with
  int64_t layers = 0;
  int64_t parameters = 0;  // elements, tied ones included
  double flops = 0;        // of one sample, forward and backward
  int in_flight = 1;       // microbatches whose activations it holds at once, each counted for every chunk
  int64_t microbatch = 1;  // samples

  // Bytes of one rank.
  int64_t parameter_bytes = 0, master_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  int64_t activation_bytes = 0;  // of all microbatches in flight
  int64_t teacher_bytes = 0;     // of the last stage, where there is one

  int64_t total_bytes() const {
    return parameter_bytes + master_bytes + gradient_bytes + optimizer_bytes + activation_bytes + teacher_bytes;
  }
};

// Moments that the optimizer keeps of each parameter.
int64_t moments_of(const OptimizerConfig& optimizer);

std::vector<StagePlan> plan_stages(const RunConfig& config, const LayerTable& table, const Plan& plan);

// A table for people.
std::string describe(const std::vector<StagePlan>& stages);

// Refuses a plan whose ranks need more than memory.limit_mb.
void check_memory(const RunConfig& config, const std::vector<StagePlan>& stages);

// Bytes of ranks that share a memory, by what they are for.
struct HeldBytes {
  double values = 0, gradients = 0, optimizer = 0;
  double passes = 0;  // activations, and a teacher

  double total() const { return values + gradients + optimizer + passes; }
};
HeldBytes held_together(const RunConfig& config, const std::vector<StagePlan>& stages, const Mesh& mesh,
                        const std::vector<int>& ranks);

// Memory that some ranks share, a host's or a card's, and what of them lies in it.
struct MemoryPool {
  std::string name;
  int64_t bytes = 0;
  std::vector<int> ranks;
  bool state = true;    // parameters, masters, gradients, optimizer state
  bool samples = true;  // of one batch
};

// Refuses a plan whose ranks cannot fit into the memory that they share. Only what they surely need is counted.
void check_fits(const RunConfig& config, const std::vector<StagePlan>& stages, const Mesh& mesh, const MemoryPool& pool,
                int64_t sample_bytes);

}  // namespace trireme
