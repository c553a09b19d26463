"""What ranks of the campaign run, and the faults that are drawn for one of them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import isthmus
from faults import members
from faults.harness import injected_at
from support import ranks
from support.limits import scaled

NUM_RANKS, RANKS_PER_NODE, STEPS, LAYERS, WIDTH = 4, 2, 4, 3, 64
MOMENTS_PER_STEP = 2 * LAYERS + 2
TIMEOUT_S, GRACE_S = 4.0, 8.0  # the latter: until a rank has ended
PAUSE_S, STOP_S = 0.5, 10.0
JOBS = {"fsdp2": {}, "hsdp": {}, "ddp": {}, "delta": {"ISTHMUS_WEIGHTS": "delta"}, "fsdp2 on a GPU": {}, "torchft": {}}


class Planned(Exception):
    """What a rank raises in its own forward or backward pass."""


@dataclass(frozen=True)
class Case:
    """One fault. moment: of the faulty rank's run, from 0; detail: drawn, for whoever wants a number."""

    job: str
    fault: str
    rank: int
    moment: int
    detail: int

    def __str__(self) -> str:
        if self.job == "torchft":
            step, place = divmod(self.moment, members.MOMENTS_PER_STEP)
            return f"torchft: member {self.rank} {self.fault} ({self.detail}) {('before', 'after')[place]} sum {step}"
        places = ["begin", *(f"forward {i}" for i in range(LAYERS)), *(f"backward {i}" for i in range(LAYERS)[::-1])]
        step, place = divmod(self.moment, MOMENTS_PER_STEP)
        where = [*places, "optimizer"][place]
        return f"{self.job}: rank {self.rank} {self.fault} ({self.detail}) in step {step}, {where}"


# --- What happens to the faulty rank, which it does itself; the link is that of its node ---


def killed(target: Target) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_for(seconds: float) -> Callable[[Target], None]:
    def stop(target: Target) -> None:
        pid = os.getpid()
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {pid}"])
        os.kill(pid, signal.SIGSTOP)

    return stop


def raises(target: Target) -> None:
    raise Planned("planned")


def interposed(event: str, most: int) -> Callable[[Target], None]:
    def arm(target: Target) -> None:
        number = ctypes.c_long(1 + target.case.detail % most)
        getattr(ctypes.CDLL(os.environ["LD_PRELOAD"]), f"interposer_{event}")(number, ctypes.byref(target.injected_at))

    return arm


def tool(*words: str) -> Callable[[Target], None]:
    return lambda target: subprocess.run([*words], check=True)  # type: ignore[return-value]


def fake_nccl(function: str, number: int) -> Callable[[Target], None]:
    return lambda target: getattr(ctypes.CDLL(None), function)(number)


def skips(target: Target) -> None:
    target.passes = 0


def repeats(target: Target) -> None:
    target.passes = 2


_TBF = ("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf")
ANYWHERE: dict[str, Callable[[Target], None]] = {
    "is killed": killed,
    "raises": raises,
    "skips a pass": skips,
    "repeats a pass": repeats,
}
ON_CPU = ANYWHERE | {
    "is killed sending": interposed("kill_after_bytes", 40_000),
    "is killed with a packet": interposed("kill_at_packet", 6),
    "sends a damaged packet": interposed("damage_packet", 6),
    "pauses": stop_for(PAUSE_S),
    "is stopped": stop_for(scaled(STOP_S)),
}
ON_LINKS = {
    "loses its link": tool("ip", "link", "set", "eth0", "down"),
    "has a slow link": tool(*_TBF, "rate", "500kbit", "burst", "4k", "latency", "400ms"),
    "has a link that loses packets": tool(*_TBF, "rate", "5mbit", "burst", "3k", "limit", "5k"),
}
ON_GPU = ANYWHERE | {
    "gets a damaged packet": fake_nccl("fake_nccl_damage_after", 0),
    "has a tier that fails": fake_nccl("fake_nccl_fail", 8),
}
ON_MEMBERS = {fault: ON_CPU[fault] for fault in ON_CPU if "pass" not in fault and "stopped" not in fault}
FAULTS = ON_CPU | ON_LINKS | ON_GPU


def draw(seed: int, number: int, has_links: bool, has_gpu: bool) -> Case:
    drawn = random.Random(f"{seed}:{number}")
    job = drawn.choice([job for job in JOBS if has_gpu or "GPU" not in job])
    if job == "torchft":  # member 0 hosts the store, as a lighthouse stays
        moment = drawn.randrange(members.STEPS * members.MOMENTS_PER_STEP)
        fault = drawn.choice(list(ON_MEMBERS))
        return Case(job, fault, drawn.randrange(1, members.NUM_MEMBERS), moment, drawn.randrange(1 << 20))
    fault = drawn.choice(list(ON_GPU if "GPU" in job else ON_CPU | (ON_LINKS if has_links else {})))
    step, place = drawn.randrange(STEPS), drawn.randrange(MOMENTS_PER_STEP)
    place = 0 if "pass" in fault else place
    return Case(job, fault, drawn.randrange(NUM_RANKS), step * MOMENTS_PER_STEP + place, drawn.randrange(1 << 20))


# --- A rank ---


@dataclass
class Target:
    """What a fault of this rank can reach."""

    case: Case
    injected_at: ctypes.c_double
    passes: int = 1  # in this step
    moments: int = field(default=0)

    def moment(self, is_faulty: bool) -> None:
        """Have the fault happen, if this is its moment."""
        self.moments += 1
        if is_faulty and self.moments == self.case.moment + 1:
            self.injected_at.value = time.monotonic()
            FAULTS[self.case.fault](self)


class Ended(NamedTuple):
    """How a rank ended."""

    error_type: str
    error: str
    digest: str
    at_s: float
    quorums: Sequence[members.Quorum] = ()  # of committed steps, under torchft


def make_model(job: str, device: str) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS))).to(device)
    if job == "ddp":
        return isthmus.prepare(nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02))
    names = ("replicate", "shard")
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=names) if job == "hsdp" else None
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def run_rank(
    rank: int,
    world_size: int,
    case: Case,
    is_disturbed: bool,
    shared: Path,
    nodes: Sequence[int],
    plan: Sequence[members.Quorum] = (),
) -> Ended:
    """Train. nodes: processes in whose namespaces the nodes are; none: all ranks stay here."""
    if nodes:
        with open(f"/proc/{nodes[rank // RANKS_PER_NODE]}/ns/net") as namespace:
            assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
    target = Target(case, injected_at(shared))
    error_type = error = ""
    parameters: list[torch.Tensor] = []
    losses: list[float] = []
    is_faulty = is_disturbed and rank == case.rank
    if case.job == "torchft":
        try:
            total, done = members.train(rank, scaled(TIMEOUT_S), lambda: target.moment(is_faulty), plan)
        except Planned as planned:
            return Ended("Planned", str(planned), "", time.monotonic())
        return Ended("", "", digest_of([total], []), time.monotonic(), done)
    ranks.init(timeout_s=scaled(TIMEOUT_S))
    try:
        train(target, is_faulty, parameters, losses)
    except Exception as caught:
        error_type, error = type(caught).__name__, str(caught)
    digest = digest_of(parameters, losses)
    dist.destroy_process_group()
    return Ended(error_type, error, digest, time.monotonic())


def digest_of(tensors: Sequence[torch.Tensor], losses: Sequence[float]) -> str:
    values = b"".join(getattr(one, "_local_tensor", one).detach().cpu().numpy().tobytes() for one in tensors)
    return hashlib.sha256(values + repr(losses).encode()).hexdigest()


def train(target: Target, is_faulty: bool, parameters: list[torch.Tensor], losses: list[float]) -> None:
    device = "cuda" if "GPU" in target.case.job else "cpu"
    model = make_model(target.case.job, device)
    parameters += model.parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def before(*_: Any) -> None:
        target.moment(is_faulty)

    def after(module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: target.moment(is_faulty))

    for layer in getattr(model, "module", model):
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)
    for step in range(STEPS):
        target.passes = 1
        target.moment(is_faulty)
        moments = target.moments
        for _ in range(target.passes):
            data = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            loss = model(data.to(device)).square().mean()
            loss.backward()
            losses.append(loss.item())
        target.moments = moments + 2 * LAYERS
        target.moment(is_faulty)
        optimizer.step()
        optimizer.zero_grad()
