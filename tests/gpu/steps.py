"""Steps, as a plugin of pytest: a program has its step's limit, and what is left of all the time."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import pytest

from gpu.build import REPOSITORY, Places, environment
from gpu.programs import FAILED, FOUND_SOMETHING, NOT_RUN, SANITIZER, execute, judge

#: With less a step is not begun, unless it says another `least`.
LEAST_S = 5.0
TIME_WAS_UP = "time was up"


@dataclass
class Steps:
    """The plugin. places: of programs. deadline: of the monotonic clock, in seconds. loads: whether isthmus does."""

    places: Places
    deadline: float
    loads: bool = True

    def pytest_configure(self, config: pytest.Config) -> None:
        """Declare the mark of steps."""
        config.addinivalue_line("markers", "limit(seconds, least=5): of a step; with less than `least` it is not begun")

    @pytest.fixture
    def step(self, request: pytest.FixtureRequest) -> Step:
        """Return the step that a test is."""
        mark = request.node.get_closest_marker("limit")
        return Step(self, request.node, mark.args[0], mark.kwargs.get("least", LEAST_S))


@dataclass
class Step:
    """One step. Its program's checks and last lines go to the report."""

    steps: Steps
    item: pytest.Item
    limit_s: float
    least_s: float

    def program(self, name: str, *arguments: str) -> None:
        """Run a program of C++."""
        self.run(str(self.steps.places.program(name)), *arguments)

    def sanitized(self, tool: str, *only: str) -> None:
        """Run a short list of these under compute-sanitizer: of them those with such a text in their names."""
        if SANITIZER is None:
            pytest.skip("compute-sanitizer is not installed")
        program = (str(self.steps.places.program("test_device_cuda")), "--short")
        filters = [f"--gtest_filter={':'.join(f'*{text}*' for text in only)}"] if only else []
        self.run(SANITIZER, "--tool", tool, f"--error-exitcode={FOUND_SOMETHING}", *program, *filters)

    def python(self, *arguments: str, **env: str) -> None:
        """Run a module of Python, which imports isthmus."""
        if not self.steps.loads:
            pytest.skip("isthmus does not load")
        self.run(sys.executable, "-m", *arguments, **env)

    def run(self, *command: str, **env: str) -> None:
        """Run a program; fail or skip as it ended."""
        left_s = self.steps.deadline - time.monotonic()
        if left_s < min(self.least_s, self.limit_s):
            pytest.skip(TIME_WAS_UP)
        limit_s = round(min(self.limit_s, left_s), 1)
        log = self.steps.places.logs / f"{self.item.name.removeprefix('test_')}.log"
        full = environment(self.steps.places) | env
        ending = execute(command, env=full, cwd=REPOSITORY, limit_s=limit_s, log=log)
        properties = {"command": command, "checks": tuple(ending.checks), "lines": tuple(ending.lines[-60:])}
        self.item.user_properties += properties.items()  # report.py takes them
        result, reason = judge(ending, is_sanitized=command[0] == SANITIZER)
        was_cut = ending.timed_out and limit_s < self.limit_s
        if was_cut and not any(check.result == FAILED for check in ending.checks):
            pytest.skip(f"{TIME_WAS_UP} after {limit_s:.0f} s; it may take {self.limit_s:.0f}")
        if result == NOT_RUN:
            pytest.skip(reason)
        if result == FAILED:
            pytest.fail(reason, pytrace=False)
