#include "trireme/observe/watchdog.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/units.h"
#include "trireme/observe/pace.h"

namespace trireme {

namespace {
constexpr int beat_period_ms = 250;
constexpr int64_t second_ns = 1'000'000'000;
constexpr int64_t pause_ns = second_ns;  // between two of our own beats: we were stopped, not our peers
}  // namespace

// What we know of one rank of this host (ourselves included: our own pace is watched too).
struct Watchdog::Peer {
  int local_rank = 0;
  int descriptor = -1;  // pidfd: readable once the process is dead
  bool tried = false;
  uint64_t progress = 0, alive = 0;
  int64_t progress_ns = 0;
  int64_t step = -1;
  int64_t step_ns = 0;
  Pace pace;
  uint64_t collectives = 0;  // begun in this step
  bool warned = false;

  // How far it has come. Inside a step by collectives, which all replicas make alike; operations they make as many as
  // their shares have microbatches.
  auto place() const { return std::tuple(step, collectives, progress); }
  ~Peer() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

Watchdog::Watchdog(std::shared_ptr<Board> board, int local_rank, int rank, WatchdogOptions options)
    : board_(std::move(board)), local_rank_(local_rank), options_(std::move(options)) {
  for (int i = 0; i < board_->ranks(); ++i) {
    auto peer = std::make_unique<Peer>();
    peer->local_rank = i;
    peer->progress_ns = peer->step_ns = monotonic_ns();
    peers_.push_back(std::move(peer));
  }
  auto& slot = board_->slot(local_rank_);
  slot.rank.store(rank);
  slot.beat_ns.store(monotonic_ns());
  slot.pid.store(getpid());
  slot.state.store(RankState::running);
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0) fail_errno("eventfd");
  thread_ = std::thread([this, log_rank = log::rank()] {
    log::set_rank(log_rank);
    run();
  });
}

Watchdog::~Watchdog() {
  ending_ = true;
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
  thread_.join();
  ::close(wake_);
}

void Watchdog::stand_down() {
  standing_down_ = true;
  board_->slot(local_rank_).state.store(RankState::finished);
}

void Watchdog::run() {
  std::vector<pollfd> polled;
  while (!ending_) {
    polled.assign(1, {wake_, POLLIN, 0});
    for (auto& peer : peers_) {
      // A rank that has finished may be dead: its descriptor would wake us without end.
      const bool missed = !standing_down_ && board_->slot(peer->local_rank).state.load() == RankState::running;
      if (peer->descriptor >= 0 && missed) polled.push_back({peer->descriptor, POLLIN, 0});
    }
    poll(polled.data(), polled.size(), beat_period_ms);
    if (ending_) return;
    const int64_t now = monotonic_ns();
    if (now - board_->slot(local_rank_).beat_ns.exchange(now) > pause_ns) {
      // The whole job may have been suspended: peers get the time to beat again before they count as silent or late.
      resumed_ns_ = now;
      for (auto& peer : peers_) peer->progress_ns = peer->step_ns = now;
    }
    if (standing_down_) continue;
    if (board_->faulted()) follow();
    for (auto& peer : peers_) {
      if (peer->local_rank != local_rank_) watch(*peer, now);
    }
    watch_pace(now);
    if (options_.look_outside) {
      // Before the first step a host may be busy for long, and its messages with it.
      const bool stepping = board_->slot(local_rank_).step.load() >= 0;
      if (const auto problem = options_.look_outside(stepping); !problem.empty()) end_job(-1, problem);
    }
  }
}

void Watchdog::watch(Peer& peer, int64_t now_ns) {
  auto& slot = board_->slot(peer.local_rank);
  const auto running = [&] { return slot.state.load() == RankState::running; };
  if (!running()) return;
  const int pid = slot.pid.load();
  bool dead = false;
  if (!peer.tried && pid != getpid()) {
    peer.tried = true;
    if (pid <= 0) end_job(slot, "has written a process number that cannot be: its memory may be faulty");
    peer.descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    dead = peer.descriptor < 0 && errno == ESRCH;
  }
  if (peer.descriptor >= 0) {
    pollfd one{peer.descriptor, POLLIN, 0};
    dead = poll(&one, 1, 0) > 0;
  }
  if (dead && running()) end_job(slot, "died");
  const double silent_s = static_cast<double>(now_ns - std::max(slot.beat_ns.load(), resumed_ns_)) / second_ns;
  if (silent_s > options_.heartbeat_s && running()) {
    end_job(slot, fmt::format("has not answered for {}", human_seconds(silent_s)));
  }
}

// A rank is late when it spends far longer in one operation than steps take. The rank that has come least far is the
// one that the others wait for.
void Watchdog::watch_pace(int64_t now_ns) {
  Peer* slowest = nullptr;
  for (auto& peer : peers_) {
    auto& slot = board_->slot(peer->local_rank);
    if (slot.state.load() != RankState::running) continue;
    const uint64_t progress = slot.progress.load(), alive = slot.alive.load();
    if (progress != peer->progress || alive != peer->alive) {
      peer->progress = progress;
      peer->alive = alive;
      peer->progress_ns = now_ns;
      peer->warned = false;
    }
    const int64_t step = slot.step.load();
    if (step != peer->step) {
      if (peer->step >= 0) peer->pace.add(static_cast<double>(now_ns - peer->step_ns) / second_ns);
      peer->step = step;
      peer->step_ns = now_ns;
    }
    peer->collectives = slot.collectives.load();
    if (!slowest || peer->place() < slowest->place()) slowest = peer.get();
  }
  if (!slowest || slowest->step < 0) return;
  const double still_s = static_cast<double>(now_ns - slowest->progress_ns) / second_ns;
  const double deadline_s = std::max(options_.late_s, slowest->pace.deadline_s());
  auto& slot = board_->slot(slowest->local_rank);
  if (options_.stop_s > 0 && still_s > options_.stop_s) {
    end_job(slot, fmt::format("made no progress for {} (watchdog.stop)", human_seconds(still_s)));
  }
  if (still_s > deadline_s && !slowest->warned) {
    slowest->warned = true;
    const int speaker = slowest->local_rank == 0 && board_->ranks() > 1 ? 1 : 0;
    if (local_rank_ == speaker) {
      log::warn("rank {} (process {}) made no progress for {}; its last operation: {} (the job goes on{})",
                slot.rank.load(), slot.pid.load(), human_seconds(still_s), slot.last_operation(),
                options_.stop_s > 0 ? ", and is stopped after " + human_seconds(options_.stop_s) : "");
    }
  }
}

void Watchdog::end_job(BoardSlot& culprit, const std::string& what) {
  const auto message = fmt::format("rank {} (process {}) {}; its last operation: {}", culprit.rank.load(),
                                   culprit.pid.load(), what, culprit.last_operation());
  end_job(culprit.rank.load(), message);
}

void Watchdog::end_job(int rank, const std::string& message) {
  if (board_->claim_fault(rank, 1, message)) log::error("{}. The job ends{}", message, options_.advice);
  follow();
}

void Watchdog::follow() {
  if (options_.before_exit) options_.before_exit();
  board_->slot(local_rank_).state.store(RankState::failed);
  // The compute thread may be inside a collective that will never end: leave without it.
  _exit(board_->fault_exit_status());
}

}  // namespace trireme
