"""What ranks of the campaign run, and the faults that are drawn for one of them."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import isthmus
from faults import members
from faults.harness import injected_at
from support import ranks
from support.hosts import enter
from support.limits import OPERATION_S, scaled

NUM_RANKS, RANKS_PER_NODE, STEPS, LAYERS, WIDTH = 4, 2, 3, 3, 64
TIMEOUT_S, GRACE_S = 4.0, 8.0  # the latter: until a rank has ended
PAUSE_S, STOP_S = 0.7, 10.0
_DELTA = {"ISTHMUS_WEIGHTS": "delta"}
JOBS = {"FSDP2": {}, "HSDP": {}, "DDP": {}, "delta": _DELTA, "torchft": {}}
JOBS |= {"FSDP2 on a GPU": {}, "delta on a GPU": _DELTA}
WEIGHTS = (2, 2, 2, 2, 2, 1, 1)  # a fake GPU's ranks take the longest to start
CODECS = ("quant", "tagc", "none")
PLACES = ("begin", *(f"forward {i}" for i in range(LAYERS)), *(f"backward {i}" for i in reversed(range(LAYERS))), "end")


class Planned(Exception):
    """What a rank raises in its own forward or backward pass."""


class OtherCalls(TorchDispatchMode):
    """Makes a collective as often as it is told, once."""

    times: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        times = 1
        if self.times is not None and func in self._results:  # the Work of one that is skipped is an earlier one's
            times, self.times = self.times, None
        for _ in range(times):
            self._results[func] = func(*args, **(kwargs or {}))
        return self._results[func]


@dataclass(frozen=True)
class Case:
    """One fault. moment: of the faulty rank's run, from 0; detail: drawn, for whoever wants a number."""

    job: str
    codec: str
    fault: str
    rank: int
    moment: int
    detail: int

    def __str__(self) -> str:
        places = ("before", "after") if self.job == "torchft" else PLACES
        step, place = divmod(self.moment, len(places))
        when = f"step {step}, {places[place]}"
        return f"{self.job}, {self.codec}: rank {self.rank} {self.fault} ({self.detail}) in {when}"


@dataclass
class Target:
    """What a fault of this rank can reach. case: None if this rank has none."""

    case: Case | None
    injected_at: ctypes.c_double
    calls: OtherCalls
    moments: int = 0
    latest_s: float = field(default_factory=time.monotonic)  # a moment

    def moment(self, *_: object) -> None:
        """Have the fault happen, if this is its moment."""
        self.moments, self.latest_s = self.moments + 1, time.monotonic()
        if self.case and self.moments == self.case.moment + 1:
            self.injected_at.value = self.latest_s
            FAULTS[self.case.fault](self, self.case.detail)


# --- What happens to the faulty rank, which it does itself; the link is that of its node ---

Fault = Callable[[Target, int], object]


def killed(target: Target, detail: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raises(target: Target, detail: int) -> None:
    raise Planned("planned")


def stop_for(seconds: float) -> Fault:
    def stop(target: Target, detail: int) -> None:
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"], env={"PATH": os.environ["PATH"]})
        os.kill(os.getpid(), signal.SIGSTOP)

    return stop


def interposed(event: str, most: int) -> Fault:
    """Do so at a number up to `most`, with the detail for what takes another number."""

    def arm(target: Target, detail: int) -> None:
        target.injected_at.value = 0  # not yet
        arm_it = getattr(ctypes.CDLL(os.environ["LD_PRELOAD"]), f"interposer_{event}")
        numbers = (1 + detail % most, *([detail] if event == "damage_packet" else []))
        arm_it(*map(ctypes.c_long, numbers), ctypes.byref(target.injected_at))

    return arm


def shell(commands: str) -> Fault:
    return lambda target, detail: subprocess.run(["sh", "-ec", commands], check=True)


def fake_gpu(function: str, *numbers: int) -> Fault:
    return lambda target, detail: getattr(ctypes.CDLL(None), function)(*numbers)


def call_times(times: int) -> Fault:
    return lambda target, detail: setattr(target.calls, "times", times)


_TBF = "tc qdisc replace dev eth0 root tbf"
ANYWHERE: dict[str, Fault] = {
    "is killed": killed,
    "raises": raises,
    "pauses": stop_for(PAUSE_S),
    "is stopped": stop_for(scaled(STOP_S)),
    "skips a call": call_times(0),
    "repeats a call": call_times(2),
}
ON_CPU = {
    "is killed sending": interposed("kill_after_bytes", 40_000),
    "is killed with a packet": interposed("kill_at_packet", 6),
    "sends a damaged packet": interposed("damage_packet", 6),
}
ON_LINKS = {
    "loses its link": shell("ip link set eth0 down"),
    "loses its link for a while": shell(f"ip link set eth0 down; sleep {PAUSE_S}; ip link set eth0 up"),
    "has a slow link": shell(f"{_TBF} rate 2mbit burst 4k latency 400ms"),
    "has a link that loses packets": shell(f"{_TBF} rate 5mbit burst 3k limit 5k"),
}
ON_GPU = {
    "gets a damaged packet": fake_gpu("fake_nccl_damage_after", 0),
    "has a tier that fails": fake_gpu("fake_nccl_fail", 8),
    "has a GPU that fails": fake_gpu("fake_gpu_fail"),
}
FAULTS = ANYWHERE | ON_CPU | ON_LINKS | ON_GPU


def draw(seed: int, number: int) -> Case:
    drawn = random.Random(f"{seed}:{number}")
    (job,), detail = drawn.choices(list(JOBS), WEIGHTS), drawn.randrange(1 << 20)
    if job == "torchft":  # member 0 hosts the store, which stays as torchft's lighthouse does
        faults = [fault for fault in ANYWHERE | ON_CPU if "call" not in fault and "stopped" not in fault]
        rank, moment = drawn.randrange(1, members.NUM_MEMBERS), drawn.randrange(2 * members.STEPS)
        return Case(job, CODECS[0], drawn.choice(faults), rank, moment, detail)
    faults = [*ANYWHERE, *(ON_GPU if "GPU" in job else ON_CPU | ON_LINKS)]
    codec, fault, rank = drawn.choice(CODECS), drawn.choice(faults), drawn.randrange(NUM_RANKS)
    moments = STEPS * len(PLACES) - ("call" in fault)  # after the last one there is no call
    return Case(job, codec, fault, rank, drawn.randrange(moments), detail)


# --- A rank ---


class Ended(NamedTuple):
    """How a rank ended. seconds: since the fault, or since what it did last before its end, if that was later."""

    error_type: str
    error: str
    digest: str
    seconds: float
    quorums: Sequence[members.Quorum] = ()  # of committed steps, under torchft


def run_rank(
    rank: int, world_size: int, case: Case, disturbs: bool, shared: Path, nodes: Sequence[list[str]], plan: Any
) -> Ended:
    """Train, and report. nodes: what enters them; none: all ranks stay here. plan: of members that leave in peace."""
    if nodes:
        enter(nodes[rank // RANKS_PER_NODE])
    target = Target(case if disturbs and rank == case.rank else None, injected_at(shared), OtherCalls())
    timeout_s = scaled(TIMEOUT_S) if disturbs else OPERATION_S
    error_type = error = ""
    parameters: list[torch.Tensor] = []
    losses: list[float] = []
    quorums: Sequence[members.Quorum] = ()
    try:
        if case.job == "torchft":
            total, quorums, error = members.train(rank, timeout_s, target.moment, plan)
            parameters.append(total)
        else:
            ranks.init()
            train(case.job, target, timeout_s, parameters, losses)
    except Exception as caught:
        error_type, error = type(caught).__name__, str(caught)
    while dist.is_initialized():
        try:
            dist.destroy_process_group()
        except dist.DistBackendError as caught:  # once
            error_type, error = error_type or type(caught).__name__, error or str(caught)
    values = "" if "GPU" in case.job and error_type else digest_of(parameters, losses)
    return Ended(error_type, error, values, time.monotonic() - max(target.injected_at.value, target.latest_s), quorums)


def digest_of(tensors: Sequence[torch.Tensor], losses: Sequence[float]) -> str:
    values = b"".join(getattr(one, "_local_tensor", one).detach().cpu().numpy().tobytes() for one in tensors)
    return hashlib.sha256(values + repr(losses).encode()).hexdigest()


def make_model(job: str, device: str) -> tuple[nn.Module, Sequence[nn.Module]]:
    """Return a model and its layers."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers).to(device)
    if job == "DDP":
        return isthmus.prepare(nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)), layers
    names = ("replicate", "shard")
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=names) if job == "HSDP" else None
    sharded = [fully_shard(layer, mesh=mesh) for layer in layers]
    for layer, following in itertools.pairwise(sharded):
        layer.set_modules_to_forward_prefetch([following])  # whose gather is between its halves in this one's pass
    return fully_shard(model, mesh=mesh), layers


def train(job: str, target: Target, timeout_s: float, parameters: list[torch.Tensor], losses: list[float]) -> None:
    device = "cuda" if "GPU" in job else "cpu"
    model, layers = make_model(job, device)
    parameters += model.parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    dist.barrier()  # ranks begin at different times
    for group in dist.distributed_c10d._world.pg_map:
        group._get_backend(torch.device(device)).set_timeout(timedelta(seconds=timeout_s))
    for layer in layers:
        layer.register_forward_pre_hook(target.moment)
        layer.register_forward_hook(lambda module, inputs, output: output.register_hook(target.moment) and None)
    for step in range(STEPS):
        target.moment()
        data = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        with target.calls if target.case and "call" in target.case.fault else torch.enable_grad():
            loss = model(data.to(device)).square().mean()
            loss.backward()
        losses.append(loss.item())
        target.moment()
        optimizer.step()
        optimizer.zero_grad()
