// What people give us: files that are right, and every kind of file that is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fleet/published.h"
#include "tests/fleet/scratch.h"

namespace trireme::fleet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

const std::string job_line = "A3C\tpython3 main.py\trl\t--max-steps\t0\t1000\t1\t2\t-1.000000\t";

TEST(Trace, HasTenColumnsOrSeven) {
  const Scratch scratch;
  const auto ten = read_trace(scratch.write("ten.trace", job_line + "0\n" + job_line + "7.5\r\n"));
  ASSERT_EQ(ten.size(), 2u);
  EXPECT_EQ(ten[1].type, "A3C");
  EXPECT_EQ(ten[1].steps, 1000);
  EXPECT_EQ(ten[1].weight, 2);
  EXPECT_EQ(ten[1].slo, 0);
  EXPECT_EQ(ten[1].arrival_s, 7.5);
  const auto seven = read_trace(data_file("traces/msr_51b7ef.trace"));
  EXPECT_EQ(seven[0].type, "Transformer (batch size 128)");
  EXPECT_EQ(seven[0].arrival_s, 0);
  EXPECT_GT(seven[0].steps, 0);
}

TEST(Trace, SaysWhatIsWrongAndWhere) {
  const Scratch scratch;
  const auto about = [&](const std::string& text) {
    const auto path = scratch.write("bad.trace", text);
    return complaint([&] { read_trace(path); });
  };
  EXPECT_EQ(about(job_line + "0\nA3C\t1\n"),
            "bad.trace:2: a job has ten columns between tabs, or seven in the old layout, and this line has 2");
  EXPECT_EQ(about("A3C\tx\trl\t-n\t0\t-5\t1\t1\t-1\t0\n"),
            "bad.trace:1: total steps (column 6) must be above 0 and at most 1000000000000000, not -5");
  EXPECT_EQ(about("A3C\tx\trl\t-n\t0\tmany\t1\t1\t-1\t0\n"),
            "bad.trace:1: total steps (column 6) must be a number, not \"many\"");
  EXPECT_EQ(about("A3C\tx\trl\t-n\t0\tnan\t1\t1\t-1\t0\n"),
            "bad.trace:1: total steps (column 6) must be a number, not \"nan\"");
  EXPECT_EQ(about("A3C\tx\trl\t-n\t0\t5\t0\t1\t-1\t0\n"),
            "bad.trace:1: scale factor (column 7) must be a whole number of at least 1, not 0");
  EXPECT_EQ(about("A3C\tx\trl\t-n\t0\t5\t1\t0\t-1\t0\n"),
            "bad.trace:1: priority weight (column 8) must be above 0, not 0");
  EXPECT_EQ(about(job_line + "10\n" + job_line + "5\n"),
            "bad.trace:2: arrives at 5 s, before the job above it (10 s): sort the trace by arrival");
  EXPECT_EQ(about(job_line + "-1\n"), "bad.trace:1: arrival time (column 10) must be at least 0, not -1");
  EXPECT_EQ(about("\n\n"), "bad.trace: there is no job in it");
  EXPECT_EQ(about(""), "bad.trace: the file is empty");
  EXPECT_THAT(complaint([] { read_trace("no/such.trace"); }), HasSubstr("there is no such file"));
}

TEST(ThroughputsJson, ReadsThePublishedTable) {
  const auto& table = published_throughputs();
  EXPECT_THAT(table.device_types(), ElementsAre("k80", "p100", "v100"));
  const int kind = table.find_kind("ResNet-18 (batch size 16)", 1),
            other = table.find_kind("ResNet-18 (batch size 32)", 1);
  EXPECT_DOUBLE_EQ(table.alone(kind, 0), 4.795294551566172);
  EXPECT_DOUBLE_EQ(table.together(kind, other, 0)[1], 3.1201925448827033);
  EXPECT_EQ(table.find_kind("A3C", 2), -1);
}

TEST(ThroughputsJson, SaysWhatIsWrongAndWhere) {
  const Scratch scratch;
  const auto about = [&](const std::string& text) {
    const auto path = scratch.write("bad.json", text);
    return complaint([&] { read_throughputs_json(path); });
  };
  EXPECT_THAT(about("{\"k80\": {"), HasSubstr("bad.json: parse error at line 1"));
  EXPECT_THAT(about("[1, 2]"), HasSubstr("bad.json: the file is a list, and must not be"));
  EXPECT_THAT(about("7"), HasSubstr("bad.json: the file is a number, and must be a map"));
  EXPECT_EQ(about("{}"), "bad.json: holds no throughputs");
  EXPECT_EQ(about("{\"k80\": {\"A3C\": {\"null\": 1}}}"),
            "bad.json: k80: \"A3C\" is not a job's key such as \"('ResNet-18 (batch size 64)', 1)\"");
  EXPECT_EQ(about("{\"k80\": {\"('A3C', 1)\": {\"null\": -1}}}"),
            "bad.json: k80 / ('A3C', 1) / null must be at least 0 and finite");
  EXPECT_EQ(about("{\"k80\": {\"('A3C', 1)\": {\"null\": \"fast\"}}}"),
            "bad.json: k80 / ('A3C', 1) / null is a text, and must be a number");
  EXPECT_EQ(about("{\"k80\": {\"('A3C', 1)\": {\"null\": 1, \"null\": 2}}}"),
            "bad.json: k80 / ('A3C', 1) / null is given twice");
  EXPECT_EQ(about("{\"k80\": {\"('A3C', 1)\": {\"('A3C', 1)\": [1]}}}"),
            "bad.json: k80 / ('A3C', 1) / ('A3C', 1) must hold two numbers: the steps a second of both jobs");
  EXPECT_EQ(about("{\"k80\": {\"('A3C', 1)\": {\"('A3C', 1)\": {}}}}"),
            "bad.json: k80 / ('A3C', 1) / ('A3C', 1) is a map, and must be a number");
  EXPECT_THAT(about("{\"k80\": {\"('A3C', 1)\": {\"null\": 1e999}}}"), HasSubstr("bad.json: "));
  // However deep: refused at the first level that should not be there.
  EXPECT_THAT(about(std::string(2'000'000, '[')), HasSubstr("is a list, and must not be"));
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += "{\"('A', 1)\": ";
  EXPECT_THAT(about(deep), HasSubstr("is a map, and must be a number"));
}

TEST(Yaml, DescribesClusterJobsAndSpeeds) {
  const Scratch scratch;
  const auto path = scratch.write("all.yaml", R"(
types:
  v100: {cost_per_hour: 2.5, memory_gb: 16}
  k80:
servers:
  - {name: fast, count: 2, devices: {v100: 4}}
  - {name: mixed, devices: {k80: 1, v100: 1}}
jobs:
  - {id: mine, type: net, steps: 1e4, scale: 2, weight: 3, owner: vision, deadline_s: 86400, arrival_s: 5}
  - {type: net, steps: 10, arrival_s: 5}
owners:
  vision: {weight: 2, inside: fifo}
throughputs:
  net: {v100: {1: 10, 2: 19}, k80: 3}
  tool: {v100: 4, k80: 1}
together:
  - {jobs: [net, tool], v100: [7, 3]}
)");
  const auto cluster = read_cluster(path);
  EXPECT_EQ(cluster.brief(), "v100=9,k80=1");
  EXPECT_THAT(cluster.servers, ElementsAre("fast-0", "fast-1", "mixed"));
  EXPECT_EQ(cluster.types[1].cost_per_hour, 2.5);
  EXPECT_EQ(cluster.devices[9].server, 2);
  const auto jobs = read_jobs(path);
  EXPECT_EQ(jobs[0].name, "mine");
  EXPECT_EQ(jobs[0].owner, "vision");
  EXPECT_EQ(jobs[1].name, "1");
  const auto owners = read_owners(path);
  ASSERT_EQ(owners.size(), 1u);
  EXPECT_EQ(owners[0].weight, 2);
  EXPECT_TRUE(owners[0].in_order);
  const auto table = read_throughputs(path);
  EXPECT_EQ(table.alone(table.find_kind("net", 2), 0), 19);
  EXPECT_THAT(table.together(table.find_kind("tool", 1), table.find_kind("net", 1), 0), ElementsAre(3, 7));
}

TEST(Yaml, SaysWhatIsWrongAndWhere) {
  const Scratch scratch;
  const auto cluster = [&](const std::string& text) {
    const auto path = scratch.write("bad.yaml", text);
    return complaint([&] { read_cluster(path); });
  };
  EXPECT_EQ(cluster("servers:\n  - {devices: {v100: 0}}\n"),
            "bad.yaml:2: servers[0].devices.v100 must be at least 1, not 0");
  EXPECT_EQ(cluster("servers:\n  - {device: {v100: 1}}\n"),
            "bad.yaml:2: unknown key servers[0].device, did you mean devices?");
  EXPECT_EQ(cluster("types: {v100: }\nservers:\n  - {devices: {v10: 1}}\n"),
            "bad.yaml:3: servers[0].devices.v10: unknown device type, did you mean v100?");
  EXPECT_EQ(cluster("types: {v100: {cost_per_hour: cheap}}\nservers: []\n"),
            "bad.yaml:1: types.v100.cost_per_hour must be a number, not cheap");
  EXPECT_EQ(cluster("servers: []\n"), "bad.yaml: servers lists none");
  EXPECT_EQ(cluster("jobs: []\n"), "bad.yaml: has no servers, such as servers: [{count: 3, devices: {v100: 4}}]");
  EXPECT_EQ(cluster("server: []\n"), "bad.yaml:1: unknown key server, did you mean servers?");
  EXPECT_THAT(cluster("servers: [\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(cluster(std::string(100'000, '[')), HasSubstr("bad.yaml:"));

  const auto jobs = [&](const std::string& text) {
    const auto path = scratch.write("bad.yaml", text);
    return complaint([&] { read_jobs(path); });
  };
  EXPECT_THAT(jobs("jobs:\n  - {id: a, type: net, steps: 1}\n  - {id: a, type: net, steps: 1}\n"),
              MatchesRegex("bad.yaml:3: the id a was given before, at .*bad.yaml:2"));
  EXPECT_EQ(jobs("jobs:\n  - {type: net, steps: -1}\n"), "bad.yaml:2: jobs[0].steps must be at least 0, not -1");
  EXPECT_EQ(jobs("jobs:\n  - {type: net}\n"), "bad.yaml:2: jobs[0] has no steps");
  EXPECT_EQ(jobs("jobs:\n  - {type: net, steps: 1, steps: 2}\n"), "bad.yaml:2: jobs[0].steps is given twice");
  EXPECT_EQ(jobs("jobs:\n  - {type: net, steps: 1, arrival_s: 9}\n  - {type: net, steps: 1}\n"),
            "bad.yaml:3: jobs[1].arrival_s = 0 is before the job above it (9): sort the jobs by arrival");
  EXPECT_EQ(jobs("jobs: 3\n"), "bad.yaml:1: jobs must be a list");

  const auto speeds = [&](const std::string& text) {
    const auto path = scratch.write("bad.yaml", text);
    return complaint([&] { read_throughputs(path); });
  };
  EXPECT_EQ(speeds("throughputs: {net: {v100: fast}}\n"),
            "bad.yaml:1: throughputs.net.v100 must be a number, not fast");
  EXPECT_EQ(speeds("throughputs: {net: {v100: 1}}\ntogether:\n  - {jobs: [net, tool], v100: [1, 2]}\n"),
            "bad.yaml:3: together[0].jobs[1] = tool has no throughput alone on 1 device");
}

TEST(Cluster, HasAShortForm) {
  const auto cluster = parse_cluster("v100=2x4,k80=3,p100=0");
  EXPECT_EQ(cluster.brief(), "v100=8,k80=3");
  EXPECT_EQ(cluster.servers.size(), 5u);
  EXPECT_EQ(cluster.types[0].name, "k80");
  for (const char* bad : {"", "v100", "v100=", "v100=-1", "v100=2x", "=3", "v100=1,v100=2", "v100=1.5",
                          "v100=99999999999", "v100=0", "v100=1,"}) {
    EXPECT_THAT(complaint([&] { parse_cluster(bad); }), HasSubstr("--cluster")) << bad;
  }
  EXPECT_THAT(complaint([] { parse_cluster("v100=900000x900000"); }), HasSubstr("a cluster may have"));
}

TEST(Throughputs, MustKnowTheTypesOfTheCluster) {
  EXPECT_THAT(complaint([] { published_throughputs().select(parse_cluster("v10=3")); }),
              HasSubstr("has no throughputs of device type v10, did you mean v100?"));
}

}  // namespace
}  // namespace trireme::fleet
