// The part of `trireme bench comm` for tensors of cards: collectives and messages that stay on the cards, beside the
// same ones through the host.
#pragma once

#include <nlohmann/json.hpp>

#include "trireme/comm/world.h"
#include "trireme/bench/comm.h"

namespace trireme {

// One rank's part. Before anything is timed, every collective is seen to give the same bits by both ways.
nlohmann::ordered_json measure_cards(const CommBenchOptions& options, World& world);

}  // namespace trireme
