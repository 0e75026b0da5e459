// A wire between ranks that are threads of one process: the receiver copies from where the sender's data lies. It
// counts what was sent, so that algorithms can be held to their formulas, and notices when all ranks wait in a circle.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/wire.h"

namespace trireme {

class ThreadWires {
 public:
  explicit ThreadWires(int size)
      : size_(size), ways_(static_cast<size_t>(size) * size), sent_(size), idle_(static_cast<size_t>(size)) {}

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
  enum class Idle : uint8_t { no, waits, ended };
  // Something has changed: whoever waits looks again.
  void wake() {
    for (auto& idle : idle_) idle = idle == Idle::waits ? Idle::no : idle;
    changed_.notify_all();
  }
  std::deque<Message>& way(int from, int to) { return ways_[static_cast<size_t>(from * size_ + to)]; }

  const int size_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::deque<Message>> ways_;
  std::vector<Sent> sent_;
  std::vector<Idle> idle_;  // by rank
  bool aborted_ = false;
};

class ThreadWire final : public Wire {
 public:
  ThreadWire(ThreadWires& wires, int rank) : wires_(wires), rank_(rank) {}
  ~ThreadWire() override {
    std::lock_guard lock(wires_.mutex_);
    idle() = ThreadWires::Idle::ended;
    wires_.wake();
  }

  int rank() const override { return rank_; }
  int size() const override { return wires_.size_; }

  Posted send(int to, const void* data, int64_t bytes) override {
    std::lock_guard lock(wires_.mutex_);
    auto& entry = posted_[++last_];
    wires_.way(rank_, to).push_back({data, bytes, &entry.done});
    auto& sent = wires_.sent_[static_cast<size_t>(rank_)];
    sent.bytes += bytes;
    ++sent.messages;
    wires_.wake();
    return last_;
  }

  Posted receive(int from, void* data, int64_t bytes) override {
    std::lock_guard lock(wires_.mutex_);
    auto& entry = posted_[++last_];
    entry.from = from;
    entry.data = data;
    entry.bytes = bytes;
    return last_;
  }

  void finish(Posted posted) override {
    std::unique_lock lock(wires_.mutex_);
    const auto entry = posted_.find(posted);
    if (entry == posted_.end()) fail("a message was finished twice");
    while (!entry->second.done) {
      if (wires_.aborted_) fail("another rank ended while this one waited for its message");
      if (take_in()) continue;
      idle() = ThreadWires::Idle::waits;
      if (std::count(wires_.idle_.begin(), wires_.idle_.end(), ThreadWires::Idle::no) == 0)
        fail("every rank waits for a message that none of them will send");
      wires_.changed_.wait(lock);
    }
    posted_.erase(entry);
  }

 private:
  struct Entry {
    int from = -1;  // of a receive
    void* data = nullptr;
    int64_t bytes = 0;
    bool done = false;
  };

  ThreadWires::Idle& idle() { return wires_.idle_[static_cast<size_t>(rank_)]; }

  // Whatever has come for any receive, in the order in which they were posted.
  bool take_in() {
    bool any = false;
    for (auto& [number, entry] : posted_) {
      if (entry.done || entry.from < 0) continue;
      auto& way = wires_.way(entry.from, rank_);
      if (way.empty() || earlier_waits(number, entry.from)) continue;
      const auto message = way.front();
      way.pop_front();
      if (message.bytes != entry.bytes)
        fail("a message of {} bytes came where {} were due", message.bytes, entry.bytes);
      if (message.bytes > 0) std::memcpy(entry.data, message.data, static_cast<size_t>(message.bytes));
      *message.done = entry.done = true;
      any = true;
      wires_.wake();
    }
    return any;
  }

  bool earlier_waits(Posted number, int from) const {
    for (const auto& [other, entry] : posted_) {
      if (other == number) return false;
      if (entry.from == from && !entry.done) return true;
    }
    return false;
  }

  ThreadWires& wires_;
  const int rank_;
  std::map<Posted, Entry> posted_;
  Posted last_ = 0;
};

inline std::unique_ptr<Wire> ThreadWires::wire(int rank) { return std::make_unique<ThreadWire>(*this, rank); }

inline void ThreadWires::abort() {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

// Each rank a thread; throws what the first of them threw, not what the others threw in consequence.
inline void on_ranks(ThreadWires& wires, int ranks, const std::function<void(Wire&)>& body) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr first_error;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*wires.wire(rank));
      } catch (...) {
        {
          std::lock_guard lock(mutex);
          if (!first_error) first_error = std::current_exception();
        }
        wires.abort();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace trireme
