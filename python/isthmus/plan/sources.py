"""Where a plan's cluster and links come from: options, a file of measured links, or the description of a machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from isthmus.plan.assumptions import FASTEST_LINK, Links
from isthmus.plan.placement import Cluster
from isthmus.topology.discovery.link_cache import CACHE, MeasuredLinks, cached_links, default_path, load_links
from isthmus.topology.formats.read import read_machine
from isthmus.topology.machine import Machine
from isthmus.topology.rails import find_rails

_HOW = "give --inter and --intra, --links FILE or --machine FILE; `isthmus topo --measure` measures them"
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


def from_file(links: str | None, machine_file: Path | None, options: Known) -> Known:
    """The facts in a file or in the cache of measured links.

    links: a path, or "cache". Without it and without a machine the cache serves where no option says anything of the
    cluster or its links: an old measurement, perhaps of other machines, never fills up what was given.
    ValueError: two files, a bad one, or a cache without a measurement.
    """
    if links is not None and machine_file is not None:
        raise ValueError("--links and --machine: expected one of them")
    if machine_file is not None:
        ranks_per_node = options.facts.get("ranks_per_node")
        return of_machine(read_machine(machine_file), None if ranks_per_node is None else int(ranks_per_node))
    if links is not None and links != CACHE:
        return of_measured(load_links(Path(links)))
    measured = cached_links()
    if measured is None:
        if links == CACHE:
            raise ValueError(
                f"--links {CACHE}: {default_path()} holds no measurement: `isthmus topo --measure` makes one"
            )
        return known("nothing measured")
    if links is None and options.facts:
        return known(f"not given; `--links {CACHE}` takes those {measured.describe()}")
    return of_measured(measured)


def of_measured(measured: MeasuredLinks) -> Known:
    """The cluster that was measured."""
    facts: dict[str, float] = {"nodes": measured.num_nodes, "ranks_per_node": measured.ranks_per_node}
    for tier, link in (("inter", measured.inter), ("intra", measured.intra)):
        if link is not None:
            facts |= {f"{tier}_gbit_s": link.bandwidth_gbit_s, f"{tier}_latency_us": link.latency_us}
    return Known(measured.describe(), facts)


def of_machine(machine: Machine, ranks_per_node: int | None) -> Known:
    """Nodes of such machines: all rails at the speed of the slowest, and the slowest way between two of its GPUs."""
    num_ranks = ranks_per_node or len(machine.gpus) or None
    rail_gbit_s = find_rails(machine, num_ranks).speed_gbit_s
    gpus = machine.gpus[:num_ranks]
    pairs = [machine.link(a, b).speed_gbit_s for a in gpus for b in gpus if a.index < b.index]
    speeds = [speed for speed in pairs if speed is not None]
    return known(
        f"{machine.name} ({machine.source})",
        ranks_per_node=num_ranks,
        inter_gbit_s=None if rail_gbit_s is None else rail_gbit_s * (num_ranks or 1),
        intra_gbit_s=min(speeds) if speeds and len(speeds) == len(pairs) else None,
    )


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
