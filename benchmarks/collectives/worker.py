"""One rank of the collectives benchmark: runs, verifies and times one collective of one backend by command."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import isthmus
from isthmus.benchmarks.collectives.config import PLAIN, CollectivesConfig, options_of
from isthmus.benchmarks.collectives.reference import errors_of_codes
from isthmus.benchmarks.common.isthmus_group import new_group
from isthmus.benchmarks.common.recorder import Audit
from isthmus.benchmarks.common.stage import Join, join_simulated
from isthmus.benchmarks.simulate.serve import Emit
from isthmus.plan.strategies import ARMS

_DTYPES = {"float": torch.float32, "bfloat16": torch.bfloat16, "half": torch.float16}
# Whole numbers to this size: sums over 128 ranks are exact in every type, whatever the order.
_LARGEST_VALUE = 2
# Roundings of sums and of rotations, in float32.
_SUM_ROUNDINGS = 64
# Of what codes err by, over the worst that a reference errs by: how errors are spread depends on what is sent, and
# their tails are longer than those of a normal distribution (docs/quant.md).
_MOST_OF_WORST = 2
# Of the mean square of errors, in standard deviations of its mean over groups: that of one group is below the mean.
_MOST_DEVIATIONS = 8


class Worker:
    """What a rank does on request."""

    def __init__(self, join: Join = join_simulated) -> None:
        self._join = join
        self._groups: dict[str, dist.ProcessGroup] = {}

    def setup(self, emit: Emit, config: CollectivesConfig, counts_links: bool) -> None:
        """Join the world and make a group for each backend."""
        self._config = config
        self._place = self._join(config.device, config.timeout_s, counts_links)
        timeout = timedelta(seconds=config.timeout_s)
        self._rank, self._world_size, self._ranks_per_node = (
            dist.get_rank(),
            dist.get_world_size(),
            config.ranks_per_node,
        )
        node_group, _ = dist.new_subgroups(self._ranks_per_node, timeout=timeout)  # type: ignore[no-untyped-call]
        self._audit = Audit(node_group, self._place)
        for name in config.backends:
            if name in PLAIN:
                self._groups[name] = new_group(name, timeout)
            else:
                options = isthmus.Options(**options_of(name))
                self._groups[name] = new_group("isthmus", timeout, options=options)

    def measure(self, emit: Emit, operation: str, num_elements: int, backend: str) -> dict[str, Any]:
        """Verify the first call, then time the following ones. num_elements: of the whole tensor."""
        dtype = _DTYPES[self._config.dtype]
        lossy = _is_lossy(operation, backend)
        inputs = [_values(num_elements, dtype, rank, lossy) for rank in range(self._world_size)]
        unit = f"bench.{backend}.{num_elements}.{dtype}"
        own = inputs[self._rank].to(self._place.device)
        measured = self._collective(operation, own, self._groups[backend], unit)
        result = measured.result_of_one_call().cpu()
        return self._verify(operation, backend, inputs, result) | self._time(measured, self._config.iterations)

    def _collective(self, operation: str, own: Tensor, group: dist.ProcessGroup, unit: str) -> "_Measured":
        """What to measure. Reductions are labelled as a gradient's; an all-reduce works in place, on a fresh copy."""
        shard = own.chunk(self._world_size)[self._rank].clone()
        whole = own.clone()

        def reduce_scatter() -> None:
            with isthmus.unit(unit):
                dist.reduce_scatter_tensor(shard, own, group=group)

        def all_gather() -> None:
            dist.all_gather_into_tensor(whole, shard, group=group)

        def all_reduce() -> None:
            with isthmus.unit(unit):
                dist.all_reduce(whole, group=group)

        return {
            "reduce_scatter": _Measured(reduce_scatter, shard),
            "all_gather": _Measured(all_gather, whole),
            "all_reduce": _Measured(all_reduce, whole, renew_from=own),
        }[operation]

    def _time(self, measured: "_Measured", iterations: int) -> dict[str, Any]:
        self._audit.begin()
        seconds = []
        for _ in range(iterations):
            measured.renew()
            self._place.synchronize()
            start_s = time.perf_counter()
            measured.call()
            self._place.synchronize()
            seconds.append(time.perf_counter() - start_s)
        return {"seconds": seconds, "link_sent_bytes": self._audit.end()}

    def _verify(self, operation: str, backend: str, inputs: list[Tensor], result: Tensor) -> dict[str, Any]:
        """num_wrong: elements that are not what they must be. error: distance from the exact result, over its norm."""
        exact = self._expected(operation, inputs)
        error = relative_error(result, exact)
        if not _is_lossy(operation, backend):
            return {"num_wrong": int((result != exact.to(result.dtype)).sum()), "error": error}
        if ARMS[backend].codec == "quant":
            num_wrong = self._num_far(operation, backend, inputs, result, exact)
        else:
            num_wrong = 0 if error < 1 else result.numel()
        if operation == "all_reduce":
            of_rank_0 = result.clone()
            dist.broadcast(of_rank_0, 0)
            num_wrong = max(num_wrong, int((result != of_rank_0).sum()))
        return {"num_wrong": num_wrong, "error": error}

    def _expected(self, operation: str, inputs: list[Tensor]) -> Tensor:
        if operation == "all_gather":
            return torch.cat([tensor.chunk(self._world_size)[rank] for rank, tensor in enumerate(inputs)])
        total = torch.stack([tensor.double() for tensor in inputs]).sum(0)
        return total if operation == "all_reduce" else total.chunk(self._world_size)[self._rank]

    def _num_far(self, operation: str, backend: str, inputs: list[Tensor], result: Tensor, exact: Tensor) -> int:
        """Elements that are further from the sum than codes of that width can bring them; all, if most are too far."""
        pieces = self._sums_of_nodes(inputs)
        if operation == "reduce_scatter":
            pieces = [piece.chunk(self._world_size)[self._rank] for piece in pieces]
            pieces.pop(self._rank // self._ranks_per_node)
        bits = int(options_of(backend)["bits"])
        worst, mean_square, num_groups = errors_of_codes(pieces, bits, again=operation == "all_reduce")
        rounding = _tolerance(result) * exact.double().abs()
        errors = (result.double() - exact.double()).abs()
        is_near = errors <= _MOST_OF_WORST * worst + rounding  # NaN is not
        beyond_rounding = float((errors - rounding).clamp(min=0)[is_near].square().sum() / result.numel())
        if beyond_rounding > mean_square * (1 + _MOST_DEVIATIONS / max(1, num_groups) ** 0.5):
            return result.numel()
        return int((~is_near).sum())

    def _sums_of_nodes(self, of_ranks: list[Tensor]) -> list[Tensor]:
        firsts = range(0, self._world_size, self._ranks_per_node)
        return [torch.stack(of_ranks[first : first + self._ranks_per_node]).float().sum(0) for first in firsts]


@dataclass(frozen=True)
class _Measured:
    """A collective, and where its result is."""

    call: Callable[[], None]
    result: Tensor
    #: What `result` must hold before each call.
    renew_from: Tensor | None = None

    def renew(self) -> None:
        if self.renew_from is not None:
            self.result.copy_(self.renew_from)

    def result_of_one_call(self) -> Tensor:
        self.renew()
        self.call()
        return self.result.clone()


def _is_lossy(operation: str, backend: str) -> bool:
    """Whether the result may differ from the exact one. All-reduces are exact in a single tier."""
    if backend in PLAIN or ARMS[backend].codec == "none" or operation == "all_gather":
        return False
    wire = ARMS[backend].wire
    return operation == "reduce_scatter" or (wire is not None and not wire.is_flat)


def relative_error(result: Tensor, exact: Tensor) -> float:
    """L2 distance from the exact result, as a share of its norm. Not finite where the result is not."""
    norm = float(exact.double().norm())
    distance = float((result.double() - exact.double()).norm())
    return distance / norm if norm else distance


def _tolerance(result: Tensor) -> float:
    """Tolerance of rounding, relative to magnitudes. An all-reduce's result is rounded once more, for the wire."""
    return _SUM_ROUNDINGS * torch.finfo(torch.float32).eps + torch.finfo(result.dtype).eps


def _values(num_elements: int, dtype: torch.dtype, rank: int, normal: bool) -> Tensor:
    """Rank's input, known to all: whole numbers, whose sums are exact; or normally distributed."""
    generator = torch.Generator().manual_seed(1 + rank)
    if normal:
        return torch.randn(num_elements, generator=generator).to(dtype)
    return torch.randint(-_LARGEST_VALUE, _LARGEST_VALUE + 1, (num_elements,), generator=generator).to(dtype)
