"""One rank's view of its world: where tensors are, process groups one after another, and checks in lockstep."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gpu.programs import FAILED, OK, Check
from support.limits import scaled

#: The timeout of collectives. Ranks that wait for one that failed end by it.
GROUP_TIMEOUT = timedelta(seconds=scaled(40))
#: For the other ranks' results of a check: they may still be compiling, or waiting for a collective.
RESULT_TIMEOUT = timedelta(seconds=scaled(100))


class World:
    """What all ranks share. Checks and groups are entered by all ranks alike."""

    def __init__(self, rank: int, size: int, short: bool) -> None:
        self.rank = rank
        self.size = size
        self.short = short
        self.device = torch.device("cuda")
        self.passed = True
        self._count = 0
        self._lost = 0  # ranks that ended in a check

    def __enter__(self) -> World:
        port = int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore("127.0.0.1", port, self.size, self.rank == 0, timeout=RESULT_TIMEOUT)
        torch.set_num_threads(1)  # OMP_NUM_THREADS came too late for a process that is a fork
        torch.cuda.set_device(0)
        return self

    def __exit__(self, *exception: object) -> None:
        self.store.add("left", 1)
        present = self.size - self._lost
        deadline = time.monotonic() + 20
        while self.rank == 0 and self.store.add("left", 0) < present and time.monotonic() < deadline:
            time.sleep(0.01)  # the store's host goes last

    @contextmanager
    def group(self, timeout: timedelta = GROUP_TIMEOUT, is_left: bool = True, **env: str) -> Iterator[None]:
        """Have a default group of Isthmus on two nodes, and meanwhile these variables set.

        is_left: else it stays until the process ends.
        """
        self._count += 1
        before = dict(os.environ)
        os.environ.update({"ISTHMUS_LOG": "error", "ISTHMUS_NODES": "2x2", **env})
        try:
            dist.init_process_group(
                "isthmus",
                store=dist.PrefixStore(f"group/{self._count}", self.store),
                rank=self.rank,
                world_size=self.size,
                timeout=timeout,
            )
            yield
            if is_left:
                torch.cuda.synchronize()
        finally:
            if is_left and dist.is_initialized():
                dist.destroy_process_group()
            os.environ.clear()
            os.environ.update(before)

    def check(self, name: str, body: Callable[[], Mapping[str, Any] | None], lost: int | None = None) -> None:
        """Run `body` on every rank; it raises where something is wrong, and returns figures. Rank 0 tells.

        lost: a rank that ends in it. Where another one does not report in time, nothing that follows would mean
        anything: all ranks end.
        """
        start = time.monotonic()
        self._lost += 0 if lost is None else 1
        error, figures = "", None
        try:
            figures = body()
            if lost is None:
                torch.cuda.synchronize()
        except Exception:
            error = traceback.format_exc()
        self._count += 1
        ranks = [rank for rank in range(self.size) if rank != lost]
        keys = [f"check/{self._count}/{rank}" for rank in ranks]
        self.store.set(f"check/{self._count}/{self.rank}", json.dumps({"error": error, "figures": dict(figures or {})}))
        try:
            self.store.wait(keys, RESULT_TIMEOUT)
        except dist.DistStoreError:
            silent = [rank for rank, key in zip(ranks, keys, strict=True) if not self.store.check([key])]
            self._tell(Check(name, FAILED, time.monotonic() - start, f"no word from ranks {silent}; {error}"))
            raise
        results = [json.loads(self.store.get(key)) for key in keys]
        reported = zip(ranks, results, strict=True)
        errors = [f"rank {rank}: {result['error']}" for rank, result in reported if result["error"]]
        self._tell(
            Check(name, FAILED if errors else OK, time.monotonic() - start, "\n".join(errors), results[0]["figures"])
        )

    def _tell(self, check: Check) -> None:
        self.passed = self.passed and check.result == OK
        if self.rank == 0:
            print(check.line(), flush=True)


def require(condition: bool, *about: Any) -> None:
    """Raise AssertionError with `about`, unless the condition holds."""
    if not condition:
        raise AssertionError(" ".join(map(str, about)))
