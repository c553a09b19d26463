"""What srun tells its tasks is what the node map is made from: in a cluster of Slurm on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import ranks, slurm
from support.limits import HANG_S
from support.slurm import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.skipif(bool(slurm.why_none()), reason=slurm.why_none())]
PROGRAM = Path(__file__).with_name("slurm_rank.py")
MACHINE = "though by boot id and network namespace it is 1 node x 4 ranks, in blocks"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm.running_cluster() as cluster:
        yield cluster


def srun(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    """Return what the ranks of a step report, in the order of their ranks."""
    exported = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ranks.free_port()),
        "ISTHMUS_CODEC": "none",
        "OMP_NUM_THREADS": "1",
    }
    export = "--export=ALL," + ",".join(f"{name}={value}" for name, value in exported.items())
    result = cluster.call("srun", f"--time={HANG_S / 60:.0f}", "--kill-on-bad-exit=1", export, *arguments)
    reports: list[dict[str, Any]] = json.loads(result.stdout)
    return reports


def test_tasks_of_srun_are_placed_as_slurm_says(cluster: Cluster) -> None:
    """In blocks: test_examples.py."""
    tasks = ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--distribution=cyclic")
    reports = srun(cluster, *tasks, sys.executable, str(PROGRAM))
    assert [report["rank"] for report in reports] == list(range(4))
    assert {report["node_map"] for report in reports} == {"0,2|1,3"}
    assert {report["source"] for report in reports} == {f"Slurm, {MACHINE}"}
    assert all(report["is_right"] for report in reports)
    # A rank sends the half of its part of the node's sum that the other node owns: a header, and float32.
    assert {report["between_nodes_bytes"] for report in reports} == {48 + 4 * 50_000}
