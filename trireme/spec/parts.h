// What the parts that a plan cuts a model into have to do with each other: tensors that cross their borders, and
// parameters that several stages hold. All of it follows from the plan and the model's table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/spec/layer.h"
#include "trireme/spec/plan.h"

namespace trireme {

// A tensor that is made in one part and used in a later one.
struct Crossing {
  int from = 0, to = 0;  // parts
  uint16_t way = 0;      // 0: what one layer hands to the next; k + 1: the model's k-th skip

  bool operator==(const Crossing&) const = default;
};

// Of one part. Each gradient crosses the same way back.
struct Crossings {
  std::vector<Crossing> incoming, outgoing;
};

// `begins`: the layer that each part begins with, as in the plan.
Crossings crossings_of(int part, const std::vector<int64_t>& begins, const std::vector<Skip>& skips);

// The stages that share parameters, such as a head tied to the embedding, in order.
struct Tie {
  std::vector<int> stages;

  bool operator==(const Tie&) const = default;
};

// Of the whole model, in an order that all ranks know.
std::vector<Tie> find_ties(const Plan& plan, const LayerTable& table);

// A parameter as one stage holds it.
struct HeldParameter {
  size_t number = 0;  // in the table
  int uses = 1;       // how often the passes of a microbatch through the stage write its gradient
  int tie = -1;       // which set of stages shares it, where more than one does
  bool owned = true;  // of these stages, this one counts and saves it
};

// In the order of their first use on the stage.
std::vector<HeldParameter> held_parameters(const Plan& plan, const LayerTable& table, int stage);

}  // namespace trireme
