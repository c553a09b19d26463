"""Where a plan's cluster and links come from: options, a file of measured links, or the description of a machine."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from isthmus.plan.assumptions import FASTEST_LINK, Links
from isthmus.plan.placement import Cluster
from isthmus.topology.discovery.link_cache import CACHE, MeasuredLinks, cached_links, default_path, load_links
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

    @property
    def says_anything(self) -> bool:
        """Whether any fact is known."""
        return any(getattr(self, name) is not None for name in FACTS)


#: The names of the facts.
FACTS = tuple(each.name for each in fields(Known) if each.name != "source")

#: Used where nothing else is known. Speeds have no default.
_DEFAULTS = Known("default", 2, 8, inter_latency_us=20.0, intra_latency_us=5.0)


def from_file(links: str | None, machine_file: Path | None, options: Known) -> Known:
    """The facts in a file or in the cache of measured links.

    links: a path, or "cache". Without it and without a machine the cache serves where no option says anything of the
    cluster or its links: an old measurement, perhaps of other machines, never fills up what was given.
    ValueError: two files, a bad one, or a cache without a measurement.
    """
    if links is not None and machine_file is not None:
        raise ValueError("--links and --machine: expected one of them")
    if machine_file is not None:
        return of_machine(read_machine(machine_file), options.ranks_per_node)
    if links is not None and links != CACHE:
        return of_measured(load_links(Path(links)))
    measured = cached_links()
    if measured is None:
        if links == CACHE:
            raise ValueError(
                f"--links {CACHE}: {default_path()} holds no measurement: `isthmus topo --measure` makes one"
            )
        return Known("nothing measured")
    if links is None and options.says_anything:
        return Known(f"not given; `--links {CACHE}` takes those {measured.describe()}")
    return of_measured(measured)


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


def resolve(options: Known, file: Known) -> tuple[Cluster, Links, Mapping[str, str]]:
    """The cluster, its links, and the source of each fact by its name.

    Options come before the file, the file before defaults. ValueError: a speed is missing.
    """
    values: dict[str, float | None] = dict.fromkeys(FACTS)
    sources: dict[str, str] = {}
    for name in FACTS:
        for known in (options, file, _DEFAULTS):
            if (value := getattr(known, name)) is not None:
                values[name], sources[name] = value, known.source
                break
    cluster = Cluster(int(values["nodes"] or 0), int(values["ranks_per_node"] or 0))
    speeds = {}
    for tier, where, is_needed in (
        ("inter", "between nodes", cluster.nodes > 1),
        ("intra", "within a node", cluster.ranks_per_node > 1),
    ):
        speed = values[f"{tier}_gbit_s"]
        if speed is None and is_needed:
            raise ValueError(f"the speed of links {where} is not known ({file.source}): {_HOW}")
        if speed is None:
            sources[f"{tier}_gbit_s"] = "there is none"
        speeds[tier] = FASTEST_LINK if speed is None else speed
    links = Links(
        speeds["inter"], speeds["intra"], values["inter_latency_us"] or 0.0, values["intra_latency_us"] or 0.0
    )
    return cluster, links, sources
