"""The fault table: what the ranks call, what goes wrong, and what the error of every other rank has to say."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import isthmus

# --- What ranks call, and whose result nobody looks at ---

NUM_ELEMENTS = 1 << 16
# Enough for several messages of a ring, so that a rank can die in the middle.
WORLD_ELEMENTS = 1 << 20
# The width of a square layer, whose differences take more than 50 kB a rank.
WEIGHTS_WIDTH = 512


@cache
def _gradient() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(NUM_ELEMENTS), torch.empty(NUM_ELEMENTS // dist.get_world_size())


def reduce_scatter(unit: str = "blocks.1") -> None:
    """Reduce the gradient of a unit in two tiers, compressed unless the codec is `none`."""
    gradient, shard = _gradient()
    with isthmus.unit(unit):
        dist.reduce_scatter_tensor(shard, gradient)


def asynchronous_reduce_scatter() -> None:
    """Do that, and look at the Work, its Future and the next call."""
    gradient, shard = _gradient()
    with isthmus.unit("blocks.1"):
        work = dist.reduce_scatter_tensor(shard, gradient, async_op=True)
    future = work.get_future()
    try:
        work.wait()
    except dist.DistBackendError as error:
        assert work.is_completed() and not work.is_success()
        for call in (future.wait, all_reduce):
            with pytest.raises(RuntimeError) as again:
                call()
            assert str(error) in str(again.value)
        raise


def reduce_scatter_of_another_unit() -> None:
    reduce_scatter("blocks.2")


def gradient_all_reduce() -> None:
    with isthmus.unit("blocks.1"):
        dist.all_reduce(torch.ones(NUM_ELEMENTS))


@cache
def _fsdp2_model() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(3)]
    return fully_shard(nn.Sequential(*map(fully_shard, blocks)))


def fsdp2_step() -> None:
    """Forward and backward of a model under FSDP2, whose units are 0, 1 and 2."""
    model = _fsdp2_model()
    model(torch.ones(4, 128)).sum().backward()
    model.zero_grad()


@cache
def _fsdp2_layer() -> nn.Module:
    return fully_shard(nn.Linear(WEIGHTS_WIDTH, WEIGHTS_WIDTH, bias=False))


def gather_weights() -> None:
    """Forward pass of FSDP2's only unit, after a step that changed all weights."""
    model = _fsdp2_layer()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
        model(torch.ones(4, WEIGHTS_WIDTH))
    model.reshard()  # type: ignore[operator]


def all_gather() -> None:
    """Gather exactly, in two tiers."""
    dist.all_gather_into_tensor(torch.empty(NUM_ELEMENTS), torch.ones(NUM_ELEMENTS // dist.get_world_size()))


def all_reduce() -> None:
    """Reduce in the world backend."""
    dist.all_reduce(torch.ones(WORLD_ELEMENTS))


def all_reduce_with_a_future() -> None:
    dist.all_reduce(torch.ones(WORLD_ELEMENTS), async_op=True).get_future().wait()


def nothing() -> None:
    """Leave at once."""


# --- How the faulty rank dies, stops or goes elsewhere ---


@dataclass
class Target:
    """What an injection can reach."""

    interposer: ctypes.CDLL  # interposer.c, loaded into this process
    injected_at: ctypes.c_double  # when it happened, as time.monotonic(); in memory that is shared
    pid_of_host: Path  # of the process that hosts the store, if that is not rank 0


# Runs on the faulty rank when the others are about to call the operation. Returns what that rank calls instead, if
# anything.
Injection = Callable[[Target], Callable[[], None] | None]


def die(target: Target) -> None:
    target.injected_at.value = time.monotonic()
    os.kill(os.getpid(), signal.SIGKILL)


def stop(target: Target) -> None:
    target.injected_at.value = time.monotonic()
    os.kill(os.getpid(), signal.SIGSTOP)


def interpose(event: str, *numbers: int) -> Injection:
    """Have a function of the interposer end the process while it sends or closes."""

    def injection(target: Target) -> None:
        arm = getattr(target.interposer, f"interposer_{event}")
        arm(*map(ctypes.c_long, numbers), ctypes.byref(target.injected_at))

    return injection


def leave(target: Target) -> Callable[[], None]:
    target.injected_at.value = time.monotonic()
    dist.destroy_process_group()
    return lambda: None


def call(operation: Callable[[], None]) -> Injection:
    def injection(target: Target) -> Callable[[], None]:
        target.injected_at.value = time.monotonic()
        return operation

    return injection


def lose_the_store(target: Target) -> None:
    target.injected_at.value = time.monotonic()
    os.kill(int(target.pid_of_host.read_text()), signal.SIGKILL)


def lose_the_store_and_die(target: Target) -> None:
    lose_the_store(target)
    die(target)


# --- The table ---

WORLD_SIZE = 4
TIMEOUT_S = 5.0
# What every rank may take beyond the timeout until its process has ended. A bound on hanging, not on speed.
GRACE_S = 5.0

DELTA = {"ISTHMUS_WEIGHTS": "delta"}


@dataclass(frozen=True)
class Row:
    """One fault. The survivors call `operation` until it fails; an empty `expected` says that it never does."""

    name: str
    operation: Callable[[], None]
    injection: Injection
    expected: tuple[str, ...]  # regular expressions, each found in every survivor's error
    faulty_rank: int = 3
    faulty_expected: tuple[str, ...] | None = None  # the same of the faulty rank's error; None: its end does not matter
    settings: Mapping[str, str] = field(default_factory=dict)  # beside the default codec
    rank_0_hosts_the_store: bool = False
    remark: str = ""  # what the errors cannot name, and why


SILENT = r"No word from rank 3: dead, stopped, or not in a collective of this group"
NO_STORE = r"The store that ranks report to did not answer: its host \(global rank 0, unless a launcher hosts it\)"
REDUCTION = r"reduce-scatter #\d+ of 65536 x Float of unit blocks\.1 failed on rank \d in phase "

ALL_REDUCTION = r"all-reduce #\d+ of 65536 x Float of unit blocks\.1 failed on rank \d in phase "
FSDP2_STEP = r"(reduce-scatter|all-gather) #\d+ of \d+ x Float( of unit \d)? failed on rank \d in phase "
GATHER = r"all-gather #\d+ of 262144 x Float( of unit root)? failed on rank \d in phase "
NO_PHASES = "an exact collective has no phases and no unit"
NOBODY_ELSE = "without the store nobody else can be named"

ROWS = [
    Row("killed while idle", asynchronous_reduce_scatter, die, (REDUCTION, SILENT)),
    Row(
        "killed within an exact collective",
        all_reduce_with_a_future,
        interpose("kill_after_bytes", 1 << 20),
        ("ALLREDUCE", SILENT),
        remark=NO_PHASES,
    ),
    Row(
        "killed with the result of an all-reduce encoded",
        gradient_all_reduce,
        interpose("kill_at_packet", 2),
        (ALL_REDUCTION, SILENT),
    ),
    Row(
        "killed between encode and exchange of FSDP2's gradient",
        fsdp2_step,
        interpose("kill_at_packet", 1),
        (FSDP2_STEP, r"reduce-scatter #\d+ of 16512 x Float of unit 2", SILENT),
    ),
    Row(
        "killed between comparing weights and telling the others",
        gather_weights,
        interpose("kill_at_packet", 1),
        (GATHER, SILENT),
        settings=DELTA,
    ),
    Row("killed in shutdown", nothing, interpose("kill_at_close", 2), ()),
    Row("leaves early", reduce_scatter, leave, (REDUCTION, SILENT)),
    Row("stopped in a compressed reduction", reduce_scatter, stop, (REDUCTION, SILENT)),
    Row(
        "another collective",
        reduce_scatter,
        call(all_gather),
        (REDUCTION, r"rank 3 was in all-gather #\d+ of 65536 x Float"),
        faulty_expected=(r"all-gather #\d+ of 65536 x Float failed on rank 3", r"rank 0 was in reduce-scatter #\d+"),
    ),
    Row(
        "another unit",
        reduce_scatter,
        call(reduce_scatter_of_another_unit),
        (REDUCTION, r"rank 3 was in reduce-scatter #\d+ of 65536 x Float of unit blocks\.2"),
        faulty_expected=(
            r"rank 2 reduces another unit",
            r"rank 0 was in reduce-scatter #\d+ of 65536 x Float of unit blocks\.1",
        ),
    ),
    Row("store gone", reduce_scatter, lose_the_store, ()),
    Row(
        "store gone, then killed",
        reduce_scatter,
        lose_the_store_and_die,
        (REDUCTION, NO_STORE),
        remark=NOBODY_ELSE,
    ),
    Row(
        "killed, and it hosts the store",
        reduce_scatter,
        die,
        (REDUCTION, NO_STORE),
        faulty_rank=0,
        rank_0_hosts_the_store=True,
        remark=NOBODY_ELSE,
    ),
]
