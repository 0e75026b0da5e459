#include "trireme/spec/task.h"

#include <cstddef>

namespace trireme {

const char* name(TaskKind kind) {
  switch (kind) {
    case TaskKind::load: return "load";
    case TaskKind::forward: return "forward";
    case TaskKind::backward: return "backward";
    case TaskKind::reduce: return "reduce";
    case TaskKind::norm: return "norm";
    case TaskKind::decide: return "decide";
    case TaskKind::optimize: return "optimize";
    case TaskKind::evaluate: return "evaluate";
    case TaskKind::copy: return "copy";
  }
  return "?";
}

size_t InOrder::choose(std::span<const ReadyTask> ready) const {
  size_t best = 0;
  for (size_t i = 1; i < ready.size(); ++i) {
    if (ready[i].order < ready[best].order) best = i;
  }
  return best;
}

}  // namespace trireme
