"""Rails: which NIC each local index should use, and its speed out of the node, by the rules of docs/topology.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.topology.machine import (
    RDMA,
    Gpu,
    Link,
    Machine,
    Nic,
    NicKind,
    PcieNode,
    all_known,
    farness,
    num_shared,
    paths_to_devices,
)

#: A NIC slower than this share of the fastest one is for management: no rail runs over it.
_LEAST_SHARE_OF_FASTEST = 0.5


@dataclass(frozen=True)
class Rail:
    """The ranks with this local index, and the NIC that they should use.

    gpu, distance: the rank's GPU, and how far the NIC is from it; None without one. num_sharing: ranks of the node that
    use this NIC, this one included. speed_gbit_s: at most, while all ranks send and receive; None: the NIC's is
    unknown.
    """

    local_index: int
    gpu: str | None
    nic: str
    distance: str | None
    num_sharing: int
    speed_gbit_s: float | None


@dataclass(frozen=True)
class Rails:
    """The rails of a machine, one a rank; empty where it has no NIC."""

    rails: tuple[Rail, ...]
    notes: tuple[str, ...] = ()

    @property
    def speed_gbit_s(self) -> float | None:
        """A rank's speed out of its node while all ranks send: the slowest rail's, which all others wait for."""
        return min(all_known(rail.speed_gbit_s for rail in self.rails), default=None)


def find_rails(machine: Machine, ranks_per_node: int | None = None) -> Rails:
    """Pair ranks with NICs. ranks_per_node: by default one a GPU, or one where there is no GPU.

    Raises ValueError where there are more ranks than GPUs, or none.
    """
    num_ranks = ranks_per_node if ranks_per_node is not None else len(machine.gpus) or 1
    if num_ranks < 1 or (machine.gpus and num_ranks > len(machine.gpus)):
        expected = f"1 to {len(machine.gpus)}, one a GPU" if machine.gpus else "1 or more"
        raise ValueError(f"{num_ranks} ranks a node: expected {expected}")
    nics = rail_nics(machine)
    if not nics:
        return Rails((), notes=(f"{machine.name} has no NIC: nothing is known of the way to other nodes",))
    gpus = machine.gpus[:num_ranks]
    num_counted = min(num_ranks, len(nics))
    counted = [nics[rank * num_counted // num_ranks] for rank in range(num_ranks)]
    rails = _rails(machine, gpus, _spread(machine, gpus, nics, counted) if gpus else counted)
    notes = []
    if slow := [nic.name or nic.id for nic in machine.nics if nic not in nics]:
        notes.append(f"no rail runs over {', '.join(slow)}: others are faster, or speak RDMA")
    if not machine.gpus:
        notes.append("no GPU: ranks take NICs by order")
    if any(rail.speed_gbit_s is None for rail in rails):
        notes.append("the speed of a rail's NIC is unknown: measure it, or give it")
    return Rails(rails, tuple(notes))


def rail_nics(machine: Machine) -> list[Nic]:
    """NICs that rails can run over: those with RDMA, if any, and among these none that is far slower than the best."""
    has_rdma = any(nic.kind in RDMA for nic in machine.nics)
    nics = [nic for nic in machine.nics if not (has_rdma and nic.kind is NicKind.ETHERNET)]
    least_gbit_s = _LEAST_SHARE_OF_FASTEST * max((nic.speed_gbit_s or 0 for nic in nics), default=0)
    return [nic for nic in nics if nic.speed_gbit_s is None or nic.speed_gbit_s >= least_gbit_s]


def _spread(machine: Machine, gpus: Sequence[Gpu], nics: Sequence[Nic], counted: Sequence[Nic]) -> list[Nic]:
    """Give each GPU one of its nearest NICs, so that as few as possible share one: by order, where that is as good.

    Who has the fewest choices chooses first: on a tree sets of nearest NICs are nested or disjoint, and then no other
    order shares less.
    """
    choices = {gpu.index: _nearest(machine, gpu, nics) for gpu in gpus}
    chosen: dict[int, Nic] = {}
    for gpu in sorted(gpus, key=lambda gpu: (len(choices[gpu.index]), gpu.index)):
        chosen[gpu.index] = _roomiest(choices[gpu.index], Counter(chosen.values()))
    spread = [chosen[gpu.index] for gpu in gpus]
    all_near = all(nic in choices[gpu.index] for gpu, nic in zip(gpus, counted, strict=True))
    return list(counted) if all_near and _least_share(counted) >= _least_share(spread) else spread


def _least_share(chosen: Sequence[Nic]) -> float:
    """Return what the NIC with least for each of its ranks gives them; speeds count as equal if one is unknown."""
    known = all(nic.speed_gbit_s is not None for nic in chosen)
    return min((nic.speed_gbit_s or 0 if known else 1) / sharing for nic, sharing in Counter(chosen).items())


def _nearest(machine: Machine, gpu: Gpu, nics: Sequence[Nic]) -> list[Nic]:
    how_far = [farness(machine.distance(gpu, nic)) for nic in nics]
    return [nic for nic, far in zip(nics, how_far, strict=True) if far == min(how_far)]


def _roomiest(nics: Sequence[Nic], load: Counter[Nic]) -> Nic:
    """Return the NIC that leaves most to one more rank; the first of equals."""
    if any(nic.speed_gbit_s is None for nic in nics):
        return min(nics, key=lambda nic: load[nic])
    return max(nics, key=lambda nic: (nic.speed_gbit_s or 0) / (load[nic] + 1))


def _rails(machine: Machine, gpus: Sequence[Gpu], chosen: Sequence[Nic]) -> tuple[Rail, ...]:
    """Return the rails over the NICs that ranks have chosen; gpus: theirs, or none."""
    sharing = Counter(chosen)
    links = [machine.link(gpu, nic) for gpu, nic in zip(gpus, chosen, strict=False)]
    bounds = _pcie_bounds(machine, links) if gpus else [[]] * len(chosen)
    rails = []
    for rank, nic in enumerate(chosen):
        gpu, distance = (gpus[rank].id, links[rank].kind) if gpus else (None, None)
        speed_gbit_s = None if nic.speed_gbit_s is None else min([nic.speed_gbit_s / sharing[nic], *bounds[rank]])
        rails.append(Rail(rank, gpu, nic.id, distance, sharing[nic], speed_gbit_s))
    return tuple(rails)


def _pcie_bounds(machine: Machine, links: Sequence[Link]) -> list[list[float]]:
    """Return what bounds each way: its own speed, and that of its PCIe links, divided among the ways over them."""
    path_to = paths_to_devices(machine.pcie)
    ways = [_between(path_to.get(link.a, ()), path_to.get(link.b, ())) for link in links]
    num_over = Counter(id(place) for way in ways for place in way)
    bounds = []
    for link, way in zip(links, ways, strict=True):
        speeds = [(link.speed_gbit_s, 1), *((place.link_speed_gbit_s, num_over[id(place)]) for place in way)]
        bounds.append([speed / sharing for speed, sharing in speeds if speed is not None])
    return bounds


def _between(a: Sequence[PcieNode], b: Sequence[PcieNode]) -> list[PcieNode]:
    """Return the places on the way whose links towards the root bound it: devices, and switches at a host bridge.

    Links between switches do not: one chip may present itself as several, which no real link joins.
    """
    shared = num_shared(a, b)
    return [
        place
        for path in (a, b)
        for level, place in enumerate(path)
        if level >= max(shared, 1) and (level == 1 or place.devices)
    ]
