"""Fixtures of several benchmarks' tests."""

import pytest

from python.benchmarks.convergence_runs import write_text


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "text"
    write_text(path)
    return (path,)
