// Each way to keep replicas together, against an explicit reference of what it promises. Ranks are threads with a few
// parameters each; what a gradient is, is up to the test.
#include "trireme/parallel/loose_sync.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "tests/close.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme {
namespace {

constexpr int64_t size_of_all = 48;

RunConfig config_of(SyncKind kind, int64_t steps) {
  RunConfig config;
  config.train.steps = steps;
  config.train.batch = 8;
  config.train.precision = Precision::fp64;
  config.checkpoint.every = 0;
  config.watchdog.replicas = 0;
  config.optimizer = {.kind = OptimizerKind::sgd,
                      .lr = 0.125,
                      .weight_decay = 0,
                      .momentum = 0,
                      .clip = 0,
                      .schedule = LrSchedule::constant,
                      .warmup = 0};
  config.sync.kind = kind;
  config.sync.bucket_mb = 16 * 8 * 1e-6;  // three buckets
  return config;
}

ParameterPtr parameter(const std::string& name, int64_t elements, double first) {
  auto made = std::make_shared<Parameter>();
  made->name = name;
  made->value = at::arange(elements, at::kDouble) + first;
  return made;
}

// What a rank sees of its parameters and gives as a gradient, in its own step number n.
using Gradient = std::function<at::Tensor(int rank, int64_t n, const at::Tensor& x)>;
// What a rank did in a step.
struct Seen {
  int64_t n;
  at::Tensor x, gradient;
};

struct Ran {
  std::vector<std::vector<Seen>> steps;        // by rank
  std::vector<at::Tensor> own, agreed, start;  // at the end, by rank
  std::vector<OwnState> states;
  std::vector<std::vector<int64_t>> staleness;
};

// A way for messages on which things go wrong when the test says so.
class FaultyMail final : public Mail {
 public:
  struct Faults {
    std::atomic<bool> broken{false};        // nothing is taken in any more
    std::atomic<int64_t> longest{1 << 30};  // bytes of a message; what is longer gets lost
  };
  FaultyMail(std::unique_ptr<Mail> mail, Faults& faults) : mail_(std::move(mail)), faults_(faults) {}

  void send(int to, const MessageHeader& header, const at::Tensor& tensor, DeviceEvent ready) override {
    if (header.bytes > faults_.longest) {
      ++lost_;
      return;
    }
    // The receiver is not to see from the numbers that one is missing.
    auto renumbered = header;
    renumbered.sequence -= lost_;
    mail_->send(to, renumbered, tensor, std::move(ready));
  }
  bool poll(MailHandler& handler) override {
    if (faults_.broken) fail("the wire broke");
    return mail_->poll(handler);
  }
  void sleep(int64_t) override { mail_->sleep(monotonic_ns() + 1'000'000); }
  void wake() override { mail_->wake(); }

 private:
  std::unique_ptr<Mail> mail_;
  Faults& faults_;
  uint64_t lost_ = 0;  // to the one peer that such a test has
};

// One rank of such a run.
class Puppet {
 public:
  Puppet(const RunConfig& config, World& world, FaultyMail::Faults* faults = nullptr)
      : world_(world),
        parameters_{parameter("a", 16, 1), parameter("b", 16, -3), parameter("c", 16, 0.5)},
        store_(parameters_, Precision::fp64, at::kCPU, config.sync.bucket_mb * 1e6,
               [&](int64_t bytes, int) { return world.communicator().allocate(bytes); }),
        optimizer_(make_optimizer(config.optimizer)) {
    for (auto& bucket : store_.buckets()) optimizer_->prepare(bucket);
    MailPeers peers;
    for (int other = 0; other < world.size(); ++other) {
      if (other != world.rank()) peers.to.push_back(other);
    }
    peers.from = peers.to;
    peers.message_bytes = 1024;
    auto mail = world.communicator().open_mail(peers);
    if (faults) mail = std::make_unique<FaultyMail>(std::move(mail), *faults);
    postbox_ = std::make_unique<Postbox>(std::move(mail), world.recorder(), PostboxOptions{});
    sync_ = make_loose_sync(
        {config, world, store_, *optimizer_, progression_, postbox_.get(), 1.0 / static_cast<double>(world.size())});
  }
  // As programs do: nobody leaves while others may still be in a call with it.
  void leave() {
    world_.communicator().now([&] { return world_.communicator().barrier("finish"); });
  }

  at::Tensor x() {
    std::vector<at::Tensor> all;
    for (const auto& bucket : store_.buckets()) all.push_back(bucket.master.clone());
    return at::cat(all);
  }

  void step(const at::Tensor& gradient, bool stop = false, double late_ms = 0) {
    const auto share = 1.0 / static_cast<double>(world_.size());
    int64_t first = 0;
    for (auto& bucket : store_.buckets()) {
      at::mul_out(bucket.gradients, gradient.narrow(0, first, bucket.elements), at::scalar_tensor(share, at::kDouble));
      first += bucket.elements;
    }
    sync_->update({sync_->own_steps() + 1, share * gradient.sum().item<double>(), stop});
    std::promise<void> going_on;
    sync_->exchange([&](std::exception_ptr error) {
      if (error) {
        going_on.set_exception(error);
      } else {
        going_on.set_value();
      }
    });
    going_on.get_future().get();
    if (late_ms > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(late_ms));
    sync_->adopt();
    progression_.step = sync_->job_step();
  }

  LooseSync& sync() { return *sync_; }

 private:
  World& world_;
  ParameterList parameters_;
  ParameterStore store_;
  std::unique_ptr<Optimizer> optimizer_;
  Progression progression_;
  std::unique_ptr<LooseSync> sync_;
  std::unique_ptr<Postbox> postbox_;
};

Ran run(const RunConfig& config, int ranks, const Gradient& gradient, double slowest_ms = 0) {
  Ran ran;
  const auto places = static_cast<size_t>(ranks);
  ran.steps.resize(places);
  ran.own.resize(places);
  ran.agreed.resize(places);
  ran.start.resize(places);
  ran.states.resize(places);
  ran.staleness.resize(places);
  World::run_threads(ranks, [&](World& world) {
    c10::NoGradGuard no_grad;
    const int rank = world.rank();
    const auto place = static_cast<size_t>(rank);
    Puppet puppet(config, world);
    auto& sync = puppet.sync();
    ran.start[place] = puppet.x();
    sync.begin();
    while (!sync.together() || sync.job_step() < config.train.steps) {
      const int64_t n = sync.own_steps() + 1;
      Seen seen{n, puppet.x(), {}};
      seen.gradient = gradient(rank, n, seen.x);
      if (slowest_ms > 0) {
        const double share = uniform(Key{7}.with(static_cast<uint64_t>(rank)), static_cast<uint64_t>(n));
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(slowest_ms * share * share));
      }
      ran.steps[place].push_back(seen);
      puppet.step(seen.gradient);
      ASSERT_LT(n, 10 * config.train.steps + 1000) << "no end";
    }
    ran.own[place] = puppet.x();
    ran.staleness[place] = sync.staleness();
    for (const auto& [name, tensor] : sync.own_state()) ran.states[place][name] = tensor.clone();
    sync.with_agreed(true, [&] { ran.agreed[place] = puppet.x(); });
    EXPECT_TRUE(at::equal(puppet.x(), ran.own[place]) || config.sync.kind == SyncKind::server);
    puppet.leave();
  });
  return ran;
}

// A bowl with another bottom for each rank and step.
at::Tensor bowl(int rank, int64_t n, const at::Tensor& x) {
  return 0.5 * (x - 0.1 * rank - 0.01 * static_cast<double>(n % 5));
}
// Whole numbers that do not depend on x: sums of them are exact in any order.
at::Tensor whole_numbers(int rank, int64_t n, const at::Tensor& x) {
  const auto values = at::arange(x.numel(), at::kDouble);
  return at::remainder(values * (3 + rank) + 7 * n, 11) - 5;
}

at::Tensor sum_of_gradients(const Ran& ran) {
  auto sum = at::zeros({size_of_all}, at::kDouble);
  for (const auto& steps : ran.steps) {
    for (const auto& seen : steps) sum += seen.gradient / static_cast<double>(ran.steps.size());
  }
  return sum;
}

void expect_equal_replicas(const std::vector<at::Tensor>& replicas) {
  for (const auto& one : replicas) EXPECT_TRUE(at::equal(one, replicas[0]));
}

class ManyRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ManyRanks, testing::Values(1, 2, 3, 4));

// ---- stale ----

// Whatever a rank knew when it computed a gradient, sums are applied in their order, and nothing else is.
TEST_P(ManyRanks, StaleAppliesTheSumsOfAllStepsInTheirOrder) {
  for (const int64_t bound : {0, 1, 3}) {
    auto config = config_of(SyncKind::stale, 30);
    config.sync.staleness = bound;
    const auto ran = run(config, GetParam(), bowl, 3);
    // By hand: x after n sums.
    std::vector<at::Tensor> x{ran.start[0]};
    for (size_t n = 0; n < 30; ++n) {
      auto sum = at::zeros({size_of_all}, at::kDouble);
      for (const auto& steps : ran.steps) {
        // The parameters that the rank used are those after some number of sums, not too few of them.
        const auto& used = steps[n].x;
        bool known = false;
        for (size_t lacks = 0; lacks <= static_cast<size_t>(bound) && lacks <= n; ++lacks)
          known = known || (used - x[n - lacks]).abs().max().item<double>() < 1e-12;
        EXPECT_TRUE(known) << "step " << n + 1;
        sum += bowl(static_cast<int>(&steps - &ran.steps[0]), steps[n].n, used) / static_cast<double>(GetParam());
      }
      x.push_back(x.back() - 0.125 * sum);
    }
    for (const auto& mine : ran.own) expect_close(mine, x.back(), 1e-12);
    expect_equal_replicas(ran.own);
    for (const auto& counts : ran.staleness) {
      EXPECT_LE(counts.size(), static_cast<size_t>(bound) + 1);
      EXPECT_EQ(at::tensor(counts).sum().item<int64_t>(), 30);
    }
  }
}

// Holds the steps of two ranks in an order that a test chooses: where each is, which the other may wait for.
class Order {
 public:
  void begin(int rank, int64_t step) { begun_[rank] = step; }
  void wait_until(int rank, int64_t step) const {
    while (begun_[rank] < step) std::this_thread::yield();
  }

 private:
  std::atomic<int64_t> begun_[2] = {};
};

// Rank 1 begins no step before rank 0 is as far ahead of it as the bound allows: from then on at least one of the two
// gradients of every sum lacks that many steps, and the mean of both is more than one.
TEST(Stale, DividesTheRateByWhatTheGradientsLacked) {
  constexpr int64_t bound = 4, steps = 16;
  auto config = config_of(SyncKind::stale, steps);
  config.sync.staleness = bound;
  config.sync.adapt_lr = true;
  Order order;
  const auto ran = run(config, 2, [&](int rank, int64_t n, const at::Tensor& x) {
    order.begin(rank, n);
    if (rank == 1) order.wait_until(0, std::min(n + bound, steps));
    return bowl(rank, n, x);
  });
  // By hand: what a gradient lacks is seen from the parameters that it was computed with.
  std::vector<at::Tensor> x{ran.start[0]};
  int64_t divided = 0;
  for (size_t n = 0; n < static_cast<size_t>(steps); ++n) {
    auto sum = at::zeros({size_of_all}, at::kDouble);
    double lacks = 0;
    for (const auto& rank : ran.steps) {
      size_t lacking = 0;
      while (lacking < n && (rank[n].x - x[n - lacking]).abs().max().item<double>() > 1e-12) ++lacking;
      EXPECT_LE(lacking, static_cast<size_t>(bound)) << "step " << n + 1;
      lacks += 0.5 * static_cast<double>(lacking);
      sum += 0.5 * rank[n].gradient;
    }
    divided += lacks > 1;
    x.push_back(x.back() - 0.125 / std::max(1.0, lacks) * sum);
  }
  EXPECT_GE(divided, steps - bound);
  for (const auto& mine : ran.own) expect_close(mine, x.back(), 1e-12);
}

// ---- eager ----

TEST_P(ManyRanks, EagerLosesNoGradientAndKeepsReplicasEqual) {
  for (const auto kind : {EagerKind::solo, EagerKind::majority}) {
    for (const int64_t every : {1, 4, 100}) {
      auto config = config_of(SyncKind::eager, 30);
      config.sync.eager = kind;
      config.sync.every = every;
      const auto ran = run(config, GetParam(), whole_numbers, 3);
      expect_equal_replicas(ran.own);
      // Whole numbers times powers of two: the sum is the same in whatever rounds they went.
      const double tolerance = GetParam() == 3 ? 1e-12 : 0;  // a third is no whole number
      EXPECT_LE((ran.own[0] - (ran.start[0] - 0.125 * sum_of_gradients(ran))).abs().max().item<double>(),
                tolerance * 1000);
      for (const auto& counts : ran.staleness) EXPECT_LE(counts.size(), static_cast<size_t>(every));
    }
  }
}

TEST(Eager, WaitsForNobodyBetweenTheRoundsThatWaitForAll) {
  auto config = config_of(SyncKind::eager, 40);
  config.sync.every = 20;
  const auto ran = run(config, 3, [](int rank, int64_t n, const at::Tensor& x) {
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return whole_numbers(rank, n, x);
  });
  // The slow one took part in all rounds, but gave gradients to few.
  EXPECT_LT(ran.steps[2].size(), ran.steps[0].size());
  EXPECT_GE(ran.steps[2].size(), 2u);
  expect_equal_replicas(ran.own);
}

// ---- local ----

TEST_P(ManyRanks, LocalIsItsFormula) {
  for (const bool overlap : {false, true}) {
    for (const double momentum : {0.0, 0.5}) {
      SCOPED_TRACE(fmt::format("overlap {}, momentum {}", overlap, momentum));
      const int64_t every = 4, steps = 22;
      auto config = config_of(SyncKind::local, steps);
      config.optimizer.momentum = 0.5;
      config.sync.every = every;
      config.sync.overlap = overlap;
      config.sync.outer_momentum = momentum;
      config.sync.outer_lr = momentum > 0 ? 0.7 : 1;
      const auto ran = run(config, GetParam(), bowl, 1);
      const auto ranks = static_cast<size_t>(GetParam());
      std::vector<at::Tensor> x(ranks, ran.start[0]), v(ranks, at::zeros({size_of_all}, at::kDouble)), begun = x;
      std::vector<at::Tensor> moved(ranks), before(ranks);
      auto outer = at::zeros({size_of_all}, at::kDouble);
      at::Tensor average, average_before;
      const auto move = [&](at::Tensor mean) {
        if (momentum > 0) {
          outer = momentum * outer + mean;
          mean = mean + momentum * outer;
        }
        return config.sync.outer_lr * mean;
      };
      for (int64_t n = 1; n <= steps; ++n) {
        for (size_t r = 0; r < ranks; ++r) {
          expect_close(ran.steps[r][static_cast<size_t>(n - 1)].x, x[r], 1e-12);
          v[r] = 0.5 * v[r] + bowl(static_cast<int>(r), n, x[r]);
          x[r] = x[r] - 0.125 * v[r];
        }
        if (n % every != 0 && n != steps) continue;
        before = moved;
        average_before = average;
        average = at::zeros({size_of_all}, at::kDouble);
        for (size_t r = 0; r < ranks; ++r) {
          moved[r] = begun[r] - x[r];
          average += moved[r] / static_cast<double>(ranks);
        }
        const auto correct = [&](const std::vector<at::Tensor>& own, const at::Tensor& mean) {
          const auto step = move(mean);
          for (size_t r = 0; r < ranks; ++r) x[r] = x[r] + own[r] - step;
        };
        if (overlap && average_before.defined()) correct(before, average_before);
        if (!overlap || n == steps) correct(moved, average);
        begun = x;
      }
      for (size_t r = 0; r < ranks; ++r) expect_close(ran.own[r], x[r], 1e-12);
      expect_close(ran.agreed[0], x[0], 1e-12);
    }
  }
}

// ---- server ----

// Rank 0 is held two steps ahead of rank 1, in an order that leaves nothing to chance: its gradients lack two of rank
// 1's steps from its fourth on, and rank 1's never lack any.
TEST(Server, DividesTheRateByWhatTheGradientsLacked) {
  constexpr int64_t ordered = 12;
  auto config = config_of(SyncKind::server, 3 * ordered);
  config.sync.staleness = 3;
  config.sync.adapt_lr = true;
  Order order;
  const auto ran = run(config, 2, [&](int rank, int64_t n, const at::Tensor& x) {
    order.begin(rank, n);
    // A rank that begins a step has the servers' answer to the one before.
    if (rank == 0 && n == 1) order.wait_until(1, 2);
    if (rank == 0 && n >= 4 && n <= ordered) order.wait_until(1, n - 1);
    if (rank == 1 && n >= 2 && n <= ordered) order.wait_until(0, std::min(n + 2, ordered));
    return n > ordered ? at::zeros_like(x) : whole_numbers(rank, n, x);
  });
  auto expected = ran.start[0].clone();
  for (size_t rank = 0; rank < 2; ++rank) {
    for (const auto& seen : ran.steps[rank]) {
      const double lacks = rank == 0 && seen.n >= 4 ? 2 : 1;
      expected -= 0.125 * 0.5 / lacks * seen.gradient;
    }
  }
  for (const auto& agreed : ran.agreed) expect_close(agreed, expected, 1e-12);
}

TEST_P(ManyRanks, AServerLosesNoGradient) {
  for (const int64_t servers : {0, 1}) {
    for (const int64_t bound : {-1, 1, 3}) {
      auto config = config_of(SyncKind::server, 20);
      config.sync.staleness = bound;
      config.sync.servers = servers;
      const auto ran = run(config, GetParam(), whole_numbers, 2);
      expect_equal_replicas(ran.agreed);
      expect_close(ran.agreed[0], ran.start[0] - 0.125 * sum_of_gradients(ran), 1e-12);
      for (const auto& counts : ran.staleness) {
        EXPECT_TRUE(bound < 0 || counts.size() <= static_cast<size_t>(bound) + 1);
      }
    }
  }
}

TEST_P(ManyRanks, AServerThatWaitsForAllSumsThemUp) {
  auto config = config_of(SyncKind::server, 20);
  config.sync.staleness = 0;
  config.optimizer.momentum = 0.9;
  const auto ran = run(config, GetParam(), bowl, 1);
  auto x = ran.start[0], v = at::zeros({size_of_all}, at::kDouble);
  for (int64_t n = 1; n <= 20; ++n) {
    auto sum = at::zeros({size_of_all}, at::kDouble);
    for (int r = 0; r < GetParam(); ++r) sum += bowl(r, n, x) / GetParam();
    v = 0.9 * v + sum;
    x = x - 0.125 * v;
  }
  expect_equal_replicas(ran.own);
  expect_close(ran.own[0], x, 1e-12);
  for (const auto& steps : ran.steps) EXPECT_EQ(steps.size(), 20u);
}

// ---- elastic ----

TEST_P(ManyRanks, ElasticMovesReplicasAndCentreByTheSame) {
  auto config = config_of(SyncKind::elastic, 12);
  config.sync.every = 1;
  config.sync.servers = 1;
  // The replicas start apart by one step of theirs, and then only pull.
  const auto ran = run(config, GetParam(), [](int rank, int64_t n, const at::Tensor& x) {
    return n == 1 ? at::full_like(x, 8.0 * (rank + 1)) : at::zeros_like(x);
  });
  // What pulls do not change: the sum of all replicas and of the centre.
  auto sum = ran.agreed[0], expected = ran.start[0] * (GetParam() + 1);
  for (int r = 0; r < GetParam(); ++r) {
    sum = sum + ran.own[static_cast<size_t>(r)];
    expected = expected - 0.125 * 8.0 * (r + 1);
  }
  expect_close(sum, expected, 1e-12);
  expect_equal_replicas(ran.agreed);
}

TEST(Elastic, AloneIsItsFormula) {
  auto config = config_of(SyncKind::elastic, 10);
  config.sync.every = 3;
  config.sync.elasticity = 0.25;
  const auto ran = run(config, 1, bowl);
  auto x = ran.start[0], centre = x;
  for (int64_t n = 1; n <= 10; ++n) {
    x = x - 0.125 * bowl(0, n, x);
    if (n % 3 != 0) continue;
    const auto pull = 0.25 * (x - centre);
    x = x - pull;
    centre = centre + pull;
  }
  expect_close(ran.own[0], x, 1e-12);
  expect_close(ran.agreed[0], centre, 1e-12);
}

// ---- gossip ----

TEST_P(ManyRanks, GossipConservesMass) {
  for (const auto graph : {GossipGraph::ring, GossipGraph::pairs, GossipGraph::exponential}) {
    auto config = config_of(SyncKind::gossip, 60);
    config.sync.every = 1;
    config.sync.graph = graph;
    const auto ran = run(
        config, GetParam(),
        [](int rank, int64_t n, const at::Tensor& x) {
          return n == 1 ? at::full_like(x, 8.0 * (rank + 1)) : at::zeros_like(x);
        },
        2);
    double mass = 0;
    for (const auto& state : ran.states) mass += state.at("weight").item<double>();
    EXPECT_NEAR(mass, GetParam(), 1e-12);
    expect_equal_replicas(ran.agreed);
    // They have come close to each other, whatever the graph.
    for (const auto& mine : ran.own) EXPECT_LT((mine - ran.agreed[0]).abs().max().item<double>(), 0.1);
  }
}

// ---- hogwild ----

TEST_P(ManyRanks, HogwildSharesOneCopyAndFindsTheBottom) {
  // More steps than the bottom is away: a rank that is interrupted in an update puts back what it had read, which must
  // have been there already.
  auto config = config_of(SyncKind::hogwild, 600);
  const auto ran = run(config, GetParam(), [](int, int64_t, const at::Tensor& x) { return 0.5 * (x - 2); });
  expect_equal_replicas(ran.own);
  EXPECT_LT((ran.own[0] - 2).abs().max().item<double>(), 1e-2);
}

TEST(Hogwild, AloneIsSgd) {
  const auto ran = run(config_of(SyncKind::hogwild, 10), 1, bowl);
  auto x = ran.start[0];
  for (int64_t n = 1; n <= 10; ++n) x = x - 0.125 * bowl(0, n, x);
  expect_close(ran.own[0], x, 1e-12);
}

// ---- all ----

// Whoever wants to stop, all do, after the same step of the job.
TEST(Loose, AllStopTogetherWhenOneWants) {
  for (const auto kind : {SyncKind::stale, SyncKind::eager, SyncKind::local, SyncKind::server, SyncKind::elastic,
                          SyncKind::gossip, SyncKind::hogwild}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const auto config = config_of(kind, 100000);
    std::vector<int64_t> stopped(3);
    World::run_threads(3, [&](World& world) {
      c10::NoGradGuard no_grad;
      Puppet puppet(config, world);
      puppet.sync().begin();
      for (int64_t n = 1; !puppet.sync().stop_agreed(); ++n) {
        puppet.step(bowl(world.rank(), n, puppet.x()), world.rank() == 1 && n >= 5);
        ASSERT_LT(n, 2000);
      }
      EXPECT_TRUE(puppet.sync().together());
      stopped[static_cast<size_t>(world.rank())] = puppet.sync().job_step();
      puppet.leave();
    });
    EXPECT_EQ(stopped, std::vector<int64_t>(3, stopped[0]));
  }
}

// However late a rank looks at what has been exchanged: the others may have gone on to rounds that are done since.
TEST(Loose, AllStandTogetherInTheSameSteps) {
  for (const auto kind : {SyncKind::stale, SyncKind::eager, SyncKind::local, SyncKind::server, SyncKind::elastic,
                          SyncKind::gossip, SyncKind::hogwild}) {
    SCOPED_TRACE(static_cast<int>(kind));
    auto config = config_of(kind, 24);
    config.sync.every = 1000;
    config.checkpoint.every = 6;
    std::vector<std::vector<int64_t>> stood(2);
    World::run_threads(2, [&](World& world) {
      c10::NoGradGuard no_grad;
      Puppet puppet(config, world);
      auto& sync = puppet.sync();
      sync.begin();
      const double late_ms = world.rank() == 1 ? 5 : 0;
      while (!sync.together() || sync.job_step() < config.train.steps) {
        puppet.step(bowl(world.rank(), sync.own_steps() + 1, puppet.x()), false, late_ms);
        if (sync.together()) stood[static_cast<size_t>(world.rank())].push_back(sync.job_step());
        ASSERT_LT(sync.own_steps(), 1000);
      }
      puppet.leave();
    });
    EXPECT_EQ(stood[0], stood[1]);
    EXPECT_GE(stood[0].size(), 4u);
  }
}

// As long as a rank stands with the others, it goes by what they agreed on, however far these have gone since.
TEST(Loose, WhoStandsTogetherGoesByWhatWasAgreed) {
  for (const auto kind : {SyncKind::server, SyncKind::elastic, SyncKind::gossip, SyncKind::hogwild}) {
    SCOPED_TRACE(static_cast<int>(kind));
    auto config = config_of(kind, 1000);
    config.sync.staleness = -1;
    config.sync.every = 1000;
    config.train.eval_every = 40;  // the ranks meet there or some steps later
    std::vector<int64_t> agreed(2);
    std::atomic<bool> gone_on{false};
    World::run_threads(2, [&](World& world) {
      c10::NoGradGuard no_grad;
      Puppet puppet(config, world);
      auto& sync = puppet.sync();
      sync.begin();
      const auto step = [&] { puppet.step(bowl(world.rank(), sync.own_steps() + 1, puppet.x())); };
      do step();  // until they meet, and no meeting is near: on few cores a rank may run far ahead before it is called
      while (!sync.together() || sync.job_step() % config.train.eval_every > 30);
      agreed[static_cast<size_t>(world.rank())] = sync.job_step();
      if (world.rank() == 1) {
        for (int i = 0; i < 4; ++i) step();  // two steps of the job, and no meeting yet
        gone_on = true;
      } else {
        while (!gone_on) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // what rank 1 said has come
        EXPECT_TRUE(sync.together());
        EXPECT_EQ(sync.job_step(), agreed[0]);
      }
      puppet.leave();
    });
    EXPECT_EQ(agreed[0], agreed[1]);
  }
}

// ---- what goes wrong ----

// What ends a run of two ranks in which the wire of rank 0 breaks after its first step.
std::string problem_of(const RunConfig& config) {
  FaultyMail::Faults faults;
  try {
    World::run_threads(2, [&](World& world) {
      c10::NoGradGuard no_grad;
      FaultyMail::Faults none;
      Puppet puppet(config, world, world.rank() == 0 ? &faults : &none);
      puppet.sync().begin();
      puppet.step(bowl(world.rank(), 1, puppet.x()));
      if (world.rank() == 0) faults.broken = true;
      while (puppet.sync().own_steps() < 5000) puppet.step(bowl(world.rank(), 1, puppet.x()));
      puppet.leave();
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

// At a meeting gossip waits for what is under way: not for ever, where that got lost and the wire broke.
TEST(Gossip, WhoWaitsForALostMessageHearsThatTheWireBroke) {
  auto config = config_of(SyncKind::gossip, 1);
  config.sync.every = 1;
  FaultyMail::Faults faults;
  std::string problem;
  try {
    World::run_threads(2, [&](World& world) {
      c10::NoGradGuard no_grad;
      FaultyMail::Faults loses;
      loses.longest = 100;  // lines to rank 0 are shorter, parameters longer
      Puppet puppet(config, world, world.rank() == 0 ? &faults : &loses);
      puppet.sync().begin();
      std::thread breaker;
      if (world.rank() == 0) {
        breaker = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          faults.broken = true;
        });
      }
      std::exception_ptr error;
      try {
        do puppet.step(bowl(world.rank(), 1, puppet.x()));
        while (!puppet.sync().together());
      } catch (...) {
        error = std::current_exception();
      }
      if (breaker.joinable()) breaker.join();
      if (error) std::rethrow_exception(error);
    });
  } catch (const Error& error) {
    problem = error.what();
  }
  EXPECT_EQ(problem, "the wire broke");
}

// A rank that hears nobody any more must not go on by itself, nor wait for ever.
TEST(Loose, ARankWhoseWireBreaksSaysSo) {
  for (const auto kind : {SyncKind::eager, SyncKind::server, SyncKind::elastic, SyncKind::gossip, SyncKind::hogwild}) {
    for (const int64_t bound : {0, 2}) {
      SCOPED_TRACE(fmt::format("kind {}, bound {}", static_cast<int>(kind), bound));
      auto config = config_of(kind, 100000);
      config.sync.staleness = bound;
      config.sync.servers = 1;
      EXPECT_EQ(problem_of(config), "the wire broke");
    }
  }
}

}  // namespace
}  // namespace trireme
