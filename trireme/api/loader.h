// Feeds a rank its part of every batch. The order of the samples is a function of the seed alone, so however many ranks
// there are, step k trains on the same samples; while a step runs, a thread makes the next batch.
//
//   for (auto& batch : trireme::Loader(dataset, *world, {.batch = 256, .seed = 1})) { … batch.inputs, batch.targets … }
#pragma once

#include <memory>
#include <utility>

#include "trireme/api/examples.h"
#include "trireme/comm/world.h"
#include "trireme/data/step_loader.h"

namespace trireme {

struct LoaderOptions {
  int64_t batch = 32;      // samples a step, of all ranks together
  uint64_t seed = 1;       // of the order
  int64_t steps = 0;       // batches of one loop; 0: as many as the dataset fills
  int64_t first_step = 0;  // where a run that goes on had stopped
};

// A rank's part of a batch.
struct LoadedBatch {
  at::Tensor inputs, targets;
  double weight = 0;  // of the whole batch, for backward(): it has so many of its samples
  int64_t step = 0;   // from 0, over all loops
};

class Loader {
 public:
  // Anything with size() and get(index), such as torch::data's datasets, or a Dataset of ours.
  template <class Examples>
  Loader(Examples dataset, World& world, const LoaderOptions& options = {})
      : Loader(as_dataset(std::move(dataset)), world, options) {}
  Loader(std::shared_ptr<const Dataset> dataset, World& world, const LoaderOptions& options = {});

  int64_t steps() const { return steps_; }  // of one loop

  class Iterator {
   public:
    Iterator(Loader* loader, int64_t left) : loader_(loader), left_(left) { load(); }
    LoadedBatch& operator*() { return batch_; }
    Iterator& operator++() {
      --left_;
      load();
      return *this;
    }
    bool operator!=(const Iterator& other) const { return left_ != other.left_; }

   private:
    void load() {
      if (left_ > 0) batch_ = loader_->next();
    }

    Loader* loader_;
    int64_t left_;
    LoadedBatch batch_;
  };

  // Each loop goes on where the one before has ended.
  Iterator begin() { return {this, steps_}; }
  Iterator end() { return {this, 0}; }
  LoadedBatch next();

 private:
  std::shared_ptr<const Dataset> dataset_;
  double weight_;
  int64_t steps_;
  std::unique_ptr<StepLoader> loader_;
};

}  // namespace trireme
