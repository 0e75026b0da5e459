// Elastic averaging (Zhang, Choromanska, LeCun, 2015): every rank trains by itself. Every `sync.every` steps it shows
// its parameters x to the servers, which hold a centre c, and both move towards each other by α(x − c). Ranks do this
// whenever they get there, and wait for nobody but the servers. The centre is what the job has learnt.
#include <ATen/ATen.h>

#include "trireme/parallel/free_sync.h"
#include "trireme/parallel/loose_kinds.h"
#include "trireme/parallel/shard_service.h"

namespace trireme {

namespace {

class ElasticSync final : public FreeSync {
 public:
  explicit ElasticSync(const Replica& replica)
      : FreeSync(replica),
        service_(replica_, [this](size_t b, int from, const ShardMessage& said) { serve(b, from, said); }, [](int) {}) {
    for (size_t b = 0; b < buckets().size(); ++b) {
      centres_.push_back(service_.serves(b) ? at::empty_like(buckets()[b].master, at::kCPU) : at::Tensor());
      answers_.emplace_back();
      for (int r = 0; service_.serves(b) && r < ranks(); ++r)
        answers_[b].push_back(ShardMessage::like(buckets()[b].master));
    }
  }

  void begin() override {
    if (own_steps() == 0) {
      for (size_t b = 0; b < centres_.size(); ++b) {
        if (centres_[b].defined()) centres_[b].copy_(buckets()[b].master);
      }
    }
    FreeSync::begin();
  }

  void update(const OwnStep& step) override {
    told(step);
    step_alone(step);
  }

  void exchange(const Communicator::Done& go_on) override {
    if (!pulls()) return go_on(nullptr);
    for (size_t b = 0; b < buckets().size(); ++b)
      service_.draft(b).tensor(buckets()[b].master.scalar_type()).copy_(buckets()[b].master);
    service_.say(go_on);
  }

  void with_agreed(bool, const std::function<void()>& use) override {
    std::vector<at::Tensor> own;
    for (size_t b = 0; b < buckets().size(); ++b) {
      auto& bucket = buckets()[b];
      own.push_back(bucket.master.clone());
      if (service_.serves(b)) bucket.master.copy_(centres_[b]);
      communicator().now([&] { return communicator().broadcast(bucket.master, service_.server_of(b), "the centre"); });
      ParameterStore::publish(bucket);
    }
    use();
    for (size_t b = 0; b < own.size(); ++b) {
      buckets()[b].master.copy_(own[b]);
      ParameterStore::publish(buckets()[b]);
    }
  }
  bool equal_when_together() const override { return false; }

  OwnState own_state() override {
    auto state = FreeSync::own_state();
    add_own_parameters(state);
    for (size_t b = 0; b < centres_.size(); ++b) {
      if (centres_[b].defined()) state[fmt::format("bucket-{}.centre", b)] = centres_[b];
    }
    return state;
  }

 protected:
  void take_in() override {
    if (!pulls()) return;
    for (size_t b = 0; b < buckets().size(); ++b) {
      auto& master = buckets()[b].master;
      master.sub_(service_.answer(b).tensor(master.scalar_type()).to(master.device()));
      ParameterStore::publish(buckets()[b]);
    }
  }

 private:
  bool pulls() const { return own_steps() % replica_.config.sync.every == 0; }

  void serve(size_t b, int from, const ShardMessage& said) {
    auto& answer = answers_[b][static_cast<size_t>(from)];
    const auto type = centres_[b].scalar_type();
    auto pull = answer.tensor(type);
    at::sub_out(pull, said.tensor(type), centres_[b]);
    pull.mul_(replica_.config.sync.elasticity);
    centres_[b].add_(pull);
    service_.answer(b, from, answer);
  }

  std::vector<at::Tensor> centres_;                 // by bucket, on its server, on the host
  std::vector<std::vector<ShardMessage>> answers_;  // by bucket and rank
  ShardService service_;
};

}  // namespace

std::unique_ptr<LooseSync> make_elastic_sync(const Replica& replica) { return std::make_unique<ElasticSync>(replica); }

}  // namespace trireme
