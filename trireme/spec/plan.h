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

  bool operator==(const Plan&) const = default;

  // Whether the pipeline ends each step before it begins the next.
  bool drains() const { return row_of(schedule).drains; }
  std::unique_ptr<Schedule> schedule_of(int rank) const;
  std::unique_ptr<Schedule> schedule_at(const StagePlace& place) const;
  // How a rank's pipeline flows, if it never drains.
  Flow flow_of(int rank) const;

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
