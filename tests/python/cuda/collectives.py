"""Every collective, for tensors of any device: what Gloo computes on the CPU is what a GPU's backend must compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8]
Call = Callable[[torch.device, dist.ProcessGroup | None], list[torch.Tensor]]
CALLS: dict[str, Call] = {}


def call(function: Call) -> Call:
    CALLS[function.__name__] = function
    return function


def data(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """Small whole numbers, whose sums are exact in all types: different on every rank, the same at every call."""
    generator = torch.Generator().manual_seed(1000 * salt + dist.get_rank())
    return torch.randint(0, 8, shape, generator=generator).to(dtype).to(device)


def compare(name: str, group: dist.ProcessGroup | None, gloo: dist.ProcessGroup) -> None:
    """Make a call on the fake GPU, and on the CPU with Gloo."""
    results = CALLS[name](torch.device("cuda", 0), group)
    expected = CALLS[name](torch.device("cpu"), gloo)
    assert len(results) == len(expected) > 0
    for result, wanted in zip(results, expected, strict=True):
        assert result.device.type == "cuda" and result.dtype == wanted.dtype
        assert torch.equal(result.cpu(), wanted), (name, result, wanted)


@call
def broadcast(device: torch.device, group: Any) -> list[torch.Tensor]:
    tensors = []
    for dtype in DTYPES:
        for source in range(dist.get_world_size()):
            tensors.append(data(device, 7, dtype=dtype))
            dist.broadcast(tensors[-1], source, group=group)
    return tensors


@call
def all_reduce(device: torch.device, group: Any) -> list[torch.Tensor]:
    tensors = []
    for dtype in DTYPES:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            tensors.append(data(device, 33, dtype=dtype))
            dist.all_reduce(tensors[-1], op, group=group)
    tensors.append(data(device, 1000))
    work = dist.all_reduce(tensors[-1], group=group, async_op=True)
    work.wait()
    return tensors


@call
def reduce(device: torch.device, group: Any) -> list[torch.Tensor]:
    tensors = []
    for root in range(dist.get_world_size()):
        tensor = data(device, 9)
        dist.reduce(tensor, root, group=group)
        tensors.append(tensor if dist.get_rank() == root else torch.zeros(1, device=device))
    return tensors


@call
def reduce_scatter(device: torch.device, group: Any) -> list[torch.Tensor]:
    size = dist.get_world_size()
    tensors = []
    for dtype in DTYPES:
        tensors.append(torch.empty(5, dtype=dtype, device=device))
        dist.reduce_scatter_tensor(tensors[-1], data(device, 5 * size, dtype=dtype), group=group)
        tensors.append(torch.empty(5, dtype=dtype, device=device))
        inputs = [data(device, 5, dtype=dtype, salt=index) for index in range(size)]
        dist.reduce_scatter(tensors[-1], inputs, group=group)
    return tensors


@call
def all_gather(device: torch.device, group: Any) -> list[torch.Tensor]:
    size = dist.get_world_size()
    tensors = []
    for dtype in [*DTYPES, torch.bool, torch.complex64]:
        outputs = [torch.empty(5, dtype=dtype, device=device) for _ in range(size)]
        dist.all_gather(outputs, data(device, 5, dtype=dtype), group=group)
        tensors += outputs
        tensors.append(torch.empty(size * 3, dtype=dtype, device=device))
        dist.all_gather_into_tensor(tensors[-1], data(device, 3, dtype=dtype), group=group)
    return tensors


@call
def all_gather_of_different_sizes(device: torch.device, group: Any) -> list[torch.Tensor]:
    outputs = [torch.empty(2 + rank, device=device) for rank in range(dist.get_world_size())]
    own = data(device, 2 + dist.get_rank())
    if device.type == "cuda":
        dist.all_gather(outputs, own, group=group)
        return outputs
    outputs[dist.get_rank()] = own  # Gloo cannot
    for rank, output in enumerate(outputs):
        dist.broadcast(output, rank, group=group)
    return outputs


@call
def all_to_all(device: torch.device, group: Any) -> list[torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    equal = torch.empty(4 * size, device=device)
    dist.all_to_all_single(equal, data(device, 4 * size), group=group)
    # Rank r sends r + peer + 1 elements to each peer.
    counts = [rank + peer + 1 for peer in range(size)]
    uneven = torch.empty(sum(counts), device=device)
    dist.all_to_all_single(uneven, data(device, sum(counts)), counts, counts, group=group)
    return [equal, uneven]


@call
def gather_and_scatter(device: torch.device, group: Any) -> list[torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = []
    for root in range(size):
        outputs = [torch.zeros(3, device=device) for _ in range(size)] if rank == root else None
        dist.gather(data(device, 3), outputs, root, group=group)
        tensors += outputs or []
        tensors.append(torch.empty(3, device=device))
        inputs = [data(device, 3, salt=peer) for peer in range(size)] if rank == root else None
        dist.scatter(tensors[-1], inputs, root, group=group)
    return tensors


@call
def send_and_receive(device: torch.device, group: Any) -> list[torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    arrived = [torch.empty(6, device=device) for _ in range(size)]
    operations = []
    for peer in range(size):
        if peer != rank:
            operations.append(dist.P2POp(dist.isend, data(device, 6, salt=peer), peer, group))
            operations.append(dist.P2POp(dist.irecv, arrived[peer], peer, group))
    arrived[rank].zero_()
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return arrived


@call
def ring(device: torch.device, group: Any) -> list[torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = data(device, 4)
    if rank == 0:
        dist.send(tensor, 1, group=group)
        dist.recv(tensor, size - 1, group=group)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, rank - 1, group=group)
        dist.send(arrived + tensor, (rank + 1) % size, group=group)
    return [tensor]


@call
def not_contiguous(device: torch.device, group: Any) -> list[torch.Tensor]:
    transposed = data(device, 6, 4).t()
    dist.broadcast(transposed.contiguous(), 0, group=group)
    strided = data(device, 20)[::2].contiguous()
    dist.all_reduce(strided, group=group)
    return [transposed.contiguous(), strided]


@call
def empty(device: torch.device, group: Any) -> list[torch.Tensor]:
    tensor = torch.empty(0, device=device)
    dist.all_reduce(tensor, group=group)
    return [tensor]


@call
def coalesced(device: torch.device, group: Any) -> list[torch.Tensor]:
    tensors = [data(device, 3, salt=salt) for salt in range(3)]
    if device.type == "cpu":  # Gloo has other rules for coalescing
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    else:
        with dist._coalescing_manager(group, device):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
    return tensors
