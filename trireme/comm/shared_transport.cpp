#include "trireme/comm/shared_transport.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/shared_collectives.h"
#include "trireme/comm/shared_meeting.h"
#include "trireme/comm/shared_mail.h"
#include "trireme/observe/board.h"

namespace trireme {

std::shared_ptr<SharedGroup> make_thread_group(int size, std::shared_ptr<SharedGroup> parent) {
  auto group =
      std::make_shared<SharedGroup>(Segment::anonymous(SharedGroup::bytes_for(size)), size, "", std::move(parent));
  for (int i = 0; i < size; ++i) new (&group->lane(i)) Lane;
  return group;
}

std::shared_ptr<SharedGroup> meet_processes(const std::string& meeting, int rank, int size, double timeout_s) {
  const auto name = meeting + ".comm";
  const size_t bytes = SharedGroup::bytes_for(size);
  // Fresh files read as zeros, and zeros are a valid start for every field that a peer may read before it is written.
  auto group = std::make_shared<SharedGroup>(
      rank == 0 ? Segment::create(name, bytes) : Segment::open(name, bytes, timeout_s), size, meeting);
  auto& present = group->header().present;
  present.fetch_add(1);
  futex_wake_all(present);
  const int64_t deadline = monotonic_ns() + static_cast<int64_t>(timeout_s * 1e9);
  for (uint32_t here = present.load(); here < static_cast<uint32_t>(size); here = present.load()) {
    if (monotonic_ns() > deadline) {
      if (rank == 0) Segment::unlink(name);
      fail("only {} of {} ranks came to {} within {:.0f} s", here, size, meeting, timeout_s);
    }
    futex_wait(present, here, 50'000'000);
  }
  if (rank == 0) Segment::unlink(name);
  return group;
}

namespace {

class SharedTransport final : public Transport {
 public:
  SharedTransport(const std::shared_ptr<SharedGroup>& group, int rank)
      : meeting_(group, rank), collectives_(meeting_), group_(group), rank_(rank), size_(group->size) {
    collectives_.set_find([this](int peer, const Place& place) { return address(peer, place); });
    reads_ = !group_->threads() && try_reading();
    collectives_.set_reads(reads_);
  }

  const char* name() const override { return group_->threads() ? "threads" : "shared"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void abort() override { group_->abort(); }
  void try_with(const TransportTrial& trial) override {
    meeting_.set_checking(trial.checking);
    collectives_.set_reads(trial.reading && reads_);
  }

  void carry_out(const Call& call, const Arguments& arguments) override {
    try {
      meeting_.show(call, arguments.idle);
      if (arguments.tensor.defined()) meeting_.mine().place = place_of(arguments.tensor.data_ptr());
      collectives_.carry_out(call, arguments);
    } catch (...) {
      if (group_->threads()) group_->keep(arguments.tensor);
      throw;
    }
  }

  const char* way(const Call& call) const override {
    return call.collective == Collective::barrier ? "" : collectives_.way();
  }

  at::Tensor allocate(const Call& call, int64_t bytes) override;
  std::unique_ptr<Transport> split(const Call& call, int color) override;
  std::unique_ptr<Mail> open_mail(const Call& call, const MailPeers& peers) override;

 private:
  // Allocated by all ranks together: each one's part, mapped by every rank.
  struct Allocation {
    std::vector<Segment> parts;
  };

  // Whether every rank can read every other's memory through the kernel, which some machines forbid.
  bool try_reading() {
    static const int64_t word = 0x7472'6972'656d'65;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where processes may read only their children's, unless these agree
    lane(rank_).process = getpid();
    lane(rank_).probe = reinterpret_cast<int64_t>(&word);
    meeting_.meet();
    bool all = true;
    for (int i = 0; i < size_; ++i) {
      int64_t seen = 0;
      const iovec here{&seen, sizeof seen}, there{reinterpret_cast<void*>(lane(i).probe.load()), sizeof seen};
      const auto process = static_cast<pid_t>(lane(i).process.load());
      all = all && process_vm_readv(process, &here, 1, &there, 1, 0) == sizeof seen && seen == word;
    }
    lane(rank_).given = all ? 1 : 0;
    meeting_.meet();
    for (int i = 0; i < size_; ++i) all = all && lane(i).given == 1;
    meeting_.meet();
    return all;
  }

  // Does one rank's part of something that all make together. Whatever goes wrong at one is told to all: `given` shows
  // what each has to say, or -1.
  void attempt(std::string& problem, int64_t given, const std::function<void()>& part) {
    try {
      if (problem.empty()) part();
    } catch (const Error& error) {
      problem = error.what();
    }
    lane(rank_).given = problem.empty() ? given : -1;
  }
  // After a meeting: throws, on all ranks alike, when it failed at one of them.
  void check_attempts(const std::string& problem, const std::string& what) {
    int failed = -1;
    for (int i = 0; i < size_; ++i) {
      if (lane(i).given < 0) failed = i;
    }
    meeting_.meet();  // everybody has read it: the next call may write there again
    if (failed < 0) return;
    const auto why = failed == rank_ ? problem : "its own message says why";
    fail("rank {} could not {} ({}); free some of /dev/shm, or use comm.transport=mpi", failed, what, why);
  }

  Lane& lane(int rank) { return meeting_.lane(rank); }

  Place place_of(const void* pointer) const {
    if (group_->threads()) return {0, reinterpret_cast<uint64_t>(pointer)};
    const auto* address = static_cast<const std::byte*>(pointer);
    for (size_t n = 0; n < allocations_.size(); ++n) {
      const auto& part = allocations_[n]->parts[static_cast<size_t>(rank_)];
      if (address >= part.data() && address < part.data() + part.bytes()) {
        return {static_cast<int64_t>(n) + 1, static_cast<uint64_t>(address - part.data())};
      }
    }
    return {-1, reinterpret_cast<uint64_t>(pointer)};
  }

  std::byte* address(int rank, const Place& place) const {
    if (place.segment == 0) return reinterpret_cast<std::byte*>(place.offset);
    return allocations_[static_cast<size_t>(place.segment) - 1]->parts[static_cast<size_t>(rank)].data() + place.offset;
  }

  SharedMeeting meeting_;
  SharedCollectives collectives_;
  std::shared_ptr<SharedGroup> group_;
  const int rank_;
  const int size_;
  std::vector<std::shared_ptr<Allocation>> allocations_;
  int splits_ = 0, mails_ = 0;
  bool reads_ = false;
};

at::Tensor SharedTransport::allocate(const Call& call, int64_t bytes) {
  meeting_.show(call, /*idle=*/true);
  if (group_->threads()) {
    meeting_.meet_and_check();
    return at::zeros({bytes}, at::kByte);
  }
  const auto number = allocations_.size();
  const auto name_for = [&](int rank) { return fmt::format("{}.{}.{}", group_->meeting, rank, number); };
  auto allocation = std::make_shared<Allocation>();
  allocation->parts.resize(size_);
  std::string problem;
  attempt(problem, bytes, [&] {
    if (bytes > 0) allocation->parts[rank_] = Segment::create(name_for(rank_), static_cast<size_t>(bytes));
  });
  meeting_.meet_and_check();
  attempt(problem, bytes, [&] {
    for (int i = 0; i < size_; ++i) {
      const int64_t theirs = lane(i).given;
      if (i != rank_ && theirs > 0) allocation->parts[i] = Segment::open(name_for(i), static_cast<size_t>(theirs), 1);
    }
  });
  meeting_.meet();
  if (bytes > 0) Segment::unlink(name_for(rank_));
  check_attempts(problem, fmt::format("share {} bytes of memory", bytes));
  if (bytes == 0) return at::empty({0}, at::kByte);
  allocations_.push_back(allocation);
  // The tensor keeps the mapping alive, even beyond this transport.
  return at::from_blob(allocation->parts[rank_].data(), {bytes}, [allocation](void*) {}, at::kByte);
}

std::unique_ptr<Transport> SharedTransport::split(const Call& call, int color) {
  meeting_.show(call, /*idle=*/true);
  lane(rank_).given = color;
  meeting_.meet_and_check();
  std::vector<int> members;
  for (int i = 0; i < size_; ++i) {
    if (lane(i).given == color) members.push_back(i);
  }
  meeting_.meet();  // everybody has read the colors
  const int size = static_cast<int>(members.size());
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  const size_t bytes = SharedGroup::bytes_for(size);
  const auto name = fmt::format("{}.group{}.{}", group_->meeting, splits_++, members[0]);
  std::shared_ptr<SharedGroup> group;
  std::string problem;
  attempt(problem, 0, [&] {
    if (color < 0) return;
    if (group_->threads()) {
      group = group_->common<SharedGroup>(name, [&] { return make_thread_group(size, group_); });
    } else if (place == 0) {
      group = std::make_shared<SharedGroup>(Segment::create(name, bytes), size, name, group_);
    }
  });
  meeting_.meet();
  attempt(problem, 0, [&] {
    if (color >= 0 && !group) {
      group = std::make_shared<SharedGroup>(Segment::open(name, bytes, 1), size, name, group_);
    }
  });
  meeting_.meet();
  if (!group_->threads() && color >= 0 && place == 0) Segment::unlink(name);
  check_attempts(problem, "join its group");
  if (color < 0) return nullptr;
  return std::make_unique<SharedTransport>(group, static_cast<int>(place));
}

std::unique_ptr<Mail> SharedTransport::open_mail(const Call& call, const MailPeers& peers) {
  meeting_.show(call, /*idle=*/true);
  const auto number = mails_++;
  std::string problem;
  std::unique_ptr<SharedMail> mail;
  attempt(problem, 0, [&] { mail = std::make_unique<SharedMail>(group_, rank_, number, peers); });
  meeting_.meet_and_check();
  attempt(problem, 0, [&] { mail->connect(); });
  meeting_.meet();
  if (mail) mail->hide();
  check_attempts(problem, "open the ways for its messages");
  return mail;
}

}  // namespace

std::unique_ptr<Transport> make_shared_transport(std::shared_ptr<SharedGroup> group, int rank) {
  return std::make_unique<SharedTransport>(std::move(group), rank);
}

}  // namespace trireme
