// The shared-memory transport between real processes: the test program starts itself again, once a rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <thread>

#include "tests/comm/collective_checks.h"
#include "tests/comm/message_checks.h"
#include "tests/support/child.h"
#include "trireme/base/log.h"
#include "trireme/comm/shared_transport.h"
#include "trireme/observe/board.h"
#include "trireme/observe/trace.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;

Communicator join(Recorder& recorder, double timeout_s = 60) {
  const int rank = std::stoi(given("RANK"));
  log::set_rank(rank);
  const auto board = Board::open(SegmentName::parse(given("BOARD"), "BOARD"));
  return Communicator(make_shared_transport(meet_processes(*board, rank, timeout_s), rank), recorder);
}

const Role collectives("collectives", [] {
  Recorder recorder;
  auto communicator = join(recorder);
  if (std::string(communicator.transport_name()) != "shared")
    fail("the transport is {}", communicator.transport_name());
  communicator.try_with({.reading = given("CASE") != "no reading"});
  auto arena = communicator.allocate(12 << 20);
  if (!at::equal(arena, at::zeros_like(arena))) fail("rank {}: allocated memory is not zeroed", communicator.rank());
  // Not at the same place on every rank: each is reduced where it lies.
  auto shifted = arena.narrow(0, 64 * (1 + communicator.rank()), 10 << 20);
  for (auto dtype : reducible_types) {
    for (int64_t count : {0, 1, 7, 70'000, 1'000'003}) {
      if (count > 100'000 && dtype != at::kFloat && dtype != at::kBFloat16) continue;
      const Example example(dtype, count, communicator.size());
      const auto reachable = shifted.narrow(0, 0, count * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype);
      const auto elsewhere = at::empty({count}, dtype);
      check_all_reduce(communicator, example, reachable, Promise::bits);
      check_all_reduce(communicator, example, elsewhere, Promise::bits);
      // One rank's memory out of reach is enough for all to take the longer way.
      check_all_reduce(communicator, example, communicator.rank() == 0 ? elsewhere : reachable, Promise::bits);
    }
  }
  for (int64_t count : {0, 7, 200'000}) {
    check_broadcast(communicator, at::kFloat, count, at::empty({count}));
    check_broadcast(communicator, at::kFloat, count, shifted.narrow(0, 0, 4 * count).view(at::kFloat));
    check_all_gather(communicator, at::kFloat, count);
    check_all_to_all(communicator, at::kFloat, count);
    const auto reachable = shifted.narrow(0, 0, 4 * count).view(at::kFloat), elsewhere = at::empty({count});
    for (const auto& place : {reachable, elsewhere, communicator.rank() == 0 ? elsewhere : reachable})
      check_parts(communicator, at::kFloat, count, place);
  }
  // By which way they went, the trace says.
  Trace trace(64);
  recorder.set_trace(&trace);
  const auto way_of = [&](const at::Tensor& tensor) {
    communicator.wait(communicator.all_reduce(tensor, ReduceOp::sum, "way"));
    return std::string(trace.spans().back().way.text);
  };
  const auto in_place = way_of(shifted.view(at::kFloat).fill_(0)), elsewhere = way_of(at::zeros({100'000}));
  if (in_place != "in place") fail("shared memory was reduced {}", in_place);
  if (given("CASE") == "no reading" && elsewhere != "staged") fail("with reading forbidden it went {}", elsewhere);
  recorder.set_trace(nullptr);
  // A second allocation: peers' parts have other sizes than ours.
  communicator.allocate(communicator.rank() == 0 ? 0 : 4096);
  auto second = communicator.allocate(1'000'000 + 4096 * communicator.rank()).narrow(0, 0, 800'000).view(at::kDouble);
  check_all_reduce(communicator, Example(at::kDouble, 100'000, communicator.size()), second, Promise::bits);
  check_random_mix(communicator, arena, 2000, 99);
  check_groups(communicator);
  check_messages(communicator, recorder, 0);
  return 0;
});

// From here on this process may not read another one's memory through the kernel, as in some containers.
void forbid_reading() {
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{std::size(program), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    fail_errno("seccomp");
}

// CASE: the rank whose system forbids it.
const Role reading_forbidden("reading forbidden", [] {
  if (given("RANK") == given("CASE")) forbid_reading();
  Recorder recorder;
  auto communicator = join(recorder);
  Trace trace(64);
  recorder.set_trace(&trace);
  check_all_reduce(communicator, Example(at::kFloat, 100'000, communicator.size()), at::empty({100'000}),
                   Promise::bits);
  const std::string way = trace.spans().back().way.text;
  if (way != "staged") fail("with reading forbidden it went {}", way);
  recorder.set_trace(nullptr);
  check_groups(communicator);
  return 0;
});

const Role disagreement("disagreement", [] {
  Recorder recorder;
  auto communicator = join(recorder);
  check_disagreement(communicator, disagreements().at(static_cast<size_t>(std::stoi(given("CASE")))));
  return 0;
});

const Role short_of_memory("short of memory", [] {
  Recorder recorder;
  auto communicator = join(recorder);
  std::string text;
  try {
    communicator.allocate(communicator.rank() == 1 ? int64_t{1} << 50 : 4096);
  } catch (const Error& error) {
    text = error.what();
  }
  if (text.find("rank 1 could not share") == std::string::npos)
    fail("rank {}: unexpected: {}", communicator.rank(), text);
  // The group is as good as before.
  auto memory = communicator.allocate(800'000).view(at::kDouble);
  check_all_reduce(communicator, Example(at::kDouble, 100'000, communicator.size()), memory, Promise::bits);
  return 0;
});

const Role lonely("lonely", [] {
  Recorder recorder;
  auto communicator = join(recorder, 1);
  return 0;
});

// A tensor from allocate() is used after its transport and communicator are gone.
const Role outliving("outliving", [] {
  Recorder recorder;
  at::Tensor memory;
  {
    auto communicator = join(recorder);
    memory = communicator.allocate(400'000).view(at::kFloat);
    memory.fill_(1 + communicator.rank());
    communicator.wait(communicator.all_reduce(memory, ReduceOp::sum, "sum"));
    communicator.wait(communicator.barrier("all have it"));
  }
  memory.add_(1);
  return memory.sum().item<double>() == 100'000 * 4.0 ? 0 : 1;
});

class ProcessTest : public testing::Test {
 protected:
  std::unique_ptr<Child> start(const std::string& role, int rank, int size, const std::string& which = "0") {
    if (!board_) board_ = Board::create(size);
    return std::make_unique<Child>(
        role, Child::Environment{{"BOARD", board_->name().text()}, {"RANK", std::to_string(rank)}, {"CASE", which}});
  }

  void expect_success(const std::string& role, int size, const std::string& which = "0") {
    std::vector<std::unique_ptr<Child>> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(start(role, rank, size, which));
    for (auto& rank : ranks) EXPECT_EQ(rank->wait(120), 0) << rank->errors();
    said_.clear();
    for (auto& rank : ranks) said_.push_back(rank->errors());
    board_.reset();
    EXPECT_THAT(left_behind(), IsEmpty());
  }

  // What has come into shared memory since the test began, and belongs to nobody who lives. Tests that run beside this
  // one may have something there for a moment.
  std::vector<fs::path> left_behind() const {
    std::vector<fs::path> left;
    for (int tries = 0; tries < 500; ++tries) {
      std::set<fs::path> living;
      for (const auto& name : Segment::living()) living.insert(name.path());
      left.clear();
      for (const auto& path : in_shared_memory()) {
        if (before_.count(path) == 0 && living.count(path) == 0) left.push_back(path);
      }
      if (left.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return left;
  }

  static std::set<fs::path> in_shared_memory() {
    std::set<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(fs::path(SegmentName().path()).parent_path())) {
      if (entry.path().filename().string().rfind("trireme-", 0) == 0) paths.insert(entry.path());
    }
    return paths;
  }

  const std::set<fs::path> before_ = in_shared_memory();
  std::shared_ptr<Board> board_;
  std::vector<std::string> said_;  // by each rank
};

TEST_F(ProcessTest, CollectivesOfTwo) { expect_success("collectives", 2); }
TEST_F(ProcessTest, CollectivesOfThree) { expect_success("collectives", 3); }
TEST_F(ProcessTest, CollectivesOfFour) { expect_success("collectives", 4); }
TEST_F(ProcessTest, CollectivesWhereTheKernelForbidsReading) {
  expect_success("collectives", 2, "no reading");
  expect_success("collectives", 5, "no reading");
}

TEST_F(ProcessTest, WhereReadingIsForbiddenAllStageAndTheFirstSaysSo) {
  for (const auto* rank : {"0", "1"}) {
    expect_success("reading forbidden", 2, rank);
    EXPECT_THAT(said_[0], AllOf(HasSubstr(fmt::format("rank {} may not read the memory of the other ranks", rank)),
                                HasSubstr("Operation not permitted"), HasSubstr("is copied through it")));
    EXPECT_EQ(said_[0].find("may not read"), said_[0].rfind("may not read")) << "once, not for each group";
  }
}

TEST_F(ProcessTest, EveryRankHearsOfADisagreement) {
  expect_success("disagreement", 2, "0");
  expect_success("disagreement", 3, "2");
}

TEST_F(ProcessTest, MemoryThatOneRankCannotGetIsAnErrorOfAll) { expect_success("short of memory", 2); }

TEST_F(ProcessTest, AllocatedMemoryOutlivesTheTransport) { expect_success("outliving", 2); }

TEST_F(ProcessTest, AMissingRankIsATimeoutThatSaysHowManyCame) {
  auto first = start("lonely", 0, 3), second = start("lonely", 1, 3);
  EXPECT_EQ(first->wait(), 1);
  EXPECT_EQ(second->wait(), 1);
  EXPECT_THAT(first->errors(), HasSubstr("only 2 of 3 ranks of this host came within 1 s"));
  // A rank that starts very late finds the meeting over: it says so in other words.
  EXPECT_THAT(second->errors(), AnyOf(HasSubstr("only 2 of 3 ranks of this host came"), HasSubstr("No such file")));
  board_.reset();
  EXPECT_THAT(left_behind(), IsEmpty());
}

TEST_F(ProcessTest, WithoutTheFirstRankTheOthersSayWhatTheyWaitFor) {
  auto second = start("lonely", 1, 2);
  EXPECT_EQ(second->wait(), 1);
  EXPECT_THAT(second->errors(), HasSubstr("the first rank of this host did not come within 1 s: is it missing?"));
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  at::set_num_threads(1);  // many ranks, few cores
  return trireme::main_with_roles(argc, argv);
}
