"""Counts a reduce-scatter in the ranks of a world on the fake GPU."""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import isthmus
from support import fake_gpu, ranks

PLAIN = "nccl alone"
CODECS = ("quant", "none", "tagc")
#: Nodes by ranks of one.
MACHINES = ("2x3", "3x2")
#: Passes of decodings, and what stands between them; all others are of encodings.
DECODING = (
    *("DecodeValues", "DequantizeBlocks", "Verify"),
    *("OpenPackets", "PeelPackets", "MapValues", "clear", "copy"),
)
VALUE_BYTES = 2  # bfloat16
#: Elements of a rank's shard, in bfloat16: enough that headers do not count, and one segment.
SHARD_ELEMENTS = 1 << 16
#: Elements of a rank's shard where the host's time is taken: what the device does is left out, but takes time, too.
TINY_SHARD_ELEMENTS = 1 << 9
CALLS = 60
#: Reductions before what is counted.
WARM_UP = 5


@dataclass(frozen=True)
class Chain:
    """One reduce-scatter of a unit in bfloat16, in steady state.

    packet_bytes: of all packets that the rank sends to other nodes. launches: of each pass how many, and the bytes of
    pieces, packets and results that they read and write, where data do not decide. host_us: of the calling thread.
    """

    nodes: str
    codec: str
    packet_bytes: int
    launches: dict[str, list[int]]
    nccl_launches: int
    host_us: float
    synchronizations: int
    allocations: int
    shard_elements: int = SHARD_ELEMENTS

    @property
    def num_launches(self) -> int:
        """The launches of codecs, copies and NCCL."""
        return self.nccl_launches + sum(number for number, *_ in self.launches.values())

    @property
    def num_foreign(self) -> int:
        """Other nodes, each of which is sent a packet."""
        return int(self.nodes.split("x")[0]) - 1

    def moved_bytes(self, *, encode: bool) -> int | None:
        """Return the bytes that encoding moves, or decoding; None where data decide."""
        moved = [one[1:] for name, one in self.launches.items() if (name not in DECODING) == encode]
        return sum(map(sum, moved)) if all(moved) else None

    def compulsory_bytes(self, *, encode: bool) -> int:
        """Return the bytes that must be moved once: pieces, packets, residuals; packets, own piece and shard."""
        if encode:
            residual_bytes = 2 * 4 if self.codec == "tagc" else 0
            return self.num_foreign * self.shard_elements * (VALUE_BYTES + residual_bytes) + self.packet_bytes
        return self.packet_bytes + 2 * self.shard_elements * VALUE_BYTES


def count_chains(nodes: str, *, is_timed: bool = True) -> list[Chain]:
    """Count on machines such as "2x3", in a process for each rank: for NCCL alone, and for each codec."""
    num_nodes, ranks_of_node = map(int, nodes.split("x"))
    of_rank: list[list[Chain]] = fake_gpu.run(_count_on_rank, num_nodes * ranks_of_node, nodes, is_timed)
    return of_rank[0]


def _count_on_rank(rank: int, world_size: int, nodes: str, is_timed: bool) -> list[Chain]:
    ranks.init("gloo")
    counts = Counts()
    return [count_chain(counts, nodes, codec, is_timed) for codec in (PLAIN, *CODECS)]


class Counts:
    """What the process asked of the fake GPU and its NCCL."""

    def __init__(self) -> None:
        self._take = ctypes.CDLL(None).fake_gpu_take_counts
        self._take.restype = ctypes.c_int64
        self._take.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        self._text = ctypes.create_string_buffer(1 << 16)

    def take(self) -> dict[str, Any]:
        """Return what was counted since the last call."""
        size = self._take(self._text, len(self._text))
        if size > len(self._text):
            raise RuntimeError(f"counts take {size} bytes, more than {len(self._text)}")
        values: dict[str, Any] = json.loads(self._text.value)
        return values


class Unit:
    """A unit whose gradients are reduced, as FSDP2 does it."""

    def __init__(self, group: dist.ProcessGroup, shard_elements: int) -> None:
        self.name = f"shards of {shard_elements}"
        self._group = group
        self._source = torch.ones(group.size() * shard_elements, device="cuda", dtype=torch.bfloat16)
        self._shard = torch.empty(shard_elements, device="cuda", dtype=torch.bfloat16)

    def reduce(self) -> None:
        """Enqueue it, and let the current stream wait for it."""
        op = dist.ReduceOp.AVG
        with isthmus.unit(self.name):
            work = dist.reduce_scatter_tensor(self._shard, self._source, op=op, group=self._group, async_op=True)
        assert work is not None
        work.wait()


def count_chain(counts: Counts, nodes: str, codec: str, is_timed: bool) -> Chain:
    """Count one reduce-scatter in steady state, in a group of its own. codec: PLAIN is NCCL alone."""
    options = isthmus.Options(nodes=nodes, min_elements=0, codec=codec) if codec != PLAIN else None
    group = dist.new_group(backend="isthmus" if options else "nccl", pg_options=options)
    assert isinstance(group, dist.ProcessGroup)  # all ranks are in it
    unit, tiny = Unit(group, SHARD_ELEMENTS), Unit(group, TINY_SHARD_ELEMENTS)
    for _ in range(WARM_UP):
        unit.reduce()
    counts.take()
    unit.reduce()
    counted = counts.take()
    packet_bytes = packet_bytes_of(unit, group) if options else 0
    host_us = host_time_us(tiny.reduce, counts) if is_timed else 0
    dist.destroy_process_group(group)
    return Chain(
        nodes=nodes,
        codec=codec,
        packet_bytes=packet_bytes,
        launches=counted["launches"],
        nccl_launches=counted["nccl_launches"],
        host_us=host_us,
        synchronizations=counted["synchronizations"],
        allocations=counted["allocations"],
    )


def packet_bytes_of(unit: Unit, group: dist.ProcessGroup) -> int:
    """Return the bytes of the packets that one reduction of a unit sends to other nodes."""
    (stats,) = (one for one in isthmus.stats(group)["units"] if one["name"] == unit.name)
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
        times_us.append((spent_ns - counts.take()["device_ns"]) / 1e3)
    return statistics.median(times_us)
