"""Runs rows of the fault table with real processes on simulated nodes: `python -m faults.harness` takes the names of
rows, one a line, and answers each with one line of JSON. `Harness` is the other end.

The harness imports torch once and forks the ranks of each row; it runs with the interposer loaded, and so do they.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import json
import mmap
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from faults import interposer
from faults.injections import Target
from faults.interposer import Interposer
from faults.rows import NUM_NODES, RANKS_PER_NODE, ROWS, TIMEOUT_S, WORLD_SIZE, Row
from isthmus.benchmarks.simulate import Network, open_network
from isthmus.benchmarks.simulate.serve import die_with_launcher
from support.limits import HANG_S, OPERATION_S, scaled
from support.places import PYTHONPATH

WARM_UP_ROUNDS = 2
# How often survivors call their operation if it does not fail: a fault may hit a rank's own part only the next time.
ROUNDS = 5
# Survivors are idle for so long while a rank dies or leaves.
IDLE_S = 0.3
# What is freed is gone, and no thread has a reserve of its own: limits on memory bite.
LIMITABLE_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class RankOutcome:
    """How a rank ended."""

    rank: int
    error_type: str = ""
    error: str = ""
    seconds_to_error: float | None = None  # since the injection, or since the call that failed if that came later
    # Until all is shut down and the interpreter begins to fall to pieces, which takes a busy machine its time.
    seconds_to_end: float | None = None
    status: int | None = None  # exit code, or -signal; None: it had to be killed
    log: str = ""


@dataclass
class Outcome:
    """How a row ended."""

    name: str
    network: str
    ranks: list[RankOutcome]
    leftovers: list[str] = field(default_factory=list)  # processes, namespaces and links that remained


class Harness:
    """The process that runs rows. A context manager."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="isthmus-faults-")
        library = interposer.build(Path(self._directory.name))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.harness"],
            env=environment | {"LD_PRELOAD": str(library), "PYTHONPATH": PYTHONPATH} | LIMITABLE_MEMORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, name: str) -> Outcome:
        """Run one row."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Outcome(**answer | {"ranks": [RankOutcome(**rank) for rank in answer["ranks"]]})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._directory.cleanup()


class Harnesses:
    """Several harnesses, so that the waiting of one row goes on beside another's. A context manager."""

    def __init__(self, number: int) -> None:
        self._idle: queue.Queue[Harness] = queue.Queue()
        self._all = [Harness() for _ in range(number)]
        for harness in self._all:
            self._idle.put(harness)
        self._threads = ThreadPoolExecutor(number)

    def start(self, name: str) -> Future[Outcome]:
        """Run one row as soon as a harness is free."""
        return self._threads.submit(self._run, name)

    def _run(self, name: str) -> Outcome:
        harness = self._idle.get()
        try:
            return harness.run(name)
        finally:
            self._idle.put(harness)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for harness in self._all:
            harness.__exit__(*error)


# What follows runs in the harness.


@dataclass
class _Context:
    """What the processes of one row share."""

    row: Row
    network: Network
    port: int
    directory: Path
    injected_at: ctypes.c_double
    store_pid: int | None = None


def _serve() -> int:
    """Answer until the end of stdin. Also returns, in a forked process, when that is done."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    answers = os.fdopen(os.dup(1), "w")
    gc.freeze()  # ranks need not look through all of torch when they end
    rows = {row.name: row for row in ROWS}
    for line in sys.stdin:
        outcome = _run_row(rows[line.strip()])
        if isinstance(outcome, int):
            return outcome
        print(json.dumps(asdict(outcome)), file=answers, flush=True)
    return 0


def _run_row(row: Row) -> Outcome | int:
    """Return the outcome; in the process of a rank or of the store's host its exit code."""
    places_before = _places()
    directory = Path(tempfile.mkdtemp(prefix="isthmus-fault-"))
    network = open_network(NUM_NODES)
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    context = _Context(row, network, network.free_port(), directory, ctypes.c_double.from_buffer(shared))
    # No context managers here: what is forked leaves by returning, and must not clean up after the others.
    if not row.rank_0_hosts_the_store:
        context.store_pid = os.fork()
        if context.store_pid == 0:
            return _become(context, 0, "store", _host_store)
    pids = []
    for rank in range(WORLD_SIZE):
        pids.append(os.fork())
        if pids[rank] == 0:
            return _become(context, rank // RANKS_PER_NODE, f"rank{rank}", _run_rank, rank)
    exit_codes = _wait(pids, context)
    if context.store_pid is not None:
        os.kill(context.store_pid, signal.SIGKILL)
        os.waitpid(context.store_pid, 0)
    network.close()
    ranks = [_rank_outcome(rank, exit_codes[rank], context) for rank in range(WORLD_SIZE)]
    shutil.rmtree(directory)
    return Outcome(row.name, network.description, ranks, _processes_left() + sorted(_places() - places_before))


def _wait(pids: list[int], context: _Context) -> list[int | None]:
    """Wait until all ranks have ended; returns their exit codes, None for those that had to be killed.

    Killed are those that stand still when all others have ended, and those that take far too long.
    """
    codes: list[int | None] = [None] * len(pids)
    left = dict(enumerate(pids))
    begin = time.monotonic()
    while left:
        for rank, pid in list(left.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[rank] = os.waitstatus_to_exitcode(status)
                del left[rank]
        late = time.monotonic() > (context.injected_at.value or begin) + HANG_S
        if late or all(_stands_still(pid) for pid in left.values()):
            for pid in left.values():
                _kill(pid, with_stacks=late)
            break
        time.sleep(0.01)
    return codes


def _stands_still(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


def _kill(pid: int, with_stacks: bool) -> None:
    if with_stacks:
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _rank_outcome(rank: int, exit_code: int | None, context: _Context) -> RankOutcome:
    outcome = RankOutcome(rank, status=exit_code, log=(context.directory / f"rank{rank}.log").read_text())
    report = context.directory / f"rank{rank}.json"
    if report.exists():
        told = json.loads(report.read_text())
        outcome.error_type, outcome.error = told["error_type"], told["error"]
        began_at = max(context.injected_at.value, told["called_at"])
        outcome.seconds_to_error = told["failed_at"] - began_at if told["error"] else None
        outcome.seconds_to_end = told["ended_at"] - began_at
    return outcome


def _processes_left() -> list[str]:
    """Return what this process, to which orphans fall, still has to wait for."""
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return []
    return [f"process {pid or 'that still runs'}"]


def _places() -> set[str]:
    """Return the named network namespaces and the links between namespaces that are seen from here."""
    listings = [["ip", "netns", "list"], ["ip", "-o", "link", "show", "type", "veth"]]
    outputs = [subprocess.run(words, capture_output=True, text=True, check=True).stdout for words in listings]
    return {line for output in outputs for line in output.splitlines()}


# What follows runs in a forked process.


def _become(context: _Context, node: int, name: str, part: Callable[..., int], *arguments: int) -> int:
    """Become a process of `node` and run `part`; returns the exit code."""
    log = os.open(context.directory / f"{name}.log", os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.register(signal.SIGUSR1, all_threads=True, file=2)
    die_with_launcher()
    _enter(context.network.command_prefix(node))
    os.environ.update(context.row.settings)
    os.environ.update(
        MASTER_ADDR=context.network.address(0),
        MASTER_PORT=str(context.port),
        GLOO_SOCKET_IFNAME=context.network.interface(node),
        ISTHMUS_NODES=f"{NUM_NODES}x{RANKS_PER_NODE}",
        ISTHMUS_MIN_ELEMENTS="0",
        ISTHMUS_LOG="error",
        WORLD_SIZE=str(WORLD_SIZE),
        OMP_NUM_THREADS="1",
    )
    return part(context, *arguments)


def _enter(command_prefix: list[str]) -> None:
    """Do to this process what `nsenter` with these words would do to a new one."""
    if not command_prefix:
        return  # loopback
    pid = command_prefix[command_prefix.index("-t") + 1]
    libc = ctypes.CDLL(None, use_errno=True)
    for option, space, kind in (("-U", "user", _CLONE_NEWUSER), ("-n", "net", _CLONE_NEWNET)):
        if option in command_prefix:
            with open(f"/proc/{pid}/ns/{space}") as descriptor:
                if libc.setns(descriptor.fileno(), kind) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter the {space} namespace of process {pid}")


def _host_store(context: _Context) -> int:
    """Do what a launcher's agent does for its ranks."""
    store = dist.TCPStore(context.network.address(0), context.port, is_master=True, wait_for_workers=False)
    while store is not None:
        signal.pause()
    return 0


def _write_report(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report | {"ended_at": time.monotonic()}))


def _run_rank(context: _Context, rank: int) -> int:
    """Call the row's operation until it fails; the faulty rank injects its fault first."""
    row = context.row
    os.environ.update(RANK=str(rank))
    if not row.rank_0_hosts_the_store:
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True")
    report: dict[str, Any] = {"error_type": "", "error": "", "called_at": 0.0}
    # Functions run in the reverse order of their registration: this one after Isthmus has shut down.
    atexit.register(_write_report, report, context.directory / f"rank{rank}.json")
    dist.init_process_group("isthmus", timeout=timedelta(seconds=OPERATION_S))
    for _ in range(WARM_UP_ROUNDS):
        (row.warm_up or row.operation)()
    dist.barrier()
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    backend.set_timeout(timedelta(seconds=scaled(TIMEOUT_S)))
    operation = row.operation
    if rank == row.faulty_rank:
        operation = (
            row.injection(Target(Interposer(context.injected_at), context.injected_at, context.store_pid)) or operation
        )
    else:
        time.sleep(IDLE_S)
    report["called_at"] = time.monotonic()
    try:
        for _ in range(ROUNDS):
            report["called_at"] = time.monotonic()
            operation()
    except Exception as error:
        report.update(error_type=type(error).__name__, error=str(error), failed_at=time.monotonic())
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(_serve())
