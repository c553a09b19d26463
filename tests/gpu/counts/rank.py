"""python -m gpu.counts.rank --nodes 2x8: counts in one process, with libraries preloaded; prints JSON."""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

import isthmus
from gpu.counts.counted import CODECS, PLAIN, Chain, Communicator, Launches
from gpu.rehearsal.wire import Machines, Wire, group
from support import fake_gpu

#: Of a rank's shard, in bfloat16: enough that headers do not count, and one segment.
SHARD_ELEMENTS = 1 << 16
#: Of a rank's shard where the host's time is taken: what the device does is left out, but takes the time of the test.
TINY_SHARD_ELEMENTS = 1 << 9
CALLS = 60
#: Reductions before what is counted.
WARM_UP = 5


class Counts:
    """What the process asked of the fake GPU and of the wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._take = ctypes.CDLL(None).fake_gpu_take_counts
        self._take.restype = ctypes.c_int64
        self._take.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        self._text = ctypes.create_string_buffer(1 << 16)

    def take(self) -> tuple[dict[str, Any], int]:
        """Return what was counted since the last call, and how many kernels of NCCL were launched."""
        size = self._take(self._text, len(self._text))
        if size > len(self._text):
            raise RuntimeError(f"counts take {size} bytes, more than {len(self._text)}")
        return json.loads(self._text.value), sum(self._wire.totals().kernels)


class Unit:
    """A unit whose gradients are reduced, as FSDP2 does it."""

    def __init__(self, machines: Machines, shard_elements: int) -> None:
        self.name = f"shards of {shard_elements}"
        self._source = torch.ones(machines.num_ranks * shard_elements, device="cuda", dtype=torch.bfloat16)
        self._shard = torch.empty(shard_elements, device="cuda", dtype=torch.bfloat16)

    def reduce(self) -> None:
        """Enqueue it, and let the current stream wait for it."""
        with isthmus.unit(self.name):
            work = dist.reduce_scatter_tensor(self._shard, self._source, op=dist.ReduceOp.AVG, async_op=True)
        assert work is not None
        work.wait()


def count_chain(machines: Machines, codec: str) -> Chain:
    """Count one reduce-scatter in steady state, in a group of its own. codec: PLAIN is NCCL alone."""
    wire = Wire(machines)
    wire.set(100)
    counts = Counts(wire)
    options = isthmus.Options(nodes=str(machines), min_elements=0, codec=codec) if codec != PLAIN else None
    before = len(wire.communicators())
    with group(machines, "isthmus" if options else "nccl", options):
        unit, tiny = Unit(machines, SHARD_ELEMENTS), Unit(machines, TINY_SHARD_ELEMENTS)
        counts.take()
        unit.reduce()
        streams = counts.take()[0]["streams"]
        for _ in range(WARM_UP):
            unit.reduce()
        counts.take()
        unit.reduce()
        counted, nccl_launches = counts.take()
        packet_bytes = packet_bytes_of(unit) if options else 0
        host_us = host_time_us(tiny.reduce, counts)
        communicators = wire.communicators()[before:]
    return Chain(
        nodes=str(machines),
        codec=codec,
        shard_elements=SHARD_ELEMENTS,
        packet_bytes=packet_bytes,
        launches=[Launches(name, *values) for name, values in counted["launches"].items()],
        nccl_launches=nccl_launches,
        host_us=host_us,
        streams=streams,
        synchronizations=counted["synchronizations"],
        allocations=counted["allocations"],
        communicators=[Communicator(*made) for made in communicators],
    )


def packet_bytes_of(unit: Unit) -> int:
    """Return the bytes of the packets that one reduction of a unit sends to other nodes."""
    (stats,) = (one for one in isthmus.stats()["units"] if one["name"] == unit.name)
    assert stats["packet_bytes"] > 0, f"nothing was coded: {stats}"
    return int(stats["packet_bytes"]) // int(stats["calls"])


def host_time_us(call: Callable[[], None], counts: Counts) -> float:
    """Return the median of this thread's processor time for a call, without what the device does in it."""
    for _ in range(5):
        call()
    times_us = []
    for _ in range(CALLS):
        counts.take()
        start_ns = time.thread_time_ns()
        call()
        spent_ns = time.thread_time_ns() - start_ns
        times_us.append((spent_ns - counts.take()[0]["device_ns"]) / 1e3)
    return statistics.median(times_us)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpu.counts.rank")
    parser.add_argument("--nodes", default="2x8")
    nodes = parser.parse_args().nodes
    fake_gpu.run_kernels_on_host()
    torch.cuda.set_device(0)
    machines = Machines(*map(int, nodes.split("x")))
    print(json.dumps([asdict(count_chain(machines, codec)) for codec in (PLAIN, *CODECS)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
