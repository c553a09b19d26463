"""What holds for all tests in Python.

Tests that start processes are marked, for `make check` leaves them out. One that is not marked cannot start any.
Property tests have no limits on time, which a busy machine would reach; they are the same each time and leave no files.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Start programs the first time, which would be in a test that may not: one looks for fonts, torch for libraries (from
# 2.15 on, by ldconfig).
for module in ("matplotlib.font_manager", "torch"):
    importlib.import_module(module)

settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("tests")

# Audit events. ranks.run is told by ranks.py and fake_gpu.py, whose ranks are forks of a process that runs already.
STARTING = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "ranks.run"}
_forbidden = False


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _forbidden and event in STARTING:
        pytest.fail(f"{event}: a test that starts processes is marked with pytest.mark.processes")


sys.addaudithook(_hear)


def pytest_collection_finish() -> None:
    gc.freeze()  # what modules hold stays: collections, of which pytest makes many, would walk through it each time


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    global _forbidden
    _forbidden = item.get_closest_marker("processes") is None
    try:
        return (yield)
    finally:
        _forbidden = False
