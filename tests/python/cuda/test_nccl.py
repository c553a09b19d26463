"""Tiers over NCCL without torch: tests/nccl, over the fake NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from python.cuda import worlds as cuda_worlds
from support import fake_gpu
from support.limits import HANG_S
from support.places import ROOT

NATIVE = ROOT / "build/native" / Path(sys.prefix).name
pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]


def test_tiers_over_nccl() -> None:
    fake_gpu.cmake(NATIVE, "--build", str(NATIVE), "--target", "test_nccl")
    env = os.environ | {"LD_PRELOAD": str(fake_gpu.library()), "FAKE_GPU_COUNT": "4"}
    run = subprocess.run([NATIVE / "tests/nccl/test_nccl"], env=env, timeout=HANG_S, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
