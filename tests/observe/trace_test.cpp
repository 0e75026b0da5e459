// Traces against a decoder that is as strict as Perfetto is lenient: every slice must be whole, every track described.
// trace_reader.py reads them with Perfetto's own schema.
#include "trireme/observe/trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <protozero/pbf_reader.hpp>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

namespace trireme {
namespace {

using protozero::pbf_reader;
using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAreArray;

struct Slice {
  std::string name;
  std::string category;
  int64_t begin_ns = 0;
  int64_t end_ns = -1;
  size_t depth = 0;
  std::map<std::string, int64_t> annotations;
  std::vector<uint64_t> flows, last_of_flows;
};

struct Track {
  std::string name;
  uint64_t parent = 0;
  int32_t pid = 0;
  int32_t order = 0;
  std::string process_name;
  bool orders_processes = false;
  std::vector<Slice> slices;  // in the order of their begins
  std::vector<size_t> open;   // innermost last
};

struct Decoded {
  std::map<uint64_t, Track> tracks;  // by uuid
  std::set<uint32_t> sequences;
  std::vector<int64_t> timestamps;

  // The tracks of this name; of one process when there are several.
  std::vector<Track> named(const std::string& name, uint64_t parent = 0) const {
    std::vector<Track> found;
    for (const auto& [uuid, track] : tracks) {
      if (track.name == name && (parent == 0 || track.parent == parent)) found.push_back(track);
    }
    return found;
  }

  std::vector<uint64_t> processes() const {
    std::vector<uint64_t> found;
    for (const auto& [uuid, track] : tracks) {
      if (!track.process_name.empty()) found.push_back(uuid);
    }
    return found;
  }

  std::vector<Slice> slices() const {
    std::vector<Slice> all;
    for (const auto& [uuid, track] : tracks) all.insert(all.end(), track.slices.begin(), track.slices.end());
    return all;
  }
};

void decode_track(pbf_reader message, Decoded& decoded) {
  std::optional<uint64_t> uuid;
  Track track;
  while (message.next()) {
    switch (message.tag()) {
      case 1: uuid = message.get_uint64(); break;
      case 2: track.name = message.get_string(); break;
      case 3: {
        auto process = message.get_message();
        while (process.next()) {
          switch (process.tag()) {
            case 1: track.pid = process.get_int32(); break;
            case 6: track.process_name = process.get_string(); break;
            default: FAIL() << "field " << process.tag() << " of a process";
          }
        }
        break;
      }
      case 5: track.parent = message.get_uint64(); break;
      case 12: track.order = message.get_int32(); break;
      case 19: track.orders_processes = message.get_enum() == 1; break;
      default: FAIL() << "field " << message.tag() << " of a track";
    }
  }
  ASSERT_TRUE(uuid.has_value());
  const bool is_new = decoded.tracks.emplace(*uuid, track).second;
  EXPECT_TRUE(is_new || *uuid == 0) << "two tracks have the uuid " << *uuid;
}

void decode_annotation(pbf_reader message, Slice& slice) {
  std::string name;
  int64_t value = -1;
  while (message.next()) {
    switch (message.tag()) {
      case 4: value = message.get_int64(); break;
      case 10: name = message.get_string(); break;
      default: FAIL() << "field " << message.tag() << " of an annotation";
    }
  }
  slice.annotations[name] = value;
}

void decode_event(pbf_reader message, int64_t time_ns, Decoded& decoded) {
  int type = 0;
  uint64_t uuid = 0;
  Slice slice;
  slice.begin_ns = time_ns;
  while (message.next()) {
    switch (message.tag()) {
      case 4: decode_annotation(message.get_message(), slice); break;
      case 9: type = message.get_enum(); break;
      case 11: uuid = message.get_uint64(); break;
      case 22: slice.category = message.get_string(); break;
      case 23: slice.name = message.get_string(); break;
      case 47: slice.flows.push_back(message.get_fixed64()); break;
      case 48: slice.last_of_flows.push_back(message.get_fixed64()); break;
      default: FAIL() << "field " << message.tag() << " of an event";
    }
  }
  ASSERT_TRUE(decoded.tracks.contains(uuid)) << "an event on a track that is not described before it";
  Track& track = decoded.tracks[uuid];
  if (type == 1) {
    slice.depth = track.open.size();
    track.open.push_back(track.slices.size());
    track.slices.push_back(slice);
    return;
  }
  ASSERT_EQ(type, 2);
  ASSERT_FALSE(track.open.empty()) << "an end without a begin";
  Slice& ended = track.slices[track.open.back()];
  track.open.pop_back();
  ended.end_ns = time_ns;
  ended.last_of_flows = slice.last_of_flows;
}

Decoded decode(const std::string& data) {
  Decoded decoded;
  pbf_reader file(data);
  std::map<uint32_t, int64_t> latest_ns;  // by sequence
  while (file.next(1)) {
    auto packet = file.get_message();
    uint32_t sequence = 0, flags = 0;
    int64_t time_ns = -1;
    while (packet.next()) {
      switch (packet.tag()) {
        case 8: time_ns = static_cast<int64_t>(packet.get_uint64()); break;
        case 10: sequence = packet.get_uint32(); break;
        case 11: decode_event(packet.get_message(), time_ns, decoded); break;
        case 13: flags = packet.get_uint32(); break;
        case 60: decode_track(packet.get_message(), decoded); break;
        default: ADD_FAILURE() << "field " << packet.tag() << " of a packet";
      }
    }
    EXPECT_NE(sequence, 0u);
    const bool first = decoded.sequences.insert(sequence).second;
    EXPECT_EQ(flags, first ? 1u : 0u);  // SEQ_INCREMENTAL_STATE_CLEARED, where a sequence starts
    if (time_ns < 0) continue;
    EXPECT_GE(time_ns, latest_ns[sequence]);
    latest_ns[sequence] = time_ns;
    decoded.timestamps.push_back(time_ns);
  }
  for (const auto& [uuid, track] : decoded.tracks) EXPECT_THAT(track.open, IsEmpty()) << track.name << " has no end";
  return decoded;
}

Decoded decode(const Trace& trace) { return decode(encode_trace(trace.spans(), 0, "rank 0", 0)); }

TraceSpan span(const char* name, int64_t begin_ns, int64_t end_ns, TraceTrack track = TraceTrack::compute) {
  return {.track = track, .name = name, .begin_ns = begin_ns, .end_ns = end_ns};
}

auto is_slice(const std::string& name, int64_t begin_ns, int64_t end_ns, size_t depth) {
  return AllOf(Field("name", &Slice::name, name), Field("begin_ns", &Slice::begin_ns, begin_ns),
               Field("end_ns", &Slice::end_ns, end_ns), Field("depth", &Slice::depth, depth));
}

TEST(Trace, EveryKindHasATrackOfTheRanksProcess) {
  Trace trace(8);
  trace.add(span("forward", 10, 20));
  trace.add(span("reduce", 15, 30, TraceTrack::communication));
  trace.add(span("wait", 20, 30, TraceTrack::waiting));
  const auto decoded = decode(encode_trace(trace.spans(), 2, "rank 2 (stage 1, replica 0)", 0));

  ASSERT_THAT(decoded.processes(), SizeIs(1));
  const uint64_t process = decoded.processes()[0];
  EXPECT_EQ(decoded.tracks.at(process).process_name, "rank 2 (stage 1, replica 0)");
  EXPECT_EQ(decoded.tracks.at(process).pid, 3);
  EXPECT_EQ(decoded.tracks.at(process).order, 2);
  EXPECT_TRUE(decoded.tracks.at(0).orders_processes);
  EXPECT_THAT(decoded.tracks, SizeIs(5));  // the whole trace, the process, and these:
  const std::map<std::string, std::string> slices{
      {"compute", "forward"}, {"communication", "reduce"}, {"waiting", "wait"}};
  for (const auto& [name, slice] : slices) {
    const auto tracks = decoded.named(name, process);
    ASSERT_THAT(tracks, SizeIs(1)) << name;
    ASSERT_THAT(tracks[0].slices, SizeIs(1)) << name;
    EXPECT_EQ(tracks[0].slices[0].name, slice);
    EXPECT_EQ(tracks[0].slices[0].category, name);
  }
}

TEST(Trace, ASliceSaysItsIndexAndStep) {
  Trace trace(8);
  trace.add({.name = "forward", .index = 3, .step = 17, .begin_ns = 10, .end_ns = 20});
  trace.add({.name = "norm", .step = 0, .begin_ns = 20, .end_ns = 30});
  trace.add({.name = "save", .begin_ns = 30, .end_ns = 40});
  const auto slices = decode(trace).slices();
  ASSERT_THAT(slices,
              ElementsAre(is_slice("forward 3", 10, 20, 0), is_slice("norm", 20, 30, 0), is_slice("save", 30, 40, 0)));
  EXPECT_THAT(slices[0].annotations, ElementsAre(Pair("index", 3), Pair("step", 17)));
  EXPECT_THAT(slices[1].annotations, ElementsAre(Pair("step", 0)));
  EXPECT_THAT(slices[2].annotations, IsEmpty());
}

TEST(Trace, LongNamesAreCut) {
  Trace trace(2);
  trace.add(span(std::string(100, 'x').c_str(), 10, 20));
  trace.add(span(std::string(31, 'y').c_str(), 30, 40));
  EXPECT_THAT(decode(trace).slices(),
              ElementsAre(is_slice(std::string(31, 'x'), 10, 20, 0), is_slice(std::string(31, 'y'), 30, 40, 0)));
}

TEST(Trace, SpansNestWhicheverIsAddedFirst) {
  Trace trace(8);
  // As they end: the inner before the outer. They share begins and ends.
  trace.add(span("first layer", 10, 20));
  trace.add(span("last layer", 30, 40));
  trace.add(span("forward", 10, 40));
  trace.add(span("step", 0, 40));
  const auto decoded = decode(trace);
  ASSERT_THAT(decoded.named("compute"), SizeIs(1));
  EXPECT_THAT(decoded.named("compute")[0].slices,
              ElementsAre(is_slice("step", 0, 40, 0), is_slice("forward", 10, 40, 1),
                          is_slice("first layer", 10, 20, 2), is_slice("last layer", 30, 40, 2)));
}

TEST(Trace, AtOneTimeEndsComeBeforeBegins) {
  Trace trace(8);
  trace.add(span("b", 20, 30));
  trace.add(span("a", 10, 20));
  trace.add(span("inner", 15, 20));
  const auto decoded = decode(trace);
  ASSERT_THAT(decoded.named("compute"), SizeIs(1));
  EXPECT_THAT(decoded.named("compute")[0].slices,
              ElementsAre(is_slice("a", 10, 20, 0), is_slice("inner", 15, 20, 1), is_slice("b", 20, 30, 0)));
}

TEST(Trace, ASpanWithoutLengthIsWhole) {
  Trace trace(8);
  trace.add(span("before", 0, 10));
  trace.add(span("decide", 10, 10));
  trace.add(span("again", 10, 10));
  trace.add(span("backwards", 25, 24));  // clocks of two devices may disagree
  const auto decoded = decode(trace);
  ASSERT_THAT(decoded.named("compute"), SizeIs(1));
  EXPECT_THAT(decoded.named("compute")[0].slices,
              ElementsAre(is_slice("before", 0, 10, 0), is_slice("decide", 10, 10, 0), is_slice("again", 10, 10, 0),
                          is_slice("backwards", 25, 25, 0)));
}

TEST(Trace, SpansThatOverlapGoToTracksOfTheSameName) {
  Trace trace(8);
  for (const auto& [name, begin_ns, end_ns] : std::vector<std::tuple<const char*, int64_t, int64_t>>{
           {"reduce", 0, 20}, {"send", 10, 30}, {"wire", 12, 28}, {"receive", 15, 40}, {"norm", 20, 50}}) {
    trace.add(span(name, begin_ns, end_ns, TraceTrack::communication));
  }
  trace.add(span("forward", 5, 25));  // another track's lanes are its own
  const auto decoded = decode(trace);
  const auto lanes = decoded.named("communication");
  ASSERT_THAT(lanes, SizeIs(3));
  EXPECT_THAT(lanes[0].slices, ElementsAre(is_slice("reduce", 0, 20, 0), is_slice("norm", 20, 50, 0)));
  EXPECT_THAT(lanes[1].slices, ElementsAre(is_slice("send", 10, 30, 0), is_slice("wire", 12, 28, 1)));
  EXPECT_THAT(lanes[2].slices, ElementsAre(is_slice("receive", 15, 40, 0)));
  for (const auto& lane : lanes) EXPECT_EQ(lane.parent, decoded.processes()[0]);
  EXPECT_THAT(decoded.named("compute"), SizeIs(1));
}

TEST(Trace, AnySpansComeBackAsTheyWere) {
  const Key key = Key{}.with("trace test");
  for (uint64_t round = 0; round < 200; ++round) {
    Trace trace(40);
    std::vector<std::tuple<std::string, int64_t, int64_t>> expected, decoded;
    for (uint64_t i = 0; i < 40; ++i) {
      const uint64_t bits = bits64(key.with(round), i);
      const int64_t begin_ns = bits % 30, end_ns = begin_ns + bits / 64 % 12;
      const auto name = fmt::format("span {}", i);
      trace.add(span(name.c_str(), begin_ns, end_ns, static_cast<TraceTrack>(bits / 4096 % 3)));
      expected.emplace_back(name, begin_ns, end_ns);
    }
    for (const auto& slice : decode(trace).slices()) decoded.emplace_back(slice.name, slice.begin_ns, slice.end_ns);
    EXPECT_THAT(decoded, UnorderedElementsAreArray(expected));
  }
}

TEST(Trace, AnArrowLeavesWithABeginAndComesWithAnEnd) {
  const uint64_t there = arrow_id(0, 1, 17, 1, 3), back = arrow_id(1, 0, 17, 2, 3);
  Trace sender(4), receiver(4);
  sender.add({.name = "forward", .index = 3, .begin_ns = 10, .end_ns = 20, .arrow_out = there});
  receiver.add({.name = "forward", .index = 3, .begin_ns = 5, .end_ns = 40, .arrow_out = back, .arrow_in = there});
  const auto data = encode_trace(sender.spans(), 0, "rank 0", 0) + encode_trace(receiver.spans(), 1, "rank 1", 0);
  const auto slices = decode(data).slices();
  ASSERT_THAT(slices, SizeIs(2));
  EXPECT_THAT(slices[0].flows, ElementsAre(there));
  EXPECT_THAT(slices[0].last_of_flows, IsEmpty());
  EXPECT_THAT(slices[1].flows, ElementsAre(back));
  EXPECT_THAT(slices[1].last_of_flows, ElementsAre(there));  // decode() takes it from the end alone
}

TEST(Trace, ArrowsOfDifferentMessagesDiffer) {
  std::set<uint64_t> ids{0};
  size_t messages = 1;
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      for (int64_t step = -1; step < 10; ++step) {
        for (int32_t kind = 0; kind < 3; ++kind) {
          for (int32_t microbatch = -1; microbatch < 20; ++microbatch, ++messages) {
            ids.insert(arrow_id(from, to, step, kind, microbatch));
          }
        }
      }
    }
  }
  EXPECT_EQ(ids.size(), messages);
}

TEST(Trace, WhatFindsNoRoomIsCountedAndWhatWasThereStays) {
  Trace trace(3);
  EXPECT_EQ(trace.dropped(), 0);
  for (int64_t i = 0; i < 3; ++i) trace.add({.name = "forward", .index = i, .begin_ns = i, .end_ns = i + 1});
  EXPECT_EQ(trace.dropped(), 0);
  for (int64_t i = 3; i < 8; ++i) trace.add({.name = "forward", .index = i, .begin_ns = i, .end_ns = i + 1});
  EXPECT_EQ(trace.dropped(), 5);
  EXPECT_THAT(decode(trace).slices(), ElementsAre(is_slice("forward 0", 0, 1, 0), is_slice("forward 1", 1, 2, 0),
                                                  is_slice("forward 2", 2, 3, 0)));
}

TEST(Trace, AnEmptyTraceHasItsProcess) {
  Trace trace(0);
  trace.add(span("forward", 0, 1));
  EXPECT_EQ(trace.dropped(), 1);
  const auto decoded = decode(trace);
  EXPECT_THAT(decoded.processes(), SizeIs(1));
  EXPECT_THAT(decoded.slices(), IsEmpty());
}

TEST(Trace, ThreadsAddAtOnceWhileItIsEncoded) {
  constexpr int64_t threads = 4, each = 5000, room = threads * each - 1000;
  Trace trace(room);
  std::vector<std::thread> adding;
  for (int64_t thread = 0; thread < threads; ++thread) {
    adding.emplace_back([&trace, thread] {
      for (int64_t i = 0; i < each; ++i) {
        const int64_t begin_ns = (thread * each + i) * 10;
        trace.add({.track = TraceTrack::communication,
                   .name = "reduce",
                   .index = thread * each + i,
                   .step = i,
                   .begin_ns = begin_ns,
                   .end_ns = begin_ns + 10});
      }
    });
  }
  const auto whole = [](const Decoded& decoded) {
    std::set<std::string> names;
    for (const auto& slice : decoded.slices()) {
      const int64_t index = slice.annotations.at("index");
      EXPECT_THAT(slice, is_slice(fmt::format("reduce {}", index), index * 10, index * 10 + 10, 0));
      EXPECT_EQ(slice.annotations.at("step"), index % each);
      names.insert(slice.name);
    }
    return static_cast<int64_t>(names.size());
  };
  EXPECT_LE(whole(decode(trace)), room);
  for (auto& thread : adding) thread.join();
  EXPECT_EQ(whole(decode(trace)), room);
  EXPECT_EQ(trace.dropped(), 1000);
}

TEST(Trace, TracesOfRanksMakeOneWhenWrittenOneAfterAnother) {
  std::string data;
  for (int rank = 0; rank < 2; ++rank) {
    Trace trace(8);
    trace.add({.name = "forward", .index = rank, .begin_ns = 10, .end_ns = 20});
    trace.add(span("send", 10, 20, TraceTrack::communication));
    trace.add(span("receive", 15, 25, TraceTrack::communication));
    data += encode_trace(trace.spans(), rank, fmt::format("rank {}", rank), 0);
  }
  const auto decoded = decode(data);
  EXPECT_THAT(decoded.sequences, SizeIs(2));
  EXPECT_THAT(decoded.tracks, SizeIs(1 + 2 * (1 + 3)));
  const auto processes = decoded.processes();
  ASSERT_THAT(processes, SizeIs(2));
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(decoded.tracks.at(processes[rank]).process_name, fmt::format("rank {}", rank));
    EXPECT_EQ(decoded.tracks.at(processes[rank]).order, static_cast<int32_t>(rank));
    ASSERT_THAT(decoded.named("compute", processes[rank]), SizeIs(1));
    EXPECT_EQ(decoded.named("compute", processes[rank])[0].slices.at(0).name, fmt::format("forward {}", rank));
    EXPECT_THAT(decoded.named("communication", processes[rank]), SizeIs(2));
  }
}

TEST(Trace, AClockOffsetMovesEveryTime) {
  Trace trace(8);
  for (int64_t i = 0; i < 5; ++i) trace.add(span("forward", 1000 + i * 10, 1007 + i * 10));
  trace.add(span("reduce", 1003, 1042, TraceTrack::communication));
  const auto here = decode(trace).timestamps;
  ASSERT_THAT(here, SizeIs(12));
  for (const int64_t offset_ns : {int64_t{250}, int64_t{-900}}) {
    auto expected = here;
    for (auto& time_ns : expected) time_ns += offset_ns;
    EXPECT_EQ(decode(encode_trace(trace.spans(), 0, "rank 0", offset_ns)).timestamps, expected);
  }
}

}  // namespace
}  // namespace trireme
