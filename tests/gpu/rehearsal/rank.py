"""python -m gpu.rehearsal.rank: one process of the rehearsal, with libraries preloaded. Tells of its checks."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

import isthmus
from gpu.harness.records import FAILED, OK, Check
from gpu.rehearsal.measure import LARGE, TINY, Load, Products, Reduction, Training, device_ms
from gpu.rehearsal.wire import AS_IT_IS, Machines, Wire, group

#: Between nodes, of a node; the first is the one that most is measured at.
GBIT_PER_S = (100.0, 400.0, 25.0)


@dataclass(frozen=True)
class Way:
    """How gradients are reduced. options: of Isthmus; None: by NCCL's ring over all ranks."""

    name: str
    options: Mapping[str, Any] | None = None


PLAIN = Way("plain")
QUANT = Way("quant, 1 segment", {"codec": "quant", "segments": 1})
QUANT_8 = Way("quant, 8 segments", {"codec": "quant", "segments": 8})
NONE = Way("none", {"codec": "none"})
#: The first one is what others are compared with.
WAYS = {"all": (PLAIN, QUANT, QUANT_8, NONE), "few": (PLAIN, QUANT)}


@dataclass
class Rehearsal:
    """One process's measurements. where: what is particular about this process, for names of checks."""

    machines: Machines
    load: Load
    speeds: Sequence[float]
    where: str
    is_real: bool
    passed: bool = True
    wire: Wire = field(init=False)
    alone_s: float = 0  # a step of PLAIN without communication

    def __post_init__(self) -> None:
        self.wire = Wire(self.machines)

    def check(self, name: str, body: Callable[[], Mapping[str, Any] | None]) -> None:
        """Run `body`, which raises where something is wrong, and tell."""
        start = time.monotonic()
        result, error, figures = OK, "", None
        try:
            figures = body()
            torch.cuda.synchronize()
        except Exception:
            result, error = FAILED, traceback.format_exc()
        self.passed = self.passed and result == OK
        about = f"{name}; {self.machines}, {self.where}"
        print(Check(about, result, time.monotonic() - start, error, dict(figures or {})).line(), flush=True)

    def run(self, ways: Sequence[Way]) -> None:
        """Measure each way in a group of its own."""
        products = Products(self.load)
        for way in ways:
            self.wire.set(self.speeds[0])
            settings = {"nodes": str(self.machines), "min_elements": 0, **(way.options or {})}
            options = isthmus.Options(**settings) if way.options else None
            try:
                with group(self.machines, "isthmus" if options else "nccl", options):
                    self._measure(way, products)
            except Exception:
                error = traceback.format_exc()
                self.check(f"{way.name}: a group", lambda: _fail(error))  # noqa: B023

    def _measure(self, way: Way, products: Products) -> None:
        if way is PLAIN:
            self.check("the wire holds as long as it should", self._wire_holds)
        self._train(way)
        gc.collect()
        torch.cuda.empty_cache()
        self.wire.set(self.speeds[0])
        self.check(f"{way.name}: beside matrix products", lambda: self._beside(products))

    def _train(self, way: Way) -> None:
        training = Training(self.machines, self.load)
        if way is PLAIN:
            self.wire.set(0)
            self.check("a step without communication", lambda: self._alone(training))
        for speed in self.speeds:
            self.wire.set(speed)
            self.check(f"{way.name}, {speed:g} Gbit/s", lambda: self._step(way, training, speed))  # noqa: B023

    def _wire_holds(self) -> Mapping[str, Any]:
        own = torch.ones(self.load.unit_elements // self.machines.num_ranks, device="cuda", dtype=torch.bfloat16)
        gathered = torch.empty(own.numel() * self.machines.num_ranks, device="cuda", dtype=torch.bfloat16)

        def gather() -> None:
            dist.all_gather_into_tensor(gathered, own)

        gather()
        torch.cuda.synchronize()
        self.wire.totals()
        measured_ms = device_ms(gather)
        totals = self.wire.totals()
        expected_ms = 1e3 * sum(totals.hold_s)
        assert sum(totals.operations) == 1, f"not of the rehearsal's NCCL: {totals}"
        assert bool((gathered == 1).all()), "an all-gather did not arrive"
        assert not self.is_real or 0.95 < measured_ms / expected_ms < 1.5, f"{measured_ms} ms, expected {expected_ms}"
        return {"ms": measured_ms, "expected ms": expected_ms}

    def _alone(self, training: Training) -> Mapping[str, Any]:
        self.alone_s = training.step_s()
        return {"ms": 1e3 * self.alone_s}

    def _step(self, way: Way, training: Training, speed: float) -> Mapping[str, Any]:
        self.wire.totals()
        step_s = training.step_s()
        totals = self.wire.totals()
        num_steps = self.load.steps + 1
        sent = [total / num_steps / 1e6 for total in totals.bytes]
        assert sent[1] > 0, f"nothing crossed between nodes: {totals}"
        if way.options and way.options["codec"] != "none":
            assert isthmus.stats()["compressed_calls"] > 0, "nothing was compressed"
        return {
            "Gbit/s a node": speed,
            "step ms": 1e3 * step_s,
            "exposed ms": 1e3 * (step_s - self.alone_s),
            "links busy ms, inside": 1e3 * totals.hold_s[0] / num_steps,
            "between nodes": 1e3 * totals.hold_s[1] / num_steps,
            "MB that a rank sends inside": sent[0],
            "MB to other nodes": sent[1],
        }

    def _beside(self, products: Products) -> Mapping[str, Any]:
        reduction = Reduction(self.machines, self.load)
        host_us = reduction.host_us(self.load.calls)
        alone_ms = products.ms()
        with reduction.under_way(4):
            beside_ms = products.ms()
        return {
            "host us a unit": host_us,
            "products alone ms": alone_ms,
            "beside 4 reductions ms": beside_ms,
            "slow-down": beside_ms / max(alone_ms, 1e-9),
        }


def _fail(text: str) -> None:
    raise RuntimeError(text)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpu.rehearsal.rank")
    parser.add_argument("--nodes", default="2x8")
    parser.add_argument("--ways", choices=WAYS, default="all")
    parser.add_argument("--lane-priority", type=int, default=AS_IT_IS)
    parser.add_argument("--fake", action="store_true", help="the GPU is the fake one: everything is tiny")
    options = parser.parse_args()
    if options.fake:
        from support import fake_gpu

        fake_gpu.run_kernels_on_host()
        for name in ("cudnn", "flash", "mem_efficient"):  # kernels of attention that it does not have
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)
    torch.cuda.set_device(0)
    num_nodes, ranks_of_node = map(int, options.nodes.split("x"))
    queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "?")
    lanes = "as they are" if options.lane_priority == AS_IT_IS else f"at {options.lane_priority}"
    rehearsal = Rehearsal(
        machines=Machines(num_nodes, ranks_of_node),
        load=TINY if options.fake else LARGE,
        speeds=GBIT_PER_S if options.ways == "all" else GBIT_PER_S[:1],
        where=f"{queues} connections, lanes {lanes}",
        is_real=not options.fake,
    )
    rehearsal.wire.set_lane_priority(options.lane_priority)
    rehearsal.run(WAYS[options.ways])
    return 0 if rehearsal.passed else 1


if __name__ == "__main__":
    sys.exit(main())
