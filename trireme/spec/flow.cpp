#include "trireme/spec/flow.h"

#include <algorithm>

namespace trireme {

Flow::Flow(ScheduleKind kind, bool vertical_sync, const Mesh& mesh, int stage, int replica, int64_t per_step,
           int64_t dealt)
    : changes_once_(row_of(kind).changes_once),
      vertical_(vertical_sync),
      per_step_(per_step),
      dealt_(dealt),
      ahead_(warm_up(place_of(mesh, stage, replica, static_cast<int>(dealt)))),
      replicas_(mesh.replicas(stage)),
      replica_(replica),
      first_ahead_(warm_up(place_of(mesh, 0, 0, static_cast<int>(dealt)))),
      first_replicas_(mesh.replicas(0)),
      even_(mesh.even()) {
  for (int s = 0; s < mesh.stages; ++s) {
    const int64_t ahead = warm_up(place_of(mesh, s, 0, static_cast<int>(dealt)));
    const int64_t least = even_ ? dealt : std::max<int64_t>(1, dealt / mesh.replicas(s));
    steps_in_flight_ = std::max(steps_in_flight_, (ahead + least - 1) / least + 2);
  }
}

int64_t Flow::most_versions() const {
  if (changes_once()) return 2;
  if (!vertical_) return ahead_ + 1;
  const int64_t minibatches = static_cast<int64_t>(first_ahead_ + 1) * (even_ ? 1 : first_replicas_);
  return std::max<int64_t>(ahead_ + 1, minibatches / (even_ ? 1 : replicas_) + 1);
}

int64_t Flow::delay() const {
  if (changes_once()) return 1;
  if (!vertical_) return ahead_;
  return even_ ? first_ahead_ : static_cast<int64_t>(first_ahead_) * first_replicas_ / replicas_;
}

int64_t Flow::forwarded(int64_t returned, int64_t total) const { return std::min(total, returned + ahead_); }

ActionList Flow::actions(int64_t forwarded, int64_t returned, int64_t total) const {
  ActionList actions;
  int64_t next = forwarded;
  for (int64_t k = 0; k < per_step_; ++k) {
    for (; next < std::min(total, returned + k + ahead_ + 1); ++next)
      actions.push_back({TaskKind::forward, static_cast<int32_t>(next - forwarded)});
    actions.push_back({TaskKind::backward, static_cast<int32_t>(k)});
  }
  return actions;
}

int64_t Flow::version_of(int64_t microbatch, int64_t newest) const {
  const int64_t step = microbatch / per_step_;
  if (changes_once()) return std::clamp<int64_t>(step - 1, std::max<int64_t>(0, newest - 1), newest);
  if (!vertical_) return newest;
  // Of all microbatches of the run, those that the first stage had learnt from.
  const int64_t number = even_ ? microbatch : step * dealt_ + microbatch % per_step_ * replicas_ + replica_;
  const int64_t first = even_ ? 1 : first_replicas_, here = even_ ? 1 : replicas_;
  const int64_t learnt = first * std::max<int64_t>(0, number / first - first_ahead_);
  return std::min(newest, learnt / here);
}

}  // namespace trireme
