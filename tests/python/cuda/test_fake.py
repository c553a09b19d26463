"""The fake GPU stands in for all that torch calls, and the fake NCCL for tiers without torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from python.cuda import worlds as cuda_worlds
from support import fake_gpu
from support.limits import HANG_S
from support.places import ROOT

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


NATIVE = ROOT / "build/native" / Path(sys.prefix).name


@cuda_worlds.needs_fake_gpu
def test_tiers_over_nccl() -> None:
    """tests/nccl."""
    fake_gpu.cmake(NATIVE, "--build", str(NATIVE), "--target", "test_nccl")
    env = os.environ | {"LD_PRELOAD": str(fake_gpu.library()), "FAKE_GPU_COUNT": "4"}
    run = subprocess.run([NATIVE / "tests/nccl/test_nccl"], env=env, timeout=HANG_S, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
