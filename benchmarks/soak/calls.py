"""One call of the soak on one rank: issued on a group of Isthmus, and compared with Gloo."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import isthmus
from isthmus.benchmarks.soak.plan import LARGEST_VALUE, Call

_OPERATORS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

# With codec quant at most so many elements share a scale; all levels but those with a zero among them divide this.
_LARGEST_GROUP = 512
_MULTIPLE_OF_LEVELS = 255


class WrongResult(AssertionError):
    """A result that contradicts Gloo, or the conservation of gradients."""


class Pair:
    """A group of Isthmus and one of Gloo over the same ranks."""

    def __init__(self, isthmus_group: Any, gloo_group: Any) -> None:
        self.isthmus = isthmus_group
        self.gloo = gloo_group
        self.ranks: list[int] = dist.get_process_group_ranks(isthmus_group)
        self.backend: Any = isthmus_group._get_backend(torch.device("cpu"))
        self._residuals: dict[str, tuple[Tensor, Tensor]] = {}
        self._models: dict[str, Any] = {}

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    @property
    def rank(self) -> int:
        """This rank's place in it."""
        return self.ranks.index(dist.get_rank())

    def model(self, call: Call) -> Any:
        """FSDP2's only unit of a model whose only parameter has the size and type of the call, on Isthmus."""
        if call.unit not in self._models:
            model = nn.Module()
            model.weight = nn.Parameter(torch.zeros(call.num_elements, dtype=getattr(torch, call.dtype)))
            self._models[call.unit] = fully_shard(model, mesh=DeviceMesh.from_group(self.isthmus, "cpu"))
        return self._models[call.unit]

    def residual_change(self, unit: str, num_elements: int) -> Tensor:
        """The growth of all ranks' residuals in the last reduction of the unit: float64.

        Of the whole tensor's sum for residuals of pieces, and of the result itself for residuals of results; both in
        chunks of the ranks that own them.
        """
        state = next(state for state in self.backend.unit_states() if state["name"].startswith(unit))
        after = (state["residual"].double(), state["result_residual"].double())
        before = self._residuals.get(unit, tuple(torch.zeros_like(tensor) for tensor in after))
        self._residuals[unit] = after
        pieces, results = (new - old for new, old in zip(after, before, strict=True))
        change = torch.zeros(2, self.size, num_elements // self.size, dtype=torch.float64)
        change[0, self._owners_on_my_rail()] = pieces.view(-1, num_elements // self.size)
        if results.numel():
            change[1, self.rank] = results
        dist.all_reduce(change, group=self.gloo)  # disjoint but for nodes: each node's residuals add up
        return change.view(2, num_elements)

    def _owners_on_my_rail(self) -> list[int]:
        """The ranks of the other nodes that have this rank's local index, by node."""
        nodes: list[int] = self.backend.node_of_rank
        by_node = [[rank for rank in range(self.size) if nodes[rank] == node] for node in sorted(set(nodes))]
        local_index = by_node[nodes[self.rank]].index(self.rank)
        return [ranks[local_index] for node, ranks in enumerate(by_node) if node != nodes[self.rank]]


class Issued:
    """A call under way. `finish` waits for it and raises WrongResult if it is wrong; collective over its group."""

    def __init__(self, call: Call, pair: Pair, seed: int) -> None:
        self._call = call
        self._pair = pair
        self._input = _input(call, seed, pair)
        self._output, self._works = _perform(call, pair, pair.isthmus, self._input.clone(), call.asynchronous)

    def finish(self) -> None:
        """Wait, then compare bit for bit with the expected result."""
        for work in self._works:
            work.wait()
        if self._call.kind == "barrier":
            return
        expected = self._expected_reduction() if "reduce_scatter" in self._call.kind or self._call.is_gradient else None
        if expected is None:
            expected, works = _perform(self._call, self._pair, self._pair.gloo, self._input.clone(), asynchronous=False)
            for work in works:
                work.wait()
        wrong = int((self._output != expected).sum())
        if wrong or self._output.shape != expected.shape:
            raise WrongResult(f"{self._call}: {wrong} of {expected.numel()} elements are wrong")

    def _expected_reduction(self) -> Tensor:
        """Scale x (the sum - what pieces left out), less what the result left out; all of it exact in float64."""
        call, pair = self._call, self._pair
        total = self._input.double()
        dist.all_reduce(total, group=pair.gloo)
        scale = 1 / pair.size if call.operator == "avg" else 1.0
        left_out = pair.residual_change(call.unit, call.num_elements) if call.keeps_residual else (0.0, 0.0)
        whole = ((total - left_out[0]) * scale - left_out[1]).to(self._input.dtype)
        return whole if call.kind == "gradient_all_reduce" else whole.chunk(pair.size)[pair.rank]


def _input(call: Call, seed: int, pair: Pair) -> Tensor:
    if call.is_of_weights:
        return _weights(call, seed)
    return _single_values(call, seed, pair) if call.group == "default" else _whole_numbers(call, seed, pair)


def _weights(call: Call, seed: int) -> Tensor:
    """Return weights that are now what they were, now a little or far away from that."""
    distance = (0.0, 0.0, 1e-4, 1e3)[seed % 4]
    start = torch.randn(call.num_elements, generator=torch.Generator().manual_seed(1))
    step = torch.randn(call.num_elements, generator=torch.Generator().manual_seed(seed))
    return (start + distance * step).to(getattr(torch, call.dtype))


def _single_values(call: Call, seed: int, pair: Pair) -> Tensor:
    """Return numbers that the default codec sends as they are: single ones in a group, in one rank's gradient.

    Rotation spreads each evenly over a level of its group, of which it is a multiple by a factor that a scale can hold.
    """
    places = torch.arange(seed % _LARGEST_GROUP, call.num_elements, _LARGEST_GROUP)
    numbers = torch.arange(len(places)) + seed
    signs = 1 if call.dtype == "uint8" else 1 - 2 * (numbers // 2 % 2)
    tensor = torch.zeros(call.num_elements)
    tensor[places] = torch.where(numbers % pair.size == pair.rank, _MULTIPLE_OF_LEVELS * signs, 0).float()
    return tensor.to(getattr(torch, call.dtype))


def _whole_numbers(call: Call, seed: int, pair: Pair) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1009 + pair.ranks[pair.rank])
    lowest = 0 if call.dtype == "uint8" else -LARGEST_VALUE
    return torch.randint(lowest, LARGEST_VALUE + 1, (call.num_elements,), generator=generator).to(
        getattr(torch, call.dtype)
    )


def _perform(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> tuple[Tensor, list[Any]]:
    """Issue the call; returns the tensor that will hold its result, and the Works to wait for."""
    label = isthmus.unit(f"{call.unit}") if call.is_gradient else nullcontext()
    with label:
        output, works = _CALLS[call.kind.removeprefix("gradient_")](call, pair, group, tensor, asynchronous)
    return output, [work for work in works if work is not None]


Performed = tuple[Tensor, list[Any]]


def _all_reduce(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    return tensor, [dist.all_reduce(tensor, _OPERATORS[call.operator], group, asynchronous)]


def _broadcast(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    return tensor, [dist.broadcast(tensor, pair.ranks[call.root], group, asynchronous)]


def _reduce(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    work = dist.reduce(tensor, pair.ranks[call.root], _OPERATORS[call.operator], group, asynchronous)
    # What the others' tensors hold afterwards is not defined.
    return tensor if pair.rank == call.root else tensor[:0], [work]


def _all_gather(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    own = tensor.chunk(pair.size)[pair.rank].clone()
    return tensor.zero_(), [dist.all_gather_into_tensor(tensor, own, group, asynchronous)]


class _Unsharded:
    """FSDP2's gather of a unit's parameters: the Work."""

    def __init__(self, model: Any, output: Tensor, asynchronous: bool) -> None:
        self._model, self._output = model, output
        self._handle = model.unshard(async_op=asynchronous)

    def wait(self) -> None:
        if self._handle is not None:
            self._handle.wait()
        self._output.copy_(self._model.weight.detach())
        self._model.reshard()


def _gather_weights(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    if group is pair.gloo:
        return _all_gather(call, pair, group, tensor, asynchronous)
    model = pair.model(call)
    with torch.no_grad():
        model.weight.to_local().copy_(tensor.chunk(pair.size)[pair.rank])
    return tensor.zero_(), [_Unsharded(model, tensor, asynchronous)]


def _all_gather_list(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    own = tensor.chunk(pair.size)[pair.rank].clone()
    return tensor.zero_(), [dist.all_gather(list(tensor.chunk(pair.size)), own, group, asynchronous)]


def _reduce_scatter(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    shard = torch.empty_like(tensor.chunk(pair.size)[0])
    return shard, [dist.reduce_scatter_tensor(shard, tensor, _OPERATORS[call.operator], group, asynchronous)]


def _all_to_all(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    output = torch.empty_like(tensor)
    return output, [dist.all_to_all_single(output, tensor, group=group, async_op=asynchronous)]


def _send_receive(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    """Round the ring: to the next rank, from the one before. Both are always under way together."""
    output = torch.empty_like(tensor)
    to, source = pair.ranks[(pair.rank + 1) % pair.size], pair.ranks[pair.rank - 1]
    return output, [dist.isend(tensor, to, group), dist.irecv(output, source, group)]


def _barrier(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> Performed:
    return tensor, [dist.barrier(group, asynchronous)]


_CALLS: dict[str, Callable[[Call, Pair, Any, Tensor, bool], Performed]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_gather_list": _all_gather_list,
    "gather_weights": _gather_weights,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send_receive": _send_receive,
    "barrier": _barrier,
}
