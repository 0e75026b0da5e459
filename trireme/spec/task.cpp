#include "trireme/spec/task.h"

namespace trireme {

const char* name(TaskKind kind) {
  switch (kind) {
    case TaskKind::load: return "load";
    case TaskKind::forward: return "forward";
    case TaskKind::backward: return "backward";
    case TaskKind::weights: return "weights";
    case TaskKind::reduce: return "reduce";
    case TaskKind::norm: return "norm";
    case TaskKind::decide: return "decide";
    case TaskKind::optimize: return "optimize";
    case TaskKind::evaluate: return "evaluate";
    case TaskKind::receive: return "receive";
  }
  return "?";
}

}  // namespace trireme
