"""Which NIC each rank uses, and what it gets there."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from isthmus.topology.machine import Gpu, Link, Machine, Nic, NicKind, PcieKind, PcieNode
from isthmus.topology.rails import find_rails, rail_nics

OWN = [["PIX", "SYS"], ["SYS", "PIX"]]
CROSSED = [["SYS", "PIX"], ["PIX", "SYS"]]
FAR = [["SYS", "SYS"], ["SYS", "SYS"]]


def machine(matrix, speeds=None, kinds=None, paths=None) -> Machine:
    """A machine whose GPU g and NIC n are `matrix[g][n]` apart; paths: PCIe speed of such a way."""
    gpus = tuple(Gpu(index) for index in range(len(matrix)))
    num_nics = len(matrix[0]) if matrix else len(speeds)
    speeds = speeds or [100.0] * num_nics
    kinds = kinds or [NicKind.ROCE] * num_nics
    nics = tuple(Nic(n, f"mlx5_{n}", kind=kinds[n], speed_gbit_s=speeds[n]) for n in range(num_nics))
    links = tuple(
        Link(f"GPU{g}", f"NIC{n}", matrix[g][n], (paths or {}).get(matrix[g][n]))
        for g, n in itertools.product(range(len(gpus)), range(num_nics))
    )
    return Machine("made up", "test", gpus=gpus, nics=nics, links=links)


def nearest(rails) -> list[int]:
    return [int(rail.nic[3:]) for rail in rails.rails]


@pytest.mark.parametrize(
    ("matrix", "more", "nics", "gbit_s"),
    [
        (OWN, {}, [0, 1], 100),
        (CROSSED, {}, [1, 0], 100),
        # GPU1 has one choice, so GPU0 leaves it NIC0.
        ([["PIX", "PIX"], ["PIX", "SYS"]], {}, [1, 0], 100),
        # Fewer NICs keep neighbours together, and share their speed.
        ([["PIX", "SYS"]] * 2 + [["SYS", "PIX"]] * 2, {}, [0, 0, 1, 1], 50),
        ([["PHB"] * 3] * 8, {}, [0, 0, 0, 1, 1, 1, 2, 2], pytest.approx(100 / 3)),
        # A faster NIC takes more ranks; the slowest rail counts; PCIe bounds a rail.
        ([["PHB", "PHB"]] * 3, {"speeds": [100.0, 200.0]}, [1, 0, 1], 100),
        (OWN, {"speeds": [200.0, 100.0]}, [0, 1], 100),
        ([["PIX"]], {"speeds": [400.0], "paths": {"PIX": 252.0}}, [0], 252),
        # What is unknown stays so.
        (OWN, {"speeds": [100.0, None], "paths": {"PIX": 100.0}}, [0, 1], None),
    ],
)
def test_the_nearest_nics(matrix, more, nics, gbit_s):
    rails = find_rails(machine(matrix, **more))
    assert nearest(rails) == nics
    assert rails.speed_gbit_s == gbit_s
    assert [rail.num_sharing for rail in rails.rails] == [nics.count(nic) for nic in nics]
    assert any("unknown" in note for note in rails.notes) == (gbit_s is None)


def place(kind, *children, speed=None, devices=()) -> PcieNode:
    return PcieNode(kind, devices=devices, link_speed_gbit_s=speed, children=children)


def with_tree(two_by_two: Machine, *trees: PcieNode) -> Machine:
    return replace(two_by_two, pcie=tuple(PcieNode(PcieKind.HOST_BRIDGE, children=(tree,)) for tree in trees))


GPUS = [place(PcieKind.GPU, speed=252.0, devices=(f"GPU{index}",)) for index in range(2)]
NICS = [place(PcieKind.NIC, speed=252.0, devices=(f"NIC{index}",)) for index in range(2)]


@pytest.mark.parametrize(("uplink", "expected"), [(252.0, 126), (1000.0, 200), (100.0, 50), (None, 200)])
def test_ranks_divide_a_pcie_link_that_they_share(uplink, expected):
    """Two GPUs below one switch, two NICs below another, each switch with such a link to its host bridge."""
    switches = (place(PcieKind.SWITCH, *devices, speed=uplink) for devices in (GPUS, NICS))
    far_pairs = with_tree(machine(FAR, speeds=[200.0, 200.0]), *switches)
    assert find_rails(far_pairs).speed_gbit_s == expected
    assert find_rails(far_pairs, ranks_per_node=1).speed_gbit_s == min(200, uplink or 200)


def test_ports_of_one_adapter_divide_its_link():
    adapter = place(PcieKind.NIC, speed=252.0, devices=("NIC0", "NIC1"))
    assert find_rails(with_tree(machine(FAR, speeds=[200.0, 200.0]), *GPUS, adapter)).speed_gbit_s == 126


def test_links_between_switches_do_not_count():
    """One chip may present itself as several: two GPUs reach two NICs through what looks like one inner link."""
    chip = place(PcieKind.SWITCH, *GPUS, place(PcieKind.SWITCH, *NICS, speed=252.0), speed=10.0)
    assert find_rails(with_tree(machine([["PXB"] * 2] * 2, speeds=[200.0] * 2), chip)).speed_gbit_s == 200


def test_management_nics_carry_no_rail():
    matrix = [["PIX", "NODE", "NODE"]]
    slow = machine(matrix, speeds=[1.0, 100.0, 50.0])
    assert [nic.id for nic in rail_nics(slow)] == ["NIC1", "NIC2"]  # half as fast is enough
    rails = find_rails(slow)
    assert nearest(rails) == [1]
    assert "mlx5_0" in rails.notes[0]
    kinds = [NicKind.ETHERNET, NicKind.INFINIBAND, NicKind.UNKNOWN]
    assert [nic.id for nic in rail_nics(machine(matrix, kinds=kinds))] == ["NIC1", "NIC2"]
    assert len(rail_nics(machine(matrix, kinds=[NicKind.ETHERNET] * 3))) == 3


def test_without_gpus_ranks_go_by_order():
    rails = find_rails(machine([], speeds=[25.0, 25.0]), ranks_per_node=4)
    assert nearest(rails) == [0, 0, 1, 1]
    assert rails.rails[0].gpu is None and rails.rails[0].distance is None
    assert rails.speed_gbit_s == 12.5
    assert len(find_rails(machine([], speeds=[25.0])).rails) == 1


def test_without_nics_there_are_no_rails():
    rails = find_rails(Machine("bare", "test", gpus=(Gpu(0),)))
    assert (rails.rails, rails.speed_gbit_s) == ((), None)
    assert "bare has no NIC" in rails.notes[0]


@pytest.mark.parametrize("ranks_per_node", [0, -1, 3])
def test_a_number_of_ranks_out_of_range(ranks_per_node):
    with pytest.raises(ValueError, match=f"{ranks_per_node} ranks a node: expected 1 to 2"):
        find_rails(machine([["PHB"]] * 2), ranks_per_node)


def test_spreading_shares_as_little_as_possible():
    """Against trying everything, on random trees of one level of switches in two sockets."""
    draw = random.Random(5)
    for _ in range(60):
        switch_of_gpu = [draw.randrange(4) for _ in range(draw.randint(1, 5))]
        switch_of_nic = [draw.randrange(4) for _ in range(draw.randint(1, 4))]
        matrix = [
            ["PIX" if a == b else "NODE" if a // 2 == b // 2 else "SYS" for b in switch_of_nic] for a in switch_of_gpu
        ]
        rails = find_rails(machine(matrix))
        order = ["PIX", "NODE", "SYS"]
        choices = [
            [n for n, kind in enumerate(row) if order.index(kind) == min(map(order.index, row))] for row in matrix
        ]
        for rail, allowed in zip(rails.rails, choices, strict=True):
            assert int(rail.nic[3:]) in allowed
        best = min(max(Counter(way).values()) for way in itertools.product(*choices))
        assert max(Counter(nearest(rails)).values()) == best
