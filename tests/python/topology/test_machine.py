"""The model of a machine, and its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.topology.formats.machine_json import parse_machine_json
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
    assert machine.link("GPU1", "GPU0").is_nvlink and not machine.link("GPU1", "NIC0").is_nvlink
    for unknown in ("GPU2", "nothing"):
        with pytest.raises(KeyError):
            machine.distance("GPU0", unknown)
        with pytest.raises(KeyError):
            machine.distance(unknown, unknown)


def test_farness_sorts_from_near_to_far() -> None:
    kinds = ["SYS", "NODE", "PHB", "PXB", "PIX", "NV18", "X"]
    assert sorted(kinds, key=farness) == kinds[::-1]
    assert farness("NV1") == farness("NV18")
    for wrong in ("NV0", "NV", "NV#", "nv4", "SOC", ""):
        with pytest.raises(TopologyError):
            farness(wrong)


def test_json_gives_the_machine_back() -> None:
    values = json.loads(json.dumps(small_machine().to_json()))
    assert parse_machine_json(values) == small_machine()
    assert {"gpus", "nics", "links", "sockets"} <= set(values)
    assert parse_machine_json(values | {"rails": [], "of a later version": 1}) == small_machine()


def test_a_machine_of_nothing() -> None:
    nothing = Machine("nothing", "by hand")
    assert parse_machine_json({"name": "nothing", "source": "by hand"}) == nothing
    assert nothing.device_ids == ()


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    values: Any = json.loads(json.dumps(small_machine().to_json()))
    place = values
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return values  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (["name"], 3, "machine.name: expected text of printable characters, got 3"),
        (["name"], "a\x1b[31m", r"machine.name: expected text of printable characters, got .a.u001b"),
        (["gpus"], {}, "machine.gpus: expected a list, got {}"),
        (["gpus", 0], "GPU0", r"machine.gpus\[0\]: expected an object"),
        (["gpus", 0, "index"], -1, r"gpus\[0\].index: expected a whole number of 0 or more, got -1"),
        (["gpus", 0, "index"], True, "expected a whole number of 0 or more, got true"),
        (["gpus", 1, "index"], 0, "gpus: an index is given twice"),
        (["gpus", 0, "fabric"], {"cluster": "x"}, "'clique' is missing"),
        (["nics", 0, "kind"], "carrier pigeon", "expected infiniband, roce"),
        (["nics", 0, "kind"], [], "expected infiniband, roce"),
        (["nics", 0, "speed_gbit_s"], 0, "expected a number above 0, got 0"),
        (["nics", 0, "speed_gbit_s"], 1e99, "expected a number above 0, got 1e[+]99"),
        (["nics", 0, "speed_gbit_s"], float("nan"), "expected a number above 0, got NaN"),
        (["links", 0, "kind"], "X", "'X' is for a device and itself"),
        (["links", 0, "kind"], "NEAR", "'NEAR' is no distance"),
        (["links", 0, "a"], "GPU1", "links: GPU0-GPU1 is missing"),
        (["links", 2], {"a": "GPU0", "b": "GPU1", "kind": "PIX"}, "a pair is named twice"),
        (["nics"], [], "links: GPU0-NIC0 is no pair of devices"),
        (["links", 0], {"a": "GPU1", "b": "GPU0", "kind": "PIX"}, "GPU0-GPU1 is missing"),
        (["pcie", 0, "children", 0, "devices"], ["GPU9"], "'GPU9' is no device of the machine"),
        (["gpus"], [{"index": index} for index in range(1000)], "1000 are more than the 256"),
    ],
)
def test_json_that_is_wrong_says_where(path: list[Any], value: Any, what: str) -> None:
    with pytest.raises(TopologyError, match=what):
        parse_machine_json(changed(path, value))


def test_json_that_nests_without_end() -> None:
    tree: dict[str, Any] = {"kind": "switch"}
    for _ in range(200):
        tree = {"kind": "switch", "children": [tree]}
    with pytest.raises(TopologyError, match="nest more than 40 deep"):
        parse_machine_json({"name": "deep", "source": "by hand", "pcie": [tree]})


def test_an_error_names_file_and_line() -> None:
    assert str(TopologyError("is bad", "a.xml", 3)) == "a.xml, line 3: is bad"
    assert str(TopologyError("is bad", "a.xml")) == "a.xml: is bad"
    assert str(TopologyError("is bad")) == "is bad"
