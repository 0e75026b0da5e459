// The round mechanism where it differs from the reference: idle devices are used at once, coming back costs time,
// impossible jobs are turned away, devices fail and come back. And what must hold in every round of every run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "tests/fleet/published.h"
#include "tests/fleet/scratch.h"
#include "tests/fleet/solver.h"
#include "trireme/base/random.h"

namespace trireme::fleet {
namespace {

using testing::HasSubstr;

Throughputs small_table() {
  Throughputs table("small.yaml");
  const int fast = table.add_device_type("fast"), slow = table.add_device_type("slow");
  for (int scale : {1, 2, 4}) {
    const int net = table.add_kind("net", scale), tool = table.add_kind("tool", scale);
    table.set_alone(net, fast, 10 * scale);
    table.set_alone(net, slow, 2 * scale);
    table.set_alone(tool, fast, 4 * scale);
    table.set_alone(tool, slow, 0);  // cannot run there
    table.set_together(net, tool, fast, 8 * scale, 3 * scale);
    table.set_together(net, net, fast, 6 * scale, 6 * scale);
  }
  return table;
}

Job job(int64_t id, const std::string& type, double steps, double arrival_s, int scale = 1) {
  Job made;
  made.id = id;
  made.name = std::to_string(id);
  made.type = type;
  made.steps = steps;
  made.scale = scale;
  made.arrival_s = arrival_s;
  made.place = "test:" + std::to_string(id + 1);
  return made;
}

SimulationOptions options_for(const std::string& policy) {
  SimulationOptions options;
  options.scheduler.policy = policy;
  options.restart_s = 20;
  return options;
}

struct Scene {
  Cluster cluster;
  Throughputs table;
  Workload workload;

  Scene(const std::string& devices, std::vector<Job> jobs)
      : cluster(parse_cluster(devices)), table(small_table().select(cluster)) {
    workload.jobs = std::move(jobs);
  }
  SimulationResult operator()(const SimulationOptions& options) const {
    return Simulation(cluster, table, workload, options).run();
  }
};

TEST(Rounds, ANewJobUsesIdleDevicesAtOnce) {
  const Scene run("fast=2", {job(0, "net", 10000, 0), job(1, "net", 100, 100)});
  for (const char* policy : {"isolated", "fifo", "fifo-perf", "2d-las", "shortest-job-first", "gandiva", "allox"}) {
    const auto result = run(options_for(policy));
    EXPECT_EQ(result.ledger.jobs[1].first_start_s, 100) << policy;
    EXPECT_DOUBLE_EQ(result.ledger.jobs[1].end_s, 110) << policy;
    EXPECT_DOUBLE_EQ(result.ledger.jobs[0].end_s, 1000) << policy;
    // The reference lets it wait for the next question to the policy.
    auto reference = options_for(policy);
    reference.scheduler.reference = true;
    EXPECT_GT(run(reference).ledger.jobs[1].end_s, 300) << policy;
  }
}

TEST(Rounds, DevicesOfAFinishedJobAreUsedAtOnce) {
  const Scene run("fast=1", {job(0, "net", 500, 0), job(1, "net", 500, 0)});
  const auto result = run(options_for("fifo-perf"));
  EXPECT_DOUBLE_EQ(result.ledger.jobs[0].end_s, 50);
  EXPECT_EQ(result.ledger.jobs[1].first_start_s, 50);
  EXPECT_DOUBLE_EQ(result.ledger.jobs[1].end_s, 100);
}

TEST(Rounds, ComingBackCostsTime) {
  // Two jobs take turns on one device: each is brought back once a round.
  const Scene run("fast=1", {job(0, "net", 36000, 0), job(1, "net", 36000, 0)});
  auto options = options_for("isolated");
  const auto with_cost = run(options);
  options.restart_s = 0;
  const auto without = run(options);
  EXPECT_DOUBLE_EQ(without.end_s, 7200);
  EXPECT_GT(without.preemptions, 10);
  EXPECT_GT(with_cost.end_s, 7200 + 20 * 10);
  EXPECT_NEAR(with_cost.end_s, 7200 + with_cost.ledger.restart_s, 1e-6);
}

TEST(Rounds, TurnAwayWhatCanNeverRun) {
  auto late = job(3, "net", 1000, 0);
  late.deadline_s = 99;
  auto large = job(4, "net", 10, 0);
  large.memory_gb = 40;
  auto hasty = job(5, "net", 1000, 0);
  hasty.slo = 0.5;  // a deadline of half the time that it takes at its best
  Scene run("fast=2,slow=8",
            {job(0, "net", 1000, 0), job(1, "tool", 10, 0, 4), job(2, "net", 10, 0, 8), late, large, hasty});
  run.cluster.types[0].memory_gb = 32;
  run.cluster.types[1].memory_gb = 16;
  const auto result = run(options_for("isolated"));
  EXPECT_EQ(result.finished, 1);
  EXPECT_EQ(result.rejected, 5);
  const auto& jobs = result.ledger.jobs;
  EXPECT_EQ(jobs[1].reason, "test:2: no type on which it can run has 4 devices (fast=2,slow=8)");
  EXPECT_EQ(jobs[2].reason, "test:3: small.yaml has no throughput of \"net\" on 8 devices");
  EXPECT_EQ(jobs[3].reason,
            "test:4: its deadline is 99 s after its arrival, and alone on the fastest devices it takes 100 s");
  EXPECT_EQ(jobs[5].reason,
            "test:6: its deadline is 50 s after its arrival, and alone on the fastest devices it takes 100 s");
  EXPECT_EQ(jobs[4].reason, "test:5: it needs 40 GB of each device, and no type on which it can run has so much");

  // The reference would turn for ever; we say so before it does.
  auto reference = options_for("isolated");
  reference.scheduler.reference = true;
  EXPECT_EQ(complaint([&] { Scene("fast=2", {job(0, "net", 10, 0, 4)})(reference); }),
            "test:1: job 0 can never run: it wants 4 devices of one type, and the cluster is fast=2");
  EXPECT_EQ(complaint([&] { Scene("slow=2", {job(0, "tool", 10, 0)})(options_for("fifo")).finished; }), "");
  EXPECT_EQ(complaint([&] { Scene("fast=2", {job(0, "nett", 10, 0)})(options_for("fifo")); }),
            "test:1: job 0: small.yaml has no throughputs of \"nett\", did you mean \"net\"?");
}

TEST(Rounds, AJobOfWhichAThroughputIsMissingIsNamed) {
  Throughputs table("half.yaml");
  table.add_device_type("fast");
  table.set_alone(table.add_kind("net", 1), 0, 10);
  table.set_alone(table.add_kind("tool", 1), table.add_device_type("slow"), 1);
  const auto cluster = parse_cluster("fast=1,slow=1");
  const auto selected = table.select(cluster);
  Workload workload;
  workload.jobs = {job(0, "net", 10, 0)};
  EXPECT_EQ(complaint([&] { Simulation(cluster, selected, workload, options_for("fifo")).run(); }),
            "test:1: job 0: half.yaml has no throughput of \"net\" on 1 slow (0 says that it cannot run there)");
}

TEST(Rounds, AReferenceThatStandsStillIsAnError) {
  // The published fifo always takes the last type by name; `tool` cannot run on `slow`.
  const Scene run("fast=1,slow=1", {job(0, "tool", 100, 0)});
  auto reference = options_for("fifo");
  reference.scheduler.reference = true;
  EXPECT_THAT(complaint([&] { run(reference); }),
              HasSubstr("nothing runs and nothing is to come, but 1 job is left: 0"));
}

TEST(Rounds, WhatCanNeverGetOnIsAnErrorAndNoLoop) {
  // Devices that fail every second, and rounds of six minutes; restarts that are longer than a round, for jobs that
  // take turns.
  auto failing = options_for("isolated");
  failing.failures.device_mean_s = 1;
  failing.failures.repair_mean_s = 60;
  const Scene one("fast=2", {job(0, "net", 100000, 0)});
  EXPECT_THAT(complaint([&] { one(failing); }),
              testing::AllOf(HasSubstr("no job has kept a step since 0 s"), HasSubstr("by failures"),
                             HasSubstr("A round lasts 360 s and a restart 20 s")));
  auto slow = options_for("isolated");
  slow.restart_s = 500;
  const Scene two("fast=1", {job(0, "net", 100000, 0), job(1, "net", 100000, 0), job(2, "net", 100000, 0)});
  EXPECT_THAT(complaint([&] { two(slow); }), HasSubstr("0 of them by failures"));
  // Where one lease in ten outlives the failures, all jobs end.
  failing.failures.device_mean_s = 160;
  EXPECT_EQ(one(failing).finished, 1);
}

TEST(Rounds, LostDevicesLoseWorkAndComeBack) {
  std::vector<Job> jobs;
  for (int64_t id = 0; id < 30; ++id)
    jobs.push_back(job(id, "net", 40000, 100.0 * static_cast<double>(id), id % 3 ? 1 : 2));
  const Scene run("fast=2x2,slow=2x2", jobs);
  for (const char* policy : {"isolated", "fifo-perf", "gandiva", "2d-las"}) {
    auto options = options_for(policy);
    const auto calm = run(options);
    options.failures = parse_failures("device=8h,server=10h,repair=2h");
    const auto first = run(options), second = run(options);
    EXPECT_EQ(first.finished, 30) << policy;
    EXPECT_GT(first.ledger.device_losses, 3) << policy;
    EXPECT_GT(first.ledger.lost_steps_s, 0) << policy;
    EXPECT_GT(first.mean_jct_s, calm.mean_jct_s) << policy;
    EXPECT_EQ(first.mean_jct_s, second.mean_jct_s) << policy;  // the same seed, the same failures
    options.failures.seed = 1;
    EXPECT_NE(run(options).mean_jct_s, first.mean_jct_s) << policy;
  }
}

// In every round: a device serves one lease, a job holds one, broken devices hold none, gangs are whole, of one type,
// and on a type where they can run.
void check_round(Simulation& simulation, const Cluster& cluster, const std::map<int64_t, int>& scale_of,
                 const Throughputs& table) {
  const auto& round = simulation.scheduler().round();
  std::set<int64_t> jobs;
  std::map<int, int> leases_on;
  const auto explanations = simulation.scheduler().explain();
  std::set<int64_t> holders;
  for (const auto& it : explanations) {
    if (!it.devices.empty()) holders.insert(it.id);
  }
  for (const auto& lease : round.leases) {
    if (!holders.contains(lease.jobs[0])) continue;  // ended in the middle of the round
    ASSERT_EQ(lease.count, scale_of.at(lease.jobs[0]));
    if (!lease.shared()) {
      ASSERT_GT(table.alone(lease.kinds[0], lease.type), 0);
    } else {
      ASSERT_GT(table.together(lease.kinds[0], lease.kinds[1], lease.type)[0], 0);
      ASSERT_GT(table.together(lease.kinds[0], lease.kinds[1], lease.type)[1], 0);
    }
    for (int device : round.devices_of(lease)) {
      ASSERT_EQ(cluster.devices[static_cast<size_t>(device)].type, lease.type);
    }
  }
  std::map<int, std::string> holder_of;
  for (const auto& it : explanations) {
    for (int device : it.devices) {
      ASSERT_TRUE(simulation.scheduler().usable(device)) << "device " << device << " is broken";
      const auto [earlier, is_new] = holder_of.emplace(device, it.name);
      ASSERT_TRUE(is_new || earlier->second == it.partner) << "device " << device;
    }
  }
}

TEST(Rounds, HoldOnRandomClustersAndJobs) {
  std::vector<std::string> names;
  for (const auto& info : policies()) {
    // AlloX takes jobs of one device only.
    if (info.name != "allox" && runs_here(info.name)) names.push_back(info.name);
  }
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Key key{seed};
    const auto pick = [&](uint64_t place, uint64_t bound) { return bits64(key, place) % bound; };
    const auto cluster =
        parse_cluster(fmt::format("fast={}x{},slow={}x2", 1 + pick(0, 3), 1 + pick(1, 4), 1 + pick(2, 3)));
    const auto table = small_table().select(cluster);
    Workload workload;
    double arrival_s = 0;
    std::map<int64_t, int> scale_of;
    const auto count = static_cast<int64_t>(1 + pick(3, 25));
    for (int64_t id = 0; id < count; ++id) {
      const auto at = 10 + 5 * static_cast<uint64_t>(id);
      const int scale = 1 << pick(at, 2);
      scale_of[id] = scale;
      arrival_s += 2000 * uniform(key, at + 1) * static_cast<double>(pick(at + 2, 2));
      workload.jobs.push_back(
          job(id, pick(at + 3, 3) ? "net" : "tool", 1 + 20000 * uniform(key, at + 4), arrival_s, scale));
    }
    auto options = options_for(names[seed % names.size()]);
    if (seed % 3 == 0) options.failures = parse_failures("device=5h,server=9h,repair=30m");
    options.failures.seed = seed;
    Simulation simulation(cluster, table, workload, options);
    int64_t turns = 0;
    while (!simulation.done()) {
      simulation.turn();
      check_round(simulation, cluster, scale_of, table);
      if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << ", " << options.scheduler.policy;
      ASSERT_LT(++turns, 100000) << "seed " << seed << ", " << options.scheduler.policy << " does not end";
    }
    const auto result = simulation.run();
    EXPECT_EQ(result.finished + result.rejected, count) << "seed " << seed;  // nobody starves
    // Work is neither lost nor invented: a job never ends before it could alone on the fastest devices.
    for (int64_t id : result.counted) {
      const auto& wanted = workload.jobs[static_cast<size_t>(id)];
      const double best = table.alone(table.find_kind(wanted.type, wanted.scale), 0);
      const double least_s = wanted.steps / best;
      EXPECT_GE(result.ledger.jobs[static_cast<size_t>(id)].completion_s(), least_s * (1 - 1e-9)) << "seed " << seed;
    }
  }
}

TEST(Placement, KeepsJobsAndPacksGangs) {
  const auto cluster = parse_cluster("fast=3x4");
  Placement placement(cluster);
  const std::vector<int> held{5};
  std::vector<Wish> wishes = {{0, 4, {}, -1}, {1, 2, {}, -1}, {2, 1, held, -1}};
  std::vector<int> given;
  placement.place_packed(0, wishes, given);
  const auto devices = [&](const Wish& wish) {
    return std::vector<int>(given.begin() + wish.begin, given.begin() + wish.begin + wish.scale);
  };
  EXPECT_EQ(devices(wishes[2]), std::vector<int>{5});             // stays
  EXPECT_EQ(devices(wishes[0]), (std::vector<int>{0, 1, 2, 3}));  // a whole server
  EXPECT_EQ(devices(wishes[1]), (std::vector<int>{4, 6}));        // beside the one that stayed
  EXPECT_EQ(placement.free_of(0), 5);
  // A gang larger than any server takes the emptiest first.
  std::vector<Wish> wide = {{3, 5, {}, -1}};
  placement.place_packed(0, wide, given);
  EXPECT_EQ(devices(wide[0]), (std::vector<int>{8, 9, 10, 11, 7}));
}

TEST(Failures, ArriveAtTheirMeanRate) {
  const auto cluster = parse_cluster("fast=50x2");
  Failures failures(parse_failures("device=10h,repair=1h"), cluster);
  std::vector<int> lost, repaired;
  failures.advance(1000 * 3600.0, lost, repaired);
  EXPECT_NEAR(static_cast<double>(lost.size()), 100 * 1000 / 11.0, 400);  // one in eleven hours each
  EXPECT_NEAR(static_cast<double>(repaired.size()), static_cast<double>(lost.size()), 30);
  for (const char* bad : {"", "device", "device=5", "device=-1h", "gpu=5h", "repair=3h", "device=5h,"}) {
    EXPECT_THAT(complaint([&] { parse_failures(bad); }), HasSubstr("--failures")) << bad;
  }
}

TEST(Explain, SaysWhyAJobRunsOrWaits) {
  const Scene run("fast=1,slow=1", {job(0, "net", 1e5, 0), job(1, "tool", 1e5, 0), job(2, "tool", 1e5, 0)});
  Simulation simulation(run.cluster, run.table, run.workload, options_for("fifo-perf"));
  simulation.run_until(10);
  const auto all = simulation.scheduler().explain();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_THAT(all[0].sentence, HasSubstr("runs on fast 0: the policy gives it 100 % of its time there"));
  EXPECT_EQ(all[1].sentence, "waits: the policy gives it nothing on fast, it cannot run on slow");
}

}  // namespace
}  // namespace trireme::fleet
