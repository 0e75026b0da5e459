// Bounded staleness: a rank sends its gradients off and goes on; the sum of a step is applied when it has come, at the
// latest `sync.staleness` steps later. All ranks apply the same sums in the same order, only not at the same time: a
// rank that is late for a moment keeps nobody waiting until the others are that many steps ahead. With 0 it is
// allreduce.
#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/parallel/loose_kinds.h"
#include "trireme/parallel/sum_rounds.h"

namespace trireme {

namespace {

class StaleSync final : public LooseSync {
 public:
  explicit StaleSync(const Replica& replica)
      : LooseSync(replica),
        bound_(replica.config.sync.staleness),
        rounds_(replica_, bound_ + 1, total_count, "stale gradients") {}

  // Whenever ranks stand together everything has been applied: that is all there is to know.
  void begin() override {
    LooseSync::begin();
    begun_ = applied_ = own_steps();
    rounds_.restart(applied_ + 1);
  }

  void update(const OwnStep& step) override {
    count_own(step);
    if (applied_ == begun_) loss_ = step.loss / replica_.share;  // nothing else is known yet
    const int64_t lacks = step.number - 1 - applied_;
    note_staleness(lacks);
    auto& slot = rounds_.slot(step.number);
    for (size_t b = 0; b < slot.tensors.size(); ++b) slot.tensors[b].copy_(buckets()[b].gradients);
    auto* totals = slot.totals.mutable_data_ptr<double>();
    totals[total_loss] = step.loss;
    totals[total_stop] = step.wants_stop ? 1 : 0;
    totals[total_lacks] = replica_.share * static_cast<double>(lacks);
  }

  void exchange(const Communicator::Done& go_on) override {
    const int64_t now = own_steps();
    rounds_.start(now);
    rounds_.when_done(drains(now) ? now : now - bound_, go_on);
  }

  void adopt() override {
    const int64_t now = own_steps();
    while (applied_ < now && rounds_.done(applied_ + 1)) use(++applied_);
    together_ = drains(now);
    stop_agreed_ = now == stop_at_;
  }

  void with_agreed(bool, const std::function<void()>& use) override { use(); }
  BucketSums* sums() override { return &rounds_.sums(); }

  OwnState own_state() override {
    auto state = LooseSync::own_state();
    state.merge(rounds_.sums().own_state());
    return state;
  }

 private:
  enum Total { total_loss, total_stop, total_lacks, total_count };

  bool drains(int64_t step) const { return bound_ == 0 || meets(step) || step == stop_at_; }

  void use(int64_t round) {
    auto& slot = rounds_.slot(round);
    loss_ = slot.total(total_loss);
    // Nobody can be further than the bound allows: this step is still ahead of everybody.
    if (slot.total(total_stop) > 0 && stop_at_ < 0)
      stop_at_ = std::min(bound_ == 0 ? round : round + bound_ + 1, replica_.config.train.steps);
    double scale = 1;
    if (!judge(squares_of(slot.tensors), loss_, scale)) {
      // The other stages do not know.
      if (replica_.stages == 1) return;
      fail(
          "step {}: the gradient of stage {} is not finite, and stages with stale sums cannot skip a step together; "
          "lower optimizer.lr, or use a wider train.precision",
          round, replica_.stage);
    }
    const double lacks = replica_.config.sync.adapt_lr ? std::max(1.0, slot.total(total_lacks)) : 1;
    for (size_t b = 0; b < slot.tensors.size(); ++b) std::swap(buckets()[b].gradients, slot.tensors[b]);
    apply(replica_.progression.updates, rate(round) / lacks, scale);
    for (size_t b = 0; b < slot.tensors.size(); ++b) std::swap(buckets()[b].gradients, slot.tensors[b]);
  }

  const int64_t bound_;
  SumRounds rounds_;
  int64_t begun_ = 0;     // the last step before this run of it
  int64_t applied_ = 0;   // the last step whose sum has changed the parameters
  int64_t stop_at_ = -1;  // the step after which all stop, once somebody wants that
};

}  // namespace

std::unique_ptr<LooseSync> make_stale_sync(const Replica& replica) { return std::make_unique<StaleSync>(replica); }

}  // namespace trireme
