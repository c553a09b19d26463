"""Limits of NCCL's topology XML: speeds, versions, numbers and nesting; what is refused, with its line."""

from __future__ import annotations

import pytest

from isthmus.topology.formats.machine_json import parse_machine_json
from isthmus.topology.machine import MOST_GPUS
from python.topology.nccl_texts import GPU, gpu, in_cpu, noted, parse, refused


@pytest.mark.parametrize(
    ("speed", "width", "gbit_s"),
    [
        ("8 GT/s", "16", 8 * 16 * 128 / 130),
        ("16.0 GT/s PCIe", "8", 16 * 8 * 128 / 130),
        ("2.5 GT/s", "1", 2.0),
        ("5.0 GT/s PCIe", "4", 16.0),
        ("32.0 GT/s", "16", 32 * 16 * 128 / 130),
        ("64.0 GT/s PCIe", "16", 64 * 16 * 242 / 256),
        ("16", "16", 16 * 16 * 128 / 130),
        ("Unknown", "16", None),
        ("Unknown speed", "16", None),
        ("", "16", None),
        ("16 GT/s", "", None),
        ("16 GT/s", "0", None),
        ("16 GT/s", "255", None),
    ],
)
def test_speed_of_a_pcie_link(speed: str, width: str, gbit_s: float | None) -> None:
    machine = parse(in_cpu(f'<pci busid="0000:01:00.0" class="0x030200" link_speed="{speed}" link_width="{width}"/>'))
    found = machine.pcie[0].children[0].link_speed_gbit_s
    assert found == (None if gbit_s is None else pytest.approx(gbit_s, abs=0.001))


@pytest.mark.parametrize(
    ("speed", "width", "what"),
    [
        ("-8 GT/s", "16", "link speed '-8 GT/s': expected GT/s from 0 to 128"),
        ("9999 GT/s", "16", "link speed '9999 GT/s'"),
        ("fast", "16", "link speed 'fast'"),
        ("1e9", "16", "link speed '1e9'"),
        ("8 GT/s", "-1", "link width '-1': expected 1 to 32 lanes"),
        ("8 GT/s", "33", "link width '33'"),
        ("8 GT/s", "wide", "link width 'wide'"),
    ],
)
def test_absurd_speeds_of_pcie_links(speed: str, width: str, what: str) -> None:
    error = refused(in_cpu(f'<pci busid="0000:01:00.0" class="0x030200" link_speed="{speed}" link_width="{width}"/>'))
    assert error.what.startswith(what)
    assert error.line == 3


@pytest.mark.parametrize(
    ("body", "line", "what"),
    [
        ("", None, "names neither a GPU nor a NIC"),
        (in_cpu('<pci class="0x030200"/>'), 3, "<pci> has no busid"),
        (in_cpu('<pci busid="nowhere" class="0x030200"/>'), 3, "'nowhere' is no PCI bus id"),
        (in_cpu('<pci busid="0000:01:00.0" class="0x0302009"/>'), 3, "class='0x0302009'"),
        (in_cpu('<pci busid="0000:01:00.0" class="GPU"/>'), 3, "class='GPU': expected one like 0x030200"),
        (in_cpu('<pci busid="0000:01:00.0" vendor="-1"/>'), 3, "vendor='-1': expected an integer from 0 to 65535"),
        (in_cpu(GPU.format(n=1) + "\n" + GPU.format(n=1)), 4, "bus id 0000:01:00.0 is given twice, first in line 3"),
        (
            in_cpu(gpu("0000:01:00.0", 0, 'target="0000:01:00.0" count="1"')),
            3,
            "<nvlink> of 0000:01:00.0 leads to itself",
        ),
        (in_cpu(gpu("0000:01:00.0", 0, 'count="1"')), 3, "<nvlink> has no target"),
        (
            in_cpu(gpu("0000:01:00.0", 0, 'target="0000:02:00.0" count="0"')),
            3,
            "count='0': expected an integer from 1 to 72",
        ),
        (in_cpu(gpu("0000:01:00.0", 0, 'target="0000:02:00.0" count="-4"')), 3, "count='-4'"),
        (in_cpu(gpu("0000:01:00.0", 0, 'target="0000:02:00.0" count="1e3"')), 3, "count='1e3'"),
        (in_cpu(gpu("0000:01:00.0", 0, 'target="0000:02:00.0" count="9999"')), 3, "count='9999'"),
        (in_cpu(gpu("0000:01:00.0", 0, 'target="NVSwitch" count="1"')), 3, "'NVSwitch' is no PCI bus id"),
        (in_cpu(gpu("0000:01:00.0", 0, *['target="0000:02:00.0" count="40"'] * 2)), 3, "has more than 72 NVLinks"),
        (
            in_cpu('<pci busid="0000:01:00.0" class="0x0207"><nic><net speed="9999999999"/></nic></pci>'),
            3,
            "speed='99999",
        ),
        (in_cpu('<pci busid="0000:01:00.0" class="0x0207"><nic><net speed="fast"/></nic></pci>'), 3, "speed='fast'"),
        (in_cpu("", "zero"), 2, "numaid='zero'"),
        (in_cpu("") + in_cpu(""), 4, "NUMA node 0 is given twice"),
    ],
)
def test_errors_name_their_line(body: str, line: int | None, what: str) -> None:
    error = refused(body)
    assert what in error.what
    assert error.line == line


def test_versions() -> None:
    body = in_cpu(GPU.format(n=1))
    assert noted(parse(body, ""), "<system> has no version: 1 is assumed (line 1)")
    assert parse(body, 'version="2"').gpus  # RCCL
    assert "has version 3: expected 1 or 2" in refused(body, 'version="3"').what


def test_the_limit_of_gpus() -> None:
    def gpus(number: int) -> str:
        return in_cpu(
            "\n".join(f'<pci busid="0000:{n // 32:02x}:{n % 32:02x}.0" class="0x030200"/>' for n in range(number))
        )

    assert len(parse(gpus(MOST_GPUS)).gpus) == MOST_GPUS
    assert f"has {MOST_GPUS + 1} GPUs, more than the {MOST_GPUS}" in refused(gpus(MOST_GPUS + 1)).what
    assert "has 1000 GPUs" in refused(gpus(1000)).what


@pytest.mark.parametrize(("levels", "is_read"), [(30, True), (31, False), (150, False)])
def test_the_limit_of_nesting(levels: int, is_read: bool) -> None:
    """A host bridge, switches, and the GPU: 32 places."""
    opening = "".join(f'<pci busid="0000:{n + 16:02x}:00.0" class="0x060400">' for n in range(levels))
    body = in_cpu(opening + GPU.format(n=1).replace("0000:", "ffff:") + "</pci>" * levels)
    if is_read:
        machine = parse(body)
        assert parse_machine_json(machine.to_json()) == machine
    else:
        assert "nest more than 32 deep" in refused(body).what


def test_any_nesting_ends_in_an_error() -> None:
    for levels in (300, 3000, 100_000):
        refused("<cpu>" * levels + "</cpu>" * levels)
        refused(in_cpu('<pci busid="0000:01:00.0">' * levels))


def test_control_characters_are_not_kept() -> None:
    net = '<pci busid="0000:01:00.0" class="0x0207"><nic><net name="mlx5&#9;&#133;_0" speed="1000"/></nic></pci>'
    assert parse(in_cpu(net)).nics[0].name == "mlx5??_0"


def test_notes_have_an_end() -> None:
    unknown = "".join(f"<x{n}/>" for n in range(1000))
    machine = parse(in_cpu(GPU.format(n=1) + unknown))
    assert len(machine.notes) == 51
    assert machine.notes[-1].startswith("and 9")
