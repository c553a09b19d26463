"""Islands as nodes: which ranks share one, what does not make two tiers, and what was looked for in vain."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

import isthmus
from isthmus import _topology
from isthmus.group.nodes import islands
from isthmus.group.nodes.islands import advice, find_island, instead
from support import ranks
from support.checks import finish
from support.machines import eight_gpus
from support.places import ROOT

NO_NICS = [""] * 8


@pytest.fixture(autouse=True)
def looked_for_anew() -> None:
    find_island.cache_clear()


def islands_of_eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined: list[range]) -> list[tuple[str, str]]:
    monkeypatch.setenv("HWLOC_XMLFILE", eight_gpus(tmp_path / "machine.xml", NO_NICS, joined))
    return [find_island(f"0000:0{gpu + 1}:00.0", False) for gpu in range(8)]


def test_gpus_that_nvlinks_join_are_on_one_island(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = islands_of_eight(tmp_path, monkeypatch, [range(4), range(4, 8)])
    assert [name for name, _ in found] == [found[0][0]] * 4 + [found[4][0]] * 4
    assert found[0][0] != found[4][0] and {by for _, by in found} == {"NVLink"}
    find_island.cache_clear()
    monkeypatch.setattr(islands, "machine_identity", lambda: "another host")
    assert find_island("0000:01:00.0", False)[0] not in [name for name, _ in found]


def test_without_nvlinks_a_numa_node_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(islands_of_eight(tmp_path, monkeypatch, []))) == 1
    assert find_island("0000:01:00.0", False)[1] == "NUMA node"


@pytest.mark.parametrize(
    ("bus_id", "is_slice", "machine", "expected"),
    [
        ("0000:01:00.0", True, None, "looked for links between GPUs, and this rank has a MIG device, which has none"),
        ("0000:99:00.0", False, None, "this process sees not the GPU at 0000:99:00.0, as in a container that hides"),
        ("0000:01:00.0", False, "hidden", "this process sees 2 GPUs without a PCIe bus, as in a container that hides"),
        ("0000:01:00.0", False, "no hwloc", "looked for this machine's GPUs and NUMA nodes: built without hwloc"),
        (
            "",
            False,
            "two",
            "looked for a GPU, and for the NUMA node that this rank is bound to, and it may run on 2 of 2",
        ),
        ("", False, "none", "it may run on none of 0: bind it to one (numactl --cpunodebind)"),
    ],
)
def test_what_was_looked_for_in_vain_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bus_id: str, is_slice: bool, machine: str | None, expected: str
) -> None:
    monkeypatch.setenv("HWLOC_XMLFILE", eight_gpus(tmp_path / "machine.xml", NO_NICS))
    gpus = [{"index": index, "bus_id": f"0000:0{index + 1}:00.0"} for index in range(2)]
    alone = {"gpus": [["GPU0"], ["GPU1"]], "by": None}
    nodes = [{"index": index, "cpus": text} for index, text in enumerate(("0-3,8", "4-7"))]
    made = {
        "hidden": SimpleNamespace(facts={"gpus": gpus, "pcie": []}, islands=alone),
        "two": SimpleNamespace(facts={"numa_nodes": nodes}),
        "none": SimpleNamespace(facts={"numa_nodes": []}),
    }

    def discover() -> SimpleNamespace:
        if machine == "no hwloc":
            raise _topology.TopologyError("built without hwloc")
        return made[machine or ""]

    if machine:
        monkeypatch.setattr(_topology, "discover", discover)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4})
    with pytest.raises(ValueError, match=r'^nodes "islands": ') as caught:
        find_island(bus_id, is_slice)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([4, 4], ""),
        ([2, 2, 2], ""),
        ([1], ""),
        ([8], "there is one island: set ISTHMUS_NODES=8x1"),
        ([3, 5], "islands have 3 to 5 ranks: set ISTHMUS_NODES=8x1"),
        ([1, 1], "nothing joins any two GPUs: set ISTHMUS_NODES=2x1"),
    ],
)
def test_islands_that_make_no_two_tiers_say_what_to_set(sizes: list[int], expected: str) -> None:
    assert instead(sizes) == expected


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (
            "8gpu-a100-pcie.hwloc.xml",
            "Islands: GPUs 0,1,2,3 | 4,5,6,7, by PCIe switch; between them (SYS) at most 63.02 Gbit/s of each GPU: set "
            "ISTHMUS_NODES=islands for a job on this machine alone",
        ),
        (
            "8gpu-pcie-vm.topo.txt",
            "Islands: GPUs 0,1,2,3 | 4,5,6,7, by NUMA node; between them (SYS) unknown: set ISTHMUS_NODES=islands for "
            "a job on this machine alone",
        ),
        (
            "aws-g5-12xlarge.nccl.xml",
            "Islands: GPUs 0,1,2,3, by NUMA node; there is one island: set ISTHMUS_NODES=4x1 for a job on this machine "
            "alone",
        ),
        ("dgx-a100.nccl.xml", ""),
        ("azure-ndv4.nccl.xml", ""),
    ],
)
def test_the_advice_for_recorded_machines(machine: str, expected: str) -> None:
    assert advice(_topology.read_machine(str(ROOT / "topology/machines" / machine)).islands) == expected


# --- a job on the CPU


#: Of each rank the NUMA node to whose processors it is bound, -1: to none; and the node map or the error.
BOUND: dict[tuple[int, ...], str] = {
    (0, 1, 0, 1): "0,2|1,3, by ISTHMUS_NODES (islands that NUMA node joins)",
    (0, 0, 1, 0): "0,1,3|2, by ISTHMUS_NODES (islands that NUMA node joins), though islands have 1 to 3 ranks: set "
    "ISTHMUS_NODES=4x1",
    (0, 1, -1, 1): 'isthmus: rank 2: nodes "islands": looked for a GPU, and for the NUMA node that this rank is bound '
    "to, and it may run on 2 of 2: bind it to one (numactl --cpunodebind)",
}


def bound(rank: int, world_size: int, machine: str) -> list[str]:
    os.environ |= {"HWLOC_XMLFILE": machine, "ISTHMUS_NODES": "islands", "ISTHMUS_CODEC": "none"}
    ranks.init("gloo")
    said = []
    for of_rank in BOUND:
        find_island.cache_clear()
        node = of_rank[rank]
        os.sched_getaffinity = lambda _, node=node: {0, 2} if node == -1 else {2 * node}  # type: ignore[assignment]
        try:
            stats = isthmus.stats(dist.new_group(backend="isthmus"))
            said.append(f"{stats['node_map']}, by {stats['node_map_source']}")
        except isthmus.OptionError as error:
            said.append(str(error))
    finish()
    return said


@pytest.mark.processes
def test_ranks_are_on_the_numa_node_that_they_are_bound_to(tmp_path: Path) -> None:
    sets = 'cpuset="{0}" complete_cpuset="{0}" nodeset="{1}" complete_nodeset="{1}"'
    parts = "".join(
        f'<object type="Package" os_index="{node}" {(own := sets.format(cpus, nodes))}>'
        f'<object type="NUMANode" os_index="{node}" {own}/>'
        + "".join(
            f'<object type="PU" os_index="{n}" {sets.format(hex(1 << n), nodes)}/>' for n in (2 * node, 2 * node + 1)
        )
        + "</object>"
        for node, cpus, nodes in ((0, "0x3", "0x1"), (1, "0xc", "0x2"))
    )
    machine = tmp_path / "machine.xml"
    machine.write_text(
        f'<topology version="2.0"><object type="Machine" os_index="0" {sets.format("0xf", "0x3")} allowed_cpuset="0xf" '
        f'allowed_nodeset="0x3">{parts}</object></topology>'
    )
    assert ranks.run(bound, 4, str(machine)) == [list(BOUND.values())] * 4
