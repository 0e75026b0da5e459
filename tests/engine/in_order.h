// The simplest schedule: of the tasks that are ready, the one that the graph lists first.
#pragma once

#include "trireme/spec/schedule.h"

namespace trireme {

class InOrder final : public Schedule {
 public:
  const char* name() const override { return "in order"; }
  size_t choose(std::span<const ReadyTask> ready, const StageState&) const override {
    size_t best = 0;
    for (size_t i = 1; i < ready.size(); ++i) {
      if (ready[i].order < ready[best].order) best = i;
    }
    return best;
  }
  TaskKind awaited(const StageState&) const override { return TaskKind::reduce; }
  int in_flight() const override { return 1; }
};

}  // namespace trireme
