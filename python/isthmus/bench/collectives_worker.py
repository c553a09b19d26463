"""One rank of the collectives benchmark: runs, verifies and times one collective of one backend by command."""

from isthmus.simulate.serve import Emit, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from isthmus.bench.arms import ARMS
from isthmus.bench.isthmus_group import IsthmusGroup
from isthmus.bench.recorder import Audit
from isthmus.bench.verify import MAX_SUBSET_PARTS, num_different, num_outside_subsets, relative_error
from isthmus.simulate.links import interface_sent_bytes

_DTYPES = {"float": torch.float32, "bfloat16": torch.bfloat16, "half": torch.float16}
# Whole numbers to this size: sums over 128 ranks are exact in every type, whatever the order.
_LARGEST_VALUE = 2
# A sketch cell adds up values of several elements, whose rounding stays when all but one are taken out again.
_SUM_ROUNDINGS = 64


class Worker:
    """The commands that a rank answers."""

    def __init__(self) -> None:
        self._groups: dict[str, IsthmusGroup | None] = {}

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world and make a group for each backend."""
        torch.set_num_threads(1)
        timeout = timedelta(seconds=command["timeout_s"])
        dist.init_process_group("gloo", timeout=timeout)
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._ranks_per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        count_here = command["count_link"] and os.environ["LOCAL_RANK"] == "0"
        sent_bytes = partial(interface_sent_bytes, os.environ["GLOO_SOCKET_IFNAME"]) if count_here else None
        node_group, _ = dist.new_subgroups(self._ranks_per_node, timeout=timeout)  # type: ignore[no-untyped-call]
        self._audit = Audit(node_group, sent_bytes)
        for name in command["backends"]:
            options = ARMS[name].isthmus if name != "gloo" else None
            self._groups[name] = IsthmusGroup(options | {"min_elements": "0"}, timeout) if options else None
        return {"options": {name: group.options for name, group in self._groups.items() if group}}

    def measure(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Verify the first call, then time the following ones. num_elements: of the whole tensor."""
        dtype = _DTYPES[command["dtype"]]
        isthmus_group = self._groups[command["backend"]]
        lossy = command["operation"] == "reduce_scatter" and "tagc" in command["backend"]
        inputs = [_values(command["num_elements"], dtype, rank, lossy) for rank in range(self._world_size)]
        group = isthmus_group.group if isthmus_group else dist.group.WORLD
        label = f"FSDP::post_backward_reduce (bench.{command['backend']}.{command['num_elements']}.{dtype})"
        call = self._collective(command["operation"], inputs[self._rank].clone(), group, label)
        before = isthmus_group.counters() if isthmus_group else None
        result = call().clone()
        counted = isthmus_group.counters().since(before) if isthmus_group and before else None
        verdict = self._verify(command, inputs, result, counted)
        return verdict | {"isthmus": counted} | self._time(call, command["iterations"])

    def _collective(
        self, operation: str, own: Tensor, group: dist.ProcessGroup | None, label: str
    ) -> Callable[[], Tensor]:
        """The call to measure; an all-reduce works on `own` itself. A reduce-scatter is labelled as a gradient's."""
        shard = own.chunk(self._world_size)[self._rank].clone()
        whole = torch.empty_like(own)

        def reduce_scatter() -> Tensor:
            with record_function(label):
                dist.reduce_scatter_tensor(shard, own, group=group)
            return shard

        def all_gather() -> Tensor:
            dist.all_gather_into_tensor(whole, shard, group=group)
            return whole

        def all_reduce() -> Tensor:
            dist.all_reduce(own, group=group)
            return own

        return {"reduce_scatter": reduce_scatter, "all_gather": all_gather, "all_reduce": all_reduce}[operation]

    def _time(self, call: Callable[[], Tensor], iterations: int) -> dict[str, Any]:
        self._audit.begin()
        seconds = []
        for _ in range(iterations):
            start_s = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start_s)
        return {"seconds": seconds, "link_sent_bytes": self._audit.end()}

    def _verify(
        self, command: dict[str, Any], inputs: list[Tensor], result: Tensor, counted: dict[str, Any] | None
    ) -> dict[str, Any]:
        """num_wrong: elements that break the contract; None where it cannot be checked."""
        exact = self._expected(command["operation"], inputs)
        error = relative_error(result, exact)
        if command["operation"] == "reduce_scatter" and "tagc" in command["backend"]:
            assert counted is not None
            return {"num_wrong": self._num_wrong_lossy(command["backend"], inputs, result, counted), "error": error}
        return {"num_wrong": num_different(result, exact.to(result.dtype)), "error": error}

    def _expected(self, operation: str, inputs: list[Tensor]) -> Tensor:
        if operation == "all_gather":
            return torch.cat([tensor.chunk(self._world_size)[rank] for rank, tensor in enumerate(inputs)])
        total = torch.stack([tensor.double() for tensor in inputs]).sum(0)
        return total if operation == "all_reduce" else total.chunk(self._world_size)[self._rank]

    def _num_wrong_lossy(
        self, backend: str, inputs: list[Tensor], result: Tensor, counted: dict[str, Any]
    ) -> int | None:
        """A node's sum (or, flat, a rank's value) is in the result whole or not at all, and some of them are in it."""
        chunks = [tensor.chunk(self._world_size)[self._rank].double() for tensor in inputs]
        flat = ARMS[backend].isthmus == ARMS["flat-tagc"].isthmus
        if not flat:
            by_node = range(0, self._world_size, self._ranks_per_node)
            chunks = [torch.stack(chunks[first : first + self._ranks_per_node]).sum(0) for first in by_node]
        own = torch.zeros_like(chunks[0]) if flat else chunks.pop(self._rank // self._ranks_per_node)
        if len(chunks) > MAX_SUBSET_PARTS:
            return None
        if num_different(result, own.to(result.dtype)) == 0:
            return result.numel()  # nothing was sent
        tolerance = _SUM_ROUNDINGS * torch.finfo(torch.float32).eps + torch.finfo(result.dtype).eps
        broken = num_outside_subsets(result, own, chunks, tolerance)
        return max(0, broken - int(counted["codec"]["estimated_elements"]))


def _values(num_elements: int, dtype: torch.dtype, rank: int, normal: bool) -> Tensor:
    """Rank's input, known to all: whole numbers, whose sums are exact; or normally distributed."""
    generator = torch.Generator().manual_seed(1 + rank)
    if normal:
        return torch.randn(num_elements, generator=generator).to(dtype)
    return torch.randint(-_LARGEST_VALUE, _LARGEST_VALUE + 1, (num_elements,), generator=generator).to(dtype)


def main() -> None:
    """Serve the launcher until it says "exit"."""
    worker = Worker()
    serve({"setup": worker.setup, "measure": worker.measure})


if __name__ == "__main__":
    main()
