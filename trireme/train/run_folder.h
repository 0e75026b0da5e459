// A run's folder: config.yaml (resolved), plan.yaml, metrics.jsonl, TensorBoard's files, log.txt, checkpoints/step-N.
// It belongs to one run while that lives (lock).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trireme/base/folder_lock.h"
#include "trireme/spec/config.h"
#include "trireme/spec/stage_plan.h"
#include "trireme/train/checkpoint.h"

namespace trireme {

struct RunFolder {
  // A run takes its folder for as long as it lives; whoever only looks changes nothing.
  enum class Access { take, look };

  std::filesystem::path path;
  std::optional<CheckpointInfo> checkpoint;  // what the run resumes from
  std::optional<FolderLock> lock;            // of a folder that was taken

  // A folder for a new run: run_dir, or the next free runs/NAME-N. Refuses one that already holds checkpoints, or in
  // which another run is at work.
  static RunFolder fresh(const RunConfig& config, const std::string& name, Access access = Access::take);
  // The folder of an older run: `from` (a run's folder or one checkpoint in it), run_dir, or the newest runs/NAME-N.
  // Refuses a run that still lives, settings that may not change between the two, and files of a newer program.
  static RunFolder resume(const RunConfig& config, const std::string& name, const std::filesystem::path& from,
                          Access access = Access::take);

  // Makes it and writes what is known before the first step.
  void prepare(const std::string& resolved_config, const std::string& plan) const;
};

// The plan of a run, and as comments what follows from it for each rank: shares, stages, buckets.
std::string plan_with_comments(const std::vector<StagePlan>& stages, World& world, StageTrainer& trainer);

}  // namespace trireme
