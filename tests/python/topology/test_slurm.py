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


def srun(cluster: Cluster, *arguments: str, **variables: str) -> list[dict[str, Any]]:
    """Return what the ranks of a step report, in the order of their ranks."""
    exported = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ranks.free_port()),
        "ISTHMUS_CODEC": "none",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    export = "--export=ALL," + ",".join(f"{name}={value}" for name, value in exported.items())
    result = cluster.call("srun", f"--time={HANG_S / 60:.0f}", "--kill-on-bad-exit=1", export, *arguments)
    reports: list[dict[str, Any]] = json.loads(result.stdout)
    return reports


def assert_reduced(reports: list[dict[str, Any]], node_map: str, source: str) -> None:
    assert [report["rank"] for report in reports] == list(range(4))
    assert {report["node_map"] for report in reports} == {node_map}
    assert {report["source"] for report in reports} == {f"{source}, {MACHINE}"}
    assert all(report["is_right"] for report in reports)
    # A rank sends the half of its part of the node's sum that the other node owns: a header, and float32.
    assert {report["between_nodes_bytes"] for report in reports} == {48 + 4 * 50_000}


def test_tasks_of_srun_are_placed_as_slurm_says(cluster: Cluster) -> None:
    """In blocks: test_examples.py."""
    tasks = ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--distribution=cyclic")
    assert_reduced(srun(cluster, *tasks, sys.executable, str(PROGRAM)), "0,2|1,3", "Slurm")


def test_torchrun_in_tasks_of_srun_counts_before_slurm(cluster: Cluster) -> None:
    port = ranks.free_port()
    launcher = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
    )
    tasks = ("--nodes=2", "--ntasks-per-node=1", *launcher, f"--rdzv-endpoint=localhost:{port}", str(PROGRAM))
    assert_reduced(srun(cluster, *tasks), "2 nodes x 2 ranks, in blocks", "torchrun")
