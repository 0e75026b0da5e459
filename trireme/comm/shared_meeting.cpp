#include "trireme/comm/shared_meeting.h"

#include <sched.h>

#include "trireme/base/error.h"
#include "trireme/comm/cores.h"
#include "trireme/observe/board.h"

namespace trireme {

namespace {

constexpr int looks = 64;                  // at least, before anything that costs a system call
constexpr int64_t idle_ns = 50'000;        // of looking, by a thread that has a core to itself
constexpr int64_t beside_ns = 20'000;      // by one that works beside others: about what being woken costs
constexpr int yields = 100;                // of giving the core away between two looks, where ranks share cores
constexpr int64_t sleep_ns = 100'000'000;  // at most, before looking whether the others are still there

bool reached(uint32_t seen, uint32_t target) { return static_cast<int32_t>(seen - target) >= 0; }

}  // namespace

SharedMeeting::SharedMeeting(std::shared_ptr<SharedGroup> group, int rank)
    : group_(std::move(group)),
      rank_(rank),
      size_(group_->size),
      crowded_(group_->size > usable_cores()),
      roomy_(2 * group_->size <= usable_cores()),
      calls_(static_cast<size_t>(size_)) {}

SharedMeeting::~SharedMeeting() {
  lane(rank_).left.store(1);
  futex_wake_all(lane(rank_).arrived);
}

void SharedMeeting::show(const Call& call, bool idle) {
  turn_ = call.sequence % 2;
  idle_ = idle;
  mine().call = call;
}

void SharedMeeting::meet() {
  auto& own = lane(rank_);
  const uint32_t target = own.arrived.load(std::memory_order_relaxed) + 1;
  own.arrived.store(target, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(own.arrived);
  for (int i = 0; i < size_; ++i) {
    if (i != rank_) await(i, target);
  }
}

bool SharedMeeting::look(const Lane& peer, uint32_t target) const {
  const auto some = [&] {
    for (int i = 0; i < looks; ++i) {
      if (reached(peer.arrived.load(std::memory_order_acquire), target)) return true;
      __builtin_ia32_pause();
    }
    return false;
  };
  if (some()) return true;
  if (!idle_ && !roomy_) return false;
  if (crowded_) {
    for (int i = 0; i < yields; ++i) {
      sched_yield();
      if (reached(peer.arrived.load(std::memory_order_acquire), target)) return true;
    }
    return false;
  }
  const int64_t end = monotonic_ns() + (idle_ ? idle_ns : beside_ns);
  while (monotonic_ns() < end) {
    if (some()) return true;
  }
  return false;
}

void SharedMeeting::await(int rank, uint32_t target) {
  Lane& peer = lane(rank);
  if (look(peer, target)) return;
  peer.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const uint32_t seen = peer.arrived.load(std::memory_order_seq_cst);
    if (reached(seen, target)) break;
    if (group_->aborted()) fail("another rank ended while this one waited for it");
    if (peer.left.load() && !reached(peer.arrived.load(), target))
      fail("rank {} has left and will not take part", rank);
    futex_wait(peer.arrived, seen, sleep_ns);
  }
  peer.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void SharedMeeting::meet_and_check() {
  meet();
  if (!checking_) return;
  const Call& own = mine().call;
  for (int i = 0; i < size_; ++i) {
    if (exhibit(i).call.agrees_with(own)) continue;
    for (int k = 0; k < size_; ++k) calls_[static_cast<size_t>(k)] = exhibit(k).call;
    meet();  // a rank that fails may end at once: nobody leaves before everybody has read
    check_agreement(calls_);
  }
}

}  // namespace trireme
