#!/usr/bin/env python3
"""The peers of `trireme bench codec` that are libraries of their own: SZ3, zfp, and PyTorch's PowerSGD hook.

Reads fp32 values from a file of nothing else, encodes and decodes them twice on one core, and prints the times of the
second turn, the length of what was encoded and the errors as one JSON object; or, where the library is not installed,
how to install it. Times are those of the core, as on the other side.
"""
import argparse
import json
import time

try:
    import numpy as np
except ImportError:
    np = None


class Missing(Exception):
    pass


class Message:
    """A codec that makes a message of values, and values of it: one turn there and back."""

    def turn(self, values):
        begun = time.thread_time()
        message = self.encode(values)
        encoded = time.thread_time()
        back = self.decode(message)
        decoded = time.thread_time()
        return back, {"bytes": memoryview(message).nbytes, "encode_s": encoded - begun, "decode_s": decoded - encoded}


class Sz3(Message):
    """Error-bounded, by its default algorithm or by quantisation without prediction."""

    def __init__(self, values, args):
        try:
            import pysz
        except ImportError:
            raise Missing("pip install pysz")
        self.library, self.shape = pysz.sz, values.shape
        self.config = pysz.szConfig(values.shape)
        self.config.errorBoundMode = pysz.szErrorBoundMode.ABS
        self.config.absErrorBound = args.bound
        algorithms = {"sz3": pysz.szAlgorithm.INTERP_LORENZO, "sz3-quantized": pysz.szAlgorithm.NOPRED}
        self.config.cmprAlgo = algorithms[args.codec]

    def encode(self, values):
        return self.library.compress(values, self.config)[0]

    def decode(self, message):
        return self.library.decompress(message, np.float32, self.shape)[0]


class Zfp(Message):
    """Error-bounded, in its mode of fixed accuracy."""

    def __init__(self, values, args):
        try:
            import zfpy
        except ImportError:
            raise Missing("pip install zfpy")
        self.library, self.bound = zfpy, args.bound

    def encode(self, values):
        return self.library.compress_numpy(values, tolerance=self.bound)

    def decode(self, message):
        return self.library.decompress_numpy(message)


class Bucket:
    """What the hook asks a bucket of DDP's, of which Python cannot make one."""

    def __init__(self, values, places):
        self.values, self.places = values, places

    def buffer(self):
        return self.values

    def gradients(self):
        parts, end = [], 0
        for offset, rows, columns in self.places:
            parts.append(self.values[end:offset])
            parts.append(self.values[offset : offset + rows * columns].view(rows, columns))
            end = offset + rows * columns
        parts.append(self.values[end:])
        return [part for part in parts if part.numel() > 0]

    def index(self):
        return 0

    def is_last(self):
        return True


class PowerSgd:
    """DDP's hook with one rank, for which summing costs next to nothing.

    It starts from new factors in each turn. There is no message between encoding and decoding: all of it counts as
    encoding. What a turn left out is forgotten before the next, so that all turns have the same error.
    """

    def __init__(self, values, args):
        import tempfile

        import torch
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

        torch.set_num_threads(1)
        self.hook, self.places = powersgd.powerSGD_hook, sorted(args.places)
        self.bucket_of = lambda values: Bucket(torch.from_numpy(values.copy()), self.places)
        self.store = tempfile.NamedTemporaryFile()
        dist.init_process_group("gloo", init_method=f"file://{self.store.name}", rank=0, world_size=1)
        options = {"use_error_feedback": args.feedback, "warm_start": False, "start_powerSGD_iter": 2}
        self.state = powersgd.PowerSGDState(None, matrix_approximation_rank=args.rank, **options)
        self.state.iter = self.state.start_powerSGD_iter  # DDP's first steps, in which all is sent as it is, are over

    def turn(self, values):
        bucket, sent = self.bucket_of(values), self.state.total_numel_after_compression
        for error in self.state.error_dict.values():
            error.zero_()
        begun = time.thread_time()
        back = self.hook(self.state, bucket).wait()
        seconds = time.thread_time() - begun
        sent = self.state.total_numel_after_compression - sent
        return back.numpy(), {"bytes": 4 * int(sent), "encode_s": seconds, "decode_s": 0.0}


def measure(args):
    if np is None:
        raise Missing("pip install numpy, and pysz for SZ3, zfpy for zfp")
    values = np.fromfile(args.values, dtype=np.float32)
    codec = {"sz3": Sz3, "sz3-quantized": Sz3, "zfp": Zfp, "powersgd": PowerSgd}[args.codec](values, args)
    codec.turn(values)  # pays for memory
    back, found = codec.turn(values)
    exact = values.astype(np.float64)
    difference = back - exact
    found["error"] = float(np.linalg.norm(difference) / np.linalg.norm(exact))
    found["largest_difference"] = float(np.abs(difference).max())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codec", choices=["sz3", "sz3-quantized", "zfp", "powersgd"], required=True)
    parser.add_argument("--values", required=True, help="a file of fp32 values")
    parser.add_argument("--bound", type=float, help="largest absolute error of a value")
    parser.add_argument("--rank", type=int, help="of the factors")
    parser.add_argument("--places", help="a JSON file: offset, rows and columns of the matrices among the values")
    parser.add_argument("--feedback", action="store_true", help="with what the last message left out")
    args = parser.parse_args()
    if args.places:
        with open(args.places) as file:
            args.places = json.load(file)
    try:
        print(json.dumps(measure(args)))
    except Missing as missing:
        print(json.dumps({"missing": str(missing)}))


if __name__ == "__main__":
    main()
