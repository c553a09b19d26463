"""The calls of the soak, drawn by chance and alike on every rank; and one of them over Isthmus, held against Gloo."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import isthmus

#: Divisible by the ranks of every group. The first is below MIN_ELEMENTS, whose calls are plain.
NUM_ELEMENTS = (5040, 10 * 2520, 34 * 2520)
MIN_ELEMENTS = 20_000
MOST_CALLS = 4
#: The options of groups by name. The first compresses gradients and sends differences of weights.
OPTIONS: dict[str, dict[str, str]] = {
    "default": {"weights": "delta", "replica_interval": "4"},
    **{key: {"codec": "none"} for key in ("plain", "rails", "nodes", "all but the last", "all but the first")},
}
GRADIENTS = ("gradient_reduce_scatter", "gradient_all_reduce")
WEIGHTS = "gather_weights"
_EXACT = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_receive", "barrier")

_OPERATORS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
#: Whole numbers to this size: sums over all ranks are exact in every type, in any order.
_LARGEST_VALUE = 4
# With codec quant at most so many elements share a scale; all levels but those with a zero among them divide this.
_LARGEST_GROUP = 512
_MULTIPLE_OF_LEVELS = 255


class WrongResult(AssertionError):
    """A result that is not Gloo's."""


@dataclass(frozen=True)
class Call:
    """One collective of a step."""

    kind: str
    group: str
    dtype: str
    num_elements: int
    operator: str  # what does not reduce ignores it
    root: int  # rank in the group
    asynchronous: bool

    @property
    def unit(self) -> str:
        """The unit whose gradient this is: of one shape, type and scale."""
        return f"soak.{self.kind}.{self.group}.{self.dtype}.{self.num_elements}.{self.operator}"

    def __str__(self) -> str:
        how = "asynchronous" if self.asynchronous else "synchronous"
        return f"{self.kind} ({self.operator}) of {self.num_elements} x {self.dtype} in group '{self.group}', {how}"


def calls_of_step(seed: int, step: int, smallest_group: int) -> list[Call]:
    """Return the calls of one step, at most one for each unit. Roots are in 0 ... smallest_group - 1."""
    choose = random.Random(f"{seed}/{step}")
    calls = [_draw(choose, smallest_group) for _ in range(choose.randint(1, MOST_CALLS))]
    return list({call.unit: call for call in calls}.values())


def _draw(choose: random.Random, smallest_group: int) -> Call:
    kind = choose.choices((*GRADIENTS, WEIGHTS, *_EXACT), (3, 3, 3, *([1] * len(_EXACT))))[0]
    dtypes: Sequence[str] = ("float32", "bfloat16")
    operators: Sequence[str] = ("sum", "avg")
    if kind == WEIGHTS:
        dtypes, operators = ("float32", "bfloat16", "float16", "float64"), ("sum",)
    elif kind in _EXACT:
        dtypes = ("float32", "bfloat16", "float16", "float64", "int64", "uint8")
        operators = ("sum", "max", "min") if kind == "all_reduce" else ("sum",)
    return Call(
        kind=kind,
        group=choose.choice(tuple(OPTIONS) if kind in _EXACT else ("default", "plain", "rails")),
        dtype=choose.choice(dtypes),
        num_elements=choose.choice(NUM_ELEMENTS),
        operator=choose.choice(operators),
        root=choose.randrange(smallest_group),
        asynchronous=choose.random() < 0.5,
    )


class Pair:
    """A group of Isthmus and one of Gloo over the same ranks."""

    def __init__(self, isthmus_group: Any, gloo_group: Any) -> None:
        self.isthmus = isthmus_group
        self.gloo = gloo_group
        self.ranks: list[int] = dist.get_process_group_ranks(isthmus_group)
        self.size = len(self.ranks)
        #: This rank's place in it.
        self.rank = self.ranks.index(dist.get_rank())
        self._models: dict[str, Any] = {}

    def model(self, call: Call) -> Any:
        """FSDP2's only unit of a model whose only parameter has the size and type of the call, on Isthmus."""
        if call.unit not in self._models:
            model = nn.Module()
            model.weight = nn.Parameter(torch.zeros(call.num_elements, dtype=getattr(torch, call.dtype)))
            fully_shard(model, mesh=DeviceMesh.from_group(self.isthmus, "cpu"))
            self._models[call.unit] = isthmus.prepare(model)  # it has no forward pass in which to prepare itself
        return self._models[call.unit]


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
        expected = self._expected()
        wrong = int((self._output != expected).sum())
        if wrong or self._output.shape != expected.shape:
            raise WrongResult(f"{self._call}: {wrong} of {expected.numel()} elements are wrong")

    def _expected(self) -> Tensor:
        """Gloo's result; of reduce-scatters and gradients the sum in float64, which is exact."""
        call, pair = self._call, self._pair
        if call.kind not in (*GRADIENTS, "reduce_scatter"):
            expected, works = _perform(call, pair, pair.gloo, self._input.clone(), asynchronous=False)
            for work in works:
                work.wait()
            return expected
        total = self._input.double()
        dist.all_reduce(total, group=pair.gloo)
        whole = (total / pair.size if call.operator == "avg" else total).to(self._input.dtype)
        return whole if call.kind == "gradient_all_reduce" else whole.chunk(pair.size)[pair.rank]


def _input(call: Call, seed: int, pair: Pair) -> Tensor:
    dtype = getattr(torch, call.dtype)
    if call.kind == WEIGHTS:  # what they were, or a little or far away from that
        distance = (0.0, 0.0, 1e-4, 1e3)[seed % 4]
        start, step = (torch.randn(call.num_elements, generator=_generator(number)) for number in (1, seed))
        return (start + distance * step).to(dtype)
    if call.kind in GRADIENTS and call.group == "default":
        return _single_values(call, seed, pair).to(dtype)
    lowest = 0 if call.dtype == "uint8" else -_LARGEST_VALUE
    generator = _generator(seed * 1009 + dist.get_rank())
    return torch.randint(lowest, _LARGEST_VALUE + 1, (call.num_elements,), generator=generator).to(dtype)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _single_values(call: Call, seed: int, pair: Pair) -> Tensor:
    """Return numbers that the default codec sends as they are: single ones in a group, in one rank's gradient.

    Rotation spreads each evenly over a level of its group, of which it is a multiple by a factor that a scale can hold.
    """
    places = torch.arange(seed % _LARGEST_GROUP, call.num_elements, _LARGEST_GROUP)
    numbers = torch.arange(len(places)) + seed
    signs = 1 - 2 * (numbers // 2 % 2)
    tensor = torch.zeros(call.num_elements)
    tensor[places] = torch.where(numbers % pair.size == pair.rank, _MULTIPLE_OF_LEVELS * signs, 0).float()
    return tensor


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


def _perform(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> tuple[Tensor, list[Any]]:
    """Issue the call; returns the tensor that will hold its result, and the Works to wait for."""
    with isthmus.unit(call.unit) if call.kind in GRADIENTS else nullcontext():
        output, works = _issue(call, pair, group, tensor, asynchronous)
    return output, [work for work in works if work is not None]


def _issue(call: Call, pair: Pair, group: Any, tensor: Tensor, asynchronous: bool) -> tuple[Tensor, list[Any]]:
    own, operator = tensor.chunk(pair.size)[pair.rank], _OPERATORS[call.operator]
    match call.kind:
        case "all_reduce" | "gradient_all_reduce":
            return tensor, [dist.all_reduce(tensor, operator, group, asynchronous)]
        case "broadcast":
            return tensor, [dist.broadcast(tensor, pair.ranks[call.root], group, asynchronous)]
        case "reduce_scatter" | "gradient_reduce_scatter":
            output = torch.empty_like(own)
            return output, [dist.reduce_scatter_tensor(output, tensor, operator, group, asynchronous)]
        case "gather_weights" if group is not pair.gloo:
            model = pair.model(call)
            with torch.no_grad():
                model.weight.to_local().copy_(own)
            return tensor.zero_(), [_Unsharded(model, tensor, asynchronous)]
        case "all_gather" | "gather_weights":
            own = own.clone()
            return tensor.zero_(), [dist.all_gather_into_tensor(tensor, own, group, asynchronous)]
        case "all_to_all":
            output = torch.empty_like(tensor)
            return output, [dist.all_to_all_single(output, tensor, group=group, async_op=asynchronous)]
        case "send_receive":  # round the ring: to the next rank, from the one before, both always under way together
            output = torch.empty_like(tensor)
            to, source = pair.ranks[(pair.rank + 1) % pair.size], pair.ranks[pair.rank - 1]
            return output, [dist.isend(tensor, to, group), dist.irecv(output, source, group)]
        case "barrier":
            return tensor, [dist.barrier(group, asynchronous)]
    raise AssertionError(call.kind)
