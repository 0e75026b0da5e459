// The parameter server: a bucket's server holds its parameters and the optimizer's state. After a step a rank sends its
// gradients to the servers and gets the parameters as they are then.
//
// With sync.staleness = 0 a server waits for the gradients of all ranks, adds them up in the order of the ranks and
// changes the parameters once: the same as allreduce. Otherwise it changes them by each rank's gradients as these come,
// each counting as its share of a step (its learning rate is that share of the whole one), and answers at once, or,
// with a bound s, when that rank is at most s steps ahead of the slowest.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "trireme/parallel/free_sync.h"
#include "trireme/parallel/loose_kinds.h"
#include "trireme/parallel/shard_service.h"

namespace trireme {

namespace {

constexpr int64_t away = std::numeric_limits<int64_t>::max();

// What a server holds of a bucket, on the host.
struct Shard {
  Bucket bucket;
  std::vector<int64_t> clocks;        // by rank: its steps, or away
  std::vector<ShardMessage> said;     // by rank: gradients that wait for those of others
  std::vector<bool> waiting;          // by rank: for its answer
  std::vector<ShardMessage> answers;  // by rank: in use until it speaks again
  int64_t updates = 0;

  int64_t slowest() const { return *std::min_element(clocks.begin(), clocks.end()); }
};

// The part that servers do, for both ways.
class ServerShards {
 public:
  using Rate = std::function<double(int64_t step)>;

  ServerShards(Replica& replica, Rate rate)
      : replica_(replica),
        rate_(std::move(rate)),
        bound_(replica.config.sync.staleness),
        service_(
            replica, [this](size_t b, int from, const ShardMessage& said) { serve(b, from, said); },
            [this](int rank) { leave(rank); }) {}

  ShardService& service() { return service_; }

  // Takes the parameters and the optimizer's state over from the store.
  void begin(int64_t updates) {
    auto& buckets = replica_.store.buckets();
    const auto ranks = static_cast<size_t>(replica_.world.size());
    shards_.resize(buckets.size());
    for (size_t b = 0; b < buckets.size(); ++b) {
      auto& shard = shards_[b];
      if (service_.serves(b)) {
        shard.bucket = buckets[b];
        shard.bucket.master = buckets[b].master.to(at::kCPU, false, /*copy=*/true);
        for (auto& [name, tensor] : shard.bucket.state) tensor = tensor.to(at::kCPU);
        shard.clocks.assign(ranks, away);
        shard.said.resize(ranks);
        shard.waiting.assign(ranks, false);
        for (size_t r = 0; r < ranks; ++r) shard.answers.push_back(ShardMessage::like(buckets[b].master));
        shard.updates = updates;
      }
      buckets[b].state.clear();
    }
  }

  // Brings the servers' parameters, and the state to where it is saved, into the store.
  void collect(bool state) {
    auto& communicator = replica_.world.communicator();
    auto& buckets = replica_.store.buckets();
    for (size_t b = 0; b < buckets.size(); ++b) {
      const auto send = [&](const at::Tensor& tensor) {
        communicator.now([&] { return communicator.broadcast(tensor, service_.server_of(b), "servers' parameters"); });
      };
      if (service_.serves(b)) buckets[b].master.copy_(shards_[b].bucket.master);
      send(buckets[b].master);
      ParameterStore::publish(buckets[b]);
      if (!state) continue;
      if (service_.serves(b)) {
        for (const auto& [name, tensor] : shards_[b].bucket.state)
          buckets[b].state[name] = tensor.to(buckets[b].master.device());
      } else {
        replica_.optimizer.prepare(buckets[b]);
      }
      for (auto& [name, tensor] : buckets[b].state) send(tensor);
      if (replica_.world.rank() != 0) buckets[b].state.clear();
    }
  }

  void release() {
    for (auto& bucket : replica_.store.buckets()) bucket.state.clear();
  }

 private:
  void serve(size_t b, int from, const ShardMessage& said) {
    auto& shard = shards_[b];
    const auto rank = static_cast<size_t>(from);
    shard.clocks[rank] = said.numbers().step;
    shard.waiting[rank] = true;
    if (bound_ == 0) {
      shard.said[rank] = said;
      if (std::all_of(shard.waiting.begin(), shard.waiting.end(), [](bool one) { return one; })) add_up(b);
      return;
    }
    const auto numbers = said.numbers();
    if (numbers.finite) {
      const double lacks = replica_.config.sync.adapt_lr ? static_cast<double>(std::max<int64_t>(1, numbers.lacks)) : 1;
      change(shard, said.tensor(shard.bucket.master.scalar_type()), rate_(numbers.step) * numbers.share / lacks,
             1 / numbers.share);
    }
    answer_who_may(b);
  }

  void change(Shard& shard, const at::Tensor& gradients, double lr, double scale) {
    shard.bucket.gradients = gradients;
    replica_.optimizer.update(shard.bucket, ++shard.updates, lr, scale);
  }

  // All have spoken of this step.
  void add_up(size_t b) {
    auto& shard = shards_[b];
    auto numbers = shard.said[0].numbers();
    const auto sum = shard.said[0].tensor(shard.bucket.master.scalar_type());
    for (size_t r = 1; r < shard.said.size(); ++r) {
      const auto& other = shard.said[r].numbers();
      sum.add_(shard.said[r].tensor(shard.bucket.master.scalar_type()));
      numbers.loss += other.loss;
      numbers.finite = numbers.finite && other.finite;
      numbers.stop = numbers.stop || other.stop;
    }
    if (numbers.finite) change(shard, sum, rate_(numbers.step), 1);
    numbers.lacks = 0;
    for (size_t r = 0; r < shard.said.size(); ++r) answer(b, r, numbers);
  }

  void answer_who_may(size_t b) {
    auto& shard = shards_[b];
    const int64_t slowest = shard.slowest();
    for (size_t r = 0; r < shard.waiting.size(); ++r) {
      const int64_t ahead = slowest == away ? 0 : shard.clocks[r] - slowest;
      if (!shard.waiting[r] || (bound_ > 0 && ahead > bound_)) continue;
      ShardMessage::Numbers numbers;
      numbers.lacks = ahead;
      answer(b, r, numbers);
    }
  }

  void answer(size_t b, size_t rank, const ShardMessage::Numbers& numbers) {
    auto& shard = shards_[b];
    shard.waiting[rank] = false;
    auto& message = shard.answers[rank];
    message.numbers() = numbers;
    message.tensor(shard.bucket.master.scalar_type()).copy_(shard.bucket.master);
    service_.answer(b, static_cast<int>(rank), message);
  }

  void leave(int rank) {
    for (size_t b = 0; b < shards_.size(); ++b) {
      if (!service_.serves(b)) continue;
      shards_[b].clocks[static_cast<size_t>(rank)] = away;
      answer_who_may(b);
    }
  }

  Replica& replica_;
  const Rate rate_;
  const int64_t bound_;
  std::vector<Shard> shards_;  // by bucket; empty where another rank serves
  ShardService service_;
};

// The part that every rank does.
class Client {
 public:
  Client(ShardService& service, Replica& replica) : service_(service), replica_(replica) {}

  void draft(const OwnStep& step, bool finite, double scale, int64_t lacks) {
    const auto& buckets = replica_.store.buckets();
    for (size_t b = 0; b < buckets.size(); ++b) {
      auto& draft = service_.draft(b);
      draft.numbers() = {.step = step.number,
                         .lacks = lacks,
                         .share = replica_.share,
                         .loss = step.loss,
                         .finite = finite,
                         .stop = step.wants_stop};
      auto tensor = draft.tensor(buckets[b].gradients.scalar_type());
      if (finite) tensor.copy_(buckets[b].gradients).mul_(scale);
    }
  }

  // The parameters that the servers answered with; how far this rank was ahead of the slowest.
  int64_t take() {
    auto& buckets = replica_.store.buckets();
    int64_t ahead = 0;
    for (size_t b = 0; b < buckets.size(); ++b) {
      const auto& answer = service_.answer(b);
      buckets[b].master.copy_(answer.tensor(buckets[b].master.scalar_type()));
      ParameterStore::publish(buckets[b]);
      ahead = std::max(ahead, answer.numbers().lacks);
    }
    return ahead;
  }

 private:
  ShardService& service_;
  Replica& replica_;
};

// Without a bound, or with one above 0: ranks go their own ways.
class AsynchronousServer final : public FreeSync {
 public:
  explicit AsynchronousServer(const Replica& replica)
      : FreeSync(replica),
        shards_(replica_, [this](int64_t step) { return rate(step); }),
        client_(shards_.service(), replica_) {}

  void begin() override {
    shards_.begin(replica_.progression.updates);
    FreeSync::begin();
  }

  void update(const OwnStep& step) override {
    told(step);
    const double whole = 1 / replica_.share;
    double scale = 1;
    const bool finite = judge(squares_of(gradients()) * whole * whole, step.loss, scale);
    client_.draft(step, finite, scale, lacks_);
  }

  void exchange(const Communicator::Done& go_on) override { shards_.service().say(go_on); }

  void with_agreed(bool state, const std::function<void()>& use) override {
    shards_.collect(state);
    use();
    shards_.release();
  }
  // Each rank has the parameters that its servers last answered with.
  bool equal_when_together() const override { return false; }

 protected:
  void take_in() override {
    lacks_ = client_.take();
    note_staleness(lacks_);
  }
  void leave() override { shards_.service().leave(); }

 private:
  ServerShards shards_;
  Client client_;
  int64_t lacks_ = 0;  // steps of others that these parameters lack
};

class SynchronousServer final : public LooseSync {
 public:
  explicit SynchronousServer(const Replica& replica)
      : LooseSync(replica),
        shards_(replica_, [this](int64_t step) { return rate(step); }),
        client_(shards_.service(), replica_) {}

  void begin() override {
    LooseSync::begin();
    shards_.begin(replica_.progression.updates);
    // Nobody's gradients may come before a server is ready for them.
    communicator().now([&] { return communicator().barrier("servers are ready"); });
  }

  void update(const OwnStep& step) override {
    count_own(step);
    double scale = 1;
    const bool finite = judge(squares_of(gradients()) / (replica_.share * replica_.share), step.loss, scale);
    client_.draft(step, finite, scale, 0);
  }

  void exchange(const Communicator::Done& go_on) override { shards_.service().say(go_on); }

  void adopt() override {
    note_staleness(client_.take());
    const auto& numbers = shards_.service().answer(0).numbers();
    loss_ = numbers.loss;
    stop_agreed_ = numbers.stop;
    together_ = meets(own_steps()) || stop_agreed_;
  }

  void with_agreed(bool state, const std::function<void()>& use) override {
    shards_.collect(state);
    use();
    shards_.release();
  }

 private:
  ServerShards shards_;
  Client client_;
};

}  // namespace

std::unique_ptr<LooseSync> make_server_sync(const Replica& replica) {
  if (replica.config.sync.staleness == 0) return std::make_unique<SynchronousServer>(replica);
  return std::make_unique<AsynchronousServer>(replica);
}

}  // namespace trireme
