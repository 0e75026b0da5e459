// The memory that the ranks of one host share, whether they are processes or threads of one: a lane for each rank, on
// which it shows what it calls and where its buffers lie. Collectives (shared_transport) and messages (shared_mail) are
// built on it. Nothing outside these includes this file.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <climits>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/segment.h"
#include "trireme/comm/call.h"

namespace trireme {

constexpr int64_t staging_bytes = 256 << 10;  // per exhibit

// Where a rank's buffer lies: an address that peers understand.
struct Place {
  int64_t segment = -1;  // 0: `offset` is an address of this process; n: in the n-th allocation; -1: an address of the
  uint64_t offset = 0;   // process that shows it, from which only the kernel can copy
  int64_t bytes = 0;     // which lie there; nobody reads or writes beyond
};

// What a rank shows its peers for one call. There are two, used in turn: every call has at least one meeting of all
// ranks, so who writes one again knows that everybody has been to the call after the one that used it last.
struct Exhibit {
  Call call;
  Place place;
  int64_t words[1024];  // where parts begin; names of segments that ranks have made for each other
  alignas(64) std::byte staging[staging_bytes];
};

// One rank's lines in the group's memory. `arrived` counts the points at which the rank met the others.
struct alignas(128) Lane {
  std::atomic<uint32_t> arrived{0};
  std::atomic<uint32_t> sleepers{0};
  std::atomic<uint32_t> left{0};            // it will arrive nowhere any more
  std::atomic<int64_t> process{0};          // its number,
  std::atomic<uint64_t> probe{0}, word{0};  // and the address of a random word there, and that word
  std::atomic<int64_t> given{0};            // a number that goes with a call: bytes allocated (-1: could not), a color
  alignas(128) std::atomic<uint32_t> bell{
      0};                              // rung when a message for this rank was put down, or one of its own taken
  std::atomic<uint32_t> listening{0};  // it sleeps until the bell rings
  Exhibit exhibits[2];
};

inline void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_ns) {
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

class SharedGroup {
 public:
  struct Header {
    std::atomic<uint32_t> aborted{0};
    std::atomic<uint32_t> present{0};
  };
  static size_t bytes_for(int size) { return 128 + sizeof(Lane) * static_cast<size_t>(size); }

  // Of `threads` of this process, or of processes.
  SharedGroup(Segment memory, int size, bool threads, std::shared_ptr<SharedGroup> parent = nullptr)
      : size(size), parent(std::move(parent)), threads_(threads), memory_(std::move(memory)) {}

  Header& header() { return *reinterpret_cast<Header*>(memory_.data()); }
  Lane& lane(int rank) { return reinterpret_cast<Lane*>(memory_.data() + 128)[rank]; }
  bool threads() const { return threads_; }
  const SegmentName& name() const { return memory_.name(); }
  void hide() { memory_.hide(); }  // once all have mapped it

  // Fails unless this is the number of that rank's process: what it shows beside that holds in its process alone.
  void check_process(int rank, int64_t process) const {
    const pid_t expected = threads_ ? getpid() : processes[static_cast<size_t>(rank)];
    if (process != expected)
      fail("rank {} shows memory of process {}, but is process {}: its memory may be faulty", rank, process, expected);
  }

  bool aborted() { return header().aborted.load() || (parent && parent->aborted()); }
  void abort() {
    header().aborted.store(1);
    for (int i = 0; i < size; ++i) {
      futex_wake_all(lane(i).arrived);
      ring(i);
    }
  }

  void ring(int rank) {
    lane(rank).bell.fetch_add(1, std::memory_order_seq_cst);
    if (lane(rank).listening.load(std::memory_order_seq_cst) != 0) futex_wake_all(lane(rank).bell);
  }

  // A call failed while peers may still be at work on this tensor where it lies: it stays until they are all gone.
  void keep(const at::Tensor& tensor) {
    std::lock_guard lock(mutex_);
    kept_.push_back(tensor);
  }

  // Ranks that are threads find here what one of them made for all, by a name: files do this for processes.
  template <class T>
  std::shared_ptr<T> common(const std::string& name, const std::function<std::shared_ptr<T>()>& make) {
    std::lock_guard lock(mutex_);
    auto& entry = common_[name];
    auto found = entry.lock();
    if (!found) entry = found = make();
    return std::static_pointer_cast<T>(found);
  }

  const int size;
  const std::shared_ptr<SharedGroup> parent;
  // Of processes: their numbers, as they were when the ranks met. Lanes may change, by a fault; these do not.
  std::vector<pid_t> processes;

 private:
  const bool threads_;
  Segment memory_;
  std::mutex mutex_;
  std::vector<at::Tensor> kept_;
  std::map<std::string, std::weak_ptr<void>> common_;
};

}  // namespace trireme
