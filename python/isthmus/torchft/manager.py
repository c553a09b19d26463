"""torchft's manager, which tells Isthmus which of its reductions are gradients and which steps count."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torchft
from torch.distributed import Work
from torch.distributed.distributed_c10d import ReduceOp
from torchft.ddp import DistributedDataParallel
from torchft.local_sgd import _StreamingDiLoCoFragment

from isthmus.model.calls import Described, describe
from isthmus.torch_private.callers import hooked_reduction_of
from isthmus.torchft.group import ProcessGroupIsthmus

# Torchft's functions that reduce gradients. A version that renames them fails here, and not by being exact.
_DDP_BUCKET = DistributedDataParallel._comm_hook.__code__
_DILOCO_PARAMETER = _StreamingDiLoCoFragment._allreduce_per_param.__code__
_DILOCO_BUCKET = _StreamingDiLoCoFragment._bucketize_and_allreduce.__code__


def gradient_of(tensor: torch.Tensor, caller: FrameType, should_quantize: bool) -> Described | None:
    """Return the unit whose gradient `caller` reduces, None if it reduces something else.

    Torchft hands over a tensor and nothing else, so this looks at who calls.

    caller: the frame that calls `Manager.allreduce`. should_quantize: the caller asks for a lossy sum.
    """
    name, values = "", caller.f_locals
    if caller.f_code is _DDP_BUCKET:
        name = f"bucket {values['bucket'].index()}"
    elif caller.f_code is _DILOCO_PARAMETER:
        name = f"fragment {values['self']._fragment_id}.{values['name']}"
    elif caller.f_code is _DILOCO_BUCKET:
        name = f"fragment {values['self']._fragment_id}.bucket"
    elif found := hooked_reduction_of(tensor):  # FSDP2's
        return describe(*found)
    elif should_quantize:
        name = "quantized"
    return Described(name) if name else None


def for_ddp(work: Work) -> Work:
    """Return `work` with a result that the hook for DDP of torchft 0.2 finds, after an error, too."""
    future = work.get_future()
    if not hasattr(future, "_fut"):
        future._fut = future  # type: ignore[attr-defined]
    return work


class Manager(torchft.Manager):  # type: ignore[misc]  # torchft has no types
    """A `torchft.Manager` over a `ProcessGroupIsthmus`. It takes the same arguments, and is used in the same way.

    These reductions are compressed: gradients of `torchft.DistributedDataParallel`; those that FSDP2 reduces over
    replicas, by its all-reduce hook or over a `torchft.ManagedProcessGroup`; pseudo-gradients of `torchft.DiLoCo`; and
    what is reduced with ``should_quantize=True``, on the CPU too, which never takes torchft's own quantisation.
    Everything else is exact: averages of parameters by `torchft.LocalSGD`, checkpoints for those who join.

    What `should_commit` refuses leaves no trace: residuals are those of the last step that was committed.

    Raises TypeError if `pg` is no `ProcessGroupIsthmus`.
    """

    def __init__(self, pg: ProcessGroupIsthmus, *arguments: Any, **keywords: Any) -> None:
        if not isinstance(pg, ProcessGroupIsthmus):
            raise TypeError(f"isthmus.torchft.Manager: pg: expected a ProcessGroupIsthmus, got {type(pg).__name__}")
        super().__init__(pg, *arguments, **keywords)
        self._isthmus = pg

    def allreduce(
        self, tensor: torch.Tensor, should_quantize: bool = False, reduce_op: ReduceOp.RedOpType = ReduceOp.AVG
    ) -> Work:
        """Reduce a tensor over the members, as `torchft.Manager.allreduce`."""
        gradient = gradient_of(tensor, sys._getframe(1), should_quantize)
        with self._isthmus.reducing(gradient, self.current_step):
            return for_ddp(super().allreduce(tensor, reduce_op=reduce_op))

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        """Return whether the step counts, as `torchft.Manager.should_commit`."""
        committed = False
        try:
            committed = bool(super().should_commit(timeout))
        finally:
            self._isthmus.end_step(committed, self.current_step())
        return committed
