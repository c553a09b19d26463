"""The collectives that `isthmus.attach` gives FSDP2's units in place of FSDP2's own."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from isthmus import native
from isthmus.backends import companion_of
from isthmus.units.identify import gathering, handed_reduction
from isthmus.units.models import ParamGroup, param_groups_of

# Names of torch's own collectives for a unit: plain ones, and ones in the process group's memory.
_TORCHS = re.compile(r"(Default|ProcessGroupAlloc)(AllGather|ReduceScatter)")


class _Collective:
    """The base of both collectives. Refers to its unit weakly, as the unit holds it."""

    def __init__(self, unit: ParamGroup) -> None:
        self._unit = weakref.ref(unit)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate from torch's allocator, on the current stream, as torch's own collectives do."""
        return torch.empty(*size, dtype=dtype, device=device)


class UnitAllGather(_Collective):
    """Gathers the weights of one unit of FSDP2."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather over the companion of `group`, or over `group` itself if it has none.

        FSDP2 calls this on the thread and the stream of its gathers. Tensors, Work and errors are as in
        `torch.distributed.all_gather_into_tensor`.
        """
        with gathering(self._unit()):
            work: dist.Work | None = dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=companion_of(group) or group, async_op=async_op
            )
        return work


class UnitReduceScatter(_Collective):
    """Reduce-scatters the gradients of one prepared unit of FSDP2."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce over the companion of `group`, or over `group` itself if it has none.

        FSDP2 calls this on the thread and the stream of its reductions. Tensors, Work and errors are as in
        `torch.distributed.reduce_scatter_tensor`.
        """
        core = native.load()
        core.push_unit(*handed_reduction(self._unit(), output_tensor, input_tensor))
        try:
            work: dist.Work | None = dist.reduce_scatter_tensor(
                output_tensor, input_tensor, op=op, group=companion_of(group) or group, async_op=async_op
            )
        finally:
            core.pop_unit()
        return work


@dataclass(frozen=True)
class Replaced:
    """A unit whose collectives were replaced, and its original collectives."""

    module: weakref.ref[nn.Module]
    all_gather: Any
    reduce_scatter: Any

    def restore(self) -> None:
        """Give the unit its original collectives back."""
        module: Any = self.module()
        if module is not None:
            module.set_custom_all_gather(self.all_gather)
            module.set_custom_reduce_scatter(self.reduce_scatter)


def replace_collectives(module: Any) -> Replaced:
    """Hand FSDP2 our collectives for the one unit of `module`."""
    (unit,) = param_groups_of(module)
    replaced = Replaced(weakref.ref(module), unit._all_gather_comm, unit._reduce_scatter_comm)
    module.set_custom_all_gather(UnitAllGather(unit))
    module.set_custom_reduce_scatter(UnitReduceScatter(unit))
    return replaced


def why_not_replaceable(module: Any) -> str:
    """Return why the collectives of `module` cannot be replaced now, "" if they can."""
    units = param_groups_of(module)
    if len(units) > 1:
        return f"has {len(units)} groups of parameters, and torch takes no other collectives for several"
    kinds = [type(collective) for unit in units for collective in (unit._all_gather_comm, unit._reduce_scatter_comm)]
    for kind in kinds:
        if issubclass(kind, _Collective):
            return "belongs to another attached model: detach that first"
        if not kind.__module__.startswith("torch.") or not _TORCHS.fullmatch(kind.__name__):
            return f"has a {kind.__name__} of its own already: take that away first"
    if any(is_in_a_pass(unit) for unit in units):
        return "is in a forward or backward pass, or being gathered: call this between steps"
    return ""


def is_in_a_pass(unit: ParamGroup) -> bool:
    """Return whether a unit is being gathered, or is in a forward or backward pass."""
    return unit._all_gather_result is not None or unit._training_state.name != "IDLE"
