// A wire between ranks that are threads of one process: the receiver copies from where the sender's data lies. It
// counts what was sent, so that tests can hold algorithms to their formulas.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/comm/wire.h"

namespace trireme {

class ThreadWires {
 public:
  explicit ThreadWires(int size) : size_(size), ways_(static_cast<size_t>(size) * size), sent_(size) {}

  std::unique_ptr<Wire> wire(int rank);
  int64_t sent_bytes(int rank) const { return sent_[static_cast<size_t>(rank)].bytes; }
  int64_t sent_messages(int rank) const { return sent_[static_cast<size_t>(rank)].messages; }

  // Whoever waits is told that it is in vain.
  void abort();

 private:
  friend class ThreadWire;
  struct Message {
    const void* data;
    int64_t bytes;
    bool* done;
  };
  struct Sent {
    int64_t bytes = 0, messages = 0;
  };
  std::deque<Message>& way(int from, int to) { return ways_[static_cast<size_t>(from * size_ + to)]; }

  const int size_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::deque<Message>> ways_;
  std::vector<Sent> sent_;
  bool aborted_ = false;
};

}  // namespace trireme
