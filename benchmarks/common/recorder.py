"""Watches the collectives of FSDP and of DDP's hooks: their times, and in audited steps their bytes on the link."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from isthmus.benchmarks.common.stage import RankDevice

#: How FSDP2 calls torch.distributed, and which collective that is. It uses the names with "single" from some torch
#: between 2.11 and 2.15 on.
KIND_OF = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_reduce": "all_reduce",
}
#: The phase of a step that a collective is booked under. HSDP's all-reduce between nodes finishes what the
#: reduce-scatter in the node began: both are the reduction of gradients.
PHASE_OF_KIND = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_reduce": "reduce_scatter"}
COMMUNICATION_PHASES = ("all_gather", "reduce_scatter")
PHASES = ("compute", *COMMUNICATION_PHASES)
#: In place of all phases, where they cannot be told apart.
WHOLE_STEP = "step"


@dataclass(frozen=True)
class Collective:
    """One call: the size of the whole tensor (of all ranks together for gather and scatter), and who took part."""

    kind: str
    ranks: list[int]
    num_elements: int
    element_bytes: int
    seconds: float
    #: What the node's link sent from before the call on any rank until after it on all; None where nobody counted.
    link_sent_bytes: int | None


@dataclass
class Recording:
    """The collectives of one step."""

    collectives: list[Collective] = field(default_factory=list)

    def phases_s(self, step_s: float, device: str) -> dict[str, float]:
        """Seconds in each phase; on CPU nothing overlaps, so what is left of the step is compute.

        On a GPU calls only enqueue, and phases overlap: the step is not parted.
        """
        if device == "cuda":
            return {WHOLE_STEP: step_s}
        seconds = dict.fromkeys(PHASES, 0.0)
        for collective in self.collectives:
            seconds[PHASE_OF_KIND[collective.kind]] += collective.seconds
        seconds["compute"] = step_s - sum(seconds.values())
        return seconds


_BARRIER_SAMPLES = 5


class Audit:
    """Tells the link bytes of one collective from those of the next by barriers around each.

    node_group: over the ranks of this node, Gloo's. What the barriers themselves send is measured first and taken off.
    Collective: all ranks construct and call it alike.
    """

    def __init__(self, node_group: dist.ProcessGroup, place: RankDevice) -> None:
        self._node_group = node_group
        self._place = place
        self._sent_before: int | None = None
        self._barrier_bytes = 0
        empty = []
        for _ in range(_BARRIER_SAMPLES):
            self.begin()
            empty.append(self.end() or 0)
        self._barrier_bytes = min(empty)

    def begin(self) -> None:
        """Wait until all ranks are here, and let no rank of the node go on before the counter is read."""
        self._place.synchronize()
        dist.barrier()
        self._sent_before = self._place.sent_bytes()
        dist.barrier(group=self._node_group)

    def end(self) -> int | None:
        """Wait until all ranks are through; returns the bytes since `begin` where they are counted."""
        self._place.synchronize()
        dist.barrier()
        sent = self._place.sent_bytes(self._sent_before)
        return None if sent is None else max(0, sent - self._barrier_bytes)


@contextmanager
def record_collectives(audit: Audit | None = None) -> Iterator[Recording]:
    """Record the collectives of a step while the context is open. One at a time in a process.

    With an audit the bytes of each call are counted apart, and times mean nothing.
    """
    recording = Recording()
    originals = {name: getattr(dist, name) for name in KIND_OF if hasattr(dist, name)}

    def watched(name: str) -> Callable[..., Any]:
        call = originals[name]

        def issue(*args: Any, **kwargs: Any) -> Any:
            if audit:
                audit.begin()
            start_s = time.perf_counter()
            work = call(*args, **kwargs)
            if work is not None and (audit or not _tensors(args, kwargs)[0].is_cuda):
                work.wait()  # the second half of a gather of weights crosses now; on the CPU so does a bucket of DDP
            seconds = time.perf_counter() - start_s
            sent = audit.end() if audit else None
            whole = max(_tensors(args, kwargs), key=Tensor.numel)
            ranks = dist.get_process_group_ranks(kwargs.get("group") or dist.group.WORLD)
            recording.collectives.append(
                Collective(KIND_OF[name], ranks, whole.numel(), whole.element_size(), seconds, sent)
            )
            return work

        return issue

    try:
        for name in originals:
            setattr(dist, name, watched(name))
        yield recording
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
