#include "trireme/observe/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <protozero/pbf_builder.hpp>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using protozero::pbf_builder;
using protozero::pbf_tag_type;

// The fields we write of protos/perfetto/trace/perfetto_trace.proto.
enum class TraceFile : pbf_tag_type { packet = 1 };
enum class Packet : pbf_tag_type { timestamp = 8, sequence = 10, event = 11, sequence_flags = 13, track = 60 };
enum class Track : pbf_tag_type { uuid = 1, name = 2, process = 3, parent = 5, order = 12, process_ordering = 19 };
enum class Process : pbf_tag_type { pid = 1, name = 6 };
enum class Event : pbf_tag_type {
  annotation = 4,
  type = 9,
  track = 11,
  category = 22,
  name = 23,
  flow = 47,
  last_of_flow = 48
};
enum class Annotation : pbf_tag_type { int_value = 4, string_value = 6, name = 10 };
constexpr uint32_t incremental_state_cleared = 1;
constexpr int32_t processes_in_given_order = 1;
constexpr int32_t slice_begin = 1, slice_end = 2;

const char* word(TraceTrack track) {
  switch (track) {
    case TraceTrack::compute: return "compute";
    case TraceTrack::communication: return "communication";
    case TraceTrack::waiting: return "waiting";
    case TraceTrack::card: return "card: compute";
    case TraceTrack::copies: return "card: copies";
    case TraceTrack::arrivals: return "arrivals";
  }
  return "?";
}

// A row of spans of which any two are nested or apart. Perfetto cuts spans of a track that merely overlap, and shows
// tracks of one name as one: a track that has such spans becomes several lanes.
struct Lane {
  TraceTrack track;
  std::vector<const TraceSpan*> open;  // innermost last
};

struct Edge {
  int64_t time_ns;
  const TraceSpan* span;
  size_t lane;
  bool begins;
};

struct Layout {
  std::vector<Lane> lanes;
  std::vector<Edge> edges;  // by time, and within a lane so that every end meets the innermost open begin
};

// Spans come by begin, the longer first, so that a span fits where it ends within the innermost span still open.
Layout lay_out(const std::vector<TraceSpan>& spans) {
  Layout layout;
  const auto close = [&](size_t lane, int64_t until_ns) {
    auto& open = layout.lanes[lane].open;
    for (; !open.empty() && open.back()->end_ns <= until_ns; open.pop_back()) {
      layout.edges.push_back({open.back()->end_ns, open.back(), lane, false});
    }
  };
  for (const auto& span : spans) {
    size_t lane = 0;
    for (; lane < layout.lanes.size(); ++lane) {
      if (layout.lanes[lane].track != span.track) continue;
      close(lane, span.begin_ns);
      const auto& open = layout.lanes[lane].open;
      if (open.empty() || span.end_ns <= open.back()->end_ns) break;
    }
    if (lane == layout.lanes.size()) layout.lanes.push_back({span.track, {}});
    layout.lanes[lane].open.push_back(&span);
    layout.edges.push_back({span.begin_ns, &span, lane, true});
  }
  for (size_t lane = 0; lane < layout.lanes.size(); ++lane) close(lane, INT64_MAX);
  // Within a lane the edges are in order already; a stable sort keeps it where times are equal.
  std::stable_sort(layout.edges.begin(), layout.edges.end(),
                   [](const Edge& a, const Edge& b) { return a.time_ns < b.time_ns; });
  return layout;
}

class Packets {
 public:
  explicit Packets(int rank) : first_uuid_((static_cast<uint64_t>(rank) + 1) << 32), rank_(rank) {}

  void add_process(const std::string& name) {
    // Every rank says it of the whole trace: processes are shown in the order of their ranks.
    add([](auto& packet) {
      packet.add_uint32(Packet::sequence_flags, incremental_state_cleared);
      pbf_builder<Track> track(packet, Packet::track);
      track.add_uint64(Track::uuid, 0);
      track.add_enum(Track::process_ordering, processes_in_given_order);
    });
    add([&](auto& packet) {
      pbf_builder<Track> track(packet, Packet::track);
      track.add_uint64(Track::uuid, first_uuid_);
      track.add_int32(Track::order, rank_);
      pbf_builder<Process> process(track, Track::process);
      process.add_int32(Process::pid, rank_ + 1);  // hosts may give two ranks one pid, and 0 is the idle process
      process.add_string(Process::name, name);
    });
  }

  void add_lane(size_t lane, TraceTrack kind) {
    add([&](auto& packet) {
      pbf_builder<Track> track(packet, Packet::track);
      track.add_uint64(Track::uuid, uuid(lane));
      track.add_uint64(Track::parent, first_uuid_);
      track.add_string(Track::name, word(kind));
    });
  }

  void add_edge(const Edge& edge, int64_t clock_offset_ns) {
    add([&](auto& packet) {
      packet.add_uint64(Packet::timestamp, static_cast<uint64_t>(edge.time_ns + clock_offset_ns));
      pbf_builder<Event> event(packet, Packet::event);
      event.add_enum(Event::type, edge.begins ? slice_begin : slice_end);
      event.add_uint64(Event::track, uuid(edge.lane));
      const TraceSpan& span = *edge.span;
      // Perfetto forgets an arrow that comes before it leaves. A span may begin to wait for a message before that is
      // sent, but cannot end before.
      if (!edge.begins) {
        if (span.arrow_in) event.add_fixed64(Event::last_of_flow, span.arrow_in);
        return;
      }
      if (span.arrow_out) event.add_fixed64(Event::flow, span.arrow_out);
      event.add_string(Event::category, word(span.track));
      event.add_string(Event::name, span.index < 0 ? span.name.text : fmt::format("{} {}", span.name.text, span.index));
      annotate(event, "step", span.step);
      annotate(event, "index", span.index);
      if (span.way.text[0] != '\0') {
        pbf_builder<Annotation> annotation(event, Event::annotation);
        annotation.add_string(Annotation::name, "way");
        annotation.add_string(Annotation::string_value, span.way.text);
      }
    });
  }

  std::string take() { return std::move(data_); }

 private:
  template <class Fill>
  void add(Fill fill) {
    pbf_builder<TraceFile> file(data_);
    pbf_builder<Packet> packet(file, TraceFile::packet);
    packet.add_uint32(Packet::sequence, static_cast<uint32_t>(rank_) + 1);
    fill(packet);
  }

  static void annotate(pbf_builder<Event>& event, const char* name, int64_t value) {
    if (value < 0) return;
    pbf_builder<Annotation> annotation(event, Event::annotation);
    annotation.add_string(Annotation::name, name);
    annotation.add_int64(Annotation::int_value, value);
  }

  uint64_t uuid(size_t lane) const { return first_uuid_ + 1 + lane; }

  std::string data_;
  uint64_t first_uuid_;  // the process's; those of its lanes follow
  int rank_;
};

}  // namespace

std::string encode_trace(const std::vector<TraceSpan>& spans, int rank, const std::string& process_name,
                         int64_t clock_offset_ns) {
  const Layout layout = lay_out(spans);
  Packets packets(rank);
  packets.add_process(process_name);
  for (size_t lane = 0; lane < layout.lanes.size(); ++lane) packets.add_lane(lane, layout.lanes[lane].track);
  for (const Edge& edge : layout.edges) packets.add_edge(edge, clock_offset_ns);
  return packets.take();
}

bool trace_built() { return true; }

}  // namespace trireme
