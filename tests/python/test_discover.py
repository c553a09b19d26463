"""The machine that is running: made-up trees of /sys, a made-up NVML, and whatever this machine has."""

from __future__ import annotations

import pynvml
import pytest

from isthmus.topology.discover import discover
from isthmus.topology.hwloc import HwlocFacts, read_hwloc
from isthmus.topology.machine import Fabric, Machine, NicKind, NumaNode, Socket
from isthmus.topology.nvml import NvLink, NvmlFacts, read_nvml
from isthmus.topology.rails import find_rails
from isthmus.topology.sysfs import Roots, parse_cpu_list
from made_up_machines import (
    AMAZON,
    BRIDGE,
    ETHERNET,
    INFINIBAND,
    NVIDIA,
    NVSWITCH,
    USB,
    MadeUpGpu,
    MadeUpMachine,
    MadeUpNvml,
    eight_gpu_node,
)

NO_HWLOC = HwlocFacts(missing="hwloc: not asked")
NO_NVML = NvmlFacts(missing="NVML: not asked")
GEN4_X16 = 252.062  # 16 GT/s, 128b/130b, 16 lanes


def found(machine: MadeUpMachine, nvml: NvmlFacts = NO_NVML, hwloc: HwlocFacts = NO_HWLOC) -> Machine:
    """What discovery makes of it; every machine must survive JSON, which checks links and places."""
    result = discover(machine.roots, lambda: nvml, lambda: hwloc)
    assert Machine.from_json(result.to_json()) == result
    return result


def nics_of(machine: Machine) -> list[tuple[str | None, NicKind, float | None]]:
    return [(nic.name, nic.kind, nic.speed_gbit_s) for nic in machine.nics]


def facts_of(*gpus: MadeUpGpu) -> NvmlFacts:
    return read_nvml(MadeUpNvml(*gpus))


def noted(machine: Machine, text: str) -> bool:
    return any(text in note for note in machine.notes)


@pytest.fixture
def machine(tmp_path) -> MadeUpMachine:
    return MadeUpMachine(tmp_path)


# --- processors and the PCIe tree


def test_an_eight_gpu_node_with_infiniband(tmp_path):
    made_up = eight_gpu_node(tmp_path)
    node = found(made_up)
    assert node.name == "made-up"
    assert node.sockets == (Socket(0, (0,), "Some CPU"), Socket(1, (1,), "Some CPU"))
    assert node.numa_nodes == (NumaNode(0, 0, "0-3"), NumaNode(1, 1, "4-7"))
    assert [gpu.bus_id for gpu in node.gpus][:3] == ["0000:03:00.0", "0000:04:00.0", "0000:23:00.0"]
    assert [gpu.numa_node for gpu in node.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert nics_of(node) == [(f"mlx5_{number}", NicKind.INFINIBAND, 200.0) for number in range(8)]
    assert [node.distance("GPU0", other) for other in ("GPU1", "GPU2", "GPU4")] == ["PIX", "NODE", "SYS"]
    assert [node.distance("GPU0", other) for other in ("NIC0", "NIC1", "NIC2", "NIC7")] == ["PIX", "PIX", "NODE", "SYS"]
    assert node.link("GPU0", "NIC0").speed_gbit_s == GEN4_X16
    assert len(node.pcie) == 4
    assert [place.link_speed_gbit_s for place in node.pcie[0].children] == [GEN4_X16]
    assert [rail.nearest.nic for rail in find_rails(node).rails] == [f"NIC{number}" for number in range(8)]
    assert find_rails(node).speed_gbit_s == 200


def test_a_node_with_roce_shows_each_port_once(tmp_path):
    node = found(eight_gpu_node(tmp_path, "Ethernet"))
    assert nics_of(node) == [(f"mlx5_{number}", NicKind.ROCE, 200.0) for number in range(8)]
    assert not noted(node, "left out")


def test_two_functions_of_one_adapter_share_a_place(machine):
    machine.pci("0000:00:01.0", BRIDGE)
    for function in range(2):
        machine.pci(f"0000:01:00.{function}", ETHERNET, "0000:00:01.0")
        machine.interface(f"eth{function}", f"0000:01:00.{function}", 25_000)
    node = found(machine)
    assert node.distance("NIC0", "NIC1") == "PIX"
    assert [place.devices for place in node.pcie[0].children] == [("NIC0", "NIC1")]


@pytest.mark.parametrize(
    ("device", "port", "expected"),
    [
        (("16.0 GT/s PCIe", "16"), ("16.0 GT/s PCIe", "16"), GEN4_X16),
        (("16.0 GT/s PCIe", "16"), ("8.0 GT/s PCIe", "8"), 63.015),
        (("5.0 GT/s PCIe", "8"), ("16 GT/s", "16"), 32.0),
        (("64.0 GT/s PCIe", "16"), ("64.0 GT/s PCIe", "16"), 968.0),
        (("Unknown", "255"), ("16.0 GT/s PCIe", "16"), GEN4_X16),
        ((None, None), ("Unknown", "0"), None),
        (("16.0 GT/s PCIe", None), (None, None), None),
        (("-16 GT/s", "16"), ("nan", "999999"), None),
        (("1e9 GT/s", "16"), ("1000000 GT/s", "16"), 12.8),  # 1 GT/s: what stands before the e
    ],
)
def test_a_link_is_as_fast_as_both_ends_can(machine, device, port, expected):
    machine.pci("0000:00:01.0", BRIDGE, speed=port[0], width=port[1])
    machine.gpu("0000:01:00.0", "0000:00:01.0", speed=device[0], width=device[1])
    (place,) = found(machine).pcie[0].children
    assert place.link_speed_gbit_s == expected


def test_processors_that_are_offline_or_unplaced(machine, tmp_path):
    machine.processors(2, 2, model=None)
    machine.numa("0-3", "")
    (machine.roots.sys / "devices/system/cpu/cpu3/online").write_text("0\n")
    (machine.roots.sys / "devices/system/cpu/cpu2/topology/physical_package_id").write_text("-1\n")
    node = found(machine)
    assert node.sockets == (Socket(0, (0,)),)
    assert node.numa_nodes == (NumaNode(0, 0, "0-3"), NumaNode(1, None, None))


def test_with_one_numa_node_every_device_is_in_it(machine):
    machine.processors(1, 2)
    machine.numa("0-1")
    machine.gpu("0000:01:00.0", "pci0000:00", numa=-1)
    machine.pci("0001:01:00.0", ETHERNET, "pci0001:00", numa=-1)
    machine.interface("eth0", "0001:01:00.0")
    node = found(machine)
    assert (node.gpus[0].numa_node, node.nics[0].numa_node) == (0, 0)
    assert node.distance("GPU0", "NIC0") == "NODE"


def test_an_empty_machine_is_a_machine(tmp_path):
    node = found(MadeUpMachine(tmp_path))
    assert (node.sockets, node.gpus, node.nics, node.pcie) == ((), (), (), ())
    assert noted(node, "no PCIe bus") and noted(node, "no network interfaces")
    nowhere = discover(Roots(tmp_path / "none", tmp_path / "none"), lambda: NO_NVML, lambda: NO_HWLOC)
    assert nowhere.name == "this machine"
    assert noted(nowhere, "NVML: not asked") and noted(nowhere, "hwloc: not asked")


def test_links_that_lead_nowhere_or_in_circles(machine):
    devices = machine.roots.sys / "bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / "0000:01:00.0").symlink_to("0000:02:00.0")
    (devices / "0000:02:00.0").symlink_to("0000:01:00.0")
    (devices / "0000:03:00.0").symlink_to("nowhere")
    (devices / "not-a-bus-id").mkdir()
    nets = machine.roots.sys / "class/net"
    nets.mkdir(parents=True)
    (nets / "eth0").symlink_to("nowhere")
    (nets / "bonding_masters").write_text("\n")
    node = found(machine)
    assert (node.gpus, node.nics) == ((), ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-2,8", {0, 1, 2, 8}), ("", set()), ("3", {3}), ("a-b,-1,5-", set()), ("7-3", set()), ("99999999", set())],
)
def test_lists_of_processors(text, expected):
    assert parse_cpu_list(text) == expected


# --- NICs


def test_efa_beside_elastic_network_adapters(machine):
    machine.pci("0000:00:05.0", ETHERNET, vendor=AMAZON, device=0xEC20, speed=None)
    machine.interface("ens5", "0000:00:05.0", speed=-1)
    machine.pci("0000:10:1b.0", ETHERNET, "pci0000:10", vendor=AMAZON, device=0xEFA1)
    machine.verbs("rdmap16s27", "0000:10:1b.0", "Unspecified", "100 Gb/sec (4X EDR)", node_type="7: unspecified")
    node = found(machine)
    assert nics_of(node) == [("rdmap16s27", NicKind.EFA, 100.0), ("ens5", NicKind.ETHERNET, None)]
    assert noted(node, "does not say how fast ens5 is")
    assert find_rails(node).rails[0].nearest.nic == "NIC0"


def test_bonds_vlans_and_bridges_are_left_out_and_their_ports_kept(machine):
    for number in range(2):
        machine.pci(f"0000:0{number + 1}:00.0", ETHERNET)
        machine.interface(f"eth{number}", f"0000:0{number + 1}:00.0", 25_000)
    machine.interface("bond0", speed=50_000)
    for name in ("lo", "docker0", "veth12ab", "eth0.100", "br0", "ib0.8001"):
        machine.interface(name, speed=10_000)
    assert nics_of(found(machine)) == [("eth0", NicKind.ETHERNET, 25.0), ("eth1", NicKind.ETHERNET, 25.0)]


def test_virtual_functions_count_only_without_their_physical_function(machine):
    machine.pci("0000:01:00.0", ETHERNET)
    machine.interface("eth0", "0000:01:00.0", 100_000)
    for number in range(1, 4):
        machine.virtual_function(f"0000:01:00.{number}", "0000:01:00.0", "pci0000:00")
        machine.interface(f"eth0v{number}", f"0000:01:00.{number}", 100_000)
    machine.pci("0000:02:00.0", ETHERNET)  # its interface is in another network namespace
    machine.virtual_function("0000:02:00.1", "0000:02:00.0", "pci0000:00")
    machine.interface("net1", "0000:02:00.1", 40_000)
    node = found(machine)
    assert nics_of(node) == [("eth0", NicKind.ETHERNET, 100.0), ("net1", NicKind.ETHERNET, 40.0)]
    assert noted(node, "virtual functions of eth0 (3)")


def test_what_is_no_way_out_is_left_out_by_name(machine):
    machine.pci("0000:01:00.0", ETHERNET)
    machine.interface("eth0", "0000:01:00.0", 100_000)
    machine.interface("eth0vf1", "0000:01:00.0", 100_000, phys_port_name="pf0vf1")  # a representor: not worth a word
    machine.pci("0000:02:00.0", ETHERNET)
    machine.interface("eth1", "0000:02:00.0", -1, state="down")
    machine.pci("0000:03:00.0", USB)
    machine.interface("usb0", "0000:03:00.0", 100, below="usb1/1-1/1-1:1.0")
    machine.pci("0000:04:00.0", INFINIBAND)
    machine.verbs("mlx5_0", "0000:04:00.0", state="1: DOWN", rate="2.5 Gb/sec (1X SDR)")
    machine.verbs("rxe0", None, "Ethernet")
    machine.pci("0000:05:00.0", ETHERNET)
    machine.interface("fc0", "0000:05:00.0", kind=777)
    node = found(machine)
    assert nics_of(node) == [("eth0", NicKind.ETHERNET, 100.0)]
    for text in ("eth1 (down)", "usb0 (not on PCIe)", "mlx5_0 (down)", "rxe0 (made by software)", "fc0 (neither"):
        assert noted(node, text)
    assert not noted(node, "eth0vf1")


def test_both_ports_of_an_adapter_with_one_function(machine):
    machine.pci("0000:01:00.0", INFINIBAND)
    machine.verbs("mlx4_0", "0000:01:00.0", ports=2, rate="56 Gb/sec (4X FDR)")
    machine.interface("ib0", "0000:01:00.0", kind=32, dev_port=0)
    machine.interface("ib1", "0000:01:00.0", kind=32, dev_port=1)
    names = [("mlx4_0", NicKind.INFINIBAND, 56.0), ("mlx4_0:2", NicKind.INFINIBAND, 56.0)]
    assert nics_of(found(machine)) == names


def test_a_second_interface_of_a_port_is_left_out(machine):
    machine.pci("0000:01:00.0", ETHERNET)
    machine.interface("eth0", "0000:01:00.0")
    machine.interface("eth0x", "0000:01:00.0")
    node = found(machine)
    assert [nic.name for nic in node.nics] == ["eth0"]
    assert noted(node, "eth0x (the same port as another interface)")


def test_a_paravirtual_interface_over_a_virtual_function(machine):
    """Azure: eth0 is not on PCIe, and stands on a virtual function that is."""
    machine.pci("7870:00:00.0", ETHERNET, "pci7870:00")
    machine.interface("enP30832s1", "7870:00:00.0", 50_000)
    folder = machine.roots.sys / "devices/LNXSYSTM:00/VMBUS:00/0022/net/eth0"
    (folder / "lower_enP30832s1").mkdir(parents=True)
    (folder / "type").write_text("1\n")
    (machine.roots.sys / "class/net/eth0").symlink_to(folder)
    node = found(machine)
    assert [nic.name for nic in node.nics] == ["enP30832s1"]
    assert noted(node, "eth0 (the same port as enP30832s1)")


def test_a_paravirtual_interface_alone(machine):
    machine.pci("0000:00:03.0", ETHERNET, vendor=0x1AF4, device=0x1041, speed=None)
    machine.interface("eth0", "0000:00:03.0", -1, below="virtio2")
    (node,) = found(machine).nics
    assert (node.name, node.bus_id, node.kind, node.speed_gbit_s) == ("eth0", "0000:00:03.0", NicKind.ETHERNET, None)


@pytest.mark.parametrize("speed", [-1, 4_294_967_295, "many", "", 0, None, 99_999_999])
def test_a_speed_that_is_unknown_or_nonsense(machine, speed):
    machine.pci("0000:01:00.0", ETHERNET)
    machine.interface("eth0", "0000:01:00.0", speed)
    assert found(machine).nics[0].speed_gbit_s is None


def test_a_speed_that_cannot_be_read(machine):
    machine.pci("0000:01:00.0", ETHERNET)
    folder = machine.interface("eth0", "0000:01:00.0", None)
    (folder / "speed").mkdir()  # reading it fails, as it does for an interface that is down
    assert found(machine).nics[0].speed_gbit_s is None


def test_verbs_devices_that_say_little(machine):
    machine.pci("0000:01:00.0", ETHERNET)
    machine.verbs("mlx5_0", "0000:01:00.0", layer=None, rate=None)
    machine.pci("0000:02:00.0", ETHERNET)
    machine.verbs("i40iw0", "0000:02:00.0", layer="Ethernet", rate="40 Gb/sec (4X QDR)", node_type="4: RNIC")
    node = found(machine)
    assert nics_of(node) == [("i40iw0", NicKind.ETHERNET, 40.0), ("mlx5_0", NicKind.UNKNOWN, None)]
    assert noted(node, "what mlx5_0 speaks")


def test_nics_are_numbered_as_people_count_them(machine):
    for number in (0, 1, 2, 10):
        machine.pci(f"0000:{0x40 - number:02x}:00.0", INFINIBAND)
        machine.verbs(f"mlx5_{number}", f"0000:{0x40 - number:02x}:00.0")
    machine.pci("0000:01:00.0", ETHERNET)
    machine.interface("eth0", "0000:01:00.0")
    assert [nic.name for nic in found(machine).nics] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10", "eth0"]


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
    ("mbyte_s", "version", "expected"), [(26_562, 4, 212.496), (None, 3, 200.0), (None, None, None)]
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


def test_gpus_in_mig_mode_are_told(machine):
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


def test_nvml_is_closed_again():
    nvml = MadeUpNvml(MadeUpGpu("0000:01:00.0"))
    facts = read_nvml(nvml)
    assert nvml.is_shut_down
    assert (facts.driver, facts.missing) == ("580.1", None)


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


@pytest.mark.parametrize("xml", [b"", b"<topology", b"<system/>", b"\xff\xfe\x00"])
def test_hwloc_that_talks_nonsense_is_told(machine, xml):
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


# --- all of it


def test_this_machine():
    here = discover()
    assert here.source == "discovery"
    assert here.sockets
    assert Machine.from_json(here.to_json()) == here
