"""What NVML and hwloc add to the machine that is running: a made-up NVML, and hwloc's XML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from isthmus.topology.discovery.hwloc import HwlocFacts, read_hwloc
from isthmus.topology.discovery.nvml import NvLink, NvmlFacts, read_nvml
from isthmus.topology.machine import Fabric, Socket
from python.topology.made_up_machines import (
    ETHERNET,
    NVIDIA,
    NVSWITCH,
    MadeUpGpu,
    MadeUpMachine,
    MadeUpNvml,
    eight_gpu_node,
    found,
    noted,
)
from support.limits import HANG_S
from support.places import ROOT

GEN4_X16 = 252.062  # Gbit/s of 16 GT/s, 128b/130b, 16 lanes


def facts_of(*gpus: MadeUpGpu) -> NvmlFacts:
    return read_nvml(MadeUpNvml(*gpus))


@pytest.fixture
def machine(tmp_path) -> MadeUpMachine:
    return MadeUpMachine(tmp_path)


# --- NVML


def switched(bus_id: str, count: int = 12) -> MadeUpGpu:
    switches = [f"00000000:{0xC0 + link % 6:02X}:00.0" for link in range(count)]
    return MadeUpGpu(bus_id, nvlinks=[("switch", switch) for switch in switches])


def test_nvlinks_through_switches_join_every_pair(tmp_path):
    made_up = eight_gpu_node(tmp_path)
    bus_ids = [gpu.bus_id for gpu in found(made_up).gpus]
    node = found(made_up, facts_of(*(switched(bus_id) for bus_id in bus_ids)))
    assert {node.distance(a, b) for a in node.gpus for b in node.gpus if a != b} == {"NV12"}
    assert node.link("GPU0", "GPU7").speed_gbit_s == 2400
    assert node.num_nvswitches == 6
    assert {gpu.model for gpu in node.gpus} == {"NVIDIA A100-SXM4-80GB"}
    assert [gpu.numa_node for gpu in node.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert node.distance("GPU0", "NIC0") == "PIX"


def test_switches_on_the_bus_are_counted_there(machine):
    machine.gpu("0000:01:00.0", "pci0000:00")
    for number in range(4):
        machine.pci(f"0000:0{number + 5}:00.0", NVSWITCH, vendor=NVIDIA)
    hidden = MadeUpGpu("0000:01:00.0", nvlinks=[("switch", "FFFFFFFF:FF:FF.0")] * 18)
    assert found(machine, facts_of(hidden)).num_nvswitches == 4


def test_switches_that_a_virtual_machine_hides(machine):
    for bus in (1, 2):
        machine.gpu(f"0000:0{bus}:00.0", "pci0000:00")
    gpus = [MadeUpGpu(f"0000:0{bus}:00.0", nvlinks=[("switch", "FFFFFFFF:FF:FF.0")] * 18) for bus in (1, 2)]
    node = found(machine, facts_of(*gpus))
    assert node.num_nvswitches is None
    assert node.distance("GPU0", "GPU1") == "NV18"


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
    assert node.num_nvswitches == 0


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
    assert facts_of(gpu).gpus[0].nvlinks == (NvLink("switch", None, expected),)


def test_links_to_processors(machine):
    machine.gpu("0009:01:00.0", "pci0009:00")
    machine.gpu("0019:01:00.0", "pci0019:00")
    grace = MadeUpGpu("0009:01:00.0", c2c_mbyte_s=[45_000] * 10)
    power = MadeUpGpu("0019:01:00.0", nvlinks=[("cpu", "00000000:00:00.0")] * 3)
    node = found(machine, facts_of(grace, power))
    assert [gpu.cpu_link_speed_gbit_s for gpu in node.gpus] == [3600.0, 600.0]


def test_gpus_of_a_multi_node_domain(machine):
    machine.gpu("0000:01:00.0", "pci0000:00")
    cluster = bytes(range(1, 17))
    joined = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    gpu = MadeUpGpu("0000:01:00.0", cluster=cluster, clique=7, fabric_state=joined)
    fabric = Fabric("01020304-0506-0708-090a-0b0c0d0e0f10", 7)
    assert found(machine, facts_of(gpu)).gpus[0].fabric == fabric
    for other in (
        MadeUpGpu("0000:01:00.0", cluster=cluster, fabric_state=pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS),
        MadeUpGpu("0000:01:00.0", fabric_state=joined),  # one node's NVSwitches: no cluster
        MadeUpGpu("0000:01:00.0", cluster=cluster),  # not supported
    ):
        assert found(machine, facts_of(other)).gpus[0].fabric is None


def test_gpus_in_mig_mode_are_noted(machine):
    machine.gpu("0000:01:00.0", "pci0000:00")
    assert noted(found(machine, facts_of(MadeUpGpu("0000:01:00.0", mig=1))), "GPU0 is in MIG mode")
    assert not noted(found(machine, facts_of(MadeUpGpu("0000:01:00.0", mig=None))), "MIG")


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
    machine.pci("0000:01:00.0", ETHERNET)
    machine.interface("eth0", "0000:01:00.0")
    node = found(machine, facts_of(MadeUpGpu("0000:65:00.0")))
    assert node.gpus[0].bus_id == "0000:65:00.0"
    assert node.distance("GPU0", "NIC0") == "NODE"
    assert noted(node, "not on the PCIe bus that sysfs shows: GPU0")


def test_without_nvml_gpus_come_from_the_bus(machine):
    machine.gpu("0000:01:00.0", "pci0000:00")
    node = found(machine)
    assert (node.gpus[0].model, node.gpus[0].bus_id) == (None, "0000:01:00.0")
    assert noted(node, "NVML: not asked") and noted(node, "without NVML")
    assert node.num_nvswitches is None


def test_an_nvml_that_is_not_there():
    class Broken(MadeUpNvml):
        def nvmlInit(self):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    facts = read_nvml(Broken())
    assert facts.gpus == ()
    assert facts.missing == "NVML: NVML Shared Library Not Found"


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


def test_nvml_is_closed_again():
    nvml = MadeUpNvml(MadeUpGpu("0000:01:00.0"))
    facts = read_nvml(nvml)
    assert nvml.is_shut_down
    assert (facts.driver, facts.missing) == ("580.1", None)


READ_NVML = """
from isthmus.topology.discovery.nvml import read_nvml
facts = read_nvml()
print(facts.driver, facts.missing, facts.notes)
for gpu in facts.gpus:
    print(gpu.index, gpu.bus_id, gpu.model, gpu.fabric, gpu.in_mig_mode, end=' ')
    print(len(gpu.nvlinks), set(gpu.nvlinks), gpu.c2c_gbit_s)
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
    link = NvLink("switch", None, 425.0)
    fabric = Fabric("abababab-abab-abab-abab-abababababab", 32766)
    assert result.stdout.splitlines() == [
        "999.0 None ()",
        f"0 0008:a0:00.0 Made-up GPU 0 {fabric} False 18 {{{link}}} None",
        f"1 0008:a1:00.0 Made-up GPU 1 {fabric} True 18 {{{link}}} None",
    ], result.stderr


# --- hwloc

HWLOC_XML = b"""<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x3" nodeset="0x3">
    <object type="Package" os_index="0" cpuset="0x1" nodeset="0x1">
      <info name="CPUModel" value="By hwloc"/>
      <object type="NUMANode" os_index="0" cpuset="0x1" nodeset="0x1"/>
    </object>
    <object type="Package" os_index="1" cpuset="0x2" nodeset="0x2">
      <object type="NUMANode" os_index="1" cpuset="0x2" nodeset="0x2"/>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-01]">
        <object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0302 [10de:20b2] [10de:1463] a1 00"
                pci_link_speed="0.25">
          <object type="OSDev" name="nvml0" subtype="NVML" osdev_type="5">
            <info name="GPUModel" value="By hwloc"/>
          </object>
        </object>
        <object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0200 [15b3:101b] [15b3:0001] 00 00"
                pci_link_speed="0.25">
          <object type="OSDev" name="eth0" osdev_type="2"/>
        </object>
      </object>
    </object>
  </object>
</topology>"""


def test_hwloc_fills_what_the_others_leave_open(machine):
    machine.gpu("0000:01:00.0", "pci0000:00")
    machine.pci("0000:02:00.0", ETHERNET)
    machine.interface("eth0", "0000:02:00.0")
    node = found(machine, hwloc=HwlocFacts(xml=HWLOC_XML))
    assert node.sockets[0].model == "By hwloc"
    assert len(node.numa_nodes) == 2
    assert (node.gpus[0].model, node.gpus[0].numa_node, node.nics[0].numa_node) == ("By hwloc", 1, 1)
    assert node.link("GPU0", "NIC0").speed_gbit_s == GEN4_X16  # not what an idle link has at the moment


def test_hwloc_overrides_nothing(machine):
    machine.processors(1, 2)
    machine.numa("0", "1")
    machine.gpu("0000:01:00.0", "pci0000:00", numa=0)
    node = found(machine, facts_of(MadeUpGpu("0000:01:00.0")), HwlocFacts(xml=HWLOC_XML))
    assert node.sockets == (Socket(0, (0, 1), "Some CPU"),)
    assert (node.gpus[0].model, node.gpus[0].numa_node) == ("NVIDIA A100-SXM4-80GB", 0)


def test_nvlinks_by_hwloc_where_nvml_is_missing(machine):
    for bus in ("0002", "0003", "000a", "000b"):
        machine.gpu(f"{bus}:01:00.0", f"pci{bus}:00")
    hwloc = HwlocFacts(xml=(ROOT / "topology/machines/power8-gpu.hwloc.xml").read_bytes())
    node = found(machine, hwloc=hwloc)
    assert [node.distance("GPU0", other) for other in ("GPU1", "GPU2")] == ["NV2", "SYS"]
    assert node.distance("GPU2", "GPU3") == "NV2"
    assert {gpu.model for gpu in node.gpus} == {"Tesla P100-SXM2-16GB"}
    # NVML knows better: here, that there are none.
    gpus = [MadeUpGpu(gpu.bus_id or "") for gpu in node.gpus]
    assert found(machine, facts_of(*gpus), hwloc).distance("GPU0", "GPU1") == "NODE"


@pytest.mark.parametrize("xml", [b"", b"<topology", b"<system/>", b"\xff\xfe\x00"])
def test_nonsense_of_hwloc_is_noted(machine, xml):
    machine.gpu("0000:01:00.0", "pci0000:00")
    node = found(machine, hwloc=HwlocFacts(xml=xml))
    assert len(node.gpus) == 1
    assert noted(node, "hwloc: ")


def test_hwloc_that_is_not_installed():
    assert read_hwloc("libhwloc.so.none").missing == "hwloc: libhwloc.so.none is not installed"


def test_hwloc_of_this_machine():
    facts = read_hwloc()
    if facts.missing is not None:
        pytest.skip(facts.missing)
    assert facts.xml is not None and facts.xml.rstrip(b"\0\n").endswith(b"</topology>")
    assert facts.version is not None and facts.version.startswith("2.")
