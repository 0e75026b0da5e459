#!/usr/bin/env python3
"""Reads a trace with the schema that Perfetto publishes (package perfetto), and checks that it says what
trace_sample.cpp recorded: processes, tracks, slices and how they nest, annotations, flows.

    .venv/bin/python tests/observe/trace_reader.py --program build/release/tests/trace_sample
"""
import argparse
import importlib.util
import subprocess
import sys

SKIP = 77

# (process, track) -> (depth, name, begin, end, annotations) of each slice. The second lane of a track has a prime.
EXPECTED = {
    ("rank 0 (stage 0)", "compute"): [
        (0, "forward 0", 1000, 2000, {"step": 7, "index": 0}),
        (1, "layer 0", 1000, 1400, {"step": 7, "index": 0}),
        (0, "decide", 2000, 2000, {"step": 7}),
    ],
    ("rank 0 (stage 0)", "communication"): [(0, "send 0", 2000, 2600, {"step": 7, "index": 0})],
    ("rank 0 (stage 0)", "communication'"): [(0, "reduce 1", 2300, 3000, {"step": 7, "index": 1})],
    ("rank 1 (stage 1)", "waiting"): [(0, "wait", 1000, 2600, {"step": 7})],
    ("rank 1 (stage 1)", "compute"): [(0, "forward 0", 2600, 4000, {"step": 7, "index": 0})],
}  # fmt: skip


def check(condition, message):
    if not condition:
        sys.exit(message)


def unknown_fields(message):
    """Names of the messages in it that hold a field which the schema does not have."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = [message.DESCRIPTOR.name] if len(UnknownFieldSet(message)) else []
    for field, value in message.ListFields():
        if field.message_type:
            for child in value if hasattr(value, "__len__") else [value]:
                found += unknown_fields(child)
    return found


def read(trace):
    """Slices by process and track, as EXPECTED has them, and the flows: id -> [slice it leaves, slice it comes to]."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

    processes, tracks, slices, open_slices, flows = {}, {}, {}, {}, {}
    for packet in sorted(trace.packet, key=lambda packet: packet.timestamp):  # as Perfetto does: stable
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.HasField("process"):
                processes[track.uuid] = track.process.process_name
                check(track.sibling_order_rank == len(processes) - 1, f"{track.process.process_name} is out of order")
            elif track.uuid:
                place = processes[track.parent_uuid], track.name
                while place in slices:
                    place = place[0], place[1] + "'"
                tracks[track.uuid], slices[place], open_slices[place] = place, [], []
        else:
            event = packet.track_event
            place = tracks[event.track_uuid]
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                check(list(event.categories) == [place[1].rstrip("'")], f"categories {event.categories} on {place}")
                open_slices[place].append(len(slices[place]))
                annotations = {annotation.name: annotation.int_value for annotation in event.debug_annotations}
                slices[place].append([len(open_slices[place]) - 1, event.name, packet.timestamp, None, annotations])
            else:
                check(event.type == TrackEvent.TYPE_SLICE_END, f"type {event.type}")
                check(open_slices[place], f"an end without a begin on {place}")
            index = open_slices[place][-1]
            for flow in event.flow_ids:
                flows[flow] = [(*place, slices[place][index][1])]
            for flow in event.terminating_flow_ids:
                flows[flow].append((*place, slices[place][index][1]))
            if event.type == TrackEvent.TYPE_SLICE_END:
                slices[place][open_slices[place].pop()][3] = packet.timestamp
    return {place: [tuple(entry) for entry in entries] for place, entries in slices.items()}, flows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="trace_sample")
    args = parser.parse_args()
    if not importlib.util.find_spec("perfetto"):
        print(f"skipped: {sys.executable} has no perfetto")
        return SKIP
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor

    data = subprocess.run([args.program], check=True, capture_output=True).stdout
    trace = Trace.FromString(data)
    check(not unknown_fields(trace), f"fields that Perfetto does not know in {unknown_fields(trace)}")
    roots = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor") and not packet.track_descriptor.uuid]
    check([root.process_ordering for root in roots] == [TrackDescriptor.PROCESS_ORDERING_EXPLICIT] * 2, f"roots: {roots}")

    slices, flows = read(trace)
    check(slices == EXPECTED, f"slices differ:\n{slices}\n{EXPECTED}")
    expected = [[("rank 0 (stage 0)", "communication", "send 0"), ("rank 1 (stage 1)", "compute", "forward 0")]]
    check(list(flows.values()) == expected, f"flows differ:\n{flows}\n{expected}")
    print(f"Perfetto's schema reads {sum(map(len, slices.values()))} slices on {len(slices)} tracks in {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
