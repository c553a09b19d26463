"""What calls of the world backend are counted to carry over the border of a node, on nodes of equal and other sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

import isthmus
from support import ranks
from support.checks import finish

BYTES = 4800  # of one rank's tensor of 1200 float32
ROOT = 2
Counted = dict[str, tuple[int, int]]


def part(parts: int = 1) -> torch.Tensor:
    return torch.ones(parts * BYTES // 4)


def parts(number: int) -> list[torch.Tensor]:
    return [part() for _ in range(number)]


def at_root(tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
    return tensors if dist.get_rank() == ROOT else None


def message(rank: int, size: int) -> None:
    """From rank 0 to the last, and from the last but one to whoever receives from anyone."""
    if rank == 0:
        dist.send(part(), size - 1)
        dist.recv(part())
    if rank == size - 2:
        dist.send(part(), 0)
    if rank == size - 1:
        dist.recv(part(), 0)


def uneven_all_to_all(rank: int, size: int) -> None:
    """Every rank has twice as much for the last one as for each of the others."""
    sent = [300] * (size - 1) + [600]
    received = [sent[rank]] * size
    dist.all_to_all_single(torch.empty(sum(received)), torch.ones(sum(sent)), received, sent)


CALLS: dict[str, Callable[[int, int], Any]] = {
    "allreduce": lambda rank, size: dist.all_reduce(part()),
    "allreduce of a sparse tensor": lambda rank, size: dist.all_reduce(
        torch.sparse_coo_tensor(torch.zeros(1, 400, dtype=torch.int64), torch.ones(400), (9,))
    ),
    "allreduce_coalesced": lambda rank, size: dist.all_reduce_coalesced([part(), part()]),
    "reduce": lambda rank, size: dist.reduce(part(), ROOT),
    "broadcast": lambda rank, size: dist.broadcast(part(), ROOT),
    "reduce_scatter": lambda rank, size: dist.reduce_scatter(part(), parts(size)),
    "_reduce_scatter_base": lambda rank, size: dist.reduce_scatter_tensor(part(), part(size)),
    "allgather": lambda rank, size: dist.all_gather(parts(size), part()),
    "_allgather_base": lambda rank, size: dist.all_gather_into_tensor(part(size), part()),
    "allgather_coalesced": lambda rank, size: dist.all_gather_coalesced([[part()] for _ in range(size)], [part()]),
    "gather": lambda rank, size: dist.gather(part(), at_root(parts(size)), ROOT),
    "scatter": lambda rank, size: dist.scatter(part(), at_root(parts(size)), ROOT),
    "alltoall_base": lambda rank, size: dist.all_to_all_single(part(size), part(size)),
    "alltoall_base of other sizes": uneven_all_to_all,
    "alltoall": lambda rank, size: dist.all_to_all(parts(size), parts(size)),
    "messages": message,
    "barrier": lambda rank, size: dist.barrier(),
}


def counted(rank: int, world_size: int) -> Counted:
    ranks.init()
    found = {}
    for name, call in CALLS.items():
        isthmus.reset_stats()
        call(rank, world_size)
        world = isthmus.stats()["world"]
        assert sum(each["calls"] for each in world.values()) >= (name != "messages"), (name, world)
        found[name] = tuple(sum(each[way] for each in world.values()) for way in ("sent_bytes", "received_bytes"))
    assert isthmus.stats()["calls"] == {"barrier": 1}
    if world_size == 4:
        assert "nothing crossed between nodes" in isthmus.summary()
        model = FullyShardedDataParallel(torch.nn.Linear(64, 64), device_id=torch.device("cpu"))  # 4160 numbers
        isthmus.reset_stats()
        model(torch.ones(2, 64)).sum().backward()
        gathers = isthmus.stats()["world"]["allgather"]
        assert gathers["sent_bytes"] == gathers["received_bytes"] == 4160 * gathers["calls"] > 0
        isthmus.reset_stats()
        dist.all_to_all_single(part(4), part(4))
        assert "between nodes: 9.6 kB (by the world backend 9.6 kB alltoall_base)" in isthmus.summary()
    finish()
    return found  # type: ignore[return-value]


@pytest.mark.processes
def test_two_nodes_of_two() -> None:
    """Twice a rank's bytes leave a node of two, where each other node needs them all."""
    of_ranks = ranks.run(counted, 4, env={"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "10000"})
    both = (BYTES, BYTES)
    for rank, found in enumerate(of_ranks):
        here = rank in (2, 3)  # at the root's node
        assert found["allreduce"] == (BYTES // 2, BYTES // 2)
        assert found["allreduce of a sparse tensor"] == both  # 400 numbers and their places
        assert found["allreduce_coalesced"] == both
        assert found["broadcast"] == ((BYTES // 2, 0) if here else (0, BYTES // 2))
        assert found["reduce"] == ((0, BYTES // 2) if here else (BYTES // 2, 0))
        for name in ("reduce_scatter", "_reduce_scatter_base", "allgather", "_allgather_base", "allgather_coalesced"):
            assert found[name] == both, name
        of_root = (0, 2 * BYTES) if rank == ROOT else (0, 0)
        assert found["gather"] == (of_root if here else (BYTES, 0))
        assert found["scatter"] == (of_root[::-1] if here else (0, BYTES))
        assert found["alltoall_base"] == found["alltoall"] == (2 * BYTES, 2 * BYTES)
        to_the_other_node = 600 if here else 900
        assert found["alltoall_base of other sizes"] == (4 * to_the_other_node, 4 * 2 * (600 if rank == 3 else 300))
        # Who receives from anyone does not know from where.
        assert found["messages"] == {0: (BYTES, 0), 2: (BYTES, 0), 3: (0, BYTES)}.get(rank, (0, 0))
        assert found["barrier"] == (0, 0)


@pytest.mark.processes
def test_what_leaves_nodes_of_unequal_sizes_arrives_at_others() -> None:
    of_ranks = ranks.run(counted, 3, env={"ISTHMUS_NODES": "0,1|2"})
    for name in CALLS:
        sent, received = (sum(found[name][way] for found in of_ranks) for way in (0, 1))
        assert sent == received, (name, of_ranks)
    # A node of one rank gets what two have, and gives them what it has once.
    assert of_ranks[0]["_allgather_base"] == (BYTES, BYTES // 2)
    assert of_ranks[2]["_allgather_base"] == (BYTES, 2 * BYTES)
    assert of_ranks[2]["allreduce"] == (BYTES, BYTES)
