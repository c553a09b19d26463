"""NCCL's topology XML: what is read, what is assumed, and what is refused with its line."""

from __future__ import annotations

import pytest

from isthmus.topology.formats.read import parse_machine
from isthmus.topology.machine import Machine, NicKind, TopologyError
from isthmus.topology.tree import MOST_DEVICES
from machines import checks

GPU = '<pci busid="0000:0{n}:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>'
SWITCH = 'target="0000:99:00.0" count="{}" tclass="0x068000"'


def parse(body: str, attributes: str = 'version="1"') -> Machine:
    return parse_machine(f"<system {attributes}>\n{body}\n</system>\n".encode(), "test")


def in_cpu(body: str, numaid: str = "0") -> str:
    return f'<cpu numaid="{numaid}">\n{body}\n</cpu>'


def gpu(dev: int, *nvlinks: str, sm: int = 90) -> str:
    links = "".join(f"<nvlink {nvlink}/>" for nvlink in nvlinks)
    return f'<pci busid="0000:0{dev}:00.0" class="0x030200"><gpu dev="{dev}" sm="{sm}">{links}</gpu></pci>'


def noted(machine: Machine, words: str) -> bool:
    return any(words in note for note in machine.notes)


def to(dev: int, count: int, more: str = "") -> str:
    return f'target="0000:0{dev}:00.0" count="{count}" {more}'


@pytest.mark.parametrize(
    ("gpus", "kinds", "gbit_s", "note"),
    [
        # H100s reach four switches by 4 or 5 links each: the sums count.
        (
            [
                gpu(n, *(f'target="0000:8{s}:00.0" count="{c}" tclass="0x068000"' for s, c in enumerate(counts)))
                for n, counts in enumerate(((5, 5, 4, 4), (4, 4, 5, 5), (5, 4, 5, 4)))
            ],
            ["NV18"] * 3,
            18 * 200,
            "",
        ),
        # As many as the one with fewer has to switches.
        ([gpu(0, SWITCH.format(12)), gpu(1, SWITCH.format(8)), gpu(2)], ["NV8", "PHB", "PHB"], 8 * 200, ""),
        # A switch that a virtual machine cannot see, and one of which the file tells no class.
        ([gpu(n, 'target="FFFFFFFF:FFFF:FF" count="18"') for n in (0, 1)], ["NV18"], 18 * 200, ""),
        ([gpu(n, 'target="0000:99:00.0" count="6"') for n in (0, 1)], ["NV6"], 6 * 200, ""),
        ([gpu(n, 'target="0000:99:00.0"') for n in (0, 1)], ["NV1"], 200, ""),
        # Direct links count for their pair only: a V100 quad. Either of the two may name them.
        (
            [gpu(0, to(1, 1, 'tclass="0x030200"'), to(2, 2), sm=70), gpu(1, to(0, 1), sm=70), gpu(2, sm=70)],
            ["NV1", "NV2", "PHB"],
            200,
            "",
        ),
        ([gpu(0, to(1, 4)), gpu(1, to(0, 2))], ["NV2"], 400, "different numbers of NVLinks between them"),
        # To a GPU that the job did not see, and to the processor.
        ([gpu(n, to(9, 2, 'tclass="0x030200"')) for n in (0, 1)], ["PHB"], None, ""),
        ([gpu(n, 'target="0000:0e:00.0" count="3" tclass="0x068001"') for n in (0, 1)], ["PHB"], None, ""),
        ([gpu(0), gpu(1)], ["PHB"], None, "the file names no NVLinks"),
        # Data sheets add both directions of all links: 160, 300, 600, 112.5, 900, 1800 GB/s.
        *(
            ([gpu(n, SWITCH.format(count), sm=sm) for n in (0, 1)], [f"NV{count}"], gbyte_s * 4, "")
            for sm, gbyte_s, count in (
                (60, 160, 4), (70, 300, 6), (80, 600, 12), (86, 112.5, 4), (90, 900, 18), (100, 1800, 18),
            )
        ),
        ([gpu(0, SWITCH.format(6)), gpu(1, SWITCH.format(6), sm=120)], ["NV6"], None, ""),
    ],
)  # fmt: skip
def test_nvlinks(gpus: list[str], kinds: list[str], gbit_s: float | None, note: str) -> None:
    machine = parse(in_cpu("\n".join(gpus)))
    assert [link.kind for link in machine.links] == kinds
    assert machine.links[0].speed_gbit_s == (None if gbit_s is None else pytest.approx(gbit_s, rel=1e-12))
    assert noted(machine, note)


def test_a_way_of_unknown_speed_and_bridges_without_devices() -> None:
    slow, unknown = 'link_speed="8 GT/s" link_width="16"', 'link_speed="Unknown" link_width="16"'
    gpus = "".join(
        f'<pci busid="0000:0{n}:00.0" class="0x030200" {link}/>' for n, link in enumerate((slow, unknown, slow))
    )
    empty = '<pci busid="0000:0a:00.0" class="0x060400"><pci busid="0000:0b:00.0" class="0x060400"/></pci>'
    machine = parse(in_cpu(f'<pci busid="0000:09:00.0" class="0x060400" {unknown}>{gpus}{empty}</pci>'))
    assert machine.link("GPU0", "GPU1").speed_gbit_s is None
    assert machine.link("GPU0", "GPU2").speed_gbit_s == pytest.approx(126, abs=0.1)  # without the switch's own link
    assert len(machine.pcie[0].children[0].children) == 3


def test_nics_with_several_ports_and_without_pcie() -> None:
    machine = parse(
        in_cpu(
            '<pci busid="0000:61:00.0" class="0x020700"><nic><net name="mlx5&#9;&#133;_4" dev="1" speed="200000"/>'
            '<net name="mlx5_5" dev="0" speed="100000" gdr="1"/></nic></pci>'
            '<nic><net name="tailscale0" dev="2" speed="-1"/></nic><nic><net name="eth9" dev="3" speed="0"/></nic>'
        )
    )
    names = [("mlx5_5", 100.0), ("mlx5??_4", 200.0), ("tailscale0", None), ("eth9", None)]
    assert [(nic.name, nic.speed_gbit_s) for nic in machine.nics] == names
    assert (machine.nics[2].bus_id, machine.nics[2].numa_node) == (None, 0)
    assert [machine.distance("NIC0", other) for other in ("NIC1", "NIC2")] == ["PIX", "PHB"]


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
        ('class="0x020700"', None, NicKind.INFINIBAND),  # as clouds write them by hand: no <nic>
        ('class="0x020000"', None, NicKind.ETHERNET),
    ],
)
def test_protocols_of_nics(pci: str, net: str | None, kind: NicKind) -> None:
    nic = "" if net is None else f'<nic><net {net} speed="1000"/></nic>'
    machine = parse(in_cpu(f'<pci busid="0000:01:00.0" {pci}>{nic}</pci>'))
    assert machine.nics[0].kind is kind


def test_disks_consoles_and_unknown_elements_are_left_out() -> None:
    others = '<pci busid="0000:02:00.0"/><pci busid="0000:03:00.0" class="0x010802"/><disk/>'
    vga = '<pci busid="0000:04:00.0" class="0x030000" vendor="0x1a03"/>'
    assert parse(in_cpu(GPU.format(n=1) + others + vga)).device_ids == ("GPU0",)


def test_nodes_without_number() -> None:
    machine = parse(in_cpu(GPU.format(n=1), "-1") + "<cpu>" + GPU.format(n=2) + "</cpu>", "")
    assert [gpu.numa_node for gpu in machine.gpus] == [None, None]
    assert machine.distance("GPU0", "GPU1") == "NODE"  # there is no second NUMA node to be in
    assert noted(machine, "a NUMA node has no number")


def test_several_hosts_of_one_nvlink_domain() -> None:
    machine = parse("".join(f'<cpu host_hash="0x{host}" numaid="0">{gpu(0)}</cpu>' for host in ("aaa", "bbb")))
    assert len(machine.gpus) == 1
    assert noted(machine, "the file describes 2 hosts: the first, host_hash 0xaaa, is read")


def test_gpus_keep_their_numbers() -> None:
    """A dump of a job that sees two of the GPUs; and one that numbers two alike."""
    machine = parse(in_cpu(gpu(5) + gpu(2)))
    assert [(gpu.index, gpu.bus_id) for gpu in machine.gpus] == [(2, "0000:02:00.0"), (5, "0000:05:00.0")]
    assert machine.distance("GPU2", "GPU5") == "PHB"
    twice = parse(in_cpu(gpu(5) + gpu(2).replace('dev="2"', 'dev="5"')))
    assert [gpu.bus_id for gpu in twice.gpus] == ["0000:02:00.0", "0000:05:00.0"]
    assert noted(twice, "GPUs are numbered by rising bus id")


@pytest.mark.parametrize(
    ("speed", "width", "gbit_s"),
    [
        ("8 GT/s", "16", 8 * 16 * 128 / 130),
        ("16.0 GT/s PCIe", "8", 16 * 8 * 128 / 130),
        ("2.5 GT/s", "1", 2.0),
        ("64.0 GT/s PCIe", "16", 64 * 16 * 242 / 256),
        ("16", "16", 16 * 16 * 128 / 130),
        *((speed, "16", None) for speed in ("Unknown speed", "", "-8 GT/s", "9999 GT/s", "fast")),
        *(("16 GT/s", width, None) for width in ("", "0", "255", "-1", "33", "wide")),
    ],
)
def test_speed_of_a_pcie_link(speed: str, width: str, gbit_s: float | None) -> None:
    machine = parse(in_cpu(f'<pci busid="0000:01:00.0" class="0x030200" link_speed="{speed}" link_width="{width}"/>'))
    found = machine.pcie[0].children[0].link_speed_gbit_s
    assert found == (None if gbit_s is None else pytest.approx(gbit_s, abs=0.001))


def many_gpus(number: int) -> str:
    return in_cpu("".join(f'<pci busid="0000:{n // 32:02x}:{n % 32:02x}.0" class="0x0302"/>' for n in range(number)))


def nested(levels: int) -> str:
    opening = "".join(f'<pci busid="0000:{n + 16:02x}:00.0" class="0x060400">' for n in range(levels))
    return in_cpu(opening + GPU.format(n=1).replace("0000:", "ffff:") + "</pci>" * levels)


@pytest.mark.parametrize(
    ("body", "line", "what"),
    [
        ("", None, "names neither a GPU nor a NIC"),
        (in_cpu('<pci class="0x030200"/>'), 3, "'' is no PCI bus id"),
        (in_cpu('<pci busid="nowhere" class="0x030200"/>'), 3, "'nowhere' is no PCI bus id"),
        (in_cpu('<pci busid="0000:01:00.0" class="0x0302009"/>'), 3, "class='0x0302009'"),
        (in_cpu('<pci busid="0000:01:00.0" class="GPU"/>'), 3, "class='GPU': expected one like 0x030200"),
        (in_cpu('<pci busid="0000:01:00.0" vendor="-1"/>'), 3, "vendor='-1': expected an integer from 0 to 65535"),
        (in_cpu(GPU.format(n=1) + "\n" + GPU.format(n=1)), 4, "bus id 0000:01:00.0 is given twice, first in line 3"),
        (in_cpu(gpu(0, to(0, 1))), 3, "<nvlink> of 0000:00:00.0 leads to itself"),
        (in_cpu(gpu(0, 'count="1"')), 3, "'' is no PCI bus id"),
        (in_cpu(gpu(0, to(1, 0))), 3, "count='0': expected an integer from 1 to 72"),
        (in_cpu(gpu(0, 'target="0000:02:00.0" count="1e3"')), 3, "count='1e3'"),
        (in_cpu(gpu(0, to(1, 40), to(1, 40))), 3, "has more than 72 NVLinks"),
        (in_cpu('<pci busid="0:1:0" class="0x0207"/>'), 3, "'0:1:0' is no PCI bus id"),
        (in_cpu('<nic><net speed="9999999999"/></nic>'), 3, "speed='99999"),
        (in_cpu("", "zero"), 2, "numaid='zero'"),
        (in_cpu("") + in_cpu(""), 4, "NUMA node 0 is given twice"),
        (many_gpus(MOST_DEVICES + 1), None, f"has {MOST_DEVICES + 1} GPUs, more than the {MOST_DEVICES}"),
        (nested(31), 3, "nest more than 32 deep"),
        (in_cpu("<pci>" * 100_000 + "</pci>" * 100_000), 3, "'' is no PCI bus id"),
        ("<cpu>" * 100_000 + "</cpu>" * 100_000, None, "names neither a GPU nor a NIC"),
    ],
)
def test_errors_name_their_line(body: str, line: int | None, what: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse(body)
    assert what in caught.value.what
    assert caught.value.line == line


def test_the_limits_themselves_are_read() -> None:
    assert len(parse(many_gpus(MOST_DEVICES)).gpus) == MOST_DEVICES
    machine = parse(nested(30), 'version="2"')  # RCCL; a host bridge, switches, and the GPU: 32 places
    checks.check(machine)
    with pytest.raises(TopologyError, match="version='3': expected an integer from 1 to 2"):
        parse(nested(1), 'version="3"')
