// A schedule as a table that people and other programs write: a row for each stage, in each cell what it does next, as
// `torch.distributed.pipelining` writes them: the part of the model, F (forward), B (backward), I (backward, inputs'
// gradients only) or W (weights' gradients), and the microbatch: 0F0,0F1,0B0,0B1. Empty cells mean nothing.
//
// With one chunk a rank the part of the model is the stage; with more the parts lie in turn (stage s has s, s+p, …) or
// as a V (s and 2p-1-s), which the table itself tells.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/spec/schedule.h"

namespace trireme {

struct ActionTable {
  std::string source;  // for errors
  int stages = 1, chunks = 1, microbatches = 0;
  bool vee = false;
  std::vector<ActionList> rows;  // by stage; B is there as a backward pass, followed at once by its weights' gradients
                                 // where other rows or cells split them

  bool operator==(const ActionTable&) const = default;

  // Of a rank; refuses a place that the table is not made for.
  const ActionList& actions_of(const StagePlace& place) const;
};

// Refuses, with row and cell, what is no action, is there twice or is missing.
ActionTable parse_action_table(const std::string& text, const std::string& source);
ActionTable read_action_table(const std::filesystem::path& path);

// The same table from the schedule of each stage.
std::string action_table_text(const std::vector<ActionList>& rows, bool vee);

}  // namespace trireme
