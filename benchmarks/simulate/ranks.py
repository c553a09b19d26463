"""The processes of all ranks on simulated nodes: launch, requests, answers, failures, and shutdown."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

from isthmus.benchmarks.simulate.network import Network
from isthmus.benchmarks.simulate.serve import Emit

#: A launcher waits longer than the process groups' own timeout by this: a rank that waits in vain can say so first.
SILENCE_MARGIN_S = 30
# How long to listen to the other ranks once one has failed: the first to fail is not always the first to be heard.
_FAILURE_GRACE_S = 1.5
_EXIT_TIMEOUT_S = 5
_LOG_TAIL_LINES = 15


def ignore(event: dict[str, Any]) -> None:
    """Take no notice of an event."""


class RankFailure(RuntimeError):
    """A rank ended or did not answer; the message names it and says why."""


@dataclass
class _Rank:
    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection
    log: Path
    #: It starts, or carries out a request.
    is_busy: bool = True
    ended: bool = False
    answer: Any = None
    failure: dict[str, Any] | None = None

    def take_message(self, on_event: Emit) -> None:
        """Take a message that has arrived; sets `ended` where it is the connection's end."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):  # between two messages, and within one
            self.ended = True
            return
        if kind == "answer":
            self.answer, self.is_busy = content, False
        elif kind == "failure":
            self.failure = content
        elif self.rank == 0:
            on_event(content)

    def why(self) -> str:
        """Why this rank failed."""
        code = self.process.poll()
        if self.failure:
            return str(self.failure["error"])
        if code is None:
            return "ended its answers"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def last_words(self) -> str:
        """The last lines that it printed, and the path of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([*(f"  | {line}" for line in lines), f"  (all that it printed: {self.log})"])


class RankWorld:
    """One process a rank, `ranks_per_node` on each node in blocks, that carry out requests together.

    module: has a class `Worker` without arguments, whose methods do it, see `serve`. What ranks print goes to
    log_dir/rank<r>.log. A context manager: leaving it ends all of them. To be made in the main thread: ranks are killed
    when the thread that made them ends. environment_of: a rank's own variables beside the world's.
    """

    def __init__(
        self,
        network: Network,
        ranks_per_node: int,
        module: str,
        log_dir: Path,
        environment_of: Callable[[int], dict[str, str]] = lambda rank: {},
    ) -> None:
        world_size = network.num_nodes * ranks_per_node
        self.ranks_per_node = ranks_per_node
        self._ranks: list[_Rank] = []
        log_dir.mkdir(parents=True, exist_ok=True)
        common = {
            **os.environ,
            "MASTER_ADDR": network.address(0),
            "MASTER_PORT": str(network.free_port()),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(ranks_per_node),
            "ISTHMUS_NODES": f"{network.num_nodes}x{ranks_per_node}",
            "OMP_NUM_THREADS": "1",
        }
        try:
            for rank in range(world_size):
                node, local = divmod(rank, ranks_per_node)
                own = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(local),
                    "GROUP_RANK": str(node),
                    "GLOO_SOCKET_IFNAME": network.interface,
                    "NCCL_SOCKET_IFNAME": network.interface,
                }
                words = [*network.command_prefix(node), sys.executable, "-m", "isthmus.benchmarks.simulate", module]
                self._start(rank, words, log_dir, common | own | environment_of(rank))
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, words: Sequence[str], log_dir: Path, environment: dict[str, str]) -> None:
        log = log_dir / f"rank{rank}.log"
        connection, of_rank = Pipe()
        with log.open("wb") as output, of_rank:
            process = subprocess.Popen(
                [*words, str(of_rank.fileno()), str(os.getpid())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[of_rank.fileno()],
                start_new_session=True,  # Ctrl-C is for us: we end the ranks
            )
        self._ranks.append(_Rank(rank, process, connection, log))

    def request(self, name: str, silence_timeout_s: float, on_event: Emit = ignore, **arguments: Any) -> list[Any]:
        """Let all ranks carry out a method of their worker; returns their answers, by rank. Events are those of rank 0.

        Raises RankFailure if a rank ends, reports an error, or no rank sends anything for `silence_timeout_s`. The
        world can then only be closed.
        """
        for rank in self._ranks:
            rank.is_busy = True
            with suppress(ConnectionError):  # it has ended, and so has what it sends
                rank.connection.send((name, arguments))
        self._listen(silence_timeout_s, on_event)
        if any(rank.ended or rank.failure for rank in self._ranks):
            self._listen(_FAILURE_GRACE_S, on_event, in_failure=True)
            raise RankFailure(self._failure_text(name))
        silent = [rank.rank for rank in self._ranks if rank.is_busy]
        if silent:
            raise RankFailure(f"'{name}': no word for {silence_timeout_s:.0f} s, no answer from rank {_join(silent)}")
        return [rank.answer for rank in self._ranks]

    def _listen(self, silence_timeout_s: float, on_event: Emit, in_failure: bool = False) -> None:
        """Take messages until all ranks have answered, one has failed (unless `in_failure`), or all are silent."""
        expected = {rank.connection: rank for rank in self._ranks if rank.is_busy and not rank.ended}
        while expected and (ready := wait([*expected], silence_timeout_s)):
            for connection, rank in [*expected.items()]:
                if connection in ready:
                    rank.take_message(on_event)
                if rank.ended or not rank.is_busy:
                    del expected[connection]
            if not in_failure and any(rank.ended or rank.failure for rank in self._ranks):
                return

    def _failure_text(self, name: str) -> str:
        for rank in self._ranks:
            if rank.ended:
                with suppress(subprocess.TimeoutExpired):
                    rank.process.wait(timeout=_EXIT_TIMEOUT_S)
        # A rank that ended without a word was killed, or crashed: the others' errors follow from that.
        mute = [rank for rank in self._ranks if rank.ended and rank.failure is None]
        told = [rank for rank in self._ranks if rank.failure is not None]
        # Those that a signal ended come first: an exit code of their own is more often a consequence.
        mute.sort(key=lambda rank: rank.process.returncode is None or rank.process.returncode >= 0)
        told.sort(key=lambda rank: float((rank.failure or {})["failed_at_s"]))
        first = (mute or told)[0]
        others = sorted(rank.rank for rank in mute + told if rank is not first)
        silent = sorted(rank.rank for rank in self._ranks if rank.is_busy and rank not in mute + told)
        node, local = divmod(first.rank, self.ranks_per_node)
        text = f"rank {first.rank} (node {node}, local index {local}) failed in '{name}': {first.why()}"
        if first.failure and first.failure["says_all"]:
            return text
        if others:
            text += f"\nafter it also rank {_join(others)}"
        if silent:
            text += f"\nno answer from rank {_join(silent)}: stopped, hanging, or waiting for the others"
        return f"{text}\n{first.last_words()}"

    def close(self) -> None:
        """End all ranks: if all wait for a request they end by themselves, else by SIGKILL."""
        idle = not any(rank.is_busy or rank.ended for rank in self._ranks)
        for rank in self._ranks:
            rank.connection.close()
        deadline_s = time.monotonic() + (_EXIT_TIMEOUT_S if idle else 0)
        for rank in self._ranks:
            try:
                rank.process.wait(timeout=max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.process.kill()
        for rank in self._ranks:
            rank.process.wait()
        self._ranks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _join(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
