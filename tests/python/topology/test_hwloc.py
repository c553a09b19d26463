"""hwloc's XML: the PCIe tree, devices of the operating system, NVLinks, and what is refused with a line."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest

from isthmus.topology.formats.machine_json import parse_machine_json
from isthmus.topology.formats.read import parse_machine
from isthmus.topology.machine import Machine, NicKind, PcieNode, TopologyError

_numbers = itertools.count(1000)


def document(body: str, attributes: str = 'version="2.0"', after: str = "") -> str:
    return (
        f"<topology {attributes}>\n"
        '<object type="Machine" os_index="0" nodeset="0x00000003" gp_index="1">'
        '<info name="HostName" value="node7"/>\n'
        f"{body}\n</object>\n{after}\n</topology>\n"
    )


def parse(body: str, **parts: str) -> Machine:
    return parse_machine(document(body, **parts).encode(), "test")


def refused(body: str, **parts: str) -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        parse(body, **parts)
    return caught.value


def noted(machine: Machine, words: str) -> bool:
    return any(words in note for note in machine.notes)


def package(index: int, body: str) -> str:
    return (
        f'<object type="Package" os_index="{index}" nodeset="0x{1 << index:08x}" gp_index="{10 + index}">'
        f'<info name="CPUModel" value="Processor {index}"/>'
        f'<object type="NUMANode" os_index="{index}" cpuset="0x{0xF << 4 * index:08x}" gp_index="{20 + index}"/>'
        f"{body}</object>"
    )


def host(bus: str, body: str) -> str:
    return f'<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[{bus}-ff]">{body}</object>'


def bridge(bus_id: str, body: str) -> str:
    return (
        f'<object type="Bridge" bridge_type="1-1" pci_busid="0000:{bus_id}" '
        f'pci_type="0604 [1000:c010] [0000:0000] 00" pci_link_speed="31.5">{body}</object>'
    )


def gpu(bus_id: str, number: int, model: str = "A GPU") -> str:
    return (
        f'<object type="PCIDev" gp_index="{100 + number}" pci_busid="0000:{bus_id}" '
        'pci_type="0302 [10de:20b2] [10de:1463] a1" pci_link_speed="31.507692">'
        f'<object type="OSDev" gp_index="{200 + number}" name="nvml{number}" subtype="NVML" osdev_type="1">'
        f'<info name="GPUModel" value="{model}"/></object></object>'
    )


def device(bus_id: str, class_and_ids: str, inside: str = "") -> str:
    number = next(_numbers)
    return (
        f'<object type="PCIDev" gp_index="{number}" pci_busid="0000:{bus_id}" pci_type="{class_and_ids}">'
        f"{inside}</object>"
    )


def verbs(name: str) -> str:
    return f'<object type="OSDev" name="{name}" osdev_type="3"><info name="NodeGUID" value="9803:9b03"/></object>'


def interface(name: str) -> str:
    return f'<object type="OSDev" name="{name}" osdev_type="2"><info name="Address" value="0c:42:a1"/></object>'


def nvlinks(objects: list[str], rows: list[list[int]], element: str = "distances2hetero", **other: str) -> str:
    attributes = {"nbobjs": str(len(objects)), "name": "NVLinkBandwidth", **other}
    values = "".join(f"<u64values>{' '.join(str(value) for value in row)} </u64values>" for row in rows)
    named = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    return f"<{element} {named}><indexes>{' '.join(objects)}</indexes>{values}</{element}>"


def shape(place: PcieNode) -> str:
    own = place.devices[0] if place.devices else place.kind.value
    return own if not place.children else f"{own}({' '.join(shape(child) for child in place.children)})"


def test_sockets_memory_and_name() -> None:
    machine = parse(package(0, "") + package(1, ""))
    assert machine.name == "node7"
    assert [(socket.index, socket.numa_nodes, socket.model) for socket in machine.sockets] == [
        (0, (0,), "Processor 0"),
        (1, (1,), "Processor 1"),
    ]
    assert [(node.socket, node.cpus) for node in machine.numa_nodes] == [(0, "0-3"), (1, "4-7")]
    assert noted(machine, "neither GPUs nor NICs")


def test_two_numa_nodes_in_a_socket() -> None:
    """With sub-NUMA clustering a host bridge hangs from a group of one NUMA node, or from the package."""
    nodes = "".join(
        f'<object type="Group" nodeset="0x0000000{1 << n}"><object type="NUMANode" os_index="{n}"/>'
        f"{host(f'{n}0', bridge(f'{n}0:01.0', gpu(f'{n}1:00.0', n)))}</object>"
        for n in (0, 1)
    )
    loose = host("40", bridge("40:01.0", gpu("41:00.0", 2)))
    machine = parse(f'<object type="Package" os_index="0" nodeset="0x00000003">{nodes}{loose}</object>')
    assert machine.sockets[0].numa_nodes == (0, 1)
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 1, None]
    assert [machine.distance("GPU0", other) for other in ("GPU1", "GPU2")] == ["SYS", "SYS"]


@pytest.mark.parametrize(
    ("tree", "folded", "kinds"),
    [
        # Each GPU in a slot of its own.
        (bridge("00:01.0", gpu("01:00.0", 0)) + bridge("00:02.0", gpu("02:00.0", 1)), "GPU0 GPU1", "PHB"),
        # Devices right at the host bridge, as in virtual machines.
        (gpu("00:01.0", 0) + gpu("00:02.0", 1), "GPU0 GPU1", "PHB"),
        # Two functions in one slot.
        (bridge("00:01.0", gpu("01:00.0", 0) + gpu("01:00.1", 1)), "switch(GPU0 GPU1)", "PIX"),
        # A switch: the port of the processor, its port up, its ports down.
        (
            bridge(
                "00:01.0",
                bridge("01:00.0", bridge("02:00.0", gpu("03:00.0", 0)) + bridge("02:01.0", gpu("04:00.0", 1))),
            ),
            "switch(GPU0 GPU1)",
            "PIX",
        ),
        # A switch behind a switch.
        (
            bridge(
                "00:01.0",
                bridge(
                    "01:00.0",
                    bridge("02:00.0", bridge("03:00.0", bridge("04:00.0", gpu("05:00.0", 0))))
                    + bridge("02:01.0", gpu("06:00.0", 1)),
                ),
            ),
            "switch(switch(GPU0) GPU1)",
            "PXB",
        ),
        # Two switches at one host bridge.
        (
            bridge("00:01.0", bridge("01:00.0", bridge("02:00.0", gpu("03:00.0", 0))))
            + bridge("00:02.0", bridge("11:00.0", bridge("12:00.0", gpu("13:00.0", 1)))),
            "switch(GPU0) switch(GPU1)",
            "PHB",
        ),
        # A port without devices is left out.
        (bridge("00:01.0", gpu("01:00.0", 0)) + bridge("00:02.0", "") + gpu("00:03.0", 1), "GPU0 GPU1", "PHB"),
    ],
)
def test_ports_fold_into_switches(tree: str, folded: str, kinds: str) -> None:
    machine = parse(package(0, host("00", tree)))
    assert shape(machine.pcie[0]) == f"host bridge({folded})"
    assert machine.distance("GPU0", "GPU1") == kinds
    assert machine.link("GPU0", "GPU1").speed_gbit_s == pytest.approx(252, abs=0.1)
    assert machine.pcie[0].bus_id == "0000:00"


def test_host_bridges_of_one_and_of_two_numa_nodes() -> None:
    near = host("00", bridge("00:01.0", gpu("01:00.0", 0))) + host("20", bridge("20:01.0", gpu("21:00.0", 1)))
    machine = parse(package(0, near) + package(1, host("40", bridge("40:01.0", gpu("41:00.0", 2)))))
    assert [machine.distance("GPU0", other) for other in ("GPU1", "GPU2")] == ["NODE", "SYS"]
    assert machine.link("GPU0", "GPU2").speed_gbit_s is None


def test_devices_without_bridges() -> None:
    """lstopo leaves bridges out when asked to."""
    machine = parse(package(0, gpu("01:00.0", 0) + gpu("02:00.0", 1)))
    assert machine.distance("GPU0", "GPU1") == "NODE"
    assert noted(machine, "leaves out host bridges")


def test_devices_that_are_not_on_pcie() -> None:
    disk = device("02:00.0", "0108 [144d:a808] [144d:a801] 00")
    machine = parse(
        interface("lo") + package(0, verbs("siw0") + host("00", interface("tap0") + gpu("01:00.0", 0)) + disk)
    )
    assert machine.device_ids == ("GPU0",)
    assert machine.notes == ()


def test_nics_and_other_devices() -> None:
    slots = [
        device("01:00.0", "0207 [15b3:101b] [15b3:0007] 00", interface("ib0") + verbs("mlx5_0")),
        device("02:00.0", "0200 [15b3:1017] [15b3:0007] 00", interface("ens1np0") + verbs("mlx5_1")),
        device("03:00.0", "0200 [8086:1563] [15b3:0007] 00", interface("eno1")),
        device("04:00.0", "0200 [1d0f:efa1] [1d0f:efa1] 00", verbs("rdmap4s0")),
        device("05:00.0", "0200 [15b3:1017] [15b3:0007] 00"),
        device("06:00.0", "0300 [1a03:2000] [1a03:2000] 00"),  # the board's console
        device("07:00.0", "0108 [144d:a808] [144d:a801] 00"),
        device("08:00.0", "ffff [1af4:1041] [1af4:1041] 00", interface("eth0")),
        device("09:00.0", "0207 [15b3:1003] [15b3:0007] 00", verbs("mlx4_0") + verbs("mlx4_1")),
    ]
    ports = "".join(bridge(f"00:{n:02x}.0", slot) for n, slot in enumerate(slots))
    machine = parse(package(0, host("00", ports)))
    assert [(nic.name, nic.kind) for nic in machine.nics] == [
        ("mlx5_0", NicKind.INFINIBAND),
        ("mlx5_1", NicKind.ROCE),
        ("eno1", NicKind.ETHERNET),
        ("rdmap4s0", NicKind.EFA),
        (None, NicKind.ETHERNET),
        ("eth0", NicKind.ETHERNET),
        ("mlx4_0", NicKind.INFINIBAND),
        ("mlx4_1", NicKind.INFINIBAND),
    ]
    assert machine.gpus == ()
    assert machine.distance("NIC6", "NIC7") == "PIX"


def test_gpus_are_numbered_as_nvml_does() -> None:
    machine = parse(package(0, host("00", bridge("00:01.0", gpu("01:00.0", 3)) + bridge("00:02.0", gpu("02:00.0", 1)))))
    assert [(gpu.index, gpu.bus_id) for gpu in machine.gpus] == [(1, "0000:02:00.0"), (3, "0000:01:00.0")]
    plain = device("03:00.0", "0302 [10de:20b2] [10de:1463] a1")
    without = parse(package(0, host("00", plain + gpu("01:00.0", 3))))
    assert [gpu.bus_id for gpu in without.gpus] == ["0000:01:00.0", "0000:03:00.0"]
    assert noted(without, "GPUs are numbered by rising bus id")


TWO_GPUS = package(0, host("00", bridge("00:01.0", gpu("01:00.0", 0)) + bridge("00:02.0", gpu("02:00.0", 1))))


@pytest.mark.parametrize(
    ("mb_s", "kind"),
    [
        (20000, "NV1"),
        (25000, "NV1"),
        (300000, "NV12"),
        (900000, "NV18"),
    ],
)
def test_number_of_links_from_their_bandwidth(mb_s: int, kind: str) -> None:
    matrix = nvlinks(["200", "201"], [[10**6, mb_s], [mb_s, 10**6]], "distances2", type="OSDev", indexing="gp")
    machine = parse(TWO_GPUS, after=matrix)
    assert machine.distance("GPU0", "GPU1") == kind
    assert machine.link("GPU0", "GPU1").speed_gbit_s == mb_s * 8 / 1000


def test_bandwidth_that_is_not_the_same_both_ways() -> None:
    machine = parse(TWO_GPUS, after=nvlinks(["OSDev:200", "OSDev:201"], [[0, 100000], [50000, 0]]))
    assert machine.distance("GPU0", "GPU1") == "NV2"


def test_bandwidth_of_no_known_link() -> None:
    machine = parse(TWO_GPUS, after=nvlinks(["OSDev:200", "OSDev:201"], [[0, 33333], [33333, 0]]))
    assert machine.distance("GPU0", "GPU1") == "NV1"
    assert noted(machine, "33333 MB/s is no multiple of a known NVLink: taken for 1 links")


def test_links_through_switches_and_to_processors() -> None:
    switch = device("03:00.0", "0680 [10de:1af1] [10de:1af1] a1").replace("<object ", '<object subtype="NVSwitch" ', 1)
    number = switch.partition('gp_index="')[2].partition('"')[0]
    body = TWO_GPUS + package(1, host("40", bridge("40:01.0", switch)))
    matrix = nvlinks(
        ["OSDev:200", "OSDev:201", f"PCIDev:{number}", "Package:10"],
        [[0, 0, 300000, 50000], [0, 0, 150000, 0], [300000, 150000, 0, 0], [50000, 0, 0, 0]],
    )
    machine = parse(body, after=matrix)
    assert machine.distance("GPU0", "GPU1") == "NV6"
    assert machine.num_nvswitches == 1
    assert [gpu.cpu_link_speed_gbit_s for gpu in machine.gpus] == [400.0, None]


def test_gpus_on_two_boards_of_switches() -> None:
    """As in a DGX-2: a GPU reaches the switches of its own board, and those reach the other board's."""
    switches = [device(f"0{n}:00.0", "0680 [10de:1ac2] [10de:1ac2] a1") for n in (3, 4)]
    numbers = [switch.partition('gp_index="')[2].partition('"')[0] for switch in switches]
    gpus = TWO_GPUS.replace(' subtype="NVML" osdev_type="1"', ' osdev_type="12"')  # as hwloc 3 writes it
    body = gpus + package(1, host("40", "".join(bridge(f"40:0{n}.0", switch) for n, switch in enumerate(switches))))
    matrix = nvlinks(
        ["OSDev:200", "OSDev:201", *(f"PCIDev:{number}" for number in numbers)],
        [[0, 0, 150000, 0], [0, 0, 0, 150000], [150000, 0, 0, 200000], [0, 150000, 200000, 0]],
    )
    machine = parse(body, attributes='version="3.0"', after=matrix)
    assert machine.distance("GPU0", "GPU1") == "NV6"
    assert machine.num_nvswitches == 2


@pytest.mark.parametrize(
    ("matrix", "what"),
    [
        (nvlinks(["OSDev:200"], [[0, 1], [1, 0]]), "has 1 objects and 4 values, of 1 x 1"),
        (nvlinks(["OSDev:200", "OSDev:200"], [[0, 1], [1, 0]]), "holds an object twice"),
        (nvlinks(["OSDev:200", "OSDev:999"], [[0, 1], [1, 0]]), "names object 999, which is not in the file"),
        (nvlinks(["OSDev:200", "OSDev:x"], [[0, 1], [1, 0]]), "something that is no number"),
        (nvlinks(["OSDev:200", "OSDev:201"], [[0, -1], [-1, 0]]), "something that is no number"),
        (nvlinks(["OSDev:200", "OSDev:201"], [[0, 10**12], [10**12, 0]]), "holds 1000000000000 MB/s: that is absurd"),
        (nvlinks(["OSDev:200"], [[0]], nbobjs="99999"), "nbobjs='99999': expected an integer from 0 to 1024"),
        (nvlinks([], [], nbobjs=""), "of None x None"),
    ],
)
def test_a_matrix_that_is_wrong(matrix: str, what: str) -> None:
    error = refused(TWO_GPUS, after=matrix)
    assert what in error.what
    assert error.line == 5


def test_a_matrix_of_nothing_and_of_something_else() -> None:
    machine = parse(TWO_GPUS, after=nvlinks([], []) + nvlinks(["0"], [[10]], "distances2", name="NUMALatency"))
    assert machine.distance("GPU0", "GPU1") == "PHB"


NESTED = "".join(bridge(f"{n:02x}:00.0", "").removesuffix("</object>") for n in range(40)) + "</object>" * 40


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (host("00", gpu("01:00.0", 0) + gpu("01:00.0", 1)), "bus id 0000:01:00.0 is given twice, first in line 3"),
        (host("00", gpu("xx:00.0", 0)), "'0000:xx:00.0' is no PCI bus id"),
        (host("00", gpu("01:00.0", 0).replace("pci_busid", "busid")), "a PCIDev has no pci_busid"),
        (host("00", gpu("01:00.0", 0).replace("0302 ", "GPU ")), "pci_type='GPU [10de:20b2] [10de:1463] a1'"),
        (host("00", gpu("01:00.0", 0).replace("31.507692", "-1")), "pci_link_speed='-1': expected GB/s from 0 to 1000"),
        (host("00", gpu("01:00.0", 0).replace("31.507692", "1e300")), "pci_link_speed='1e300'"),
        (host("00", gpu("01:00.0", 0).replace("31.507692", "nan")), "pci_link_speed='nan'"),
        (host("00", gpu("01:00.0", 0).replace('"100"', '"-7"')), "gp_index='-7'"),
        ('<object type="Package"/>', "a Package has no os_index"),
        (package(0, "") + package(0, ""), "Package 0 is given twice"),
        (package(0, '<object type="NUMANode" os_index="0"/>'), "NUMANode 0 is given twice"),
        ("".join(package(index, "") for index in range(1025)), "has more than 1024 objects Package"),
        (host("00", NESTED), "nest more than 32 deep"),
    ],
)
def test_errors_name_their_line(body: str, what: str) -> None:
    error = refused(body)
    assert what in error.what
    assert error.line == 3


@pytest.mark.parametrize(
    ("attributes", "what"),
    [
        ("", "is hwloc XML of version 1: convert it with hwloc 2"),
        ('version="1.0"', "is hwloc XML of version '1.0': expected 2 or 3"),
        ('version="4.0"', "is hwloc XML of version '4.0'"),
        ('version="two"', "is hwloc XML of version 'two'"),
    ],
)
def test_other_versions_are_refused(attributes: str, what: str) -> None:
    error = refused(TWO_GPUS, attributes=attributes)
    assert what in error.what
    assert error.line == 1


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("lstopo-no-graphics") is None, reason="hwloc's tools are not installed")
def test_this_machine_as_lstopo_writes_it() -> None:
    written = subprocess.run(["lstopo-no-graphics", "--of", "xml", "-"], capture_output=True, check=True)
    machine = parse_machine(written.stdout, "here")
    assert machine.sockets and machine.numa_nodes
    assert parse_machine_json(machine.to_json()) == machine
