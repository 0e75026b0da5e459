// How a run's work is split: one value, made once, which everything that runs, simulates or predicts it is given.
// Nobody works any of this out again from the configuration.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "trireme/spec/config.h"
#include "trireme/spec/dealing.h"
#include "trireme/spec/flow.h"
#include "trireme/spec/layer.h"
#include "trireme/spec/mesh.h"
#include "trireme/spec/schedule.h"

namespace trireme {

// What a plan depends on besides the configuration and the model.
struct Facts {
  int ranks = 1;
  int64_t training_samples = std::numeric_limits<int64_t>::max();
  bool one_process = true;  // whether the ranks are, or may be, threads of one process
};

// What a plan is made for: another run needs another one.
struct MadeFor {
  int64_t ranks = 1;
  int64_t layers = 1;  // of the model
  int64_t batch = 1;

  bool operator==(const MadeFor&) const = default;
};

// Who changes parameters, and after what.
enum class UpdateRule {
  decided,     // each rank, once all ranks know the loss and the norm of the whole gradient, and have decided alike
  root,        // the same, but each bucket's root alone, which sends the parameters on
  as_reduced,  // each rank, bucket by bucket as they are summed: nothing depends on the whole gradient
  ahead,       // the same while the next step runs already (sync.order=forward)
  loose,       // as the kind has it that keeps replicas together (sync.kind)
  flow         // each stage after its own rounds of microbatches, in a pipeline that never drains
};

// Written into a run's folder, and read from there (plan_file.h).
struct Plan {
  MadeFor made_for;
  Mesh mesh;
  std::vector<int64_t> begins;  // the layer that each part of the model begins with
  Dealing dealing;              // of a training step's batch
  ScheduleKind schedule = ScheduleKind::gpipe;
  ScheduleOptions schedule_options;
  ActivationKind activations = ActivationKind::keep;  // what is kept of each layer until its backward pass
  SyncConfig sync;                                    // how replicas are kept together
  UpdateRule update = UpdateRule::decided;

  bool operator==(const Plan&) const = default;

  // Whether the pipeline ends each step before it begins the next.
  bool drains() const { return row_of(schedule).drains; }
  std::unique_ptr<Schedule> schedule_of(int rank) const;
  std::unique_ptr<Schedule> schedule_at(const StagePlace& place) const;
  // How a rank's pipeline flows, if it never drains.
  Flow flow_of(int rank) const;

  // How many layers, the first of so many, keep their inputs alone. The backward pass of the last one follows at once: it
  // has nothing to gain from being computed again.
  size_t recomputed_layers(size_t layers) const;
  // Whether the totals of a step are summed over all ranks while the next one runs: stages then do not wait for them.
  bool totals_come_late() const { return update == UpdateRule::as_reduced && mesh.stages > 1; }
  // Whether ranks know parts of the gradient, so that its norm is one of these totals.
  bool sums_squares() const {
    return update == UpdateRule::root || (mesh.stages > 1 && update != UpdateRule::flow);
  }
  // Whether replicas exchange the statistics of their samples inside of passes.
  bool exchanges_statistics() const { return dealing.options().alike && mesh.even() && mesh.replicas() > 1; }

  // Layers [first, last) of a part of the model, of so many layers.
  struct Layers {
    size_t first, last;
  };
  Layers layers_of(int part, size_t layers) const;
};

MadeFor made_for(const RunConfig& config, const LayerTable& table, const Facts& facts);

// Refuses ranks that the configuration cannot use, samples that cannot be dealt to them, cuts that the model does not
// have, and what check_plan() refuses.
Plan make_plan(const RunConfig& config, const LayerTable& table, const Facts& facts);

}  // namespace trireme
