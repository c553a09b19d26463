"""Runs a function on several ranks, each a process, and says which rank failed and why."""

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from support.limits import AFTER_FAILURE_S, HANG_S, OPERATION_S

# Importing torch takes seconds, and Dynamo, which the first optimizer needs, one more: one server does it, and each
# rank is a fork of that.
_context = multiprocessing.get_context("forkserver")
_preloaded = [
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "isthmus.group.register",
    "pytest",
    "support.ranks",
]
_context.set_forkserver_preload(_preloaded)

# Lower ports belong to services that a machine may start at any time.
_LOWEST_PORT = 10_000


@dataclass
class Outcome:
    rank: int
    value: Any = None
    error: str | None = None
    exit_code: int | None = None
    seconds: float = 0


def free_port() -> int:
    """Return a port that nothing listens at.

    Whoever takes it may first import torch for seconds. So it is none of those that the kernel hands out meanwhile to
    all that ask for any port, as Gloo does for every rank.
    """
    ephemeral_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(_LOWEST_PORT, ephemeral_from if ephemeral_from > 2 * _LOWEST_PORT else 1 << 16)
    while True:
        port = secrets.choice(ports)  # not what a seed of a test decides: another process may have the same one
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def preload(*modules: str) -> None:
    """Have the server import these, too. Call this before the first rank starts."""
    _preloaded.extend(modules)
    _context.set_forkserver_preload(_preloaded)


@contextlib.contextmanager
def server_with(**environment: str) -> Iterator[None]:
    """Fork ranks from a server with these variables meanwhile: what is loaded into ranks before all else."""
    server = vars(forkserver._forkserver)  # type: ignore[attr-defined]
    before, others = dict(os.environ), dict(server)
    server.update(vars(forkserver.ForkServer()))
    _context.set_forkserver_preload(_preloaded)
    os.environ.update(environment)
    try:
        yield
    finally:
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        server.update(others)
        os.environ.clear()
        os.environ.update(before)


def run(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    env: Mapping[str, str] | None = None,
    timeout_s: float = HANG_S,
) -> list[Any]:
    """Call ``function(rank, world_size, *arguments)`` on every rank; return what they returned. Fails if any fails."""
    return values_of(run_any(function, world_size, *arguments, env=env, timeout_s=timeout_s))


def values_of(outcomes: list[Outcome]) -> list[Any]:
    failures = [f"--- rank {o.rank}: exit code {o.exit_code}\n{o.error}" for o in outcomes if o.error or o.exit_code]
    if failures:
        raise AssertionError("\n".join(failures))
    return [outcome.value for outcome in outcomes]


# Whenever a process starts, multiprocessing polls all others. Where two threads poll one, the exit code comes once, and
# whoever asks second takes 255 for it.
_polling = threading.Lock()


def run_any(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    env: Mapping[str, str] | None = None,
    timeout_s: float = HANG_S,
    stopped: tuple[int, ...] = (),
) -> list[Outcome]:
    """Do the same, but take failures as results. `stopped`: ranks that will not end by themselves."""
    sys.audit("ranks.run")
    port = free_port()
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **(env or {})}
    processes = []
    pipes: list[Connection] = []
    deadline = time.monotonic() + timeout_s
    for rank in range(world_size):
        ours, theirs = _context.Pipe(duplex=False)
        per_rank = {**settings, "RANK": str(rank), "WORLD_SIZE": str(world_size)}
        process = _context.Process(target=_main, args=(theirs, function, rank, world_size, per_rank, arguments))
        with _polling:
            process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    outcomes = [Outcome(rank) for rank in range(world_size)]
    late = []
    reports: dict[int, Any] = {}
    waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in stopped}
    # A large report is sent only as it is read, so all are read before any process is waited for.
    while waiting and (ready := wait(list(waiting), max(0.1, deadline - time.monotonic()))):
        for pipe in cast("list[Connection]", ready):
            rank = waiting.pop(pipe)
            with contextlib.suppress(EOFError):  # it died
                reports[rank] = pipe.recv()
                if reports[rank][1]:
                    deadline = min(deadline, time.monotonic() + AFTER_FAILURE_S)
    for rank, process in enumerate(processes):
        if rank in stopped:
            continue
        wait([process.sentinel], max(0.1, deadline - time.monotonic()))
        with _polling:
            exit_code = process.exitcode
        if exit_code is None:
            late.append(rank)
            os.kill(process.pid, signal.SIGUSR1)  # prints the stacks
            continue
        outcomes[rank].exit_code = exit_code
        outcomes[rank].error = None if exit_code == 0 else "no report"
        if rank in reports:
            outcomes[rank].value, outcomes[rank].error, outcomes[rank].seconds = reports[rank]
    if late:
        time.sleep(0.5)
    for process in processes:
        with _polling:
            if process.is_alive():
                process.kill()
                process.join()
    if late:
        raise AssertionError(
            f"ranks {late} did not end within {timeout_s} s, or {AFTER_FAILURE_S} s after another failed; "
            f"the others: {outcomes}"
        )
    return outcomes


def init(backend: str = "isthmus", timeout_s: float = OPERATION_S, **arguments: Any) -> None:
    """``init_process_group`` with a timeout that fits tests."""
    import torch.distributed as dist

    if "store" in arguments:  # then torch does not ask the environment
        arguments = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])} | arguments
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **arguments)


def store() -> Any:
    """Return the store of all ranks, for ``init(store=...)``: where rank 0 has freed it, the port is free.

    Worlds that are made in turn share one, each under a prefix: where each asks for its own, a rank that is ahead
    reaches the last world's, which rank 0 still has.
    """
    import torch.distributed as dist

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    num_ranks, hosts = int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    return dist.TCPStore(*place, num_ranks, hosts, timeout=timedelta(seconds=OPERATION_S))


def _main(
    pipe: Connection,
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    env: Mapping[str, str],
    arguments: tuple[Any, ...],
) -> None:
    gc.freeze()  # what the server imported: each collection would walk through it, and copy its pages
    faulthandler.register(signal.SIGUSR1, all_threads=True, file=sys.__stderr__)
    faulthandler.enable(file=sys.__stderr__)  # the stacks where it dies of a signal
    for name in [name for name in os.environ if name.startswith("ISTHMUS_")]:
        del os.environ[name]
    os.environ.update(env)
    start = time.monotonic()
    try:
        import torch

        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))  # the server imported it before that was known
        value = function(rank, world_size, *arguments)
        pipe.send((value, None, time.monotonic() - start))
    except BaseException:
        pipe.send((None, traceback.format_exc(), time.monotonic() - start))
        raise SystemExit(1) from None
    finally:
        pipe.close()
