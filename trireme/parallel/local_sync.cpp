// Local SGD, and DiLoCo (Douillard et al., 2023): every rank takes `sync.every` steps by itself, a round; then what
// they moved by is averaged, and everybody moves from where the round began by that average, with a learning rate and
// Nesterov momentum of its own. With rounds of one step, outer_lr = 1 and plain sgd it is allreduce. With
// `sync.overlap` the average is made while the next round is under way, and replaces what this rank moved by itself
// when that one ends: nobody waits for a rank that is late by less than a round.
#include <ATen/ATen.h>

#include "trireme/parallel/loose_kinds.h"
#include "trireme/parallel/sum_rounds.h"

namespace trireme {

namespace {

class LocalSync final : public LooseSync {
 public:
  explicit LocalSync(const Replica& replica)
      : LooseSync(replica),
        overlap_(replica.config.sync.overlap),
        rounds_(replica_, 2, total_count, "average steps"),
        ended_(at::zeros({1}, at::kLong)) {
    for (const auto& bucket : buckets()) {
      begun_at_.push_back(bucket.master.clone());
      momenta_.push_back(at::zeros_like(bucket.master));
      for (auto& moved : moved_) moved.push_back(at::zeros_like(bucket.master));
    }
  }

  void begin() override {
    const bool fresh = own_steps() == 0;
    LooseSync::begin();
    if (fresh) remember_place();
    rounds_.restart(round() + 1);
    // An average that was on its way when the run was saved is made again, unless it was saved too.
    if (!overlap_ || round() == 0 || saves_averages()) return;
    rounds_.restart(round());
    send(round());
  }

  void update(const OwnStep& step) override {
    count_own(step);
    wants_stop_ = wants_stop_ || step.wants_stop;
    own_loss_ = step.loss;
    loss_ = step.loss / replica_.share;
    step_alone(step);
  }

  void exchange(const Communicator::Done& go_on) override {
    if (!ends_round()) return go_on(nullptr);
    ended_.add_(1);
    auto& moved = moved_in(round());
    for (size_t b = 0; b < moved.size(); ++b) at::sub_out(moved[b], begun_at_[b], buckets()[b].master);
    send(round());
    rounds_.when_done(awaited(), go_on);
  }

  void adopt() override {
    stop_agreed_ = false;
    if (ends_round()) {
      for (int64_t one = overlap_ ? round() - 1 : round(); one <= awaited(); ++one) {
        if (one > 0) use(one);
      }
      remember_place();
    }
    together_ = meets(own_steps()) || stop_agreed_;
  }

  void with_agreed(bool, const std::function<void()>& use) override { with_mean(replica_.share, use); }
  bool equal_when_together() const override { return false; }

  BucketSums* sums() override { return &rounds_.sums(); }

  OwnState own_state() override {
    if (saves_averages()) rounds_.wait(sent_);
    auto state = LooseSync::own_state();
    add_own_parameters(state);
    state.merge(rounds_.sums().own_state());
    state["rounds"] = ended_;
    for (size_t b = 0; b < momenta_.size(); ++b) {
      state[fmt::format("bucket-{}.begun_at", b)] = begun_at_[b];
      state[fmt::format("bucket-{}.outer_momentum", b)] = momenta_[b];
      for (int64_t which = 0; overlap_ && which < 2; ++which) {
        state[fmt::format("bucket-{}.moved-{}", b, which)] = moved_in(which)[b];
        if (saves_averages()) state[fmt::format("bucket-{}.average-{}", b, which)] = rounds_.slot(which).tensors[b];
      }
    }
    for (int64_t which = 0; saves_averages() && which < 2; ++which)
      state[fmt::format("totals-{}", which)] = rounds_.slot(which).totals;
    return state;
  }

 private:
  enum Total { total_loss, total_stop, total_count };

  int64_t round() const { return ended_.item<int64_t>(); }  // that ended last on this rank
  // Making an average again would add to what a codec left out what it has left out already.
  bool saves_averages() { return overlap_ && rounds_.sums().compresses(); }
  std::vector<at::Tensor>& moved_in(int64_t round) { return moved_[static_cast<size_t>(round) % 2]; }
  bool last() const { return own_steps() == replica_.config.train.steps; }
  bool ends_round() const { return own_steps() % replica_.config.sync.every == 0 || last(); }
  // The round whose average must be there before the next step.
  int64_t awaited() const { return overlap_ && !last() ? round() - 1 : round(); }

  void remember_place() {
    for (size_t b = 0; b < begun_at_.size(); ++b) begun_at_[b].copy_(buckets()[b].master);
  }

  void send(int64_t round) {
    auto& slot = rounds_.slot(round);
    const auto& moved = moved_in(round);
    for (size_t b = 0; b < moved.size(); ++b)
      at::mul_out(slot.tensors[b], moved[b], at::scalar_tensor(replica_.share, moved[b].options()));
    auto* totals = slot.totals.mutable_data_ptr<double>();
    totals[total_loss] = own_loss_;
    totals[total_stop] = wants_stop_ ? 1 : 0;
    sent_ = round;
    rounds_.start(round);
  }

  void use(int64_t round) {
    auto& slot = rounds_.slot(round);
    loss_ = slot.total(total_loss);
    stop_agreed_ = stop_agreed_ || slot.total(total_stop) > 0;
    const auto& sync = replica_.config.sync;
    for (size_t b = 0; b < slot.tensors.size(); ++b) {
      auto& bucket = buckets()[b];
      auto& average = slot.tensors[b];
      if (sync.outer_momentum > 0) {
        momenta_[b].mul_(sync.outer_momentum).add_(average);
        average.add_(momenta_[b], sync.outer_momentum);
      }
      if (overlap_) {
        bucket.master.add_(moved_in(round)[b]);
      } else {
        bucket.master.copy_(begun_at_[b]);  // and not what this rank moved added to it: all end with the same bits
      }
      bucket.master.sub_(average, sync.outer_lr);
      ParameterStore::publish(bucket);
    }
  }

  const bool overlap_;
  SumRounds rounds_;
  at::Tensor ended_;
  std::vector<at::Tensor> begun_at_, momenta_;
  std::vector<at::Tensor> moved_[2];  // by this rank, in the last two rounds
  int64_t sent_ = 0;                  // the last round whose average this rank has asked for
  bool wants_stop_ = false;
  double own_loss_ = 0;
};

}  // namespace

std::unique_ptr<LooseSync> make_local_sync(const Replica& replica) { return std::make_unique<LocalSync>(replica); }

}  // namespace trireme
