// The board: one small segment of shared memory for each job and host, on which every rank writes its pid, its
// heartbeat and the operation it is in. It lives outside the ranks, so that when one is killed the others, and the
// launcher, can still say what it was doing. Numbers that stand on it are checked where they are used: a rank whose
// memory is faulty, or whose program is another version, must not make the others index memory or kill processes by
// what it wrote.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "trireme/base/segment.h"

namespace trireme {

enum class RankState : uint32_t { absent, running, finished, failed };

// What a thread of a rank is doing: a few words and two numbers, written in nanoseconds, read only after trouble.
struct OperationRecord {
  std::atomic<uint32_t> version{0};  // odd while being written
  char what[44] = {};
  int64_t step = -1;
  int64_t index = -1;

  void write(const char* what, int64_t step, int64_t index);
  std::string read() const;  // "reduce 3 (step 17)", "" when nothing was written
};

// One rank's lines on the board, apart from its neighbours' cache lines.
struct alignas(128) BoardSlot {
  std::atomic<int32_t> rank{-1};  // in the whole job; slots are numbered by host
  std::atomic<int32_t> pid{0};
  std::atomic<RankState> state{RankState::absent};
  std::atomic<int64_t> beat_ns{0};    // monotonic clock at the last heartbeat
  std::atomic<uint64_t> progress{0};  // operations begun since the start
  std::atomic<uint64_t> alive{0};     // signs of life inside one long operation
  std::atomic<int64_t> step{-1};
  std::atomic<uint64_t> collectives{0};  // begun in this step
  OperationRecord compute;
  OperationRecord communication;

  std::string last_operation() const;
};

class Board {
 public:
  // Makes one with a slot for each of the host's ranks. `job`: a number by which they find it (`find`), where the
  // launcher cannot tell them its name.
  static std::shared_ptr<Board> create(int ranks, uint64_t job = 0);
  static std::shared_ptr<Board> open(const SegmentName& name);
  // This user's board of that job and so many ranks, if its maker lives; null where there is none yet.
  static std::shared_ptr<Board> find(uint64_t job, int ranks);
  // A board for ranks that are threads of this process.
  static std::shared_ptr<Board> in_memory(int ranks);
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int ranks() const { return ranks_; }
  BoardSlot& slot(int local_rank) { return slots_[local_rank]; }
  const SegmentName& name() const { return memory_.name(); }
  void hide() { memory_.hide(); }  // once every rank has opened it

  // The name of the segment in which the ranks meet, from the first of them to the others; not set until it is there.
  void announce(const SegmentName& meeting);
  SegmentName announced() const;

  // The first to report a fault speaks for the job; true for that one. Later reports are consequences.
  bool claim_fault(int rank, int exit_status, const std::string& message);
  bool faulted() const;
  int fault_exit_status() const;
  std::string fault_message() const;

  // Where the run's log lies, from the first rank to the launcher; empty until then.
  void announce_log(const std::string& path);
  std::string announced_log() const;

  // A user's wish to stop (the signal's number), seen by every rank.
  void request_stop(int signal);
  int stop_requested() const;

 private:
  struct Header;
  Board() = default;
  static std::shared_ptr<Board> over(Segment memory);
  static size_t bytes_for(int ranks);

  Segment memory_;
  Header* header_ = nullptr;
  BoardSlot* slots_ = nullptr;
  int ranks_ = 0;  // as it was when the board was opened, and its size was that of so many slots
};

// The number of this process's namespace of a kind ("pid", "net"); 0 where the system does not say.
uint64_t own_namespace(const char* kind);

int64_t monotonic_ns();

}  // namespace trireme
