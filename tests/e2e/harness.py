"""What the end-to-end tests share: a folder with data, jobs that can be watched and struck, and readers of their files."""
import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

SKIP = 77  # the exit status by which ctest knows a test that skipped itself
SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent

# A GPT that learns in milliseconds a step, also where others use the cores (one thread). Tests add what they need.
TINY = ["model.kind=gpt", "model.layers=2", "model.width=32", "model.heads=4", "model.context=32", "model.dropout=0.1",
        "train.batch=12", "train.seed=3", "train.threads=1", "train.eval_batches=2", "optimizer.warmup=5"]  # fmt: skip

# mpirun refuses root and more ranks than cores unless it is told that both are meant.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]

# Jobs hear ctrl-C and the end of a session, also where the tests themselves were started to ignore them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The marks that launchers leave: a test that is itself run by one of them must not pass them on.
LAUNCHER_MARKS = ("TRIREME_", "OMPI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMP_")


class Failure(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Failure(what)


def arguments(description, **more):
    """--program, and --NAME for each default given in `more`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--program", type=pathlib.Path, default=SOURCE / "build/release/bin/trireme")
    for name, default in more.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    args = parser.parse_args()
    args.program = args.program.resolve()
    return args


def main(test):
    """Runs a test function; a failure is printed with what the job said."""
    try:
        sys.exit(test() or 0)
    except Failure as failure:
        print(f"FAILED: {failure}")
        sys.exit(1)


@contextlib.contextmanager
def folder():
    """A fresh folder with data/text.txt."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="trireme-e2e-"))
    try:
        (path / "data").mkdir()
        (path / "data/text.txt").write_text("".join(f"{number} oars keep time, {number * number % 97} rest\n" for number in range(3000)))
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def clean_environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_MARKS) and name != "NO_COLOR"}
    return {**kept, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}


def in_shared_memory(folder="/dev/shm"):
    """{path: whether its maker lives} of what the program has there. A maker holds a lock as long as it lives."""
    found = {}
    for path in pathlib.Path(folder).glob("trireme-*"):
        if re.fullmatch("trireme-[0-9a-f]{32}", path.name):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    found[path] = False
                except BlockingIOError:
                    found[path] = True
    return found


class Job:
    """A command that runs, with all processes that come of it. `words` may start with a launcher's command."""

    def __init__(self, words, cwd, environment=None, terminal=False):
        self.mark = uuid.uuid4().hex
        self.words = [str(word) for word in words]
        self.pids = set()
        self.there_before = set(in_shared_memory())
        self.output_path = pathlib.Path(cwd) / f"output-{self.mark[:8]}.txt"
        full = clean_environment(TRIREME_TEST_JOB=self.mark, **(environment or {}))
        self.began = time.monotonic()
        self.terminal = None
        if terminal:
            self.terminal, child_side = pty.openpty()
            # A session of its own with the terminal as its controlling one: what is typed as ^C becomes SIGINT there.
            self.process = subprocess.Popen(self.words, cwd=cwd, env=full, stdin=child_side, stdout=child_side, stderr=child_side,
                                            preexec_fn=lambda: self._own_terminal(child_side))  # fmt: skip
            os.close(child_side)
            self.seen = b""
            self.reader = threading.Thread(target=self._read_terminal, daemon=True)
            self.reader.start()
        else:
            with open(self.output_path, "wb") as output:
                self.process = subprocess.Popen(self.words, cwd=cwd, env=full, stdin=subprocess.DEVNULL, stdout=output,
                                                stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        self.pids.add(self.process.pid)

    @staticmethod
    def _own_terminal(descriptor):
        import termios

        os.setsid()
        fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)

    def _read_terminal(self):
        with contextlib.suppress(OSError):  # the terminal answers EIO once nobody holds its other side
            while chunk := os.read(self.terminal, 65536):
                self.seen += chunk

    def type(self, characters):
        os.write(self.terminal, characters.encode())

    @property
    def output(self):
        if self.terminal is not None:
            return self.seen.decode(errors="replace").replace("\r\n", "\n")
        return self.output_path.read_text(errors="replace")

    @property
    def plain(self):
        """The output without colours."""
        return re.sub(r"\x1b\[\d*[mK]", "", self.output)

    def wait_for_step(self, step):
        """Waits until a step from this one on was shown."""
        self.wait_for(lambda: any(int(shown) >= step for shown in re.findall(r"step (\d+)/", self.plain)), f"step {step}")

    def processes(self):
        """{pid: environment} of every living process that came of this job."""
        mark = f"TRIREME_TEST_JOB={self.mark}".encode()
        found = {}
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                variables = pathlib.Path(entry.path, "environ").read_bytes().split(b"\0")
                state = pathlib.Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()[0]
                if mark in variables and state != "Z":
                    found[int(entry.name)] = dict(one.decode().split("=", 1) for one in variables if b"=" in one)
        self.pids.update(found)
        return found

    def ranks(self):
        """{rank: pid} of the trireme processes that are ranks."""
        found = {}
        for pid, environment in self.processes().items():
            for name in ("TRIREME_RANK", "OMPI_COMM_WORLD_RANK", "RANK"):
                if name in environment and pathlib.Path(f"/proc/{pid}/comm").exists():
                    with contextlib.suppress(OSError):
                        if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "trireme":
                            found[int(environment[name])] = pid
                    break
        return found

    def wait_for(self, condition, what, timeout=30):
        """Waits until the condition holds; it may not end before that."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            check(self.process.poll() is None, f"the job ended (status {self.process.returncode}) before {what}:\n{self.output}")
            check(time.monotonic() < deadline, f"not within {timeout} s: {what}\n{self.output}")
            time.sleep(0.02)
        return value

    def wait_for_ranks(self, number):
        return self.wait_for(lambda: (ranks := self.ranks()) and len(ranks) == number and ranks, f"{number} ranks were there")

    def wait_for_text(self, text, timeout=30):
        self.wait_for(lambda: text in self.output, f"it said {text!r}", timeout)

    def wait(self, timeout=60):
        """The exit status; that of a process killed by a signal as a shell shows it."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            raise Failure(f"{' '.join(self.words)} did not end within {timeout} s:\n{self.output}") from None
        if self.terminal is not None:
            self.reader.join(2)
        return status if status >= 0 else 128 - status

    def end(self):
        """Kills what is left of the job: for tests that failed."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leftovers(self, patience=10):
        """Processes and shared memory that outlive the job by more than `patience` seconds."""
        deadline = time.monotonic() + patience
        while (living := list(self.processes())) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"process {pid}" for pid in living] + self.left_in_shared_memory()

    def left_in_shared_memory(self):
        """What came there while the job ran and whose maker is gone."""
        return [str(path) for path, lives in in_shared_memory().items() if not lives and path not in self.there_before]


def run(words, cwd, status=0, timeout=60, **more):
    """Runs a job to its end, which must have this exit status; the job."""
    job = Job(words, cwd, **more)
    found = job.wait(timeout)
    check(found == status, f"{' '.join(job.words)}\nended with status {found}, not {status}:\n{job.output}")
    return job


def metrics(run_folder):
    """The lines of metrics.jsonl that tell of steps."""
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def losses(run_folder):
    return [line["loss"] for line in metrics(run_folder)]


def checkpoints(run_folder):
    """Step numbers of the whole checkpoints, oldest first."""
    names = [path.name for path in (run_folder / "checkpoints").glob("step-*")] if (run_folder / "checkpoints").exists() else []
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())


def final_bytes(run_folder, step):
    """The model's parameters, of all stages."""
    return [path.read_bytes() for path in sorted((run_folder / f"checkpoints/step-{step}").glob("model*.safetensors"))]


def being_saved(run_folder):
    """Whether a checkpoint is being written at this moment."""
    return any((run_folder / "checkpoints").glob("step-*.partial"))
