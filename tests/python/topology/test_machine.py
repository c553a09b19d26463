"""The model of a machine, and its JSON."""

from __future__ import annotations

import pytest

from isthmus.topology.machine import (
    Fabric,
    Gpu,
    Link,
    Machine,
    Nic,
    NicKind,
    NumaNode,
    PcieKind,
    PcieNode,
    Socket,
    TopologyError,
    farness,
)


def small_machine() -> Machine:
    gpu = PcieNode(PcieKind.GPU, "0000:02:00.0", ("GPU0",), 252.0)
    switch = PcieNode(PcieKind.SWITCH, "0000:01:00.0", children=(gpu, PcieNode(PcieKind.NIC, devices=("NIC0",))))
    return Machine(
        "small",
        "by hand",
        sockets=(Socket(0, (0,), "a processor"),),
        numa_nodes=(NumaNode(0, 0, "0-7"),),
        gpus=(Gpu(0, "0000:02:00.0", "a GPU", 0, Fabric("cluster", 7)), Gpu(1)),
        nics=(Nic(0, "mlx5_0", None, NicKind.ROCE, 100.0, 0),),
        links=(Link("GPU0", "GPU1", "NV4", 800.0), Link("GPU0", "NIC0", "PIX", 252.0), Link("GPU1", "NIC0", "SYS")),
        pcie=(PcieNode(PcieKind.HOST_BRIDGE, numa_node=0, children=(switch,)),),
        notes=("a note",),
    )


def test_distances_hold_in_both_directions() -> None:
    machine = small_machine()
    assert machine.distance(machine.gpus[1], "GPU0") == "NV4" == machine.distance("GPU0", "GPU1")
    assert machine.distance("NIC0", machine.gpus[0]) == "PIX"
    assert machine.distance("NIC0", "NIC0") == "X"
    for unknown in ("GPU2", "nothing"):
        with pytest.raises(KeyError):
            machine.distance("GPU0", unknown)
        with pytest.raises(KeyError):
            machine.distance(unknown, unknown)


def test_farness_sorts_from_near_to_far() -> None:
    kinds = ["SYS", "NODE", "PHB", "PXB", "PIX", "NV18", "X"]
    assert sorted(kinds, key=farness) == kinds[::-1]
    assert farness("NV1") == farness("NV18")


def test_an_error_names_file_and_line() -> None:
    assert str(TopologyError("is bad", "a.xml", 3)) == "a.xml, line 3: is bad"
    assert str(TopologyError("is bad", "a.xml")) == "a.xml: is bad"
    assert str(TopologyError("is bad")) == "is bad"
