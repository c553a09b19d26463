"""Prints how long new_group takes with Gloo and with Isthmus, by turns, in milliseconds.

Of all ranks, of a pair within a node and of a pair across nodes: from the call to its return on the slowest member, and
the first reduce-scatter of 4,096 elements for each rank, in two tiers where there are two. Medians of all rounds.

Usage: python tools/time_groups.py [ranks, an even number: 4 [rounds: 15]]
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from time_calls import run_ranks

ELEMENTS = 4096
BACKENDS = ("gloo", "isthmus")


def time_group(members: list[int], backend: str) -> tuple[float, float]:
    """Make, use and destroy a group of these ranks; return what the first two took, in ms, on the slowest."""
    import isthmus

    shard = torch.empty(ELEMENTS)
    dist.barrier()
    begin = time.perf_counter()
    group = dist.new_group(members, backend=backend)
    made = used = time.perf_counter()
    if dist.get_rank() in members:
        with isthmus.unit("first"):
            dist.reduce_scatter_tensor(shard, torch.ones(ELEMENTS * len(members)), group=group)
        used = time.perf_counter()
    took = torch.tensor([made - begin, used - made], dtype=torch.float64)
    if dist.get_rank() not in members:
        took.zero_()
    dist.all_reduce(took, dist.ReduceOp.MAX)
    if dist.get_rank() in members:
        dist.destroy_process_group(group)
    new_group_ms, first_ms = (1e3 * took).tolist()
    return new_group_ms, first_ms


def time_on(rank: int, address: str, num_ranks: int, rounds: int) -> None:
    """Run one rank; the first prints."""
    import isthmus

    torch.set_num_threads(1)
    options = isthmus.Options(nodes=f"2x{num_ranks // 2}", codec="none", min_elements=0, log="error")
    dist.init_process_group("isthmus", init_method=address, rank=rank, world_size=num_ranks, pg_options=options)
    groups = {"all": list(range(num_ranks)), "within": [0, 1], "across": [0, num_ranks // 2]}
    for name, members in groups.items():
        times = [[time_group(members, backend) for backend in BACKENDS] for _ in range(rounds + 1)][1:]
        medians = torch.tensor(times).median(dim=0).values
        (gloo_ms, gloo_first_ms), (own_ms, own_first_ms) = medians.tolist()
        if rank == 0:
            print(
                f"{num_ranks:2} ranks, {name:6}  new_group: gloo {gloo_ms:6.2f}, isthmus {own_ms:6.2f}, "
                f"{own_ms / gloo_ms:4.2f} times  first: gloo {gloo_first_ms:5.2f}, isthmus {own_first_ms:5.2f}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, rounds = [*map(int, sys.argv[1:]), *(4, 15)[len(sys.argv) - 1 :]]
    run_ranks(time_on, ranks, ranks, rounds)
