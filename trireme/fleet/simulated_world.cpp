#include "trireme/fleet/simulated_world.h"

#include <algorithm>
#include <limits>

namespace trireme::fleet {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

class ListSource final : public JobSource {
 public:
  explicit ListSource(const std::vector<Job>& jobs) : jobs_(jobs) {}
  double next_arrival_s() const override { return place_ < jobs_.size() ? jobs_[place_].arrival_s : infinity; }
  Job next() override { return jobs_[place_++]; }

 private:
  const std::vector<Job>& jobs_;
  size_t place_ = 0;
};

class GeneratedSource final : public JobSource {
 public:
  GeneratedSource(const JobGenerator::Options& options, const Throughputs& table, int64_t most)
      : generator_(options, table), left_(most) {}
  double next_arrival_s() const override { return left_ > 0 ? generator_.next_arrival_s() : infinity; }
  Job next() override {
    --left_;
    return generator_.next();
  }

 private:
  JobGenerator generator_;
  int64_t left_;
};

}  // namespace

std::unique_ptr<JobSource> from_list(const std::vector<Job>& jobs) { return std::make_unique<ListSource>(jobs); }
std::unique_ptr<JobSource> from_generator(const JobGenerator::Options& options, const Throughputs& table,
                                          int64_t most) {
  return std::make_unique<GeneratedSource>(options, table, most);
}

SimulatedWorld::SimulatedWorld(const Cluster& cluster, const Throughputs& table, std::unique_ptr<JobSource> source,
                               const SimulatedWorldOptions& options)
    : table_(table),
      source_(std::move(source)),
      options_(options),
      failures_(options.failures, cluster),
      lease_on_(cluster.devices.size(), -1) {}

void SimulatedWorld::start(const Round& round, size_t first) {
  round_ = &round;
  if (first == 0) {
    running_.clear();
    finishes_ = {};
  }
  for (size_t number = first; number < round.leases.size(); ++number) {
    const auto& lease = round.leases[number];
    Running running;
    const double delay_s = lease.restart ? options_.restart_s : 0;
    restart_total_s_ += delay_s;
    running.first_step_s = now_s_ + delay_s;
    if (lease.shared()) {
      const auto rates = table_.together(lease.kinds[0], lease.kinds[1], lease.type);
      std::copy(rates.begin(), rates.end(), running.rates);
    } else {
      running.rates[0] = table_.alone(lease.kinds[0], lease.type);
    }
    running.done_s[0] = running.finish_s = running.first_step_s + lease.steps[0] / running.rates[0];
    if (lease.shared()) {
      running.done_s[1] = running.first_step_s + lease.steps[1] / running.rates[1];
      running.finish_s = options_.reference ? std::max(running.done_s[0], running.done_s[1])
                                            : std::min(running.done_s[0], running.done_s[1]);
    }
    ++runs_;
    running_.push_back(running);
    if (options_.reference) continue;
    finishes_.emplace(running.finish_s, static_cast<int>(number));
    if (!options_.failures.any()) continue;
    for (int device : round.devices_of(lease)) lease_on_[static_cast<size_t>(device)] = static_cast<int>(number);
  }
}

double SimulatedWorld::next_event_s() const {
  return std::min(
      {source_->next_arrival_s(), failures_.next_s(), finishes_.empty() ? infinity : finishes_.top().first});
}

void SimulatedWorld::wait(double until_s, bool wake_early, Happening& happening) {
  if (!wake_early && runs_ > 0) {
    end_round(infinity, happening);
  } else {
    const double event_s = next_event_s();
    if (std::min(event_s, until_s) < infinity) now_s_ = std::max(now_s_, std::min(event_s, until_s));
    while (!finishes_.empty() && finishes_.top().first <= now_s_) {
      const int lease = finishes_.top().second;
      finishes_.pop();
      if (running_[static_cast<size_t>(lease)].runs) end(lease, now_s_, false, happening);
    }
    lose_devices(happening);
    if (now_s_ >= until_s) end_round(until_s, happening);
  }
  while (source_->next_arrival_s() <= now_s_) happening.arrived.push_back(source_->next());
  happening.now_s = now_s_;
  happening.more_to_come = options_.endless || source_->next_arrival_s() < infinity || failures_.anything_broken();
}

// Every lease ends: all at `until_s`, or, without such a time, each in its own, and the clock stands at the last one's.
// The latest is told of first, and of equals the one of the lower number, as the reference has them in its queue.
void SimulatedWorld::end_round(double until_s, Happening& happening) {
  std::vector<int> order;
  for (size_t lease = 0; lease < running_.size(); ++lease) {
    if (running_[lease].runs) order.push_back(static_cast<int>(lease));
  }
  if (until_s < infinity) {
    for (int lease : order) end(lease, until_s, false, happening);
  } else {
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      const double a_s = running_[static_cast<size_t>(a)].finish_s, b_s = running_[static_cast<size_t>(b)].finish_s;
      if (a_s != b_s) return a_s > b_s;
      const auto& first = round_->leases[static_cast<size_t>(a)];
      const auto& second = round_->leases[static_cast<size_t>(b)];
      return first.shared() != second.shared() ? second.shared() : first.jobs < second.jobs;
    });
    now_s_ = running_[static_cast<size_t>(order.front())].finish_s;
    for (int lease : order) end(lease, running_[static_cast<size_t>(lease)].finish_s, false, happening);
  }
}

void SimulatedWorld::end(int number, double at_s, bool device_lost, Happening& happening) {
  auto& running = running_[static_cast<size_t>(number)];
  const auto& lease = round_->leases[static_cast<size_t>(number)];
  Ended ended{number, at_s, {0, 0}, device_lost};
  for (size_t which = 0; which < (lease.shared() ? 2u : 1u); ++which) {
    const double taken_s = std::max(0.0, at_s - running.first_step_s);
    const double steps = at_s >= running.done_s[which] ? lease.steps[which] : running.rates[which] * taken_s;
    if (device_lost) {
      lost_total_s_ += taken_s;
    } else {
      ended.steps[which] = std::min(steps, lease.steps[which]);
    }
  }
  if (ended.steps[0] > 0 || ended.steps[1] > 0) {
    fruitless_ = {0, 0, at_s};
  } else {
    ++fruitless_.leases;
    fruitless_.lost += device_lost;
  }
  running.runs = false;
  --runs_;
  if (options_.failures.any()) {
    for (int device : round_->devices_of(lease)) lease_on_[static_cast<size_t>(device)] = -1;
  }
  happening.ended.push_back(ended);
}

void SimulatedWorld::lose_devices(Happening& happening) {
  if (failures_.next_s() > now_s_) return;
  failures_.advance(now_s_, happening.lost_devices, happening.repaired_devices);
  for (int device : happening.lost_devices) {
    const int lease = lease_on_[static_cast<size_t>(device)];
    if (lease >= 0 && running_[static_cast<size_t>(lease)].runs) end(lease, now_s_, true, happening);
  }
}

}  // namespace trireme::fleet
