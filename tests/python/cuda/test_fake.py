"""What the fake GPU has to notice, and that torch calls nothing beside it: its results are held by all other tests."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import fake_gpu, ranks
from support.limits import scaled

DEVICE = torch.device("cuda", 0)

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


def different_counts(rank: int, world_size: int) -> None:
    ranks.init("nccl")
    dist.all_reduce(torch.ones(3 + rank, device=DEVICE))


def test_ranks_that_disagree_end(capfd: Any) -> None:
    outcomes = fake_gpu.run_any(different_counts, 2)
    assert all(outcome.exit_code != 0 for outcome in outcomes)
    assert "runs AllReduce (number 1, 4 elements" in capfd.readouterr().out


def one_is_missing(rank: int, world_size: int) -> str:
    ranks.init("nccl")
    dist.all_reduce(torch.ones(3, device=DEVICE))
    if rank == 1:
        time.sleep(scaled(5))  # it lives, and does not come
        return ""
    with pytest.raises(RuntimeError, match="timeout"):  # torch 2.15: no DistBackendError
        dist.all_reduce(torch.ones(3, device=DEVICE))
    return "timed out"


def test_waits_for_a_missing_rank_are_bounded() -> None:
    outcomes = fake_gpu.run_any(one_is_missing, 2, env={"FAKE_NCCL_TIMEOUT_S": f"{scaled(2):.0f}"})
    assert outcomes[0].value == "timed out", outcomes
