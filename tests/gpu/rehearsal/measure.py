"""What is measured: a step of training, the matrix products beside communication, and the host's time for a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import isthmus
from gpu.rehearsal.wire import Machines
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.common.shape import ModelShape


@dataclass(frozen=True)
class Load:
    """What a rank computes. `products`: how many matrix products are timed together; `calls`: of a reduction."""

    shape: ModelShape
    sequences: int
    steps: int
    products: int
    calls: int

    @property
    def unit_elements(self) -> int:
        """Elements of a block, roughly: four weights of attention and eight of the MLP, each width by width."""
        return 12 * self.shape.width**2


#: A block of 200 million weights, and enough tokens that its products take as long as its gradients at 100 Gbit/s.
LARGE = Load(ModelShape(width=4096, num_layers=4, context=4096), sequences=8, steps=3, products=10, calls=12)
#: Its numbers mean nothing: for machines without a GPU.
TINY = Load(ModelShape(width=64, num_layers=2, context=16), sequences=2, steps=1, products=2, calls=2)


class Training:
    """FSDP2 in the way that users have it: bfloat16, weights gathered for each pass. No optimizer: it moves nothing."""

    def __init__(self, machines: Machines, load: Load) -> None:
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = ByteGpt(load.shape)
        mesh = init_device_mesh("cuda", (machines.num_ranks,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self._model: nn.Module = fully_shard(model, mesh=mesh, mp_policy=policy)
        self._batch = torch.randint(256, (load.sequences, load.shape.context + 1), device="cuda")
        self._steps = load.steps
        self._step()  # later ones without communication compute with what this one gathered

    def step_s(self) -> float:
        """Return the time of a step, of several between two looks at the device."""
        self._step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(self._steps):
            self._step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / self._steps

    def _step(self) -> None:
        loss_of(self._model, self._batch).backward()
        self._model.zero_grad()


class Reduction:
    """A unit's gradients, reduced by themselves."""

    def __init__(self, machines: Machines, load: Load) -> None:
        self._source = torch.randn(load.unit_elements, device="cuda", dtype=torch.bfloat16)
        self._shard = torch.empty(load.unit_elements // machines.num_ranks, device="cuda", dtype=torch.bfloat16)

    def start(self) -> dist.Work:
        """Enqueue it."""
        with isthmus.unit("rehearsed"):
            work = dist.reduce_scatter_tensor(self._shard, self._source, async_op=True)
        assert work is not None
        return work

    def host_us(self, calls: int) -> float:
        """Return the host's time for a call, while the device is left to itself. The first one sets things up."""
        self.start().wait()
        torch.cuda.synchronize()
        times_us, works = [], []
        for _ in range(calls):
            start = time.perf_counter()
            works.append(self.start())
            times_us.append(1e6 * (time.perf_counter() - start))
        for work in works:
            work.wait()
        torch.cuda.synchronize()
        return statistics.median(times_us)

    @contextmanager
    def under_way(self, count: int) -> Iterator[None]:
        """Have some of them under way."""
        works = [self.start() for _ in range(count)]
        try:
            yield
        finally:
            for work in works:
                work.wait()
            torch.cuda.synchronize()


class Products:
    """Matrix products as of the MLP."""

    def __init__(self, load: Load) -> None:
        width = load.shape.width
        self._left = torch.randn(2 * width, width, device="cuda", dtype=torch.bfloat16)
        self._right = torch.randn(width, 4 * width, device="cuda", dtype=torch.bfloat16)
        self._product = torch.empty(2 * width, 4 * width, device="cuda", dtype=torch.bfloat16)
        self._count = load.products
        self.ms()  # what libraries set up

    def ms(self) -> float:
        """Return their time together, on the device."""
        return device_ms(self._run)

    def _run(self) -> None:
        for _ in range(self._count):
            torch.mm(self._left, self._right, out=self._product)


def device_ms(run: Callable[[], None]) -> float:
    """Return the time between the beginning and the end of what `run` enqueues on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
