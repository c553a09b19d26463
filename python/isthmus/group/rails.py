"""What ranks found on their machines, for people: GPUs, NVLinks, and the NIC that each rail leaves by.

Nothing is decided by it. `topology/` finds it; a rank tells the others in its introduction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from isthmus.group.nodes.node_map import machine_identity, name_ranks, ranks_by_node, ranks_by_value

#: A machine, or a part of it, as the JSON of `isthmus topo` has it: docs/topology.md.
Facts = dict[str, Any]
#: NICs of a node that are named one by one.
_MOST_NAMED = 16


@dataclass(frozen=True)
class GpuPlace:
    """A rank's GPU on its machine. What is empty is not known.

    gpus: all of the machine, in words. island: equal texts are GPUs that NVLinks join. nic: the names of its NICs;
    gbit_s: their speed together; num_nics: how many of the first one's kind and speed the machine has.
    """

    gpus: str = ""
    island: str = ""
    nic: str = ""
    gbit_s: float | None = None
    num_nics: int = 0


@cache
def find_gpu_place(gpu_bus_id: str) -> GpuPlace:
    """Describe the machine around a GPU ("0000:07:00.0"); as far as that is possible: it raises nothing.

    Looked for once in a process: a machine of many devices takes a while.
    """
    try:
        from isthmus import _topology

        machine = _topology.discover()
    except (ImportError, ValueError):  # hwloc is missing, or cannot read this machine
        return GpuPlace()
    facts = machine.facts
    devices = devices_by_id(facts)
    name = next((name for name, device in devices.items() if device["bus_id"] == gpu_bus_id), "")
    if not name.startswith("GPU"):
        return GpuPlace()
    islands = machine.islands["gpus"] if is_fast(machine.islands["by"] or "") else [[name]]
    island = next(gpus for gpus in islands if name in gpus)
    place = GpuPlace(gpus=gpus_in_words(facts), island=f"{machine_identity()} {island}")
    chosen = next((rail["nics"] for rail in machine.rails()[0] if rail["gpu"] == name), None)
    if chosen is None:
        return place
    nic = devices[chosen[0]]
    alike = [one for one in facts["nics"] if (one["kind"], one["speed_gbit_s"]) == (nic["kind"], nic["speed_gbit_s"])]
    names, gbit_s = way_out(devices, chosen)
    return replace(place, nic=names, gbit_s=gbit_s, num_nics=len(alike))


def way_out(devices: dict[str, Facts], nics: Sequence[str]) -> tuple[str, float | None]:
    """Return the names of a rail's NICs, "mlx5_0+mlx5_1", and their speed together; None where one is unknown."""
    speeds = [devices[nic]["speed_gbit_s"] for nic in nics]
    names = "+".join(devices[nic]["name"] or nic for nic in nics)
    return names, None if None in speeds else sum(speeds)


def devices_by_id(facts: Facts) -> dict[str, Facts]:
    """Return GPUs ("GPU0"), then NICs ("NIC3")."""
    kinds = (("GPU", facts["gpus"]), ("NIC", facts["nics"]))
    return {f"{kind}{device['index']}": device for kind, devices in kinds for device in devices}


def gpus_in_words(facts: Facts) -> str:
    """Return "8 x NVIDIA H100, NV18 between all GPUs, 3600 Gbit/s a pair"."""
    return ", ".join(filter(None, (count(gpu["model"] or "GPU" for gpu in facts["gpus"]), fast_links_in_words(facts))))


def is_fast(kind: str) -> bool:
    """Whether a link is one of those between GPUs that are faster than PCIe: "NV12", "NVLink", "XGMI", "XeLink"."""
    return kind.startswith(("NV", "XGMI", "XeLink"))


def fast_links_in_words(facts: Facts) -> str:
    """Return "NV18 between all GPUs", or between how many pairs there are such links; "" without any."""
    pairs = [link for link in facts["links"] if link["b"].startswith("GPU")]
    joined = [link for link in pairs if is_fast(link["kind"])]
    if not joined:
        return ""
    if len({(link["kind"], link["speed_gbit_s"]) for link in pairs}) > 1:
        kinds = " and ".join(sorted({re.sub(r"^NV\d+", "NVLinks", link["kind"]) for link in joined}))
        return f"{kinds} between {len(joined)} of {len(pairs)} pairs of GPUs"
    speed = joined[0]["speed_gbit_s"]
    return f"{joined[0]['kind']} between all GPUs" + ("" if speed is None else f", {in_gbit_s(speed)} a pair")


def in_gbit_s(speed: float) -> str:
    """Return "12.5 Gbit/s", "3600 Gbit/s"."""
    return f"{speed:.4g} Gbit/s" if speed < 1000 else f"{speed:.0f} Gbit/s"


def count(names: Iterable[str]) -> str:
    """Return "8 x NVIDIA H100" for eight of a kind."""
    return ", ".join(f"{number} x {name}" for name, number in Counter(names).items())


def rails_in_words(nics: Sequence[tuple[str, float | None]]) -> str:
    """Return by which NICs the ranks of a node leave, and how fast. nics: each rank's, and the NIC's speed."""
    ranks_of = ranks_by_value(range(len(nics)), nics)
    named = []
    for (name, gbit_s), ranks in list(ranks_of.items())[:_MOST_NAMED]:
        shared = f" for {len(ranks)} ranks" if len(ranks) > 1 else ""
        named.append(f"{name} ({'speed unknown' if gbit_s is None else in_gbit_s(gbit_s)}{shared})")
    return f"rails leave by {', '.join(named)}{', ...' if len(ranks_of) > _MOST_NAMED else ''}"


def machine_in_words(node_of_rank: Sequence[int], places: Sequence[GpuPlace]) -> str:
    """Return what the nodes have, as the first one has it; "" where that is not known."""
    first = [place for node, place in zip(node_of_rank, places, strict=True) if node == 0]
    if not all(place.gpus for place in first):
        return ""
    rails = rails_in_words([(place.nic, place.gbit_s) for place in first]) if all(place.nic for place in first) else ""
    return f"; a node has {first[0].gpus}" + (f"; {rails}" if rails else "")


def misplacements(node_of_rank: Sequence[int], places: Sequence[GpuPlace]) -> str:
    """Return what is not as it should be, and what to set; "" where nothing is known to be wrong."""
    if not all(place.island and place.nic for place in places):
        return ""
    return "; ".join(_misplacements(ranks_by_node(node_of_rank), places))


def _misplacements(nodes: list[list[int]], places: Sequence[GpuPlace]) -> Iterator[str]:
    islands = ranks_by_value(range(len(places)), [place.island for place in places])
    most = max(map(len, nodes))
    if len({len(ranks) for ranks in islands.values()}) == 1 and len(places) // len(islands) >= most:
        for node, ranks in enumerate(nodes):
            if len({places[rank].island for rank in ranks}) > 1:
                better = "|".join(",".join(map(str, island)) for island in islands.values())
                yield f"the GPUs of node {node} are not joined by NVLinks: set ISTHMUS_NODES={better}"
                return
    for ranks in nodes:
        users = ranks_by_value(ranks, [places[rank].nic for rank in ranks])
        if len(users) < min(len(ranks), places[ranks[0]].num_nics):
            name, sharing = max(users.items(), key=lambda item: len(item[1]))
            yield (
                f"{name_ranks(sharing)} share {name}, while other NICs of their node are idle: set "
                "CUDA_VISIBLE_DEVICES to GPUs that `isthmus topo` shows with NICs of their own"
            )
            break
    for rail in zip(*nodes, strict=False):
        other = next((rank for rank in rail if places[rank].nic != places[rail[0]].nic), None)
        if other is not None:
            yield (
                f"rails differ between nodes: rank {rail[0]} leaves by {places[rail[0]].nic}, and rank {other} by "
                f"{places[other].nic}: set CUDA_VISIBLE_DEVICES so that ranks take GPUs in one order on all nodes"
            )
            return
