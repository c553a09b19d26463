"""What the ranks of a launcher tell each other before a benchmark, and the checks of it. Pure: equal on all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.group.nodes.launchers import uneven
from isthmus.group.nodes.node_map import different_options, name_ranks, ranks_by_value, told_by_ranks

_SIMULATE = "or leave --here out, which simulates nodes on one machine"
_MORE_NODES = f"start ranks on several, as in `torchrun --nnodes 2 --nproc-per-node 8 ...`, {_SIMULATE}"


@dataclass(frozen=True)
class Member:
    """A rank's own facts."""

    #: The benchmark's arguments, as plain values.
    arguments: dict[str, Any]
    host: str
    #: Equal on ranks that see the same network interfaces.
    machine: str
    #: Why the rank cannot train on a GPU; "" if it can.
    no_gpu: str
    num_gpus: int
    #: Whether all its NICs count their bytes.
    nics_count: bool


def check_alike(members: Sequence[Member]) -> None:
    """Raise ValueError if ranks were given different arguments."""
    as_text = [{name: str(value) for name, value in member.arguments.items()} for member in members]
    if told := different_options(range(len(members)), as_text):
        raise ValueError(f"--here: {told}; give all of them the same")


def choose_device(asked: str, members: Sequence[Member]) -> str:
    """Return "cpu" or "cuda". ValueError: some ranks cannot do as asked, or, unasked, not all can use their GPUs."""
    if asked == "cpu" or (asked == "auto" and not any(member.num_gpus for member in members)):
        return "cpu"
    reasons = [
        member.no_gpu
        or ("" if gpu_index(rank, members) is not None else f"{member.host} has {member.num_gpus} GPUs for more ranks")
        for rank, member in enumerate(members)
    ]
    if told := told_by_ranks(range(len(members)), reasons):
        raise ValueError(f"--device {asked}: {told}; --device cpu trains on CPUs over Gloo")
    return "cuda"


def gpu_index(rank: int, members: Sequence[Member]) -> int | None:
    """A rank's place among those of its machine; 0 where each sees its own GPU alone. None: there are fewer GPUs."""
    if members[rank].num_gpus == 1:
        return 0
    index = machine_ranks(rank, members).index(rank)
    return index if index < members[rank].num_gpus else None


def machine_ranks(rank: int, members: Sequence[Member]) -> list[int]:
    """The ranks that see the same NICs as `rank`."""
    return [other for other, member in enumerate(members) if member.machine == members[rank].machine]


def _one_node(world_size: int, place: str) -> str:
    ranks = f"all {world_size} ranks are" if world_size > 1 else "the only rank is"
    return f"--here: {ranks} on one {place}: nothing crosses a link; {_MORE_NODES}"


def check_nodes(node_of_rank: Sequence[int], source: str, members: Sequence[Member]) -> tuple[int, int]:
    """Return the numbers of nodes and of ranks on each. ValueError: bytes and times between them would mean nothing.

    node_of_rank, source: the node map that Isthmus found.
    """
    ranks = range(len(members))
    sizes = [len(own) for own in ranks_by_value(ranks, node_of_rank).values()]
    if len(set(node_of_rank)) == 1:
        raise ValueError(_one_node(len(members), f"node, by {source}"))
    if min(sizes) < max(sizes):
        raise ValueError(f"--here: {uneven(sizes, source)}")
    machines = ranks_by_value(ranks, [member.machine for member in members])
    if len(machines) == 1:
        raise ValueError(_one_node(len(members), f"machine, {members[0].host}"))
    for own in machines.values():
        if len({node_of_rank[rank] for rank in own}) > 1:
            raise ValueError(
                f"--here: {name_ranks(own)} are on one machine, {members[own[0]].host}, and on several nodes by "
                f"{source}: nothing crosses a link between these; start one torchrun a machine, and unset ISTHMUS_NODES"
            )
    if list(node_of_rank) != sorted(node_of_rank):
        raise ValueError(
            f"--here: ranks are not placed node by node (nodes by rank: {', '.join(map(str, node_of_rank[:16]))}), by "
            f"{source}; start them in blocks, as torchrun and `mpirun --map-by slot` do"
        )
    return len(sizes), sizes[0]


def count_on(rank: int, members: Sequence[Member]) -> bool:
    """Whether `rank` reads its machine's NICs: the first there, if all NICs of all machines count."""
    return machine_ranks(rank, members)[0] == rank and all(member.nics_count for member in members)
