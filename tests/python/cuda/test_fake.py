"""The fake GPU stands in for all that torch calls: its results are held by all other tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from support import fake_gpu

pytestmark = [pytest.mark.processes, pytest.mark.skipif(bool(fake_gpu.why_not()), reason=fake_gpu.why_not())]


def symbols(prefix: str, which: str, library: Path) -> set[str]:
    """Which: what nm calls "--undefined-only" or "--defined-only"."""
    said = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, text=True, check=True).stdout
    return {name for line in said.splitlines() if (name := line.split()[-1].partition("@")[0]).startswith(prefix)}


@pytest.mark.parametrize(("prefix", "known"), [("nccl", "ncclAllReduce"), ("cupti", "cuptiSubscribe")])
def test_no_call_of_torch_reaches_the_real_library(prefix: str, known: str) -> None:
    """It would take the fake's handles for its own, or ask for a driver. Newer torch calls more of it."""
    libraries = Path(torch.__file__).parent.glob("lib/libtorch_*.so")
    called = set().union(*(symbols(prefix, "--undefined-only", library) for library in libraries))
    assert known in called
    assert not called - symbols(prefix, "--defined-only", fake_gpu.library())
