// Who gets which samples of a batch, and in which microbatches they pass.
//
// Of stages with equally many replicas each replica has a share of the batch, in neighbouring places, which it passes
// through its own pipeline in microbatches. Otherwise the microbatches of the whole batch are dealt over the replicas
// of each stage in turn: microbatch b goes to replica b mod r in both directions.
//
// A rank counts its own microbatches from 0. The ranks that pass the same one know it by its *number*: of the replica's
// pipeline the same count, of those that are dealt the number among all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/spec/mesh.h"
#include "trireme/spec/share.h"

namespace trireme {

class Dealing {
 public:
  struct Options {
    int64_t most = 0;               // samples in a microbatch; 0: a rank's whole share
    std::vector<double> weights{};  // of replicas (parallel.shares)
    bool alike = false;             // all replicas take equally many microbatches

    bool operator==(const Options&) const = default;
  };

  Dealing(const Mesh& mesh, int64_t samples, const Options& options);

  bool operator==(const Dealing&) const = default;
  const Options& options() const { return options_; }

  // The microbatches that pass a rank, in its order.
  std::vector<Share> pieces(int rank) const;
  int64_t samples(int rank) const;
  // Of every replica, where stages have equally many.
  const std::vector<Share>& shares() const { return shares_; }
  // Samples of the largest microbatch.
  int64_t largest() const;

  // Numbers of microbatches that pass the pipeline of a rank in a step.
  int numbers(int rank) const;
  // All that there are: replicas may have more and less. Most first.
  std::vector<int> all_numbers() const;
  int number_of(int rank, int own) const;
  int own_of(int rank, int number) const;
  // The rank of another stage that passes a microbatch of this one.
  int holder(int rank, int own, int stage) const;
  // What a schedule must know of a rank.
  StagePlace place(int rank) const { return place_of(mesh_, mesh_.stage_of(rank), mesh_.replica_of(rank), numbers(rank)); }

  // For people; nothing where everybody gets the same.
  std::string describe() const;

 private:
  Mesh mesh_;
  int64_t batch_;
  Options options_;
  std::vector<Share> shares_;  // by replica
  std::vector<Share> dealt_;   // over the replicas of each stage
  size_t least_ = 0;           // microbatches of each replica
};

// Of a training step; and of so many samples, no more than `most` in a microbatch.
Dealing deal_batch(const RunConfig& config, const Mesh& mesh);
Dealing deal_batch(const RunConfig& config, const Mesh& mesh, int64_t samples, int64_t most);

// Refuses more replicas than there are samples or microbatches for, and shares that do not fit them.
void check_dealing(const RunConfig& config, const Mesh& mesh, int64_t training_samples);

}  // namespace trireme
