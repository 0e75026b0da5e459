// A whole training run: its folder, its sinks, its checkpoints, and how it ends.
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "trireme/comm/world.h"
#include "trireme/data/dataset.h"
#include "trireme/nn/model.h"
#include "trireme/observe/step_report.h"
#include "trireme/spec/config.h"
#include "trireme/spec/plan_file.h"
#include "trireme/train/forecast.h"

namespace trireme {

// What a program trains that brings its own model and data (model.kind and data.kind are custom then).
struct Subject {
  std::unique_ptr<Model> model;  // all of it
  Split data;
};

struct RunOptions {
  std::string name = "run";  // of the configuration: runs/NAME-N
  bool resume = false;
  std::filesystem::path resume_from;  // a run's folder or one checkpoint; empty = the newest run of this name
  bool quiet = false;                 // no progress line
  bool threads = false;               // the ranks are to be threads of one process; a run knows it by its world
  std::optional<PlanFile> plan;       // whose decisions the configuration has taken; refused if made for another run
  std::function<void(const StepReport&)> after_step;  // called on all ranks
};

struct RunResult {
  std::filesystem::path run_dir;
  int64_t steps = 0;                                       // done, in all
  double loss = std::numeric_limits<double>::quiet_NaN();  // of the last step; NaN when there was none left to do
  std::optional<double> eval_loss, eval_accuracy;
  double items_per_s = 0;  // median over this run's steps
  double step_s = 0;       // median over this run's steps
  std::string items = "tokens";
  int64_t skipped = 0;
  int stopped_by = 0;      // the signal that ended the run early, or 0
  std::string checkpoint;  // the newest whole one

  std::string brief() const;
  nlohmann::ordered_json json() const;
};

// The configuration's words about data, as the data room wants them.
DataOptions data_options(const RunConfig& config);

// Trains on every rank of the world; the result is whole on rank 0. An error on one rank ends the others. A run whose
// last state could not be saved fails on all of them. What the program says goes on into the run's log.txt until
// log::set_file() or log::end().
RunResult train(const RunConfig& config, World& world, const RunOptions& options,
                std::optional<Subject> subject = std::nullopt);

// Refuses what this host can see to be impossible before any rank is started: the data, and ranks without samples.
void check_run(const RunConfig& config, int ranks, const RunOptions& options = {});

// What a run would be: plan, layers, memory, room for checkpoints. Checks what the run would check, reads the first
// batch, trains nothing.
RunForecast forecast_run(const RunConfig& config, int ranks, const RunOptions& options = {});

// Machines that a run is planned for, of which this is none.
struct OtherHosts {
  int count = 1;
  int64_t memory_bytes = 0;  // of each, or of each card where ranks run on cards
};
// What a run would be there, and whether each of these hosts could hold its ranks. The data need not be here, where the
// configuration says how many tokens it has.
RunForecast forecast_run(const RunConfig& config, int ranks, const RunOptions& options, const OtherHosts& hosts);

// How many threads each of a host's ranks computes with.
int threads_per_rank(const RunConfig& config, int local_ranks);

}  // namespace trireme
