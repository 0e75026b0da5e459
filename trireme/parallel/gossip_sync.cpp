// Gossip: every rank trains by itself, and now and then sends half of itself to another one (stochastic gradient push,
// Assran et al., 2019). A replica has a weight w; what it sends is its parameters with half of its weight, and it keeps
// the other half. Who receives them takes the mean by weight. So nobody waits, nobody answers, and the weights of all
// replicas and of what is on its way sum up to the number of ranks, however unequally fast they are.
#include <ATen/ATen.h>

#include <condition_variable>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/parallel/free_sync.h"
#include "trireme/parallel/loose_kinds.h"

namespace trireme {

namespace {

constexpr MessageTag gossip_tag{.kind = 22};

class GossipSync final : public FreeSync {
 public:
  explicit GossipSync(const Replica& replica) : FreeSync(replica), weight_(at::ones({1}, at::kDouble)) {
    for (const auto& bucket : buckets()) elements_ += bucket.elements;
    arrived_ = at::zeros({elements_}, master_type(replica.config.train.precision));
    sent_.resize(static_cast<size_t>(ranks()));
    for (int other = 0; other < ranks(); ++other) {
      if (other == rank()) continue;
      const auto failed = [this](std::exception_ptr error) {
        std::lock_guard lock(mutex_);
        failure_ = error;
        changed_.notify_all();
      };
      replica_.postbox->listen(other, gossip_tag, [this](const at::Tensor& message) { collect(message); }, failed);
    }
  }

  void update(const OwnStep& step) override {
    told(step);
    step_alone(step);
  }

  void exchange(const Communicator::Done& go_on) override {
    if (ranks() > 1 && own_steps() % replica_.config.sync.every == 0) send(partner());
    go_on(nullptr);
  }

  void with_agreed(bool, const std::function<void()>& use) override {
    with_mean(weight_.item<double>() / static_cast<double>(ranks()), use);
  }
  bool equal_when_together() const override { return false; }

  OwnState own_state() override {
    auto state = FreeSync::own_state();
    add_own_parameters(state);
    state["weight"] = weight_;
    return state;
  }

 protected:
  void take_in() override {
    std::lock_guard lock(mutex_);
    if (arrived_weight_ == 0) return;
    const double own = weight_.item<double>(), sum = own + arrived_weight_;
    int64_t first = 0;
    for (auto& bucket : buckets()) {
      bucket.master.mul_(own / sum).add_(arrived_.narrow(0, first, bucket.elements).to(bucket.master.device()),
                                         1 / sum);
      ParameterStore::publish(bucket);
      first += bucket.elements;
    }
    weight_.fill_(sum);
    arrived_.zero_();
    arrived_weight_ = 0;
  }

  // Waits for what others have sent to this rank.
  void settle() override {
    const auto given = at::tensor(sent_, at::kLong), taken = at::empty({ranks()}, at::kLong);
    communicator().now([&] { return communicator().all_to_all(given, taken, "count messages"); });
    const int64_t awaited = taken.sum().item<int64_t>();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return failure_ || received_ == awaited; });
      if (failure_) std::rethrow_exception(failure_);
    }
    take_in();
  }

 private:
  int partner() const {
    const int64_t turn = own_steps() / replica_.config.sync.every;
    const int others = ranks() - 1;
    int hop = 1;
    switch (replica_.config.sync.graph) {
      case GossipGraph::ring: break;
      case GossipGraph::pairs: {
        const Key key =
            Key{static_cast<uint64_t>(replica_.config.train.seed)}.with("gossip").with(static_cast<uint64_t>(rank()));
        hop = 1 + static_cast<int>(bits64(key, static_cast<uint64_t>(turn)) % static_cast<uint64_t>(others));
        break;
      }
      case GossipGraph::exponential: {
        int hops = 0;  // 1, 2, 4 … below the number of ranks
        while ((1 << hops) < ranks()) ++hops;
        hop = 1 << (turn % hops);
        break;
      }
    }
    return (rank() + hop) % ranks();
  }

  // All parameters, and then the weight that goes with them.
  void send(int to) {
    auto message = at::empty({elements_ + 1}, arrived_.options());
    message[elements_].fill_(weight_.item<double>() / 2);
    weight_.sub_(message[elements_]);  // as it is in the message: nothing is lost by rounding
    int64_t first = 0;
    for (const auto& bucket : buckets()) {
      message.narrow(0, first, bucket.elements).copy_(bucket.master);
      first += bucket.elements;
    }
    ++sent_[static_cast<size_t>(to)];
    replica_.postbox->send(to, gossip_tag, message);
  }

  // On the message thread: however many come before this rank looks, they take the memory of one.
  void collect(const at::Tensor& message) {
    std::lock_guard lock(mutex_);
    const double weight = message[elements_].item<double>();
    arrived_.add_(message.narrow(0, 0, elements_), weight);
    arrived_weight_ += weight;
    ++received_;
    changed_.notify_all();
  }

  int64_t elements_ = 0;
  at::Tensor weight_;
  std::vector<int64_t> sent_;  // messages to each rank
  std::mutex mutex_;           // guards what follows
  std::condition_variable changed_;
  at::Tensor arrived_;  // parameters times their weights, on the host
  double arrived_weight_ = 0;
  int64_t received_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

std::unique_ptr<LooseSync> make_gossip_sync(const Replica& replica) { return std::make_unique<GossipSync>(replica); }

}  // namespace trireme
