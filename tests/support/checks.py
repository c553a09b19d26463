"""Many checks in one world of ranks: starting a world costs seconds, a check milliseconds."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from support import ranks

Check = Callable[..., None]
Run = Callable[..., list[Any]]


class Table:
    """Checks that every rank of one world runs in the same order. Each becomes a test of its own."""

    def __init__(self) -> None:
        self.checks: dict[str, Check] = {}
        self.skips: dict[str, str] = {}

    def __call__(self, check: Check) -> Check:
        self.checks[check.__name__] = check
        return check

    def skip_if(self, condition: bool, reason: str) -> Callable[[Check], Check]:
        """Return a decorator that adds a check; where the condition holds, its test skips."""

        def add(check: Check) -> Check:
            if condition:
                self.skips[check.__name__] = reason
            return self(check)

        return add

    def run_on_this_rank(self, *arguments: Any) -> dict[str, str]:
        """Run all checks; return the traceback of each that failed.

        It is printed, too: where ranks no longer meet after a failure, what is returned never arrives.
        """
        failures = {}
        for name, check in self.checks.items():
            if name in self.skips:
                continue
            try:
                check(*arguments)
            except (Exception, pytest.fail.Exception):  # the latter of pytest.raises
                failures[name] = traceback.format_exc()
                rank = os.environ["RANK"]  # a check may have no group
                print(f"{time.strftime('%H:%M:%S')} rank {rank}: {name}: {failures[name]}", file=sys.stderr)
        return failures

    def in_world(
        self,
        main: Callable[..., dict[str, str]] | None = None,
        world_size: int = 4,
        run: Run = ranks.run,
        **settings: Any,
    ) -> Callable[[str], None]:
        """Return a test for each check. The first runs `main` on every rank of one world, and with it all checks.

        main: by default it runs all in a default group that the environment describes.
        """
        arguments = () if main else (self,)
        outcomes: list[list[dict[str, str]] | BaseException] = []

        @pytest.mark.processes
        @pytest.mark.parametrize("name", list(self.checks))
        def test(name: str) -> None:
            if name in self.skips:
                pytest.skip(self.skips[name])
            if not outcomes:
                try:
                    outcomes.append(run(main or _main, world_size, *arguments, **settings))
                except BaseException as error:
                    outcomes.append(error)
            (outcome,) = outcomes
            if isinstance(outcome, BaseException):
                raise outcome
            texts = [f"rank {rank}: {failures[name]}" for rank, failures in enumerate(outcome) if name in failures]
            assert not texts, "\n".join(texts)

        return test

    def run_in_world(self, **settings: Any) -> dict[str, str]:
        """Make the default group with these settings of `ranks.init`, run all checks in it, and leave together."""
        ranks.init(**settings)
        failures = self.run_on_this_rank()
        finish()
        return failures


def _main(rank: int, world_size: int, table: Table) -> dict[str, str]:
    return table.run_in_world()


def finish() -> None:
    """Leave together: a rank that exits takes the store with it."""
    dist.barrier()
    dist.destroy_process_group()
