"""NCCL's topology XML: what is read, and what is assumed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.topology.formats.machine_json import parse_machine_json
from isthmus.topology.machine import NicKind
from python.topology.nccl_texts import GPU, gpu, in_cpu, noted, parse


def test_links_to_switches_join_every_pair() -> None:
    """As H100s have it: GPUs reach the four switches by 4 or 5 links each, and the sums count."""
    gpus = []
    for n, counts in enumerate(((5, 5, 4, 4), (4, 4, 5, 5), (5, 4, 5, 4))):
        links = (f'target="0000:0{s}:00.0" count="{count}" tclass="0x068000"' for s, count in enumerate(counts))
        gpus.append(gpu(f"0000:1{n}:00.0", n, *links))
    machine = parse(in_cpu("\n".join(gpus)))
    assert {machine.distance(a, b) for a in machine.gpus for b in machine.gpus if a != b} == {"NV18"}
    assert machine.link("GPU0", "GPU2").speed_gbit_s == 18 * 200
    assert machine.num_nvswitches == 4


def test_two_gpus_are_joined_by_as_many_links_as_the_one_with_fewer_has() -> None:
    switch = 'target="0000:09:00.0" count="{}" tclass="0x068000"'
    machine = parse(
        in_cpu(
            gpu("0000:01:00.0", 0, switch.format(12))
            + gpu("0000:02:00.0", 1, switch.format(8))
            + gpu("0000:03:00.0", 2)
        )
    )
    assert machine.distance("GPU0", "GPU1") == "NV8"
    assert machine.distance("GPU0", "GPU2") == "PHB"


@pytest.mark.parametrize("target", ["fffffff:ffff:ff", "fffffff:ff:ff.0", "FFFFFFFF:FFFF:FF"])
def test_a_switch_that_a_virtual_machine_cannot_see(target: str) -> None:
    hidden = f'target="{target}" count="18" tclass="0x068000"'
    machine = parse(in_cpu(gpu("0000:04:00.0", 0, hidden) + gpu("0000:05:00.0", 1, hidden)))
    assert machine.distance("GPU0", "GPU1") == "NV18"
    assert machine.num_nvswitches is None


def test_direct_links_count_for_their_pair_only() -> None:
    """A V100 quad: some pairs have two links, some one."""
    machine = parse(
        in_cpu(
            gpu(
                "0000:06:00.0",
                0,
                'target="0000:07:00.0" count="1" tclass="0x030200"',
                'target="0000:0a:00.0" count="2"',
                sm=70,
            )
            + gpu("0000:07:00.0", 1, 'target="00000000:06:00.0" count="1"', sm=70)
            + gpu("0000:0a:00.0", 2, 'target="0000:06:00.0" count="2"', sm=70)
        )
    )
    assert [machine.distance("GPU0", other) for other in ("GPU1", "GPU2")] == ["NV1", "NV2"]
    assert machine.distance("GPU1", "GPU2") == "PHB"
    assert machine.link("GPU0", "GPU2").speed_gbit_s == 400
    assert machine.num_nvswitches == 0


def test_gpus_that_disagree_about_their_links() -> None:
    machine = parse(
        in_cpu(
            gpu("0000:01:00.0", 0, 'target="0000:02:00.0" count="4"')
            + gpu("0000:02:00.0", 1, 'target="0000:01:00.0" count="2"')
        )
    )
    assert machine.distance("GPU0", "GPU1") == "NV2"
    assert noted(machine, "two GPUs name different numbers of NVLinks between them: the fewer are taken (line 3)")
    machine = parse(in_cpu(gpu("0000:01:00.0", 0, 'target="0000:02:00.0" count="4"') + gpu("0000:02:00.0", 1)))
    assert machine.distance("GPU0", "GPU1") == "NV4"
    assert noted(machine, "only one of")


def test_links_to_something_unknown_are_taken_for_links_to_a_switch() -> None:
    target = 'target="0000:99:00.0" count="6"'
    machine = parse(in_cpu(gpu("0000:01:00.0", 0, target) + gpu("0000:02:00.0", 1, target)))
    assert machine.distance("GPU0", "GPU1") == "NV6"
    assert machine.link("GPU0", "GPU1").speed_gbit_s == 6 * 200
    assert noted(machine, "are taken to lead to switches (lines 3, 3)")


@pytest.mark.parametrize(
    ("sm", "gbyte_s", "links"),
    [(60, 160, 4), (70, 300, 6), (80, 600, 12), (86, 112.5, 4), (90, 900, 18), (100, 1800, 18)],
)
def test_speed_of_all_links_is_that_of_the_data_sheets_which_add_both_directions(
    sm: int, gbyte_s: float, links: int
) -> None:
    target = f'target="0000:99:00.0" count="{links}" tclass="0x068000"'
    body = gpu("0000:01:00.0", 0, target, sm=sm) + gpu("0000:02:00.0", 1, target, sm=sm)
    speed = parse(in_cpu(body)).link("GPU0", "GPU1").speed_gbit_s
    assert speed == pytest.approx(gbyte_s * 8 / 2, rel=1e-12)


def test_speed_of_links_between_a_known_and_an_unknown_gpu() -> None:
    target = 'target="0000:99:00.0" count="6"'
    body = gpu("0000:01:00.0", 0, target, sm=90) + gpu("0000:02:00.0", 1, target, sm=120)
    assert parse(in_cpu(body)).link("GPU0", "GPU1").speed_gbit_s is None


def test_links_to_a_gpu_that_the_job_did_not_see() -> None:
    target = 'target="0000:99:00.0" count="2" tclass="0x030200"'
    machine = parse(in_cpu(gpu("0000:01:00.0", 0, target) + gpu("0000:02:00.0", 1, target)))
    assert machine.distance("GPU0", "GPU1") == "PHB"
    assert noted(machine, "NVLinks to GPUs that the file does not describe are left out")


def test_links_to_the_processor() -> None:
    power = 'target="0000:00:00.0" count="3" tclass="0x068001"'
    machine = parse(in_cpu(gpu("0000:01:00.0", 0, power, sm=70)))
    assert machine.gpus[0].cpu_link_speed_gbit_s == 600
    machine = parse(
        in_cpu('<pci busid="0000:01:00.0" class="0x03"><gpu dev="0" sm="121"><c2c bw="43125" count="8"/></gpu></pci>')
    )
    assert machine.gpus[0].cpu_link_speed_gbit_s == 2760  # 345 GB/s, as NCCL itself makes of it
    assert machine.gpus[0].model == "GPU of compute capability 12.1"


def test_a_way_of_unknown_speed_and_bridges_without_devices() -> None:
    slow, unknown = 'link_speed="8 GT/s" link_width="16"', 'link_speed="Unknown" link_width="16"'
    gpus = "".join(
        f'<pci busid="0000:0{n}:00.0" class="0x030200" {link}/>' for n, link in enumerate((slow, unknown, slow))
    )
    empty = '<pci busid="0000:0a:00.0" class="0x060400"><pci busid="0000:0b:00.0" class="0x060400"/></pci>'
    machine = parse(in_cpu(f'<pci busid="0000:09:00.0" class="0x060400" {unknown}>{gpus}{empty}</pci>'))
    assert machine.link("GPU0", "GPU1").speed_gbit_s is None
    assert machine.link("GPU0", "GPU2").speed_gbit_s == pytest.approx(
        126, abs=0.1
    )  # the switch's own link is not on it
    assert len(machine.pcie[0].children[0].children) == 3


def test_nics_with_several_ports_and_without_pcie() -> None:
    machine = parse(
        in_cpu(
            '<pci busid="0000:61:00.0" class="0x020700"><nic><net name="mlx5_4" dev="1" speed="200000"/>'
            '<net name="mlx5_5" dev="0" speed="100000" gdr="1"/></nic></pci>'
            '<nic><net name="tailscale0" dev="2" speed="-1"/></nic><nic><net name="eth9" dev="3" speed="0"/></nic>'
        )
    )
    assert [(nic.name, nic.speed_gbit_s) for nic in machine.nics] == [
        ("mlx5_5", 100.0),
        ("mlx5_4", 200.0),
        ("tailscale0", None),
        ("eth9", None),
    ]
    assert (machine.nics[2].bus_id, machine.nics[2].numa_node) == (None, 0)
    assert machine.distance("NIC0", "NIC1") == "PIX"
    assert machine.distance("NIC0", "NIC2") == "PHB"
    assert noted(machine, "a NIC has no speed above 0: it is unknown (lines 3, 3)")


@pytest.mark.parametrize(
    ("pci", "net", "kind"),
    [
        ('class="0x020700"', 'name="mlx5_0"', NicKind.INFINIBAND),
        ('class="0x020000" vendor="0x15b3"', 'name="mlx5_0"', NicKind.ROCE),
        ('class="0x020000" vendor="0x15b3"', 'name="ens1np0"', NicKind.ETHERNET),
        ('class="0x020000" vendor="0x1d0f" device="0xefa1"', 'name="rdmap16s27"', NicKind.EFA),
        ('class="0x020000"', 'name="rdmap79s0"', NicKind.EFA),
        ('class="0x020000" vendor="0x1d0f" device="0xec20"', 'name="ens5"', NicKind.ETHERNET),
        ('class="0x020000" vendor="0x1ae0"', 'name="eth0"', NicKind.ETHERNET),
        ('class="0x028000"', 'name="wlP9s9"', NicKind.UNKNOWN),
        ("", 'name="bnxt_re0"', NicKind.ROCE),
    ],
)
def test_protocols_of_nics(pci: str, net: str, kind: NicKind) -> None:
    machine = parse(in_cpu(f'<pci busid="0000:01:00.0" {pci}><nic><net {net} speed="1000"/></nic></pci>'))
    assert machine.nics[0].kind is kind


def test_devices_of_unknown_class_are_left_out_and_noted() -> None:
    machine = parse(
        in_cpu(GPU.format(n=1) + '\n<pci busid="0000:02:00.0"/>\n<pci busid="0000:03:00.0" class="0x010802"/><disk/>')
    )
    assert len(machine.gpus) == 1 and not machine.nics
    assert noted(machine, "a PCI device of no class is neither GPU nor NIC and left out (line 4)")
    assert noted(machine, "a PCI device of class 0x0108 is neither GPU nor NIC and left out (line 5)")
    assert noted(machine, "<disk> in <cpu> is unknown and left out (line 5)")


def test_a_vga_console_is_no_gpu() -> None:
    machine = parse(in_cpu(GPU.format(n=1) + '<pci busid="0000:02:00.0" class="0x030000" vendor="0x1a03"/>'))
    assert [gpu.bus_id for gpu in machine.gpus] == ["0000:01:00.0"]


def test_nodes_without_number() -> None:
    machine = parse(in_cpu(GPU.format(n=1), "-1") + "<cpu>" + GPU.format(n=2) + "</cpu>")
    assert [gpu.numa_node for gpu in machine.gpus] == [None, None]
    assert machine.distance("GPU0", "GPU1") == "NODE"  # there is no second NUMA node to be in
    assert noted(machine, "a NUMA node has no number")


def test_several_hosts_of_one_nvlink_domain() -> None:
    hosts = "".join(f'<cpu host_hash="0x{host}" numaid="0">{gpu("0000:01:00.0", 0)}</cpu>' for host in ("aaa", "bbb"))
    machine = parse(hosts)
    assert len(machine.gpus) == 1
    assert noted(machine, "the file describes 2 hosts: the first, host_hash 0xaaa, is read")


def test_gpus_keep_their_numbers() -> None:
    """A dump of a job that sees two of the GPUs."""
    machine = parse(in_cpu(gpu("0000:09:00.0", 2) + gpu("0000:08:00.0", 5)))
    assert [(gpu.index, gpu.bus_id) for gpu in machine.gpus] == [(2, "0000:09:00.0"), (5, "0000:08:00.0")]
    assert machine.distance("GPU2", "GPU5") == "PHB"
    twice = parse(in_cpu(gpu("0000:09:00.0", 0) + gpu("0000:08:00.0", 0)))
    assert [gpu.bus_id for gpu in twice.gpus] == ["0000:08:00.0", "0000:09:00.0"]
    assert noted(twice, "GPUs are numbered by rising bus id")


# A machine as nested lists: NUMA nodes of switches and leaves. A leaf is True for a GPU and False for a NIC.
PLACES = st.recursive(st.booleans(), lambda places: st.lists(places, min_size=1, max_size=3), max_leaves=6)
NODES = st.lists(st.lists(PLACES, max_size=3), min_size=1, max_size=3)


def written(nodes: list[Any]) -> tuple[str, dict[str, tuple[int, ...]]]:
    """The file of such a machine, and the way to each of its devices: bus id -> NUMA node, switch, switch ..."""
    buses, ways = itertools.count(), dict[str, tuple[int, ...]]()

    def element(place: Any, above: tuple[int, ...]) -> str:
        bus = next(buses)
        bus_id = f"{bus:04x}:00:00.0"
        if isinstance(place, list):
            below = "".join(element(child, (*above, bus)) for child in place)
            return f'<pci busid="{bus_id}" class="0x060400">{below}</pci>'
        ways[bus_id] = above
        return f'<pci busid="{bus_id}" class="0x0{3 if place else 2}0200"/>'

    cpus = (in_cpu("".join(element(place, (-n,)) for place in node), str(n)) for n, node in enumerate(nodes))
    return "".join(cpus), ways


def expected(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Read off the ways of two devices."""
    if a[0] != b[0]:
        return "SYS"
    if a[:2] != b[:2] or len(a) == 1:
        return "PHB"
    return "PIX" if a == b else "PXB"


@given(NODES)
def test_a_tree_that_is_written_reads_back(nodes: list[Any]) -> None:
    body, ways = written(nodes)
    if not ways:
        return
    machine = parse(body)
    devices = [*machine.gpus, *machine.nics]
    assert sorted(device.bus_id or "" for device in devices) == sorted(ways)
    for a, b in itertools.combinations(devices, 2):
        assert machine.distance(a, b) == expected(ways[a.bus_id or ""], ways[b.bus_id or ""])
    assert parse_machine_json(machine.to_json()) == machine
