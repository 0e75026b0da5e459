// Wait-avoiding all-reduce (Li et al., PPoPP 2020): sums are made in rounds that need not wait for everybody. A rank
// that has gradients adds them to what it has to give. The first such rank begins a round and tells the others, whose
// communication threads join at once with whatever they have to give, maybe nothing; late gradients go with the next
// round (solo). Or a rank that chance picks begins it, by when half of the others are ready on average (majority).
// Every `sync.every` rounds one waits for everybody. All ranks apply the sums of all rounds in the same order; a step
// of the job is a round.
#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>

#include "trireme/base/random.h"
#include "trireme/parallel/loose_kinds.h"
#include "trireme/parallel/sum_rounds.h"

namespace trireme {

namespace {

constexpr MessageTag begin_tag{.kind = 16};
// Rounds that a rank may take part in before it uses their sums; it makes others wait when it is later than that.
constexpr int64_t most_slots = 64;

class EagerSync final : public LooseSync {
 public:
  explicit EagerSync(const Replica& replica)
      : LooseSync(replica),
        every_(replica.config.sync.every),
        slots_(std::min(2 * every_, most_slots)),
        rounds_(replica_, slots_, total_count, "eager gradients"),
        given_(at::zeros({total_count}, at::kDouble)) {
    for (const auto& bucket : buckets()) pending_.push_back(at::zeros_like(bucket.gradients));
    for (int other = 0; other < ranks(); ++other) {
      if (other == rank()) continue;
      const auto take = [this](const at::Tensor& round) { join(round.item<int64_t>()); };
      replica_.postbox->listen(other, begin_tag, take, [this](std::exception_ptr error) { rounds_.fail(error); });
    }
  }

  void begin() override {
    LooseSync::begin();
    applied_ = started_ = replica_.progression.step;
    batches_ = static_cast<double>(applied_);
    rounds_.restart(applied_ + 1);
    // Nobody may begin a round before everybody knows which one is the first.
    communicator().now([&] { return communicator().barrier("ready for rounds"); });
  }

  int64_t job_step() const override { return applied_; }
  double batches() const override { return batches_; }

  void update(const OwnStep& step) override {
    count_own(step);
    std::lock_guard lock(mutex_);
    for (size_t b = 0; b < pending_.size(); ++b) pending_[b].add_(buckets()[b].gradients);
    auto* given = given_.mutable_data_ptr<double>();
    given[total_loss] += step.loss;
    given[total_weight] += replica_.share;
    if (step.wants_stop) given[total_stop] = 1;
    known_.push_back(applied_);
  }

  void exchange(const Communicator::Done& go_on) override {
    int64_t awaited;
    bool tell = false;
    {
      std::lock_guard lock(mutex_);
      const int64_t next = started_ + 1;
      const bool missed = started_ > applied_;  // others began without these gradients: they go with the next round
      if (waits_for_all(next)) {
        start_or_defer(next);
      } else if (!missed && begins(next)) {
        start(next);
        tell = true;
      }
      awaited = missed && started_ < next ? started_ : next;
    }
    if (tell) {
      for (int other = 0; other < ranks(); ++other) {
        if (other != rank()) replica_.postbox->send(other, begin_tag, at::full({1}, awaited, at::kLong));
      }
    }
    rounds_.when_done(awaited, go_on);
  }

  void adopt() override {
    // Not past a meeting: others may have been there already, and gone on to rounds that are done since.
    together_ = false;
    while (!together_ && rounds_.done(applied_ + 1)) {
      use(applied_ + 1);
      together_ = meets(applied_) || applied_ == stop_at_;
    }
    stop_agreed_ = applied_ == stop_at_;
  }

  void with_agreed(bool, const std::function<void()>& use) override { use(); }

  BucketSums* sums() override { return &rounds_.sums(); }

  OwnState own_state() override {
    auto state = LooseSync::own_state();
    state.merge(rounds_.sums().own_state());
    return state;  // a round that waits for everybody leaves nothing to give
  }

 private:
  enum Total { total_loss, total_weight, total_stop, total_count };

  bool waits_for_all(int64_t round) const { return round % every_ == 0 || meets(round) || round == stop_at_; }

  bool begins(int64_t round) const {
    if (replica_.config.sync.eager == EagerKind::solo) return true;
    const Key key = Key{static_cast<uint64_t>(replica_.config.train.seed)}.with("eager");
    return bits64(key, static_cast<uint64_t>(round)) % static_cast<uint64_t>(ranks()) == static_cast<uint64_t>(rank());
  }

  // Gives what there is to give to a round; the mutex is held.
  void start(int64_t round) {
    auto& slot = rounds_.slot(round);
    for (size_t b = 0; b < pending_.size(); ++b) {
      slot.tensors[b].copy_(pending_[b]);
      pending_[b].zero_();
    }
    slot.totals.copy_(given_);
    given_.zero_();
    for (const int64_t known : known_) note_staleness(round - 1 - known);
    known_.clear();
    started_ = round;
    rounds_.start(round);
  }

  // The same, once there is a slot for it; the mutex is held.
  void start_or_defer(int64_t round) {
    if (round - applied_ <= slots_) return start(round);
    deferred_ = round;
  }

  // Another rank has begun a round.
  void join(int64_t round) {
    std::lock_guard lock(mutex_);
    if (round > started_) start_or_defer(round);
  }

  void use(int64_t round) {
    auto& slot = rounds_.slot(round);
    const double weight = slot.total(total_weight);
    batches_ += weight;
    if (weight > 0) loss_ = slot.total(total_loss) / weight;
    const bool stop = slot.total(total_stop) > 0;
    double scale = 1;
    if (judge(squares_of(slot.tensors), loss_, scale)) {
      for (size_t b = 0; b < slot.tensors.size(); ++b) std::swap(buckets()[b].gradients, slot.tensors[b]);
      apply(replica_.progression.updates, rate(round), scale);
      for (size_t b = 0; b < slot.tensors.size(); ++b) std::swap(buckets()[b].gradients, slot.tensors[b]);
    }
    std::lock_guard lock(mutex_);
    applied_ = round;
    if (deferred_ > started_) start_or_defer(deferred_);
    // The next round is begun by somebody who has applied this one, and so knows that it waits for all.
    if (stop && stop_at_ < 0) stop_at_ = std::min(round + 1, replica_.config.train.steps);
  }

  const int64_t every_, slots_;
  SumRounds rounds_;
  double batches_ = 0;
  std::mutex mutex_;  // guards what follows: the message thread gives too
  std::vector<at::Tensor> pending_;
  at::Tensor given_;
  std::vector<int64_t> known_;  // of each gradient in `pending_`: the last round that it knew
  int64_t started_ = 0, applied_ = 0, deferred_ = 0, stop_at_ = -1;
};

}  // namespace

std::unique_ptr<LooseSync> make_eager_sync(const Replica& replica) { return std::make_unique<EagerSync>(replica); }

}  // namespace trireme
