#!/usr/bin/env python3
"""The benchmarks at their smallest: their rows are whole, their peers really run, and no ratio stands without a peer."""
import json
import math
import subprocess

from harness import arguments, check, clean_environment, main

ARGS = arguments(__doc__, all=0)  # --all 1: what takes minutes too, compilation above all
AMD = "AuthenticAMD" in open("/proc/cpuinfo").read()


def lines(*words, status=0):
    command = [str(ARGS.program), "bench", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=clean_environment())
    check(done.returncode == status, f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done


def rows(*words):
    return [json.loads(line) for line in lines(*words, "--json").stdout.splitlines()]


def check_row(row):
    """A peer with a ratio, above 1 where we are the better, or the reason for neither."""
    check(row["ours"] > 0, f"no time of ours in {row}")
    measured = "peer" in row
    check(("ratio" in row) == measured, f"a ratio without a peer, or a peer without a ratio: {row}")
    if measured and abs(math.log(row["ours"] / row["peer"])) > 0.2:  # else medians and the median ratio may differ
        more = row["ours"] > row["peer"]
        check((row["ratio"] > 1) == (more == row["unit"].endswith("/s")), f"a ratio the wrong way round: {row}")
    check(measured != ("missing" in row) or "peer_name" not in row, f"neither a peer nor a reason: {row}")


def train():
    """PyTorch with MKL unlocked too, where the processor is AMD's; elsewhere an error says why there is none."""
    names = ["eager", *(["eager-fastest"] if AMD else []), *(["compile"] if ARGS.all else [])]
    found = rows("train", "--case", "tiny", "--ranks", "2", "--repeats", "1", "--steps", "5", "--peers", *names)
    check([row["peer_name"] for row in found] == [f"PyTorch DDP (Gloo), {name}" for name in names],
          f"other rows than those asked for: {[row['peer_name'] for row in found]}")  # fmt: skip
    for row in found:
        check_row(row)
        check("GFLOP/s a core" in row["matrices"], f"no matrix library of ours in {row}")
        check("missing" in row or "GFLOP/s a core" in row["peer_matrices"], f"no matrix library of the peer's in {row}")
        # What is said of the peer's settings: of ranks on CPUs, and nothing of cards or images.
        said = "fused AdamW" + (", torch.compile" if "compile" in row["peer_name"] else "")
        said += ", gradient_as_bucket_view" if "compile" in row["peer_name"] else ", static_graph, gradient_as_bucket_view"
        check(row["settings"]["peer_settings"] == said, f"settings: {row['settings']}")
        check("peer_layout" not in row["settings"], f"settings: {row['settings']}")
        check("missing" in row or row["settings"]["peer_precision"] == "fp32", f"another precision than ours: {row['settings']}")
        check(row["settings"]["compared_losses"] == 5 and row["settings"]["loss_tolerance"] == 1e-4, f"losses: {row['settings']}")
    check("peer" in found[0], f"eager PyTorch did not run: {found[0]}")
    check(sum(row.get("best_peer", False) for row in found) == 1, "not one best peer")
    if AMD:
        fastest = found[1]
        check("C compiler" in fastest.get("missing", "") or "unlocked" in fastest["peer_matrices"], f"MKL as it was: {fastest}")
    else:
        done = lines("train", "--case", "tiny", "--peers", "eager-fastest", status=2)
        check("--peers eager-fastest" in done.stderr, done.stderr)


def shared():
    found = rows("train", "--case", "shared-tiny", "--repeats", "1", "--seconds", "0.5")
    check([row["settings"]["other_threads"] for row in found] == [0, 1, 2, found[0]["settings"]["cores"]], f"situations: {found}")
    for row in found:
        check(row["ours"] > 0 and "ratio" not in row, f"not a speed alone: {row}")
        settings = row["settings"]
        fair = min(1, settings["cores"] / (settings["threads"] + settings["other_threads"]))
        check(abs(settings["fair_part"] - fair) < 1e-9, f"another fair part than {fair}: {settings}")
        reached = row["ours"] / (fair * found[0]["ours"])
        check(abs(settings["of_fair_part"] - reached) < 1e-3 * reached, f"not the part reached: {settings}")
    check("floor" not in found[0] and all("floor" in row for row in found[1:]), "a limit for the run alone, or none for others")


def codec():
    more = ["low_rank"] if ARGS.all else []
    found = rows("codec", "--case", "bound", "bound-relative", *more, "--mib", "1", "--repeats", "1")
    names = [row.get("peer_name", "").split(" (")[0] for row in found]
    expected = ["SZ3", "SZ3 without prediction", "zfp", ""]
    check(names == (["PowerSGD hook of DDP"] if ARGS.all else []) + expected, f"peers {names}")
    for row in found:
        check_row(row)
        if "peer" in row:
            check(row["settings"]["peer_bytes_to_ours"] > 0, f"no bytes of the peer in {row}")
        if "missing" in row:
            check("pip install" in row["missing"], f"no remedy in {row}")
    missing = rows("codec", "--case", "bound", "--mib", "1", "--repeats", "1", "--python", "/nonexistent/python")
    check(all("missing" in row and "ratio" not in row for row in missing), f"peers without a Python: {missing}")


def comm():
    """Each collective gives what MPI's gives: the benchmark fails where it does not. A floor is below what is measured."""
    plain = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "bucket"]
    found = rows("comm", "--case", *plain, "checking", "overlap", "--ranks", "2", "--kib", "16", "--repeats", "1")
    check([row["settings"]["collective"] for row in found] == [*plain, "checking", "overlap"], f"rows: {found}")
    sides = ("open_mpi_us", "open_mpi_shared_us", "gloo_us")
    for row in found[:5]:
        check_row(row)
        settings = row["settings"]
        check(settings["bytes"] == 16384 and settings["ranks"] == 2, f"another measurement: {settings}")
        check(abs(row["peer"] - min(settings[key] for key in sides)) <= 1e-3 * row["peer"], f"not the best peer: {row}")
        check(0.05 < row["ours"] < 1e5 and all(0.05 < settings[key] < 1e5 for key in sides), f"not microseconds: {row}")
        check("MPI" in settings["mpi"] and "copies" in settings["mpi"] and "cores" in settings["mpi"], f"MPI: {settings}")
    bucket, checking, overlap = found[4:]
    check(bucket["floor"] < bucket["ours"], f"a floor above what was measured: {bucket}")
    check("floor" not in found[0] and checking["peer_name"] == "ours without checking", f"rows: {found}")
    pieces = [overlap["settings"][f"mpi_{count}_pieces"] for count in (1, 8, 64, 512)]
    check(all(0 <= one <= 100 for one in [*pieces, overlap["ours"]]), f"hidden parts of a whole: {overlap}")
    check(abs(overlap["peer"] - max(pieces)) < 1e-6, f"not the best number of pieces: {overlap}")


def found_nothing():
    """A peer without its Python is a wrong question, not a row without a peer."""
    done = lines("train", "--case", "tiny", "--python", "/nonexistent/python", status=2)
    check("--python /nonexistent/python: not found" in done.stderr, done.stderr)


def engine():
    (row,) = rows("pipeline", "--case", "engine", "--repeats", "1")
    check("ratio" not in row and "peer" not in row and "peer_name" not in row, f"a ratio beside nobody: {row}")


def test():
    for part in (engine, found_nothing, train, codec, shared):
        part()
    if "MPI                ok" in subprocess.run([str(ARGS.program), "doctor"], capture_output=True, text=True).stdout:
        comm()


if __name__ == "__main__":
    main(test)
