#include "trireme/train/disk_room.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/spec/source_model.h"
#include "trireme/spec/stage_plan.h"
#include "trireme/train/checkpoint.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

// What CheckpointWriter::save() writes of the parameters and buffers of all stages.
uint64_t bytes_of_one(const RunConfig& config, const LayerTable& table) {
  const int64_t master = master_bytes(config.train.precision), value = value_bytes(config.train.precision);
  const bool adapters_alone =
      std::any_of(table.weights.begin(), table.weights.end(), [](const auto& one) { return one.adapter; });
  int64_t bytes = 0;
  for (const auto& parameter : table.weights) {
    if (adapters_alone && !parameter.adapter) continue;
    bytes += parameter.elements() * (parameter.trained ? master * (1 + moments_of(config.optimizer)) : value);
  }
  for (const auto& layer : table.layers) {
    for (const auto& buffer : layer.buffers) bytes += buffer.elements() * (buffer.counts ? 8 : master);
  }
  return static_cast<uint64_t>(bytes);
}

int64_t saves_after(const RunConfig& config, int64_t begun) {
  const int64_t steps = config.train.steps, every = config.checkpoint.every;
  if (steps <= begun) return 0;
  if (every == 0) return 1;
  return steps / every - begun / every + (steps % every != 0 ? 1 : 0);
}

uint64_t free_bytes_at(fs::path folder) {
  folder = fs::absolute(folder);
  while (!fs::exists(folder) && folder.has_relative_path()) folder = folder.parent_path();
  std::error_code error;
  const auto space = fs::space(folder, error);
  if (error) fail("asking what is free at {}: {}", folder.string(), error.message());
  return space.available;
}

}  // namespace

DiskRoom disk_room(const RunConfig& config, const LayerTable& table, const fs::path& run_dir, int64_t begun) {
  DiskRoom room;
  room.run_dir = run_dir;
  room.keep = config.checkpoint.keep;
  room.checkpoint_bytes = bytes_of_one(config, table);
  room.free_bytes = free_bytes_at(run_dir);
  const int64_t saves = saves_after(config, begun);
  if (saves == 0) return room;
  room.next_bytes = room.checkpoint_bytes;
  // Before the last save there are as many as are kept, or all that were written; those of now take no new room.
  const auto now = static_cast<int64_t>(list_checkpoints(run_dir).size());
  const int64_t more = std::max<int64_t>(0, std::min(room.keep, now + saves - 1) - now);
  room.most_bytes = static_cast<uint64_t>(more + 1) * room.checkpoint_bytes;
  return room;
}

std::string DiskRoom::describe() const {
  const auto bytes = [](uint64_t count) { return human_bytes(static_cast<double>(count)); };
  return fmt::format("a checkpoint takes {}; {} are kept (checkpoint.keep), and one more is being written: {} at most",
                     bytes(checkpoint_bytes), keep, bytes(most_bytes));
}

std::string DiskRoom::shortage() const {
  const auto bytes = [](uint64_t count) { return human_bytes(static_cast<double>(count)); };
  const auto free = fmt::format("the file system of {} has {} free", run_dir.string(), bytes(free_bytes));
  if (!fits_one()) {
    return fmt::format(
        "not even one checkpoint fits: it takes {}, and {}: free some space there, or choose another run_dir",
        bytes(checkpoint_bytes), free);
  }
  return fmt::format(
      "the checkpoints do not fit: with checkpoint.keep = {} and one that is being written they take {} more, and {}: "
      "free some space there, lower checkpoint.keep, or choose another run_dir",
      keep, bytes(most_bytes), free);
}

}  // namespace trireme
