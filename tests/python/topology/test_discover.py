"""The machine that is running, by sysfs: made-up trees of /sys, and whatever this machine has."""

from __future__ import annotations

import os

import pytest

from isthmus.topology.discovery.discover import discover
from isthmus.topology.discovery.sysfs import Roots
from isthmus.topology.machine import Machine, NicKind, NumaNode, Socket
from isthmus.topology.rails import find_rails
from python.topology.made_up_machines import (
    AMAZON,
    BRIDGE,
    ETHERNET,
    NO_NVML,
    USB,
    MadeUpMachine,
    eight_gpu_node,
    found,
    noted,
)

GEN4_X16 = 252.062  # 16 GT/s, 128b/130b, 16 lanes


def nics_of(machine: Machine) -> list[tuple[str | None, NicKind, float | None]]:
    return [(nic.name, nic.kind, nic.speed_gbit_s) for nic in machine.nics]


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
    assert [rail.nic for rail in find_rails(node).rails] == [f"NIC{number}" for number in range(8)]
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
        (("16.0 GT/s PCIe", "16"), ("8.0 GT/s PCIe", "8"), 63.015),
        (("5.0 GT/s PCIe", "8"), ("16 GT/s", "16"), 32.0),
        (("Unknown", "255"), ("16.0 GT/s PCIe", "16"), GEN4_X16),
        ((None, None), ("Unknown", "0"), None),
        (("16.0 GT/s PCIe", None), (None, None), None),
    ],
)
def test_a_link_is_as_fast_as_both_ends_can(machine, device, port, expected):
    machine.pci("0000:00:01.0", BRIDGE, speed=port[0], width=port[1])
    machine.gpu("0000:01:00.0", "0000:00:01.0", speed=device[0], width=device[1])
    (place,) = found(machine).pcie[0].children
    assert place.link_speed_gbit_s == expected


def test_processors_in_no_socket(machine):
    machine.processors(2, 2, model=None)
    machine.numa("0-3", "")
    for cpu in (2, 3):
        (machine.roots.sys / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id").write_text("-1\n")
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
    assert noted(node, "no PCIe bus")
    nowhere = discover(Roots(tmp_path / "none", tmp_path / "none"), lambda: NO_NVML)
    assert nowhere.name == "this machine"
    assert noted(nowhere, "NVML: not asked")


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


GARBAGE = [b"", b"\xff\xfe\0", b"-1", b"9" * 25, b"9" * 5000, b"nan", b"0x", b"\x1b[31m", b"0-999999999"]


@pytest.mark.parametrize("which", ["*", "numa_node", "class", "physical_package_id", "cpulist", "rate", "speed"])
def test_garbage_in_attributes_stops_nothing(tmp_path, which):
    made_up = eight_gpu_node(tmp_path)
    files = [path for path in tmp_path.rglob(which) if path.is_file()]
    assert files
    for garbage in GARBAGE:
        for path in files:
            path.write_bytes(garbage)
        found(made_up)


# --- NICs: what the machine has, the NICs of it, and what notes say


def efa_beside_elastic_network_adapters(machine):
    machine.pci("0000:00:05.0", ETHERNET, vendor=AMAZON, device=0xEC20, speed=None)
    machine.interface("ens5", "0000:00:05.0", speed=-1)
    machine.pci("0000:10:1b.0", ETHERNET, "pci0000:10", vendor=AMAZON, device=0xEFA1)
    machine.verbs("rdmap16s27", "0000:10:1b.0", "Unspecified", "100 Gb/sec (4X EDR)", node_type="7: unspecified")


def bonds_vlans_and_bridges_with_their_ports(machine):
    for number in range(2):
        machine.interface(f"eth{number}", f"0000:0{number + 1}:00.0", 25_000)
    for name in ("bond0", "lo", "docker0", "veth12ab", "eth0.100", "br0", "ib0.8001"):
        machine.interface(name, speed=10_000)


def virtual_functions_with_and_without_their_physical_function(machine):
    machine.interface("eth0", "0000:01:00.0", 100_000)
    machine.virtual_function("0000:01:00.1", "0000:01:00.0", "pci0000:00")
    machine.interface("eth0v1", "0000:01:00.1", 100_000)
    machine.pci("0000:02:00.0", ETHERNET)  # its interface is in another network namespace
    machine.virtual_function("0000:02:00.1", "0000:02:00.0", "pci0000:00")
    machine.interface("net1", "0000:02:00.1", 40_000)


def interfaces_that_lead_nowhere(machine):
    machine.interface("eth0", "0000:01:00.0", 100_000)
    machine.interface("eth0vf1", "0000:01:00.0", 100_000, phys_port_name="pf0vf1")  # a representor: not worth a word
    machine.interface("eth0x", "0000:01:00.0")
    machine.interface("eth1", "0000:02:00.0", -1, state="down")
    machine.pci("0000:03:00.0", USB)
    machine.interface("usb0", "0000:03:00.0", 100, below="usb1/1-1/1-1:1.0")
    machine.verbs("mlx5_0", "0000:04:00.0", state="1: DOWN", rate="2.5 Gb/sec (1X SDR)")
    machine.verbs("rxe0", None, "Ethernet")
    machine.interface("fc0", "0000:05:00.0", kind=777)


def an_interface_of_a_single_port_with_another_number(machine):
    machine.verbs("mlx5_0", "0000:01:00.0", "Ethernet")
    machine.interface("eth1", "0000:01:00.0", dev_port=1)


def both_ports_of_an_adapter_with_one_function(machine):
    machine.verbs("mlx4_0", "0000:01:00.0", ports=2, rate="56 Gb/sec (4X FDR)")
    for port in range(2):
        machine.interface(f"ib{port}", "0000:01:00.0", kind=32, dev_port=port)


def a_paravirtual_interface_over_a_virtual_function(machine):
    """Azure: eth0 is not on PCIe, and stands on a virtual function that is."""
    machine.interface("enP30832s1", "7870:00:00.0", 50_000)
    folder = machine.roots.sys / "devices/LNXSYSTM:00/VMBUS:00/0022/net/eth0"
    (folder / "lower_enP30832s1").mkdir(parents=True)
    (folder / "type").write_text("1\n")
    (machine.roots.sys / "class/net/eth0").symlink_to(folder)


def a_paravirtual_interface_alone(machine):
    machine.pci("0000:00:03.0", ETHERNET, vendor=0x1AF4, device=0x1041, speed=None)
    machine.interface("eth0", "0000:00:03.0", -1, below="virtio2")


def names_of_any_byte(machine):
    for number, name in enumerate(("eth\x1b[31m", os.fsdecode(b"eth\xff"))):
        machine.interface(name, f"0000:0{number + 1}:00.0", None)


def verbs_devices_that_say_little(machine):
    machine.verbs("mlx5_0", "0000:01:00.0", layer=None, rate=None)
    machine.verbs("i40iw0", "0000:02:00.0", layer="Ethernet", rate="40 Gb/sec (4X QDR)", node_type="4: RNIC")


def names_in_natural_order(machine):
    for number in (0, 2, 10):
        machine.verbs(f"mlx5_{number}", f"0000:{0x40 - number:02x}:00.0")
    machine.interface("eth0", "0000:01:00.0")


ETH, IB = NicKind.ETHERNET, NicKind.INFINIBAND
LEFT_OUT = [
    "eth0x (the same port",
    "eth1 (down)",
    "usb0 (not on PCIe)",
    "mlx5_0 (down)",
    "rxe0 (made by",
    "fc0 (neither",
]


@pytest.mark.parametrize(
    ("build", "nics", "notes"),
    [
        (efa_beside_elastic_network_adapters, [("rdmap16s27", NicKind.EFA, 100.0), ("ens5", ETH, None)], []),
        (bonds_vlans_and_bridges_with_their_ports, [("eth0", ETH, 25.0), ("eth1", ETH, 25.0)], []),
        (
            virtual_functions_with_and_without_their_physical_function,
            [("eth0", ETH, 100.0), ("net1", ETH, 40.0)],
            [],
        ),
        (interfaces_that_lead_nowhere, [("eth0", ETH, 100.0)], LEFT_OUT),
        (an_interface_of_a_single_port_with_another_number, [("mlx5_0", NicKind.ROCE, 200.0)], []),
        (both_ports_of_an_adapter_with_one_function, [("mlx4_0", IB, 56.0), ("mlx4_0:2", IB, 56.0)], []),
        (
            a_paravirtual_interface_over_a_virtual_function,
            [("enP30832s1", ETH, 50.0)],
            ["eth0 (the same port as enP30832s1)"],
        ),
        (a_paravirtual_interface_alone, [("eth0", ETH, None)], []),
        (names_of_any_byte, [("eth?", ETH, None), ("eth?[31m", ETH, None)], []),
        (verbs_devices_that_say_little, [("i40iw0", ETH, 40.0), ("mlx5_0", NicKind.UNKNOWN, None)], []),
        (
            names_in_natural_order,
            [("mlx5_0", IB, 200.0), ("mlx5_2", IB, 200.0), ("mlx5_10", IB, 200.0), ("eth0", ETH, 100.0)],
            [],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_nics(machine, build, nics, notes):
    build(machine)
    node = found(machine)
    assert nics_of(node) == nics
    assert all(noted(node, text) for text in notes)
    assert noted(node, "left out: ") == bool(notes) and not noted(node, "eth0vf1")


@pytest.mark.parametrize("speed", [-1, 4_294_967_295, "many", "", 0, None, 99_999_999])
def test_a_speed_that_is_unknown_or_nonsense(machine, speed):
    machine.interface("eth0", "0000:01:00.0", speed)
    assert found(machine).nics[0].speed_gbit_s is None
