#include "trireme/spec/action_list.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>

#include "trireme/base/error.h"

namespace trireme {

namespace {

int replicas_of(const StagePlace& place, int stage) {
  return place.replicas.empty() ? 1 : place.replicas[static_cast<size_t>(stage)];
}

int ranks_from(const StagePlace& place, int stage) {
  int ranks = 0;
  for (int s = stage; s < place.stages; ++s) ranks += replicas_of(place, s);
  return ranks;
}

// The actions on the microbatches that are dealt to this replica, with its own numbers for them: a part of an order in
// which a pipeline of one replica can end, so that all parts together can end too.
ActionList dealt_to(const StagePlace& place, const ActionList& whole) {
  if (place.replicas.empty()) return whole;
  const int replicas = replicas_of(place, place.stage);
  ActionList mine;
  for (auto action : whole) {
    if (action.microbatch % replicas != place.replica) continue;
    action.microbatch /= replicas;
    mine.push_back(action);
  }
  return mine;
}

int all_microbatches(const StagePlace& place) { return place.replicas.empty() ? place.microbatches : place.dealt; }

}  // namespace

bool splits(const ActionList& actions) {
  return std::any_of(actions.begin(), actions.end(), [](const auto& one) { return one.kind == TaskKind::weights; });
}

int warm_up(const StagePlace& place) { return (ranks_from(place, place.stage) - 1) / replicas_of(place, place.stage); }

int first_stage_in_flight(const StagePlace& place) {
  const int replicas = replicas_of(place, place.stage);
  return (ranks_from(place, 0) + replicas - 1) / replicas;
}

ActionList gpipe_actions(const StagePlace& place) {
  ActionList actions;
  for (const auto kind : {TaskKind::forward, TaskKind::backward}) {
    for (int32_t i = 0; i < place.microbatches; ++i) actions.push_back({kind, i});
  }
  return actions;
}

ActionList one_forward_one_backward_actions(const StagePlace& place) {
  const int32_t ahead = std::min(warm_up(place), place.microbatches);
  ActionList actions;
  for (int32_t i = 0; i < ahead; ++i) actions.push_back({TaskKind::forward, i});
  for (int32_t i = 0; i < place.microbatches; ++i) {
    if (ahead + i < place.microbatches) actions.push_back({TaskKind::forward, ahead + i});
    actions.push_back({TaskKind::backward, i});
  }
  return actions;
}

ActionList zero_bubble_actions(const StagePlace& place, int in_flight) {
  const int least = first_stage_in_flight(place);
  const int most = std::max(least, in_flight);
  const int usual = warm_up(place) + 1;
  // Further forward passes pay up to the moment at which the first backward pass can begin.
  const int ahead = usual + std::min(most - least, usual - 1);
  ActionList actions;
  int32_t forwards = std::min(ahead, place.microbatches), weights = 0;
  for (int32_t i = 0; i < forwards; ++i) actions.push_back({TaskKind::forward, i});
  for (int32_t i = 0; i < place.microbatches; ++i) {
    actions.push_back({TaskKind::backward, i});
    if (i >= most - ahead) actions.push_back({TaskKind::weights, weights++});
    if (forwards < place.microbatches) actions.push_back({TaskKind::forward, forwards++});
  }
  while (weights < place.microbatches) actions.push_back({TaskKind::weights, weights++});
  return actions;
}

ActionList interleaved_actions(const StagePlace& place, bool split) {
  const int microbatches = all_microbatches(place);
  // Groups of p microbatches or a few more, so that a chunk's first ones are back from all stages when its turn comes.
  const int groups = std::max(1, microbatches / place.stages);
  ActionList forwards, backwards;
  int first_group = 0;
  for (int g = 0, begin = 0; g < groups; ++g) {
    const int size = microbatches / groups + (g < microbatches % groups ? 1 : 0);
    if (g == 0) first_group = size;
    for (int32_t chunk = 0; chunk < place.chunks; ++chunk) {
      for (int32_t m = begin; m < begin + size; ++m) {
        forwards.push_back({TaskKind::forward, m, chunk});
        backwards.push_back({TaskKind::backward, m, place.chunks - 1 - chunk});
      }
    }
    begin += size;
  }
  const auto warm_up_of = [&](int stage) {
    return std::min(forwards.size(),
                    static_cast<size_t>(2 * (place.stages - stage - 1) + (place.chunks - 1) * first_group));
  };
  const size_t ahead = warm_up_of(place.stage);
  // Every stage may hold what the first one holds, and so put weights' gradients off until passes leave it time.
  const size_t later = split ? warm_up_of(0) - ahead : backwards.size();
  ActionList actions(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  const auto add_weights = [&](const StageAction& pass) {
    actions.push_back({TaskKind::weights, pass.microbatch, pass.chunk});
  };
  for (size_t i = 0; i < backwards.size(); ++i) {
    if (ahead + i < forwards.size()) actions.push_back(forwards[ahead + i]);
    actions.push_back(backwards[i]);
    if (i >= later) add_weights(backwards[i - later]);
  }
  for (size_t i = backwards.size() - std::min(later, backwards.size()); split && i < backwards.size(); ++i)
    add_weights(backwards[i]);
  return dealt_to(place, actions);
}

namespace {

// The V: a rank's chunk 0 is the s-th part of the model, its chunk 1 the s-th from the end. No formula gives the order
// for every number of stages and microbatches, so all ranks are played through, a slot at a time, each doing what comes
// first of: the order of `preference`, later parts of the model first, as far as memory for `limit` passes allows.
class VeeOrder {
 public:
  VeeOrder(int stages, int microbatches) : stages_(stages), microbatches_(microbatches) {
    for (auto* done : {&forward_, &backward_}) {
      done->assign(static_cast<size_t>(2 * stages), std::vector<int>(static_cast<size_t>(microbatches), never));
    }
  }

  // Slots until all is done.
  int play(const std::array<TaskKind, 3>& preference) {
    ranks_.assign(static_cast<size_t>(stages_), {});
    int left = stages_ * 2 * 3 * microbatches_, slot = 0;
    for (; left > 0; ++slot) {
      if (slot > 64 * (microbatches_ + stages_)) fail("no order for {} stages as a V was found", stages_);
      std::vector<std::optional<StageAction>> chosen;
      for (int s = 0; s < stages_; ++s) chosen.push_back(choose(s, slot, preference));
      for (int s = 0; s < stages_; ++s) {
        if (!chosen[static_cast<size_t>(s)]) continue;
        take(s, slot, *chosen[static_cast<size_t>(s)]);
        --left;
      }
    }
    return slot;
  }

  const ActionList& actions(int stage) const { return ranks_[static_cast<size_t>(stage)].actions; }

 private:
  static constexpr int never = std::numeric_limits<int>::max();
  struct Rank {
    std::array<int, 2> forwards{}, backwards{};  // begun, by chunk
    std::deque<StageAction> owed;                // weights' gradients
    int held = 0;
    ActionList actions;
  };

  int part(int stage, int chunk) const { return chunk == 0 ? stage : 2 * stages_ - 1 - stage; }
  int ended(const std::vector<std::vector<int>>& done, int part, int microbatch) const {
    return done[static_cast<size_t>(part)][static_cast<size_t>(microbatch)];
  }

  std::optional<StageAction> choose(int s, int slot, const std::array<TaskKind, 3>& preference) const {
    const auto& rank = ranks_[static_cast<size_t>(s)];
    for (const auto kind : preference) {
      if (kind == TaskKind::weights && !rank.owed.empty()) return rank.owed.front();
      for (const int chunk : {1, 0}) {
        const int here = part(s, chunk);
        if (kind == TaskKind::backward) {
          const int m = rank.backwards[static_cast<size_t>(chunk)];
          if (m == microbatches_ || ended(forward_, here, m) > slot) continue;
          if (here + 1 < 2 * stages_ && ended(backward_, here + 1, m) > slot) continue;
          return StageAction{kind, m, chunk};
        }
        if (kind == TaskKind::forward) {
          const int m = rank.forwards[static_cast<size_t>(chunk)];
          if (m == microbatches_ || rank.held == 2 * stages_) continue;
          // Half of the memory is for the second chunk, or nothing could ever go back.
          if (chunk == 0 && m - rank.backwards[0] >= stages_) continue;
          if (here > 0 && ended(forward_, here - 1, m) > slot) continue;
          return StageAction{kind, m, chunk};
        }
      }
    }
    return {};
  }

  void take(int s, int slot, StageAction action) {
    auto& rank = ranks_[static_cast<size_t>(s)];
    rank.actions.push_back(action);
    const auto chunk = static_cast<size_t>(action.chunk), place = static_cast<size_t>(part(s, action.chunk));
    if (action.kind == TaskKind::weights) {
      rank.owed.pop_front();
      --rank.held;
      return;
    }
    const bool forward = action.kind == TaskKind::forward;
    (forward ? forward_ : backward_)[place][static_cast<size_t>(action.microbatch)] = slot + 1;
    ++(forward ? rank.forwards : rank.backwards)[chunk];
    if (forward) {
      ++rank.held;
    } else {
      rank.owed.push_back({TaskKind::weights, action.microbatch, action.chunk});
    }
  }

  const int stages_, microbatches_;
  std::vector<std::vector<int>> forward_,
      backward_;  // by part of the model and microbatch: the slot at whose begin it is done
  std::vector<Rank> ranks_;
};

}  // namespace

ActionList zero_bubble_v_actions(const StagePlace& place) {
  using Kinds = std::array<TaskKind, 3>;
  const int microbatches = all_microbatches(place);
  ActionList best;
  int least = std::numeric_limits<int>::max();
  for (const auto& preference : {Kinds{TaskKind::backward, TaskKind::forward, TaskKind::weights},
                                 Kinds{TaskKind::forward, TaskKind::backward, TaskKind::weights}}) {
    VeeOrder order(place.stages, microbatches);
    const int slots = order.play(preference);
    if (slots >= least) continue;
    least = slots;
    best = order.actions(place.stage);
  }
  return dealt_to(place, best);
}

}  // namespace trireme
