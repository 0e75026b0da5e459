// What the checkpoints of a run take, held against what is free on the disk of its folder. The bytes are those of the
// model and the optimizer; what ranks have of their own comes on top, so a run that is refused would surely not fit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"

namespace trireme {

struct DiskRoom {
  std::filesystem::path run_dir;
  int64_t keep = 1;
  uint64_t checkpoint_bytes = 0;  // of one
  uint64_t next_bytes = 0;        // that the next checkpoint adds; nothing where none is to be written
  uint64_t most_bytes = 0;        // that are added at most: the kept ones and the one that is being written
  uint64_t free_bytes = 0;

  bool fits() const { return most_bytes <= free_bytes; }
  bool fits_one() const { return next_bytes <= free_bytes; }
  std::string describe() const;  // the sizes, for people
  std::string shortage() const;  // what is missing, and what to do
};

// Of a run that goes on after step `begun`; the folder may hold checkpoints, or not be there yet.
DiskRoom disk_room(const RunConfig& config, const LayerTable& table, const std::filesystem::path& run_dir, int64_t begun);

}  // namespace trireme
