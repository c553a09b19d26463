"""Which NIC each rank uses, what it gets there, and what going by order would cost."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from isthmus.topology.machine import Gpu, Link, Machine, Nic, NicKind, PcieKind, PcieNode
from isthmus.topology.rails import find_rails, rail_nics


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


def nearest(rails) -> list[str]:
    return [rail.nearest.nic for rail in rails.rails]


def test_each_gpu_takes_its_own_nic():
    rails = find_rails(machine([["PIX", "SYS"], ["SYS", "PIX"]]))
    assert nearest(rails) == ["NIC0", "NIC1"]
    assert [rail.nearest.num_sharing for rail in rails.rails] == [1, 1]
    assert not any(rail.orders_disagree for rail in rails.rails)
    assert rails.speed_gbit_s == 100
    assert rails.notes == ()


def test_orders_that_disagree_are_noted_with_their_cost():
    rails = find_rails(machine([["SYS", "PIX"], ["PIX", "SYS"]], paths={"PIX": 200.0, "SYS": 63.0}))
    assert nearest(rails) == ["NIC1", "NIC0"]
    assert [rail.orders_disagree for rail in rails.rails] == [True, True]
    first = rails.rails[0]
    assert (first.by_order.nic, first.by_order.distance, first.by_order.speed_gbit_s) == ("NIC0", "SYS", 63)
    assert (first.nearest.distance, first.nearest.speed_gbit_s) == ("PIX", 100)
    assert rails.notes[0] == (
        "local order and NIC order disagree: GPU0 is nearest to NIC1 (PIX), "
        "by order it would get NIC0 (SYS, at most 63 instead of 100 Gbit/s)"
    )


def test_another_nic_that_is_as_near_is_no_disagreement():
    # GPU1 has one choice, so GPU0 leaves it NIC0.
    rails = find_rails(machine([["PIX", "PIX"], ["PIX", "SYS"]]))
    assert nearest(rails) == ["NIC1", "NIC0"]
    assert [rail.orders_disagree for rail in rails.rails] == [False, True]


@pytest.mark.parametrize(("num_gpus", "num_nics"), [(2, 1), (3, 2), (8, 3), (8, 4), (1, 1)])
def test_fewer_nics_are_shared_evenly(num_gpus, num_nics):
    rails = find_rails(machine([["PHB"] * num_nics] * num_gpus))
    most = -(-num_gpus // num_nics)
    assert max(Counter(nearest(rails)).values()) == most
    assert rails.speed_gbit_s == pytest.approx(100 / most)
    for rail in rails.rails:
        assert rail.nearest.num_sharing == nearest(rails).count(rail.nearest.nic)


def test_order_with_fewer_nics_keeps_neighbours_together():
    matrix = [["PIX", "SYS"], ["PIX", "SYS"], ["SYS", "PIX"], ["SYS", "PIX"]]
    rails = find_rails(machine(matrix))
    assert nearest(rails) == ["NIC0", "NIC0", "NIC1", "NIC1"]
    assert [rail.by_order.nic for rail in rails.rails] == nearest(rails)
    assert rails.speed_gbit_s == 50


def test_a_faster_nic_takes_more_ranks():
    rails = find_rails(machine([["PHB", "PHB"]] * 3, speeds=[100.0, 200.0]))
    assert Counter(nearest(rails)) == {"NIC0": 1, "NIC1": 2}
    assert rails.speed_gbit_s == 100


def test_the_slowest_rail_counts():
    rails = find_rails(machine([["PIX", "SYS"], ["SYS", "PIX"]], speeds=[200.0, 100.0]))
    assert [rail.nearest.speed_gbit_s for rail in rails.rails] == [200, 100]
    assert rails.speed_gbit_s == 100


def test_pcie_bounds_a_rail():
    rails = find_rails(machine([["PIX"]], speeds=[400.0], paths={"PIX": 252.0}))
    assert rails.speed_gbit_s == 252


def place(kind, *children, speed=None, devices=()) -> PcieNode:
    return PcieNode(kind, devices=devices, link_speed_gbit_s=speed, children=children)


def with_tree(two_by_two: Machine, *trees: PcieNode) -> Machine:
    return replace(two_by_two, pcie=tuple(PcieNode(PcieKind.HOST_BRIDGE, children=(tree,)) for tree in trees))


def two_far_pairs(uplink: float | None) -> Machine:
    """Two GPUs below one switch, two NICs below another, each switch with such a link to its host bridge."""
    gpus = [place(PcieKind.GPU, speed=252.0, devices=(f"GPU{index}",)) for index in range(2)]
    nics = [place(PcieKind.NIC, speed=252.0, devices=(f"NIC{index}",)) for index in range(2)]
    switches = (place(PcieKind.SWITCH, *devices, speed=uplink) for devices in (gpus, nics))
    return with_tree(machine([["SYS", "SYS"], ["SYS", "SYS"]], speeds=[200.0, 200.0]), *switches)


@pytest.mark.parametrize(("uplink", "expected"), [(252.0, 126), (1000.0, 200), (100.0, 50), (None, 200)])
def test_ranks_divide_a_pcie_link_that_they_share(uplink, expected):
    assert find_rails(two_far_pairs(uplink)).speed_gbit_s == expected


def test_a_rank_alone_has_the_whole_link():
    assert find_rails(two_far_pairs(100.0), ranks_per_node=1).speed_gbit_s == 100


def test_ports_of_one_adapter_divide_its_link():
    gpus = (place(PcieKind.GPU, speed=252.0, devices=(f"GPU{index}",)) for index in range(2))
    adapter = place(PcieKind.NIC, speed=252.0, devices=("NIC0", "NIC1"))
    apart = machine([["SYS", "SYS"], ["SYS", "SYS"]], speeds=[200.0, 200.0])
    assert find_rails(with_tree(apart, *gpus, adapter)).speed_gbit_s == 126


def test_links_between_switches_do_not_count():
    """One chip may present itself as several: two GPUs reach two NICs through what looks like one inner link."""
    gpus = [place(PcieKind.GPU, speed=252.0, devices=(f"GPU{index}",)) for index in range(2)]
    nics = [place(PcieKind.NIC, speed=252.0, devices=(f"NIC{index}",)) for index in range(2)]
    chip = place(PcieKind.SWITCH, *gpus, place(PcieKind.SWITCH, *nics, speed=252.0), speed=10.0)
    assert (
        find_rails(with_tree(machine([["PXB", "PXB"], ["PXB", "PXB"]], speeds=[200.0] * 2), chip)).speed_gbit_s == 200
    )


def test_the_cost_of_an_order_that_disagrees_counts_shared_links():
    """By order both ranks cross to the other socket; the near NICs are below the GPUs' own switches."""
    trees = []
    for index in range(2):
        gpu = place(PcieKind.GPU, speed=252.0, devices=(f"GPU{index}",))
        nic = place(PcieKind.NIC, speed=252.0, devices=(f"NIC{1 - index}",))
        trees.append(place(PcieKind.SWITCH, gpu, nic, speed=252.0))
    crossed = machine([["SYS", "PIX"], ["PIX", "SYS"]], speeds=[200.0, 200.0])
    first = find_rails(with_tree(crossed, *trees)).rails[0]
    assert (first.nearest.speed_gbit_s, first.by_order.speed_gbit_s) == (200, 126)


def test_management_nics_carry_no_rail():
    matrix = [["PIX", "NODE", "NODE"]]
    slow = machine(matrix, speeds=[1.0, 100.0, 50.0])
    assert [nic.id for nic in rail_nics(slow)] == ["NIC1", "NIC2"]  # half as fast is enough
    rails = find_rails(slow)
    assert nearest(rails) == ["NIC1"] and rails.rails[0].by_order.nic == "NIC1"
    assert "mlx5_0" in rails.notes[0]
    kinds = [NicKind.ETHERNET, NicKind.INFINIBAND, NicKind.UNKNOWN]
    assert [nic.id for nic in rail_nics(machine(matrix, kinds=kinds))] == ["NIC1", "NIC2"]
    assert len(rail_nics(machine(matrix, kinds=[NicKind.ETHERNET] * 3))) == 3


def test_unknown_speeds_stay_unknown():
    rails = find_rails(machine([["PIX", "SYS"], ["PIX", "SYS"]], speeds=[None, None], paths={"PIX": 100.0}))
    assert rails.speed_gbit_s is None
    assert rails.rails[0].nearest.speed_gbit_s is None
    assert any("unknown" in note for note in rails.notes)
    half_known = find_rails(machine([["PIX", "SYS"], ["SYS", "PIX"]], speeds=[100.0, None]))
    assert half_known.speed_gbit_s is None


def test_without_gpus_ranks_go_by_order():
    rails = find_rails(machine([], speeds=[25.0, 25.0]), ranks_per_node=4)
    assert nearest(rails) == ["NIC0", "NIC0", "NIC1", "NIC1"]
    assert rails.rails[0].gpu is None and rails.rails[0].nearest.distance is None
    assert rails.speed_gbit_s == 12.5
    assert len(find_rails(machine([], speeds=[25.0])).rails) == 1


def test_without_nics_there_are_no_rails():
    rails = find_rails(Machine("bare", "test", gpus=(Gpu(0),)))
    assert rails.rails == () and rails.speed_gbit_s is None
    assert "bare has no NIC" in rails.notes[0]
    assert rails.to_json() == []


def test_fewer_ranks_than_gpus():
    rails = find_rails(machine([["PHB"]] * 4), ranks_per_node=2)
    assert len(rails.rails) == 2
    assert rails.speed_gbit_s == 50


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
            assert int(rail.nearest.nic[3:]) in allowed
        best = min(max(Counter(way).values()) for way in itertools.product(*choices))
        assert max(Counter(nearest(rails)).values()) == best


def test_json_says_everything():
    (first, _) = find_rails(machine([["SYS", "PIX"], ["PIX", "SYS"]])).to_json()
    assert first == {
        "local_index": 0,
        "gpu": "GPU0",
        "nearest": {"nic": "NIC1", "distance": "PIX", "num_sharing": 1, "speed_gbit_s": 100.0},
        "by_order": {"nic": "NIC0", "distance": "SYS", "num_sharing": 1, "speed_gbit_s": 100.0},
        "orders_disagree": True,
    }
