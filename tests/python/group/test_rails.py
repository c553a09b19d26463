"""What a job's log says of its machines, and what is doubted."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus import _topology
from isthmus.group.nodes import node_map
from isthmus.group.rails import GpuPlace, find_gpu_place, machine_in_words, misplacements, rails_in_words
from support.machines import eight_gpus

ORDER = [f"mlx5_{number}" for number in range(8)]
TWO_NODES = [0] * 8 + [1] * 8


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return what gives a node's ranks their places on a made-up machine."""
    made = 0

    def make(host: str, nics=ORDER, islands=(range(8),), gpus=range(8)) -> list[GpuPlace]:
        nonlocal made
        made += 1
        monkeypatch.setenv("HWLOC_XMLFILE", eight_gpus(tmp_path / f"{made}.xml", nics, islands))
        monkeypatch.setattr("isthmus.group.rails.machine_identity", lambda: host)
        find_gpu_place.cache_clear()
        return [find_gpu_place(f"0000:0{gpu + 1}:00.0") for gpu in gpus]

    return make


def test_two_nodes_of_eight_gpus(places):
    told = places("a") + places("b")
    assert told[3].nic == "mlx5_3" and told[3].num_nics == 8
    assert told[0].island == told[7].island != told[8].island
    fast = [replace(place, gbit_s=200.0) for place in told]
    assert machine_in_words(TWO_NODES, fast) == (
        "; a node has 8 x NVIDIA A100-SXM4-80GB, NV12 between all GPUs, 2400 Gbit/s a pair; rails leave by "
        + ", ".join(f"mlx5_{number} (200 Gbit/s)" for number in range(8))
    )
    assert misplacements(TWO_NODES, told) == ""


def test_rails_that_differ_between_nodes(places):
    crossed = [*ORDER[:3], "mlx5_5", "mlx5_4", "mlx5_3", *ORDER[6:]]
    assert misplacements(TWO_NODES, places("a") + places("b", crossed)) == (
        "rails differ between nodes: rank 3 leaves by mlx5_3, and rank 11 by mlx5_5: set CUDA_VISIBLE_DEVICES so that "
        "ranks take GPUs in one order on all nodes"
    )


def test_ranks_that_share_a_nic(places):
    """Two GPUs whose ports have no NIC take others', though as many are idle; or all NICs are in use."""
    shared = ["", "mlx5_1", "", "mlx5_3", *ORDER[4:]]
    pair = [3, 3]
    told = [place for host in "ab" for place in places(host, shared, gpus=pair)]
    assert misplacements([0, 0, 1, 1], told).startswith(
        "ranks 0, 1 share mlx5_3, while other NICs of their node are idle: set CUDA_VISIBLE_DEVICES"
    )
    alone = ["mlx5_0", *[""] * 7]
    told = [place for host in "ab" for place in places(host, alone)]
    assert misplacements(TWO_NODES, told) == ""
    assert machine_in_words(TWO_NODES, told).endswith("; rails leave by mlx5_0 (speed unknown for 8 ranks)")


def test_nodes_that_are_no_island_of_nvlinks(places):
    told = places("a") + places("b")
    odd = [told[0], told[8], told[1], told[9]]
    assert misplacements([0, 0, 1, 1], odd) == "the GPUs of node 0 are not joined by NVLinks: set ISTHMUS_NODES=0,2|1,3"
    halves = [range(4), range(4, 8)]  # the machine has no island of eight: nothing to set
    split = places("a", islands=halves) + places("b", islands=halves)
    assert split[0].island != split[4].island
    assert misplacements(TWO_NODES, split) == ""
    assert "NVLinks between 12 of 28 pairs of GPUs" in machine_in_words(TWO_NODES, split)


def test_what_is_not_known_is_not_told(places, monkeypatch):
    assert places("a", gpus=[8])[0] == GpuPlace()  # no such GPU
    assert machine_in_words([0, 1], [GpuPlace(), GpuPlace()]) == misplacements([0, 1], [GpuPlace(), GpuPlace()]) == ""

    def refuse() -> None:
        raise _topology.TopologyError("no hwloc")

    monkeypatch.setattr(_topology, "discover", refuse)
    assert find_gpu_place("0000:01:00.0") == GpuPlace()
    monkeypatch.setitem(sys.modules, "isthmus._topology", None)
    monkeypatch.delattr("isthmus._topology")
    assert find_gpu_place("0000:02:00.0") == GpuPlace()
    assert node_map.gpu_fabric("0000:02:00.0") == ""


def test_many_nics_are_not_all_named():
    told = rails_in_words([(f"nic{number}", None) for number in range(20)])
    assert told.endswith("nic15 (speed unknown), ...")
