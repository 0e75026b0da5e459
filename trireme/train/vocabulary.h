#pragma once

#include <cstdint>

#include "trireme/spec/config.h"

namespace trireme {

// How many tokens a model of tokens tells apart: model.vocab, or what the data needs where that is open.
int64_t vocabulary_of(const RunConfig& config);

}  // namespace trireme
