"""What NVML adds to the machine that is running: a made-up NVML, and a library with its binary interface."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from isthmus.topology.discovery.nvml import NvLink, NvmlFacts, read_nvml
from isthmus.topology.machine import Fabric
from python.topology.made_up_machines import (
    MadeUpGpu,
    MadeUpMachine,
    MadeUpNvml,
    eight_gpu_node,
    found,
    noted,
)
from support.limits import HANG_S


def facts_of(*gpus: MadeUpGpu) -> NvmlFacts:
    return read_nvml(MadeUpNvml(*gpus))


@pytest.fixture
def machine(tmp_path) -> MadeUpMachine:
    return MadeUpMachine(tmp_path)


# --- NVML


def switched(bus_id: str, count: int = 12) -> MadeUpGpu:
    """The first half of its links leads to switches that a virtual machine hides."""
    switches = ["FFFFFFFF:FF:FF.0"] * (count // 2) + ["00000000:C0:00.0"] * (count - count // 2)
    return MadeUpGpu(bus_id, nvlinks=[("switch", switch) for switch in switches])


def test_nvlinks_through_switches_join_every_pair(tmp_path):
    made_up = eight_gpu_node(tmp_path)
    bus_ids = [gpu.bus_id for gpu in found(made_up).gpus]
    node = found(made_up, facts_of(*(switched(bus_id) for bus_id in bus_ids)))
    assert {node.distance(a, b) for a in node.gpus for b in node.gpus if a != b} == {"NV12"}
    assert node.link("GPU0", "GPU7").speed_gbit_s == 2400
    assert {gpu.model for gpu in node.gpus} == {"NVIDIA A100-SXM4-80GB"}
    assert [gpu.numa_node for gpu in node.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert node.distance("GPU0", "NIC0") == "PIX"


def test_two_gpus_have_as_many_links_through_switches_as_the_one_with_fewer(machine):
    buses = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    for bus_id in buses:
        machine.gpu(bus_id, "pci0000:00")
    node = found(machine, facts_of(*map(switched, buses, (12, 8, 0))))
    assert [link.kind for link in node.links] == ["NV8", "PHB", "PHB"]


def test_direct_nvlinks_of_unequal_width(machine):
    buses = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    for bus_id in buses:
        machine.gpu(bus_id, "pci0000:00")
    ids = [f"0000{bus_id}" for bus_id in buses]
    gpus = [
        MadeUpGpu(buses[0], nvlinks=[("gpu", ids[1]), ("gpu", ids[1]), ("gpu", ids[2]), ("off", ids[2])]),
        MadeUpGpu(buses[1], nvlinks=[("gpu", ids[0]), ("gpu", ids[0])]),
        MadeUpGpu(buses[2], nvlinks=[("gpu", ids[0])]),
    ]
    node = found(machine, facts_of(*gpus))
    assert [node.distance(*pair) for pair in (("GPU0", "GPU1"), ("GPU0", "GPU2"))] == ["NV2", "NV1"]
    assert node.distance("GPU1", "GPU2") == "PHB"
    assert node.link("GPU0", "GPU1").speed_gbit_s == 400


@pytest.mark.parametrize(
    ("mbyte_s", "version", "expected"),
    [
        (26_562, 4, 212.496),
        # NVIDIA's data sheets: P100, V100, A100, H100, B200.
        *zip([None] * 5, [1, 2, 3, 4, 5], [160.0, 200.0, 200.0, 200.0, 400.0], strict=True),
        (None, None, None),
    ],
)
def test_the_speed_of_nvlinks(mbyte_s, version, expected):
    gpu = MadeUpGpu("0000:01:00.0", nvlinks=[("switch", "x")], nvlink_mbyte_s=mbyte_s, nvlink_version=version)
    assert facts_of(gpu).nvlinks[0] == (NvLink(True, None, expected),)


JOINED, JOINING = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS
CLUSTER = bytes(range(1, 17))


@pytest.mark.parametrize(
    ("cluster", "state", "fabric"),
    [
        (CLUSTER, JOINED, Fabric("01020304-0506-0708-090a-0b0c0d0e0f10", 7)),
        (CLUSTER, JOINING, None),
        (bytes(16), JOINED, None),  # one node's NVSwitches
        (CLUSTER, None, None),  # not supported
    ],
)
def test_gpus_of_a_multi_node_domain(machine, cluster, state, fabric):
    machine.gpu("0000:01:00.0", "pci0000:00")
    gpu = MadeUpGpu("0000:01:00.0", cluster=cluster, clique=7, fabric_state=state)
    assert found(machine, facts_of(gpu)).gpus[0].fabric == fabric


def test_nvml_decides_which_gpus_there_are(machine):
    """A container that was given two of three GPUs; one of them fell off the bus."""
    for bus in (1, 2, 3):
        machine.gpu(f"0000:0{bus}:00.0", "pci0000:00")
    gpus = [MadeUpGpu("0000:03:00.0"), MadeUpGpu("0000:01:00.0", is_lost=True)]
    node = found(machine, facts_of(*gpus))
    assert [(gpu.index, gpu.bus_id) for gpu in node.gpus] == [(0, "0000:03:00.0")]
    assert noted(node, "GPU 1 left out")
    assert noted(node, "NVML does not show 0000:01:00.0, 0000:02:00.0")


def test_a_gpu_that_sysfs_does_not_show(machine):
    machine.interface("eth0", "0000:01:00.0")
    node = found(machine, facts_of(MadeUpGpu("0000:65:00.0")))
    assert node.gpus[0].bus_id == "0000:65:00.0"
    assert node.distance("GPU0", "NIC0") == "NODE"
    assert noted(node, "not on the PCIe bus that sysfs shows: GPU0")


def test_without_nvml_gpus_come_from_the_bus(machine):
    machine.gpu("0000:01:00.0", "pci0000:00")
    node = found(machine)
    assert (node.gpus[0].model, node.gpus[0].bus_id) == ("NVIDIA A100-SXM4-80GB", "0000:01:00.0")  # by PCI ids
    assert noted(node, "NVML: not asked") and noted(node, "without NVML, NVLinks are unknown")


def test_an_nvml_that_is_not_there():
    class Broken(MadeUpNvml):
        def nvmlInit(self):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    facts = read_nvml(Broken())
    assert (facts.gpus, facts.missing) == ((), "NVML: NVML Shared Library Not Found")


def test_a_pynvml_that_is_too_old():
    class Old(MadeUpNvml):
        def __getattr__(self, name):
            if name == "c_nvmlGpuFabricInfo_v2_t":
                raise AttributeError(f"module 'pynvml' has no attribute '{name}'")
            return super().__getattr__(name)

    nvml = Old(MadeUpGpu("0000:01:00.0"))
    facts = read_nvml(nvml)
    assert facts.gpus == () and nvml.is_shut_down
    assert facts.missing == "NVML: this pynvml is too old: module 'pynvml' has no attribute 'c_nvmlGpuFabricInfo_v2_t'"


READ_NVML = """
from isthmus.topology.discovery.nvml import read_nvml
facts = read_nvml()
print(facts.driver, facts.missing, facts.notes)
for gpu in facts.gpus:
    print(gpu.index, gpu.bus_id, gpu.model, gpu.fabric, end=' ')
    print(len(facts.nvlinks[gpu.index]), set(facts.nvlinks[gpu.index]))
"""


@pytest.mark.processes
def test_a_library_with_the_binary_interface_of_nvml(tmp_path):
    """What is asked of pynvml above, through the real pynvml: a driver's library that was compiled for this."""
    source = Path(__file__).parent / "made_up_nvml.c"
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", source, "-o", library], check=True)
    result = subprocess.run(
        [sys.executable, "-c", READ_NVML],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    link = NvLink(True, None, 425.0)
    fabric = Fabric("abababab-abab-abab-abab-abababababab", 32766)
    assert result.stdout.splitlines() == [
        "999.0 None ()",
        f"0 0008:a0:00.0 Made-up GPU 0 {fabric} 18 {{{link}}}",
        f"1 0008:a1:00.0 Made-up GPU 1 {fabric} 18 {{{link}}}",
    ], result.stderr
