"""Finds the node map of a group.

Every rank describes its node (`look_around`), the ranks exchange the descriptions over the store, and each derives the
same map from them (`choose`), by the first of these sources:

1. the option `nodes` (ISTHMUS_NODES);
2. the NVLink domain of the rank's GPU, where it spans hosts: then the domain, not the host, is what fast links join;
3. the launcher's variables: see `launchers`;
4. boot id and network namespace: ranks on one machine that see the same network interfaces.

A source counts only if every rank of the group has it and their answers agree. Otherwise the next one decides, on all
ranks alike, and the map's `doubt` names both sides, as it does where a launcher and the machines differ.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from isthmus.group.nodes.launchers import Claim, innermost_claim

T = TypeVar("T")

OPTION = "option nodes"
VARIABLE = "ISTHMUS_NODES"
FABRIC = "NVLink domain"
MACHINE = "boot id and network namespace"
BEYOND = "a store of its own, beyond the job"

#: Ranks that a message names one by one.
_MAX_NAMED = 8


@dataclass(frozen=True)
class Surroundings:
    """One rank's description of its node. Equal texts of one kind are one node."""

    #: The node that option `nodes` puts the rank on. Where it is set, nothing else is looked at.
    option: str = ""
    fabric: str = ""
    claim: Claim | None = None
    machine: str = ""
    #: Who set `option`: `OPTION` or `VARIABLE`.
    option_source: str = OPTION

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Surroundings:
        """Undo `dataclasses.asdict`."""
        return cls(**values | {"claim": values["claim"] and Claim(**values["claim"])})


@dataclass(frozen=True)
class Nodes:
    """A node map and where it comes from, for people."""

    #: For each rank of the group its node, numbered in the order of their first ranks.
    node_of_rank: list[int]
    source: str
    #: Why it may be wrong: a better source contradicts itself, or another source differs. Or "".
    doubt: str = ""

    @property
    def origin(self) -> str:
        """Source and doubt in one text."""
        return f"{self.source}, though {self.doubt}" if self.doubt else self.source


def look_around(environment: Mapping[str, str], world_size: int, gpu_bus_id: str | None = None) -> Surroundings:
    """Describe this rank's node. gpu_bus_id: of the GPU that the group uses ("0000:07:00.0"), if any."""
    return Surroundings(
        fabric="" if gpu_bus_id is None else gpu_fabric(gpu_bus_id),
        claim=innermost_claim(environment, world_size),
        machine=machine_identity(),
    )


def choose(
    ranks: Sequence[int],
    surroundings: Sequence[Surroundings],
    world_size: int,
    describe: Callable[[list[int]], str],
) -> Nodes:
    """Return the node map of a group. A pure function: equal arguments, equal maps on all ranks.

    ranks: global ranks of the members; surroundings: theirs; describe: turns a map into text.
    """
    if surroundings[0].option:
        sources = sorted({own.option_source for own in surroundings})
        return Nodes(node_labels([own.option for own in surroundings]), " and ".join(sources))
    fabrics = [own.fabric for own in surroundings]
    if all(fabrics):
        return Nodes(node_labels(fabrics), FABRIC)
    by_machine = node_labels([own.machine for own in surroundings])
    claims = [own.claim for own in surroundings]
    nodes = _by_launcher(ranks, claims, by_machine, len(ranks) == world_size, describe)
    if not any(fabrics):
        return nodes
    some = [rank for rank, fabric in zip(ranks, fabrics, strict=True) if fabric]
    unbelieved = f"only {name_ranks(some)} reported an NVLink domain that spans hosts"
    return replace(nodes, doubt=f"{unbelieved}; {nodes.doubt}" if nodes.doubt else unbelieved)


def _by_launcher(
    ranks: Sequence[int],
    claims: Sequence[Claim | None],
    by_machine: list[int],
    whole: bool,
    describe: Callable[[list[int]], str],
) -> Nodes:
    """Return the launcher's map; the machine's where no launcher names nodes, or none can be trusted."""
    if not any(claims):
        return Nodes(by_machine, MACHINE)
    names = [claim.node for claim in claims if claim and claim.node is not None]
    by_name = node_labels(names) if len(names) == len(ranks) else None
    contradiction = _contradiction(ranks, claims, by_name or by_machine, whole)
    if contradiction or by_name is None:
        return Nodes(by_machine, MACHINE, contradiction)
    (launcher,) = {claim.launcher for claim in claims if claim}
    return Nodes(by_name, launcher, "" if by_name == by_machine else f"by {MACHINE} it is {describe(by_machine)}")


def _contradiction(ranks: Sequence[int], claims: Sequence[Claim | None], nodes: Sequence[int], whole: bool) -> str:
    """Return a contradiction in the ranks' claims; "" if there is none. whole: the group is the world."""
    launchers = ranks_by_value(ranks, [claim.launcher if claim else "no known launcher" for claim in claims])
    if len(launchers) > 1:
        return "; ".join(f"{name_ranks(started)} had {launcher}" for launcher, started in launchers.items())
    told = [claim for claim in claims if claim]
    launcher = told[0].launcher
    for number, started in ranks_by_value(ranks, [claim.rank for claim in told]).items():
        if len(started) > 1:
            return f"{launcher} started only one of {name_ranks(started)}, as its rank {number}"
    for members in ranks_by_value(range(len(ranks)), nodes).values():
        for member in members:
            size = told[member].node_size
            if size is None:
                continue
            if len(members) > size or (whole and len(members) < size):
                return f"{launcher} counts {size} on the node of {name_ranks([ranks[each] for each in members])}"
    return ""


def ranks_by_value(ranks: Sequence[int], values: Sequence[T]) -> dict[T, list[int]]:
    """Return the ranks that have each value."""
    found: dict[T, list[int]] = {}
    for rank, value in zip(ranks, values, strict=True):
        found.setdefault(value, []).append(rank)
    return found


def ranks_by_node(node_of_rank: Sequence[int]) -> list[list[int]]:
    """Return the ranks of each node, ordered by the nodes' lowest ranks."""
    return list(ranks_by_value(range(len(node_of_rank)), node_of_rank).values())


def tiers_of(rank: int, node_of_rank: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the ranks of a rank's node, and those of its rail, by node. Nodes have equally many ranks."""
    nodes = ranks_by_node(node_of_rank)
    node = next(ranks for ranks in nodes if rank in ranks)
    return node, [ranks[node.index(rank)] for ranks in nodes]


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks in a message: "rank 3", "ranks 0, 1"."""
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MAX_NAMED]))}{more}"


def told_by_ranks(ranks: Sequence[int], texts: Sequence[str]) -> str:
    """Say what ranks complain of, and which ones do where not all complain of one thing; "" if none does."""
    return "; ".join(
        text if len(own) == len(ranks) else f"{name_ranks(own)}: {text}"
        for text, own in ranks_by_value(ranks, texts).items()
        if text
    )


def different_options(ranks: Sequence[int], options: Sequence[Mapping[str, str]]) -> str:
    """Say which options, by name, differ between ranks; "" if none does. The first rank's names are those of all."""
    if all(own == options[0] for own in options):
        return ""
    differing = []
    for name in options[0]:
        values = ranks_by_value(ranks, [own.get(name, "") for own in options])
        if len(values) > 1:
            texts = [f"{value!r} on {name_ranks(own)}" for value, own in values.items()]
            differing.append(f"{name} is {', '.join(texts)}")
    return f"ranks have different options: {'; '.join(differing)}" if differing else ""


def machine_identity() -> str:
    """Text that is equal on two ranks exactly if they run on one machine and see the same network interfaces."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = os.readlink("/proc/self/ns/net")
    except OSError:  # no Linux, or a sandbox without /proc
        return socket.gethostname()
    return f"{boot} {network}"


def num_ranks_in(text: str) -> int:
    """Return how many ranks a node map such as "2x4" or "0,1|2,3" has; of what is none, a number above 0."""
    grid = re.fullmatch(r"(\d{1,7})x(\d{1,7})", text)  # more digits are no number of ranks
    return max(1, int(grid[1]) * int(grid[2]) if grid else len(re.findall(r"\d+", text)))


def gpu_fabric(bus_id: str) -> str:
    """Text that is equal on two ranks exactly if NVLink joins their GPUs across hosts. "" where it joins one host's.

    Loads NVML, once a process.
    """
    try:
        from isthmus import _topology
    except ImportError:  # of hwloc, which was there when it was built
        return ""
    fabric = _topology.nvml()["fabrics"].get(bus_id)
    return f"{fabric[0]} clique {fabric[1]}" if fabric else ""


def node_labels(identities: Sequence[object]) -> list[int]:
    """Number equal identities alike, in the order of their first appearance."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(identity, len(numbers)) for identity in identities]
