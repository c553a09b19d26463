"""What holds for all that pytest runs: the gate fails where a test skips that may not."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest

from support import skips

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _judged(report: Report) -> Report:
    skips.judge(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _judged((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _judged((yield))
