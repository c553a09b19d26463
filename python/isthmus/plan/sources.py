"""Where a plan's links come from: options, a file of measured links, or the description of a machine."""

from dataclasses import dataclass
from pathlib import Path

from isthmus.plan.assumptions import FASTEST_LINK, Links, parse_speed_gbit_s
from isthmus.plan.placement import Cluster
from isthmus.topology.discovery.link_cache import MeasuredLinks, cached_links, load_links
from isthmus.topology.formats.read import read_machine
from isthmus.topology.machine import Machine
from isthmus.topology.rails import find_rails

_HOW = "give --inter and --intra, --links FILE or --machine FILE; `isthmus topo --measure` measures them"


@dataclass(frozen=True)
class Known:
    """Known facts of a cluster and its links, and their source. None: unknown."""

    source: str
    nodes: int | None = None
    ranks_per_node: int | None = None
    inter_gbit_s: float | None = None
    intra_gbit_s: float | None = None
    inter_latency_us: float | None = None
    intra_latency_us: float | None = None


#: Used where nothing else is known. Speeds have no default.
_DEFAULTS = Known("default", 2, 8, inter_latency_us=20.0, intra_latency_us=5.0)


def given(
    nodes: int | None,
    ranks_per_node: int | None,
    inter: str | None,
    intra: str | None,
    inter_latency_us: float | None,
    intra_latency_us: float | None,
) -> Known:
    """The facts that options give. ValueError: a speed cannot be read."""
    return Known(
        "given",
        nodes,
        ranks_per_node,
        None if inter is None else parse_speed_gbit_s(inter, "--inter"),
        None if intra is None else parse_speed_gbit_s(intra, "--intra"),
        inter_latency_us,
        intra_latency_us,
    )


def from_file(links_file: Path | None, machine_file: Path | None, ranks_per_node: int | None) -> Known:
    """The facts in a file, or in the cache of measured links without one. ValueError: two files, or a bad one."""
    if links_file is not None and machine_file is not None:
        raise ValueError("--links and --machine: expected one of them")
    if machine_file is not None:
        return of_machine(read_machine(machine_file), ranks_per_node)
    measured = cached_links() if links_file is None else load_links(links_file)
    return Known("nothing measured") if measured is None else of_measured(measured)


def of_measured(measured: MeasuredLinks) -> Known:
    """The cluster that was measured."""
    intra, inter = measured.intra, measured.inter
    return Known(
        measured.describe(),
        measured.num_nodes,
        measured.ranks_per_node,
        inter.bandwidth_gbit_s if inter else None,
        intra.bandwidth_gbit_s if intra else None,
        inter.latency_us if inter else None,
        intra.latency_us if intra else None,
    )


def of_machine(machine: Machine, ranks_per_node: int | None) -> Known:
    """Nodes of such machines: all rails at the speed of the slowest, and the slowest way between two of its GPUs."""
    num_ranks = ranks_per_node or len(machine.gpus) or None
    rail_gbit_s = find_rails(machine, num_ranks).speed_gbit_s
    gpus = machine.gpus[:num_ranks]
    pairs = [machine.link(a, b).speed_gbit_s for a in gpus for b in gpus if a.index < b.index]
    known = [speed for speed in pairs if speed is not None]
    return Known(
        f"{machine.name} ({machine.source})",
        ranks_per_node=num_ranks,
        inter_gbit_s=None if rail_gbit_s is None else rail_gbit_s * (num_ranks or 1),
        intra_gbit_s=min(known) if known and len(known) == len(pairs) else None,
    )


def resolve(options: Known, file: Known) -> tuple[Cluster, Links]:
    """The cluster and its links: options before the file, the file before defaults. ValueError: a speed is missing."""

    def first(name: str) -> float | None:
        return next(
            (value for known in (options, file, _DEFAULTS) if (value := getattr(known, name)) is not None), None
        )

    cluster = Cluster(int(first("nodes") or 0), int(first("ranks_per_node") or 0))
    needed = {"inter": cluster.nodes > 1, "intra": cluster.ranks_per_node > 1}
    speeds = {}
    for tier, is_needed in needed.items():
        speed = first(f"{tier}_gbit_s")
        if speed is None and is_needed:
            raise ValueError(f"the speed of links {_WORDS[tier]} is not known ({file.source}): {_HOW}")
        speeds[tier] = FASTEST_LINK if speed is None else speed
    links = Links(
        speeds["inter"],
        speeds["intra"],
        first("inter_latency_us") or 0.0,
        first("intra_latency_us") or 0.0,
        _source(options, file),
    )
    return cluster, links


_WORDS = {"inter": "between nodes", "intra": "within a node"}


def _source(options: Known, file: Known) -> str:
    by_option = [tier for tier in _WORDS if getattr(options, f"{tier}_gbit_s") is not None]
    if len(by_option) == len(_WORDS):
        return "given"
    return file.source + "".join(f"; {tier} given" for tier in by_option)
