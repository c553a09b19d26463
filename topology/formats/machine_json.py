"""Reads a machine from its JSON, and checks every value of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any, TypeVar

from isthmus.topology.machine import (
    MOST_GBIT_S,
    MOST_GPUS,
    MOST_NICS,
    MOST_NUMA_NODES,
    MOST_PCIE_LEVELS,
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

_MOST_INDEX = 2**31 - 1
_MOST_ITEMS = (MOST_GPUS + MOST_NICS) ** 2

_Record = TypeVar("_Record")
#: Takes a value and where it stands, gives what it means.
_Check = Callable[[Any, str], Any]


def parse_machine_json(values: Mapping[str, Any]) -> Machine:
    """The machine that `Machine.to_json` gave. TopologyError: a value is missing, of the wrong type or out of range."""
    machine = _machine(values, "machine")
    check(machine)
    return machine


def check(machine: Machine) -> None:
    """TopologyError: devices have no number of their own, or links are not one for each pair of them."""
    _check_indices("sockets", [socket.index for socket in machine.sockets], MOST_NUMA_NODES)
    _check_indices("numa_nodes", [node.index for node in machine.numa_nodes], MOST_NUMA_NODES)
    _check_indices("gpus", [gpu.index for gpu in machine.gpus], MOST_GPUS)
    _check_indices("nics", [nic.index for nic in machine.nics], MOST_NICS)
    devices = machine.device_ids
    expected = {(a, b) for place, a in enumerate(devices) for b in devices[place + 1 :]}
    seen = {(link.a, link.b) for link in machine.links}
    if len(machine.links) != len(seen):
        raise TopologyError("links: a pair is named twice")
    if wrong := sorted(expected ^ seen):
        what = "missing" if wrong[0] in expected else "no pair of devices in the order of the matrix"
        raise TopologyError(f"links: {wrong[0][0]}-{wrong[0][1]} is {what}")
    for tree in machine.pcie:
        for place in tree.walk():
            if unknown := set(place.devices) - set(devices):
                raise TopologyError(f"pcie: '{min(unknown)}' is no device of the machine")


def _check_indices(name: str, indices: list[int], most: int) -> None:
    if len(indices) > most:
        raise TopologyError(f"{name}: {len(indices)} are more than the {most} that a machine may have")
    if len(set(indices)) != len(indices):
        raise TopologyError(f"{name}: an index is given twice")


def _integer(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_INDEX:
        raise TopologyError(f"{where} is {_shown(value)}: expected an integer from 0 to {_MOST_INDEX}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TopologyError(f"{where} is {_shown(value)}: expected text of printable characters")
    return value


def _speed(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not (0 < value <= MOST_GBIT_S):
        raise TopologyError(f"{where} is {_shown(value)}: expected Gbit/s above 0, at most {MOST_GBIT_S:.0f}")
    if not math.isfinite(value):
        raise TopologyError(f"{where} is {_shown(value)}: expected a finite number")
    return float(value)


def _kind_of_link(value: Any, where: str) -> str:
    kind = _text(value, where)
    if kind == "X" or farness(kind) < 0:
        raise TopologyError(f"{where} is 'X', which is for a device and itself")
    return kind


def _one_of(kinds: type[StrEnum]) -> _Check:
    def check_kind(value: Any, where: str) -> StrEnum:
        if value not in [kind.value for kind in kinds]:
            raise TopologyError(f"{where} is {_shown(value)}: expected {', '.join(kinds)}")
        return kinds(value)

    return check_kind


def _optional(check_value: _Check) -> _Check:
    return lambda value, where: None if value is None else check_value(value, where)


def _list_of(check_item: _Check) -> _Check:
    def check_list(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > _MOST_ITEMS:
            raise TopologyError(f"{where} is {_shown(value)}: expected a list of at most {_MOST_ITEMS}")
        return tuple(check_item(item, f"{where}[{place}]") for place, item in enumerate(value))

    return check_list


def _record(kind: type[_Record], checks: Mapping[str, _Check]) -> Callable[[Any, str], _Record]:
    """A reader of one dataclass; `checks` names each of its fields."""
    required = {one.name for one in fields(kind) if one.default is MISSING}  # type: ignore[arg-type]

    def check_record(value: Any, where: str) -> _Record:
        if not isinstance(value, Mapping):
            raise TopologyError(f"{where} is {_shown(value)}: expected an object")
        if missing := sorted(required - set(value)):
            raise TopologyError(f"{where}: '{missing[0]}' is missing")
        if unknown := sorted(str(name) for name in set(value) - set(checks)):
            raise TopologyError(f"{where}: '{unknown[0]}' is unknown: expected {', '.join(checks)}")
        return kind(**{name: checks[name](item, f"{where}.{name}") for name, item in value.items()})

    return check_record


def _pcie(value: Any, where: str) -> PcieNode:
    if where.count(".children[") >= MOST_PCIE_LEVELS:
        raise TopologyError(f"pcie: places nest more than {MOST_PCIE_LEVELS} deep")
    return _pcie_node(value, where)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_FABRIC = _record(Fabric, {"cluster": _text, "clique": _integer})
_PCIE_CHECKS: dict[str, _Check] = {
    "kind": _one_of(PcieKind),
    "bus_id": _optional(_text),
    "devices": _list_of(_text),
    "link_speed_gbit_s": _optional(_speed),
    "numa_node": _optional(_integer),
    "children": _list_of(_pcie),
}
_pcie_node = _record(PcieNode, _PCIE_CHECKS)
_SOCKET = _record(Socket, {"index": _integer, "numa_nodes": _list_of(_integer), "model": _optional(_text)})
_NUMA_NODE = _record(NumaNode, {"index": _integer, "socket": _optional(_integer), "cpus": _optional(_text)})
_GPU = _record(
    Gpu,
    {
        "index": _integer,
        "bus_id": _optional(_text),
        "model": _optional(_text),
        "numa_node": _optional(_integer),
        "fabric": _optional(_FABRIC),
        "cpu_link_speed_gbit_s": _optional(_speed),
    },
)
_NIC = _record(
    Nic,
    {
        "index": _integer,
        "name": _optional(_text),
        "bus_id": _optional(_text),
        "kind": _one_of(NicKind),
        "speed_gbit_s": _optional(_speed),
        "numa_node": _optional(_integer),
    },
)
_LINK = _record(Link, {"a": _text, "b": _text, "kind": _kind_of_link, "speed_gbit_s": _optional(_speed)})
_machine = _record(
    Machine,
    {
        "name": _text,
        "source": _text,
        "sockets": _list_of(_SOCKET),
        "numa_nodes": _list_of(_NUMA_NODE),
        "gpus": _list_of(_GPU),
        "nics": _list_of(_NIC),
        "links": _list_of(_LINK),
        "pcie": _list_of(_pcie),
        "num_nvswitches": _optional(_integer),
        "notes": _list_of(_text),
    },
)
