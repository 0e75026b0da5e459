// The ranks' part of `trireme bench comm` on the CPU: ours and MPI's, one after the other in the same processes.
#pragma once

#include <nlohmann/json.hpp>

#include "trireme/comm/world.h"
#include "trireme/bench/comm.h"

namespace trireme {

// Into how many pieces a computation beside MPI_Iallreduce is cut, with MPI_Test between them.
inline constexpr int overlap_pieces[] = {1, 8, 64, 512};

// Microseconds, or per cent, by case, bytes and side; and in "mpi" which MPI that was.
nlohmann::ordered_json measure_cases(const CommBenchOptions& options, World& world);

}  // namespace trireme
