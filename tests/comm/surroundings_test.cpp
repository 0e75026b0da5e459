// What a process concludes from the marks that launchers leave in the environment. Whoever guesses wrongly trains a
// model of its own, so that partial marks are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "tests/data/temporary.h"
#include "trireme/comm/world.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Marks = std::map<std::string, std::string>;

constexpr const char* all_marks[] = {"TRIREME_BOARD",
                                     "TRIREME_RANK",
                                     "TRIREME_RANKS",
                                     "OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE",
                                     "SLURM_STEP_ID",
                                     "SLURM_STEP_NUM_TASKS",
                                     "SLURM_STEP_NUM_NODES",
                                     "SLURM_NTASKS",
                                     "SLURM_NNODES",
                                     "SLURM_PROCID",
                                     "SLURM_LOCALID",
                                     "SLURM_JOB_ID",
                                     "PMI_RANK",
                                     "PMI_SIZE",
                                     "MV2_COMM_WORLD_SIZE",
                                     "RANK",
                                     "WORLD_SIZE",
                                     "LOCAL_RANK",
                                     "LOCAL_WORLD_SIZE",
                                     "MASTER_PORT",
                                     "TORCHELASTIC_RUN_ID",
                                     "TORCHELASTIC_RESTART_COUNT"};

class SurroundingsTest : public testing::Test {
 protected:
  SurroundingsTest() {
    for (const char* name : all_marks) {
      if (const char* value = std::getenv(name)) before_[name] = value;
    }
  }
  ~SurroundingsTest() override { set(before_); }

  static void set(const Marks& marks) {
    for (const char* name : all_marks) ::unsetenv(name);
    for (const auto& [name, value] : marks) ::setenv(name.c_str(), value.c_str(), 1);
  }
  static Surroundings seen(const Marks& marks) {
    set(marks);
    return look_around();
  }
  static std::string refused(const Marks& marks) {
    set(marks);
    return refusal_of([] { look_around(); });
  }

  Marks before_;
};

const Marks torchrun{{"TORCHELASTIC_RUN_ID", "none"},
                     {"RANK", "2"},
                     {"WORLD_SIZE", "4"},
                     {"LOCAL_RANK", "0"},
                     {"LOCAL_WORLD_SIZE", "2"}};
const Marks mpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Marks srun{{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_STEP_NUM_NODES", "1"},
                 {"SLURM_PROCID", "2"},  {"SLURM_LOCALID", "2"},        {"SLURM_JOB_ID", "17"}};
const Marks ours{{"TRIREME_BOARD", "/dev/shm/board"}, {"TRIREME_RANK", "1"}, {"TRIREME_RANKS", "2"}};

Marks without(Marks marks, const std::string& name) {
  marks.erase(name);
  return marks;
}

TEST_F(SurroundingsTest, WholeMarksSayWhoOneIs) {
  EXPECT_EQ(seen({}).describe(), "started alone");
  EXPECT_EQ(seen(torchrun).describe(), "started by torchrun: rank 2 of 4");
  EXPECT_EQ(seen(torchrun).local_size, 2);
  EXPECT_EQ(seen(mpirun).describe(), "started by mpirun: rank 1 of 2");
  EXPECT_EQ(seen(srun).describe(), "started by srun: rank 2 of 3");
  EXPECT_EQ(seen(ours).describe(), "started by trireme: rank 1 of 2");
}

TEST_F(SurroundingsTest, OneMissingMarkIsRefusedByName) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    EXPECT_EQ(refused(without(torchrun, name)),
              fmt::format("torchrun started this process, but the environment variable {} is missing", name));
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    EXPECT_EQ(refused(without(mpirun, name)),
              fmt::format("mpirun started this process, but the environment variable {} is missing", name));
  }
  for (const char* name : {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID"}) {
    EXPECT_EQ(refused(without(srun, name)),
              fmt::format("srun started this process, but the environment variable {} is missing", name));
  }
  EXPECT_THAT(refused(without(ours, "TRIREME_RANKS")), HasSubstr("TRIREME_RANKS is missing"));
}

TEST_F(SurroundingsTest, MarksWithoutTheirLauncherAreRefused) {
  const auto alone = HasSubstr("no launcher that is known here has started it");
  EXPECT_THAT(refused({{"WORLD_SIZE", "2"}, {"RANK", "0"}}), AllOf(HasSubstr("WORLD_SIZE = 2: "), alone));
  EXPECT_THAT(refused({{"WORLD_SIZE", "2"}}), alone);
  EXPECT_THAT(refused({{"RANK", "1"}}), AllOf(HasSubstr("RANK = 1: "), alone));
  EXPECT_THAT(refused({{"RANK", "0"}}), alone);
  EXPECT_THAT(refused({{"LOCAL_RANK", "1"}}), alone);
  EXPECT_THAT(refused({{"WORLD_SIZE", "1"}, {"RANK", "1"}}), alone);
  EXPECT_THAT(refused({{"PMI_SIZE", "4"}, {"PMI_RANK", "0"}}), AllOf(HasSubstr("PMI_SIZE = 4: "), alone));
  EXPECT_THAT(refused(without(mpirun, "OMPI_COMM_WORLD_SIZE")), alone);
  // One process is one process, whoever counts.
  EXPECT_EQ(seen({{"WORLD_SIZE", "1"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}}).size, 1);
  EXPECT_EQ(seen({{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}}).size, 1);
}

TEST_F(SurroundingsTest, ARankLiesBelowTheNumberOfRanks) {
  auto marks = torchrun;
  marks["RANK"] = "4";
  EXPECT_EQ(refused(marks), "RANK = 4 must be below WORLD_SIZE = 4");
  marks = srun;
  marks["SLURM_PROCID"] = "3";
  EXPECT_EQ(refused(marks), "SLURM_PROCID = 3, but the step has 3 tasks");
  marks = mpirun;
  marks["OMPI_COMM_WORLD_RANK"] = "two";
  EXPECT_THAT(refused(marks), HasSubstr("OMPI_COMM_WORLD_RANK is two"));
}

}  // namespace
}  // namespace trireme
