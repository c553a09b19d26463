"""Description of one machine: sockets, NUMA nodes, GPUs, NICs, the PCIe tree, and distances between devices.

Plain values without behaviour of their own: readers (`read_machine`, live discovery) make them, plans and texts use
them. Attributes that a source may lack are None where unknown; assumptions of a reader stand in `Machine.notes`.
Speeds are those of one direction in Gbit/s (10**9 bits).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import takewhile
from pathlib import Path

#: From near to far. NVLink of any width ("NV1", "NV18") is nearer than PCIe.
_KINDS = ("X", "NV#", "PIX", "PXB", "PHB", "NODE", "SYS")


class TopologyError(ValueError):
    """A description of a machine cannot be used.

    what: says it with the value that is wrong and what is allowed. file, line: where, as far as that is known.
    """

    def __init__(self, what: str, file: str | Path | None = None, line: int | None = None) -> None:
        self.what, self.line = what, line
        place = "" if file is None else f"{file}: " if line is None else f"{file}, line {line}: "
        super().__init__(place + what)


class NicKind(StrEnum):
    """The protocol of a NIC."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    ETHERNET = "ethernet"
    EFA = "efa"
    UNKNOWN = "unknown"


#: NICs that a rank can use past the kernel.
RDMA = (NicKind.INFINIBAND, NicKind.ROCE, NicKind.EFA)


class PcieKind(StrEnum):
    """The kind of a place of the PCIe tree."""

    HOST_BRIDGE = "host bridge"
    SWITCH = "switch"
    GPU = "gpu"
    NIC = "nic"


@dataclass(frozen=True)
class Socket:
    """A processor package. model: its marketing name, or what the source says of vendor, family and model."""

    index: int
    numa_nodes: tuple[int, ...] = ()
    model: str | None = None


@dataclass(frozen=True)
class NumaNode:
    """Memory and the processors next to it. cpus: numbers of logical processors, such as "0-55,112-167"."""

    index: int
    socket: int | None = None
    cpus: str | None = None


@dataclass(frozen=True)
class Fabric:
    """A multi-node NVLink domain as NVML names it: GPUs of equal cluster and clique reach each other over NVLink."""

    cluster: str
    clique: int


@dataclass(frozen=True)
class Gpu:
    """A GPU. index: what CUDA or nvidia-smi calls it."""

    index: int
    bus_id: str | None = None
    model: str | None = None
    numa_node: int | None = None
    fabric: Fabric | None = None

    @property
    def id(self) -> str:
        """Its name in links and in the PCIe tree."""
        return f"GPU{self.index}"


@dataclass(frozen=True)
class Nic:
    """One port of a network adapter. name: of the verbs device (mlx5_0) or else of the interface (eth0)."""

    index: int
    name: str | None = None
    bus_id: str | None = None
    kind: NicKind = NicKind.UNKNOWN
    speed_gbit_s: float | None = None
    numa_node: int | None = None

    @property
    def id(self) -> str:
        """Its name in links and in the PCIe tree."""
        return f"NIC{self.index}"


@dataclass(frozen=True)
class Link:
    """The best path between two devices. kind: how far they are apart, as in docs/topology.md.

    speed_gbit_s: of all its NVLinks, or of the slowest PCIe link on the way; None where a part of the way is unknown.
    """

    a: str
    b: str
    kind: str
    speed_gbit_s: float | None = None


@dataclass(frozen=True)
class PcieNode:
    """A place of the PCIe tree with all that hangs below it. Ports are folded into their switch.

    devices: ids of what it is: one GPU, or the NICs (ports) of one adapter; empty for bridges and switches.
    link_speed_gbit_s: of the link towards the root. numa_node: of a host bridge.
    """

    kind: PcieKind
    bus_id: str | None = None
    devices: tuple[str, ...] = ()
    link_speed_gbit_s: float | None = None
    numa_node: int | None = None
    children: tuple[PcieNode, ...] = ()

    def paths(self, above: tuple[PcieNode, ...] = ()) -> Iterator[tuple[PcieNode, ...]]:
        """The ways from here to this place and to all below it, parents first."""
        yield (*above, self)
        for child in self.children:
            yield from child.paths((*above, self))


@dataclass(frozen=True)
class Machine:
    """A machine. source: where the description came from ("nccl xml", "discovery").

    links: each pair of devices once, GPUs before NICs, by rising index. pcie: a tree for each host bridge; empty where
    the source has none. notes: what was assumed, one sentence each, for people.
    """

    name: str
    source: str
    sockets: tuple[Socket, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    links: tuple[Link, ...] = ()
    pcie: tuple[PcieNode, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def _link_of(self) -> dict[tuple[str, str], Link]:
        links = (*self.links, *(Link(one, one, "X") for one in self.device_ids))
        return {pair: link for link in links for pair in ((link.a, link.b), (link.b, link.a))}

    def link(self, a: Gpu | Nic | str, b: Gpu | Nic | str) -> Link:
        """The link between two devices, given as such or by id ("GPU0", "NIC3"). KeyError: no such pair."""
        first, second = (device if isinstance(device, str) else device.id for device in (a, b))
        return self._link_of[first, second]

    def distance(self, a: Gpu | Nic | str, b: Gpu | Nic | str) -> str:
        """How far two devices are apart: "X" (itself), "NV12", "PIX", "PXB", "PHB", "NODE" or "SYS"."""
        return self.link(a, b).kind

    @property
    def devices(self) -> tuple[Gpu | Nic, ...]:
        """All GPUs, then all NICs: the rows and columns of the matrix."""
        return (*self.gpus, *self.nics)

    @cached_property
    def device_ids(self) -> tuple[str, ...]:
        """The ids of `devices`."""
        return tuple(device.id for device in self.devices)


def paths_to_devices(pcie: Iterable[PcieNode]) -> dict[str, tuple[PcieNode, ...]]:
    """The places from the top of its tree down to each device."""
    return {device: path for tree in pcie for path in tree.paths() for device in path[-1].devices}


def num_shared(a: Sequence[PcieNode], b: Sequence[PcieNode]) -> int:
    """How many places two such paths begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(a, b, strict=False)))


def farness(kind: str) -> int:
    """A number that grows with the distance: sorts "NV4" before "PIX" before "SYS"."""
    return _KINDS.index("NV#" if kind.startswith("NV") else kind)


def all_known(speeds: Iterable[float | None]) -> list[float]:
    """The speeds; none of them where one is unknown, for then so is their sum, and the slowest."""
    every = list(speeds)
    known = [speed for speed in every if speed is not None]
    return known if len(known) == len(every) else []


def printable(text: str) -> str:
    """With a question mark for whatever would do something to a terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
