"""NCCL over links that are not there (tests/gpu/wire), and groups whose other ranks never come."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import torch.distributed as dist

from isthmus.gloo import Group
from isthmus.group import register
from isthmus.group.register import Introduction
from isthmus.topology.node_map import Surroundings

GIGA = 1e9
#: Of a rank inside its node: what NCCL reaches over NVLink of an H100 or H200, about.
INTRA_BYTES_PER_S = 300 * GIGA
LATENCY_S = 20e-6
#: Multiprocessors that an operation holds: as many channels as NCCL often uses.
NUM_BLOCKS = 16
#: For `Wire.set_lane_priority`: what Isthmus asks for.
AS_IT_IS = 1


@dataclass(frozen=True)
class Machines:
    """Nodes of equal size. The two numbers differ: by them the library tells tiers from each other."""

    num_nodes: int
    ranks_of_node: int

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.num_nodes * self.ranks_of_node

    def __str__(self) -> str:
        return f"{self.num_nodes}x{self.ranks_of_node}"


class _Model(ctypes.Structure):  # WireModel of tests/gpu/wire/model.h
    _fields_ = (
        ("ranks_of_node", ctypes.c_int32),
        ("num_nodes", ctypes.c_int32),
        ("intra_bytes_per_s", ctypes.c_double),
        ("node_bytes_per_s", ctypes.c_double),
        ("latency_s", ctypes.c_double),
        ("num_blocks", ctypes.c_int32),
        ("is_on", ctypes.c_int32),
    )


class _Totals(ctypes.Structure):  # WireTotals of tests/gpu/wire/model.h
    _fields_ = (
        ("operations", ctypes.c_int64 * 2),
        ("bytes", ctypes.c_int64 * 2),
        ("hold_s", ctypes.c_double * 2),
        ("kernels", ctypes.c_int64 * 2),
    )


class _Communicator(ctypes.Structure):  # WireCommunicator of tests/gpu/wire/model.h
    _fields_ = (("size", ctypes.c_int32), ("most_blocks", ctypes.c_int32))


@dataclass(frozen=True)
class Totals:
    """What crossed. In each pair: inside the node, between nodes."""

    operations: tuple[int, ...]
    bytes: tuple[int, ...]
    hold_s: tuple[float, ...]
    kernels: tuple[int, ...]


class Wire:
    """The library, which was loaded before all others."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self._library = ctypes.CDLL(None)
        if not hasattr(self._library, "wire_set_model"):
            raise RuntimeError("the rehearsal's NCCL is not loaded: LD_PRELOAD does not name it")

    def set(self, gbit_per_s: float, *, intra_bytes_per_s: float = INTRA_BYTES_PER_S) -> None:
        """Join nodes by links of this speed, each in both directions. 0: operations do nothing at all."""
        model = _Model(
            self.machines.ranks_of_node,
            self.machines.num_nodes,
            intra_bytes_per_s,
            max(gbit_per_s, 1e-3) * GIGA / 8,
            LATENCY_S,
            NUM_BLOCKS,
            int(gbit_per_s > 0),
        )
        self._library.wire_set_model(ctypes.byref(model))

    def set_lane_priority(self, priority: int) -> None:
        """Make Isthmus's streams of this priority, if no such streams were made before: they are kept."""
        self._library.wire_set_lane_priority(priority)

    def totals(self) -> Totals:
        """Return what crossed since the last call."""
        totals = _Totals()
        self._library.wire_take_totals(ctypes.byref(totals))
        return Totals(tuple(totals.operations), tuple(totals.bytes), tuple(totals.hold_s), tuple(totals.kernels))

    def communicators(self) -> list[tuple[int, int]]:
        """Return the size of each communicator of the process, and its bound of multiprocessors: 0 is none."""
        most = 256
        made = (_Communicator * most)()
        return [(one.size, one.most_blocks) for one in made[: self._library.wire_communicators(made, most)]]


@contextmanager
def group(machines: Machines, backend: str, options: object = None) -> Iterator[None]:
    """Have a default group of all ranks, of which this process is the first and only one."""

    def introductions(_: Group, own: Introduction) -> list[Introduction]:
        nodes = [rank // machines.ranks_of_node for rank in range(machines.num_ranks)]
        return [replace(own, surroundings=Surroundings(option=f"node {node}")) for node in nodes]

    # For the host's memory Gloo would connect all ranks. Nothing of the host is sent: NCCL's backend never connects.
    def silent(group: Group, name: str, ranks: Sequence[int]) -> dist.ProcessGroupNCCL:
        store = dist.PrefixStore(f"silent/{name}", group.store)
        return dist.ProcessGroupNCCL(store, list(ranks).index(group.rank), len(ranks), dist.ProcessGroupNCCL.Options())

    os.environ.update({"ISTHMUS_LOG": "error", "LOCAL_RANK": "0"})
    with mock.patch.multiple(register, _exchange=introductions, gloo_tier=silent):
        dist.init_process_group(
            backend, store=dist.HashStore(), rank=0, world_size=machines.num_ranks, pg_options=options
        )
    try:
        yield
    finally:
        dist.destroy_process_group()
