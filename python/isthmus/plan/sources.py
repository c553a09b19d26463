"""Where a plan's cluster and links come from: options, or the description of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isthmus.plan.assumptions import FASTEST_LINK, Links
from isthmus.plan.placement import Cluster

if TYPE_CHECKING:
    from isthmus._topology import Machine

_HOW = "give --inter and --intra, as `isthmus topo --measure` prints them, or --machine FILE"
#: Used where nothing else is known. Speeds have no default.
_DEFAULTS = {"nodes": 2, "ranks_per_node": 8, "inter_latency_us": 20.0, "intra_latency_us": 5.0}


@dataclass(frozen=True)
class Known:
    """Known facts of a cluster and its links, by the names of `Cluster`'s and `Links`' fields, and their source."""

    source: str
    facts: Mapping[str, float]


def known(source: str, **facts: float | None) -> Known:
    """Facts without those that are None."""
    return Known(source, {name: value for name, value in facts.items() if value is not None})


def of_machine(machine: Machine, ranks_per_node: int | None) -> Known:
    """Nodes of such machines: all rails at the speed of the slowest, and the slowest way between two of its GPUs."""
    facts = machine.facts
    num_ranks = ranks_per_node or len(facts["gpus"]) or None
    rail_gbit_s = slowest(rail["speed_gbit_s"] for rail in machine.rails(num_ranks)[0])
    gpus = {f"GPU{gpu['index']}" for gpu in facts["gpus"][:num_ranks]}
    return known(
        f"{facts['name']} ({facts['source']})",
        ranks_per_node=num_ranks,
        inter_gbit_s=None if rail_gbit_s is None else rail_gbit_s * (num_ranks or 1),
        intra_gbit_s=slowest(link["speed_gbit_s"] for link in facts["links"] if {link["a"], link["b"]} <= gpus),
    )


def slowest(speeds: Iterable[float | None]) -> float | None:
    """The least; None where one is unknown, or there is none."""
    every = list(speeds)
    known_ones = [speed for speed in every if speed is not None]
    return min(known_ones) if known_ones and len(known_ones) == len(every) else None


def resolve(options: Known, file: Known) -> tuple[Cluster, Links, Mapping[str, str]]:
    """The cluster, its links, and the source of each fact by its name.

    Options come before the file, the file before defaults. ValueError: a speed is missing.
    """
    values: dict[str, float] = {}
    sources: dict[str, str] = {}
    for each in (Known("default", _DEFAULTS), file, options):
        values |= each.facts
        sources |= dict.fromkeys(each.facts, each.source)
    cluster = Cluster(int(values.pop("nodes")), int(values.pop("ranks_per_node")))
    for name, where, is_needed in (
        ("inter_gbit_s", "between nodes", cluster.nodes > 1),
        ("intra_gbit_s", "within a node", cluster.ranks_per_node > 1),
    ):
        if name not in values and is_needed:
            raise ValueError(f"the speed of links {where} is not known ({file.source}): {_HOW}")
        values.setdefault(name, FASTEST_LINK)
    return cluster, Links(**values), sources
