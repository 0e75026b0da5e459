// What a rank did and when: spans of computing, communicating and waiting, kept in memory while they are recorded and
// then encoded as a Perfetto trace, which ui.perfetto.dev opens. Arrows join the span that sends a message to the span
// that the message makes ready, on whichever rank that is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/random.h"

namespace trireme {

// Where there is a card, compute, communication and waiting say what the host did, card and copies what the card did.
// Arrivals are moments: a message was there, or a sum over ranks, and what waited for it could go on.
enum class TraceTrack : uint8_t { compute, communication, waiting, card, copies, arrivals };

// Kept in place, because a span outlives what it speaks of; cut if longer.
struct TraceName {
  TraceName(const char* name = "") { std::memcpy(text, name, strnlen(name, sizeof text - 1)); }
  char text[32] = {};
};

struct TraceSpan {
  TraceTrack track = TraceTrack::compute;
  TraceName name;
  int64_t index = -1;  // of the microbatch or bucket, -1: none
  int32_t chunk = 0;   // of a pass: which of the rank's parts of the model
  int64_t step = -1;
  int64_t begin_ns = 0, end_ns = 0;  // monotonic_ns() of this host
  // The arrow that leaves this span and the one that comes to it, 0: none. Perfetto lets an arrow point at the span
  // that begins later: it should come to the task that the message makes ready, not to the wait for the message.
  uint64_t arrow_out = 0, arrow_in = 0;
  TraceName way;  // by which a collective went, where there are several
};
static_assert(std::is_trivially_copyable_v<TraceSpan>);

// An id that sender and receiver of one message compute alike, never 0.
constexpr uint64_t arrow_id(int from, int to, int64_t step, int32_t kind, int32_t microbatch) {
  const Key key = Key{}.with("arrow").with(from).with(to).with(step).with(kind).with(microbatch);
  return key.value ? key.value : 1;
}

class Trace {
 public:
  // All memory is taken here, so that recording never changes what it measures by allocating.
  explicit Trace(size_t capacity) : capacity_(capacity), slots_(std::make_unique<Slot[]>(capacity)) {}

  // From any thread, without a lock. When the trace is full, spans are left out and counted.
  void add(const TraceSpan& span) {
    const size_t place = added_.fetch_add(1, std::memory_order_relaxed);
    if (place >= capacity_) return;
    slots_[place].span = span;
    slots_[place].written.store(true, std::memory_order_release);
  }

  int64_t dropped() const {
    const size_t added = added_.load(std::memory_order_relaxed);
    return added > capacity_ ? static_cast<int64_t>(added - capacity_) : 0;
  }

  // What was added so far, in order of time. Spans may be added meanwhile; those that are not yet whole are left out.
  std::vector<TraceSpan> spans() const;

 private:
  struct Slot {
    TraceSpan span;
    std::atomic<bool> written{false};
  };

  const size_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<size_t> added_{0};  // those left out too
};

// One rank's tracks as Perfetto's packets. Adding clock_offset_ns to its host's clock gives one that all ranks share.
// The ranks' traces make one when they are written one after another. `spans` are in order of time.
std::string encode_trace(const std::vector<TraceSpan>& spans, int rank, const std::string& process_name,
                         int64_t clock_offset_ns);

// False when this program was built without protozero: encode_trace() then fails, and says what to install.
bool trace_built();

}  // namespace trireme
