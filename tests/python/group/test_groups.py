"""Making groups: options, nodes, subgroups, splits, mistakes, and leaving without a word."""

import inspect
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import isthmus
from support import ranks
from support.checks import Table, finish
from support.limits import OPERATION_S
from support.logs import logged
from support.tested_codecs import DEFAULT

WORLD_SIZE = 4
CODEC_NONE = {"ISTHMUS_CODEC": "none", "ISTHMUS_MIN_ELEMENTS": "0", "ISTHMUS_LOG": "error"}
table = Table()


def node_map(group: dist.ProcessGroup | None) -> str:
    return str(isthmus.stats(group)["node_map"])


def reduce_scatter_works(group: dist.ProcessGroup) -> None:
    size = dist.get_world_size(group)
    shard = torch.empty(100)
    with isthmus.unit("x"):
        dist.reduce_scatter_tensor(shard, torch.ones(size * 100), group=group)
    assert torch.equal(shard, torch.full((100,), float(size)))


@table
def the_default_group_takes_the_environment() -> None:
    assert node_map(None) == "2 nodes x 2 ranks, in blocks"
    assert isthmus.stats()["node_map_source"] == "ISTHMUS_NODES"
    assert isthmus.stats()["options"].startswith("nodes=2x2 codec=none")


@table
def subgroups_have_node_maps_of_their_own() -> None:
    """Nodes are [0, 1] and [2, 3]; a rank that is no member has no part in a group."""
    for members, expected in [
        ([0, 2], "2 nodes x 1 rank, in blocks"),
        ([1, 2, 3], "0|1,2"),
        ([2, 3], "1 node x 2 ranks, in blocks"),
        ([3], "1 node x 1 rank, in blocks"),
    ]:
        group = dist.new_group(members)
        if dist.get_rank() in members:
            assert node_map(group) == expected
            reduce_scatter_works(group)
    dist.barrier()


def sockets() -> tuple[int, int]:
    """Count the ports that this process listens on, and its connections over TCP.

    Those with the store are left out: where a call takes long, a group looks for reports there, over one of its own.
    """
    store = f":{int(os.environ['MASTER_PORT']):04X}"
    own = {os.readlink(descriptor) for descriptor in Path("/proc/self/fd").iterdir() if descriptor.is_symlink()}
    rows = [row.split() for kind in ("tcp", "tcp6") for row in Path(f"/proc/self/net/{kind}").read_text().splitlines()]
    here = [row for row in rows if f"socket:[{row[9]}]" in own and not any(end.endswith(store) for end in row[1:3])]
    states = [row[3] for row in here]
    return states.count("0A"), states.count("01")


@table
def tiers_send_over_the_connections_of_their_group() -> None:
    """A rank listens on one port for each group, and has one connection to each other rank of it."""
    opened = []
    for options in (isthmus.Options(), isthmus.Options(tiers="flat")):
        for members in ([0, 1], [0, 2], [0, 1, 2, 3]):
            ports, connections = sockets()
            dist.barrier()
            group = dist.new_group(members, pg_options=options)
            if dist.get_rank() in members:
                reduce_scatter_works(group)
                ports_then, connections_then = sockets()
                opened.append((ports_then - ports, connections_then - connections - len(members) + 1))
                dist.barrier(group)  # a rank that is ahead would close its end before the others have counted
                dist.destroy_process_group(group)
            del group
            dist.barrier()
    assert set(opened) == {(1, 0)}


@table
def new_groups_inherit_options_or_take_their_own() -> None:
    assert "codec=none" in isthmus.stats(dist.new_group())["options"]
    own = isthmus.Options(codec="tagc", nodes="4x1")
    group = dist.new_group(pg_options=own, timeout=timedelta(seconds=33))
    assert "codec=tagc" in isthmus.stats(group)["options"]
    assert node_map(group) == "4 nodes x 1 rank, in blocks"
    options = group._get_backend(torch.device("cpu")).options
    assert options._timeout == timedelta(seconds=33)
    assert options.global_ranks_in_group == [0, 1, 2, 3]
    own.codec = "none"
    assert options.codec == "tagc"  # the group has a copy


@table
def split() -> None:
    """Twice with the same name, as torch 2.11 does, and one result is dropped."""
    world = dist.distributed_c10d._get_default_group()
    members = [0, 2] if dist.get_rank() in (0, 2) else [1, 3]
    for _ in range(2):
        part = world.split_group(members, timeout=timedelta(seconds=30), group_name=f"split{members[0]}")
    backend = part._get_backend(torch.device("cpu"))
    assert backend.stats()["node_map"] == "2 nodes x 1 rank, in blocks"
    assert list(backend.options.global_ranks_in_group) == members
    assert backend.options.codec == "none"
    tensor = torch.ones(3)
    part.allreduce([tensor]).wait()
    assert torch.equal(tensor, torch.full((3,), 2.0))


@table
def mistakes_are_told_to_every_rank() -> None:
    rank = dist.get_rank()
    for options, error, text in [
        (
            {"codec": "none" if rank == 2 else "tagc"},
            isthmus.OptionError,
            r"codec is 'tagc' on ranks 0, 1, 3, 'none' on rank 2",
        ),
        (
            {"ratio": 4 + rank // 2, "sparsity": 0.5 + rank / 10},
            isthmus.OptionError,
            r"sparsity is .*; ratio is .* on ranks 0, 1, .* on ranks 2, 3",
        ),
        (
            {"weights": "delta" if rank == 1 else "plain", "replica_interval": 7 if rank == 3 else 8},
            isthmus.OptionError,
            r"weights is 'plain' on ranks 0, 2, 3, 'delta' on rank 1; replica_interval is '8' on ranks 0, 1, 2, '7' on",
        ),
        ({"nodes": "3x2"}, isthmus.OptionError, r"3x2.*4|4.*3x2"),
        ({"nodes": "0,1|2"}, isthmus.OptionError, r"0,1\|2"),
        ({"nodes": "3x2" if rank == 1 else "2x2"}, isthmus.OptionError, r"rank 1: .*3x2"),
    ]:
        with pytest.raises(error, match=text):
            dist.new_group(pg_options=isthmus.Options(**options))
    with pytest.raises(isthmus.OptionError, match=r"expected isthmus.Options, got str"):
        dist.new_group(pg_options="codec=none")
    reconfigured = isthmus.Options()
    if hasattr(reconfigured, "enable_reconfigure"):  # torch 2.15
        reconfigured.enable_reconfigure = rank == 2
        with pytest.raises(isthmus.OptionError, match=r"rank 2: enable_reconfigure=True: expected False.*torchft"):
            dist.new_group(pg_options=reconfigured)
    dist.barrier()
    # What is logged may differ.
    dist.new_group(pg_options=isthmus.Options(log="error" if rank == 1 else "warning"))


test_group = table.in_world(world_size=WORLD_SIZE, env={**CODEC_NONE, "ISTHMUS_NODES": "2x2"})


def torchrun(rank: int, agents: list[int]) -> dict[str, str]:
    """What torchrun tells a rank of a world whose ranks these agents started."""
    counts = {"WORLD_SIZE": len(agents), "GROUP_RANK": agents[rank], "LOCAL_WORLD_SIZE": agents.count(agents[rank])}
    return {name: str(value) for name, value in counts.items()} | {"RANK": str(rank)}


# What ranks of two have in their environments, and what both then say.
DEFAULT_GROUPS: dict[str, list[dict[str, str]]] = {
    'OptionError: isthmus: environment variable ISTHMUS_CODEC="zip"': [{"ISTHMUS_CODEC": "zip"}] * 2,
    "OptionError: isthmus: ranks have different options: codec is 'none' on rank 0": [{"ISTHMUS_CODEC": "none"}, {}],
    'OptionError: isthmus: rank 1: environment variable ISTHMUS_RATIO="many"': [{}, {"ISTHMUS_RATIO": "many"}],
    "1 node x 2 ranks, in blocks, by boot id and network namespace": [{}] * 2,
    "2 nodes x 1 rank, in blocks, by ISTHMUS_NODES": [{"ISTHMUS_NODES": "1|0"}] * 2,
    "1 node x 2 ranks, in blocks, by boot id and network namespace, though rank 0 had torchrun; rank 1 had no known "
    "launcher": [torchrun(0, [0, 1]), {}],
}
RECONFIGURED = "OptionError: isthmus: rank 1: enable_reconfigure=True: expected False"


def default_group(store: dist.Store, rank: int, world_size: int, **settings: Any) -> str:
    """Make one, leave it, and return what it is, or the error."""
    timeout = timedelta(seconds=OPERATION_S)
    try:
        dist.init_process_group("isthmus", store=store, rank=rank, world_size=world_size, timeout=timeout, **settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    source = isthmus.stats()["node_map_source"]
    alone = [dist.new_group([member]) for member in range(world_size)][rank]
    # What the world does not believe, no subgroup does.
    assert isthmus.stats(alone)["node_map_source"] == source.partition(", though")[0]
    text = f"{node_map(None)}, by {source}"
    finish()
    return text


def default_groups(rank: int, world_size: int) -> list[str]:
    store = ranks.store()
    said = []
    for number, env_of_rank in enumerate(DEFAULT_GROUPS.values()):
        with pytest.MonkeyPatch.context() as patch:
            for name in torchrun(rank, [0, 1]):
                patch.delenv(name, raising=False)
            for name, value in env_of_rank[rank].items():
                patch.setenv(name, value)
            said.append(default_group(dist.PrefixStore(str(number), store), rank, world_size))
    if CAN_RECONFIGURE:
        said.append(default_group(store, rank, world_size, enable_reconfigure=rank == 1))
    store.set(f"{rank} is done", "")
    store.wait([f"{other} is done" for other in range(world_size)])
    return said


CAN_RECONFIGURE = "enable_reconfigure" in inspect.signature(dist.init_process_group).parameters  # torch 2.15


@pytest.mark.processes
def test_the_default_group_says_what_is_wrong_on_every_rank() -> None:
    texts = ranks.run(default_groups, 2)
    assert texts[0] == texts[1]
    for text, begin in zip(texts[0], [*DEFAULT_GROUPS, *[RECONFIGURED] * CAN_RECONFIGURE], strict=True):
        assert text.startswith(begin)


placed = Table()


def place_cyclically(rank: int, world_size: int) -> dict[str, str]:
    os.environ.update(torchrun(rank, [0, 1, 0, 1]))
    return placed.run_in_world()


@placed
def launchers_place_ranks() -> None:
    assert node_map(None) == "0,2|1,3"
    assert isthmus.stats()["node_map_source"] == (
        "torchrun, though by boot id and network namespace it is 1 node x 4 ranks, in blocks"
    )
    reduce_scatter_works(dist.group.WORLD)
    counted = isthmus.stats()["collectives"]["reduce_scatter"]
    assert counted["calls"] == counted["packed_calls"] == 1
    assert not [name for name in sys.modules if name == "isthmus._topology"]  # not for CPUs


@placed
def nodes_of_unequal_size_are_exact_and_say_so() -> None:
    group = dist.new_group([0, 1, 2])
    if dist.get_rank() < 3:
        reduce_scatter_works(group)
        stats = isthmus.stats(group)
        assert stats["node_map"] == "0,2|1"
        assert stats["one_tier"].startswith("no two-tier path: it needs several nodes with equally many ranks")
        assert stats["exact_calls"] == {"the group is not on several nodes of one size": 1}
        assert stats["collectives"]["reduce_scatter"]["calls"] == 0
    dist.barrier()


test_groups_that_a_launcher_placed = placed.in_world(place_cyclically, WORLD_SIZE, env=CODEC_NONE)


def come_late(rank: int, world_size: int) -> str:
    store = ranks.store()
    if rank == 1:
        store.get("rank 0 has given up")
        store.set("rank 1 has seen it", "")
        return ""
    with pytest.raises(Exception) as error:
        dist.init_process_group("isthmus", store=store, rank=0, world_size=2, timeout=timedelta(seconds=1))
    store.set("rank 0 has given up", "")
    store.get("rank 1 has seen it")
    return str(error.value)


@pytest.mark.processes
def test_a_rank_that_does_not_come_is_named() -> None:
    text = ranks.run(come_late, 2)[0]
    assert text == "isthmus: rank 1 did not come within 1 s to make the group"


def make_worlds_at_one_port(rank: int, world_size: int) -> None:
    for _ in range(10):
        store = ranks.store()
        ranks.init(store=store)
        del store
        dist.destroy_process_group()


@pytest.mark.processes
def test_a_destroyed_world_has_freed_its_stores_port() -> None:
    ranks.run(make_worlds_at_one_port, 1)


def warnings_of_two_groups(rank: int, world_size: int) -> list[str]:
    with logged() as messages, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranks.init(pg_options=isthmus.Options(ratio=4, sparsity=0.9, nodes="2x1"))
        dist.new_group()  # with the same options
        dist.new_group(pg_options=isthmus.Options(codec="none", bits=2, nodes="2x1"))
        finish()
    return messages + [str(warning.message) for warning in caught]


@pytest.mark.processes
def test_rank_0_warns_once_of_mistyped_variables_and_of_options_without_effect() -> None:
    env = {"ISTHMUS_CODECS": "hunter2", "ISTHMUS_PASSWORD": "hunter2", "NCCL_DEBUGG": "1"}
    unknown = "the environment variable {} is none of isthmus's and changes nothing"
    assert ranks.run(warnings_of_two_groups, 2, env=env) == [
        [
            f"{unknown.format('ISTHMUS_CODECS')}: did you mean ISTHMUS_CODEC?",
            unknown.format("ISTHMUS_PASSWORD"),
            f"option sparsity=0.9 has no effect with codec={DEFAULT}: it is for tagc",
            f"option ratio=4 has no effect with codec={DEFAULT}: it is for tagc",
            "option bits=2 has no effect with codec=none: it is for quant",
        ],
        [],
    ]
