"""Processes that each do one screening run after another."""

import multiprocessing
import signal
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isthmus.bench.convergence_config import Run
from isthmus.bench.convergence_simulated import train_simulated
from isthmus.simulate import RankFailure
from isthmus.simulate.serve import die_with_launcher


class Workers:
    """Up to `jobs` processes, started when they are needed. A context manager: leaving it ends them all.

    To be used in the main thread: they are killed when the thread that made them ends.
    """

    def __init__(self, jobs: int, files: Sequence[Path]) -> None:
        self._jobs = jobs
        self._files = tuple(files)
        self._workers: dict[Connection, BaseProcess] = {}

    def finish(self, runs: Sequence[Run]) -> Iterator[tuple[Run, dict[str, Any]]]:
        """Every run with its result, in the order in which they finish. Raises RankFailure if one fails."""
        waiting = list(reversed(runs))
        while len(self._workers) < min(self._jobs, len(waiting)):
            self._start()
        busy: dict[Connection, Run] = {}
        for connection in self._workers:
            if waiting:
                busy[connection] = _send(connection, waiting.pop())
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                run = busy.pop(ready)
                result = self._receive(ready, run)
                if waiting:
                    busy[ready] = _send(ready, waiting.pop())
                yield run, result

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        connection, end_of_worker = context.Pipe()
        process = context.Process(target=_serve, args=(end_of_worker, self._files), daemon=True)
        process.start()
        end_of_worker.close()
        self._workers[connection] = process

    def _receive(self, connection: Connection, run: Run) -> dict[str, Any]:
        try:
            result, error = connection.recv()
        except (EOFError, ConnectionError):
            process = self._workers[connection]
            process.join()
            error = f"the process that ran it ended with exit code {process.exitcode}"
        if error:
            raise RankFailure(f"{run}: {error}")
        assert isinstance(result, dict)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection, process in self._workers.items():
            process.kill()
            process.join()
            connection.close()
        self._workers.clear()


def _send(connection: Connection, run: Run) -> Run:
    connection.send(run)
    return run


def _serve(connection: Connection, files: Sequence[Path]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher is told, and ends us
    die_with_launcher()
    while True:
        run = connection.recv()
        try:
            connection.send((train_simulated(run, files), ""))
        except Exception as failure:
            connection.send((None, f"{type(failure).__name__}: {failure}\n{traceback.format_exc()}"))
