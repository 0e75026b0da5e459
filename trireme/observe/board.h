// The board: one small file in shared memory for each job and host, on which every rank writes its pid, its heartbeat
// and the operation it is in. It lives outside the ranks, so that when one is killed the others, and the launcher, can
// still say what it was doing.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

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
  // Makes the file, with a slot for each of the host's ranks.
  static std::shared_ptr<Board> create(const std::filesystem::path& path, int ranks);
  static std::shared_ptr<Board> open(const std::filesystem::path& path);
  // A board for ranks that are threads of this process.
  static std::shared_ptr<Board> in_memory(int ranks);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int ranks() const;
  bool maker_lives() const;  // false for what a job that was killed left behind
  BoardSlot& slot(int local_rank);
  const std::filesystem::path& path() const { return path_; }

  // The first to report a fault speaks for the job; true for that one. Later reports are consequences.
  bool claim_fault(int rank, int exit_status, const std::string& message);
  bool faulted() const;
  int fault_exit_status() const;
  std::string fault_message() const;

  // A user's wish to stop (the signal's number), seen by every rank.
  void request_stop(int signal);
  int stop_requested() const;

 private:
  struct Header;
  Board() = default;
  void map(int descriptor, size_t bytes);

  std::filesystem::path path_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  bool heap_ = false;
  Header* header_ = nullptr;
  BoardSlot* slots_ = nullptr;
};

// Where boards lie, and a name for a new one that no other job has.
std::filesystem::path board_path(const std::string& job);

// Removes boards whose owner is gone (a launcher that was killed).
void sweep_boards();

// Removes a board's name, and what the ranks of its job had begun to share under it.
void remove_board(const std::filesystem::path& path);

int64_t monotonic_ns();

}  // namespace trireme
