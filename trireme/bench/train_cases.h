// The cases of `trireme bench train`: models and batches that anyone may train with `trireme train`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

// A case as anyone may run it with `trireme train`, and what its peer is compared by.
struct KnownCase {
  std::string name, title;
  std::string model;  // model.kind, and the peer's name of it
  std::vector<std::string> settings;
  bool card = false;          // bf16 there; fp32 on the host
  bool images = false;        // the peer may lay them out in two ways
  int64_t file_batches = 10;  // in the peer's file: losses of as many steps are compared, later ones only timed
  double tolerance = 1e-4;    // of these losses, relative
};

// Refuses a name that there is not.
const KnownCase& known_case(const std::string& name);

// The case's settings and those that all cases have in common.
std::vector<std::string> overrides_of(const KnownCase& known);

}  // namespace trireme
