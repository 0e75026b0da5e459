#include <algorithm>

#include "trireme/observe/trace.h"

namespace trireme {

std::vector<TraceSpan> Trace::spans() const {
  std::vector<TraceSpan> spans;
  const size_t places = std::min(added_.load(std::memory_order_relaxed), capacity_);
  spans.reserve(places);
  for (size_t place = 0; place < places; ++place) {
    if (!slots_[place].written.load(std::memory_order_acquire)) continue;
    spans.push_back(slots_[place].span);
    spans.back().end_ns = std::max(spans.back().end_ns, spans.back().begin_ns);
  }
  std::stable_sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  return spans;
}

}  // namespace trireme
