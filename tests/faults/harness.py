"""Runs rows of the fault table on ranks that have the interposer loaded, and says what their ends lack."""

import ctypes
import mmap
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from faults.rows import GRACE_S, ROWS, TIMEOUT_S, WORLD_SIZE, Row, Target, stop
from support import ranks
from support.limits import longest, scaled

LIMIT_S = TIMEOUT_S + GRACE_S
WARM_UP_ROUNDS = 2
# How often survivors call their operation if it does not fail: a fault may hit a rank's own part only the next time.
ROUNDS = 5
# Survivors are idle for so long while a rank dies or leaves.
IDLE_S = 0.3
SETTINGS = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0", "ISTHMUS_LOG": "error"}
INTERPOSER = Path(__file__).parent / "interposer.c"


@dataclass
class RankOutcome:
    rank: int
    exit_code: int | None
    error_type: str = ""
    error: str = ""
    seconds_to_error: float = 0  # since the injection, or since the call that failed if that came later
    seconds_to_end: float = 0
    log: str = ""  # what it printed


def built_interposer(folder: Path) -> Path:
    library = folder / "libinterposer.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", INTERPOSER, "-o", library]
    subprocess.run([*command, "-ldl", "-pthread"], check=True)
    return library


@contextmanager
def running(rows: list[Row], at_a_time: int = 2) -> Iterator[dict[str, Future[list[RankOutcome]]]]:
    """Yield what the ranks of each row will have come to, by the row's name. Most of it is waiting."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(at_a_time) as threads,
        ranks.server_with(LD_PRELOAD=str(built_interposer(Path(folder)))),
    ):
        yield {row.name: threads.submit(_run_row, row, Path(folder)) for row in rows}
        threads.shutdown(cancel_futures=True)


def _run_row(row: Row, folder: Path) -> list[RankOutcome]:
    # The host of the store is one process more. It and a rank that stands still do not end by themselves.
    has_host = not row.rank_0_hosts_the_store
    stopped = ((WORLD_SIZE,) if has_host else ()) + ((row.faulty_rank,) if row.injection is stop else ())
    shared = folder / row.name
    when = injected_at(shared)
    env = {**SETTINGS, **row.settings, **({"TORCHELASTIC_USE_AGENT_STORE": "True"} if has_host else {})}
    outcomes = ranks.run_any(_run_rank, WORLD_SIZE + has_host, row.name, shared, env=env, stopped=stopped)
    found = []
    for outcome in outcomes[:WORLD_SIZE]:
        log = _log_of(shared, outcome.rank).read_text()
        found.append(RankOutcome(outcome.rank, outcome.exit_code, log=log))
        if outcome.value:
            found[-1].error_type, found[-1].error, called_at, failed_at, ended_at = outcome.value
            found[-1].seconds_to_error = failed_at - max(when.value, called_at)
            found[-1].seconds_to_end = ended_at - max(when.value, called_at)
    return found


def _log_of(shared: Path, rank: int) -> Path:
    return shared.with_suffix(f".log{rank}")


def injected_at(shared: Path) -> ctypes.c_double:
    """Return what all processes that name this file share: when the fault was injected."""
    with shared.open("a+b") as file:
        file.truncate(mmap.PAGESIZE)
        return ctypes.c_double.from_buffer(mmap.mmap(file.fileno(), mmap.PAGESIZE))


def _run_rank(rank: int, _: int, name: str, shared: Path) -> tuple[str, str, float, float, float]:
    """Call the row's operation until it fails; the faulty rank injects its fault first."""
    (row,) = (row for row in ROWS if row.name == name)
    os.environ["WORLD_SIZE"] = str(WORLD_SIZE)
    os.dup2(os.open(_log_of(shared, rank), os.O_WRONLY | os.O_CREAT), 2)
    pid_of_host = shared.with_suffix(".host")
    if rank == WORLD_SIZE:  # be what a launcher's agent is for its ranks
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False)
        pid_of_host.write_text(str(os.getpid()))
        while store:
            signal.pause()
    ranks.init()
    for _ in range(WARM_UP_ROUNDS):
        row.operation()
    dist.barrier()
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    backend.set_timeout(timedelta(seconds=scaled(TIMEOUT_S)))
    operation = row.operation
    target = Target(
        ctypes.CDLL(os.environ["LD_PRELOAD"]), injected_at(shared), pid_of_host
    )  # lives as long as the rank
    if rank == row.faulty_rank:
        operation = row.injection(target) or operation
    else:
        time.sleep(IDLE_S)
    error_type = error = ""
    called_at = failed_at = time.monotonic()
    try:
        for _ in range(ROUNDS):
            called_at = time.monotonic()
            operation()
    except Exception as caught:
        error_type, error, failed_at = type(caught).__name__, str(caught), time.monotonic()
    if dist.is_initialized():
        dist.destroy_process_group()
    return error_type, error, called_at, failed_at, time.monotonic()


def complaints(row: Row, outcomes: list[RankOutcome]) -> Iterator[str]:
    for rank in outcomes:
        expected = row.expected if rank.rank != row.faulty_rank else row.faulty_expected
        if expected is not None:
            for complaint in _complaints_of(rank, expected):
                yield f"rank {rank.rank} {complaint}: {rank.error or rank.log}"


def _complaints_of(rank: RankOutcome, expected: tuple[str, ...]) -> Iterator[str]:
    if rank.exit_code != 0:
        yield f"ended with {rank.exit_code}"
    elif rank.seconds_to_end > longest(LIMIT_S):
        yield f"ended after {rank.seconds_to_end:.1f} s"
    if rank.error_type != ("DistBackendError" if expected else ""):
        yield f"raised {rank.error_type or 'nothing'}"
    for pattern in expected:
        if not re.search(pattern, rank.error):
            yield f"does not say {pattern}"
