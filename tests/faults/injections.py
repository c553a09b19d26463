"""What the faulty rank does: how a rank dies, stops or goes elsewhere."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist


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
    """Kill -9 while nothing is under way."""
    target.injected_at.value = time.monotonic()
    os.kill(os.getpid(), signal.SIGKILL)


def stop(target: Target) -> None:
    """Stand still for longer than the timeout."""
    target.injected_at.value = time.monotonic()
    os.kill(os.getpid(), signal.SIGSTOP)


def interpose(event: str, *numbers: int) -> Injection:
    """Have a function of the interposer end the process while it sends or closes."""

    def injection(target: Target) -> None:
        arm = getattr(target.interposer, f"interposer_{event}")
        arm(*map(ctypes.c_long, numbers), ctypes.byref(target.injected_at))

    return injection


def leave(target: Target) -> Callable[[], None]:
    """Destroy the process group while the others go on."""
    target.injected_at.value = time.monotonic()
    dist.destroy_process_group()
    return lambda: None


def call(operation: Callable[[], None]) -> Injection:
    """Call another operation than the others."""

    def injection(target: Target) -> Callable[[], None]:
        target.injected_at.value = time.monotonic()
        return operation

    return injection


def lose_the_store(target: Target) -> None:
    """Kill the process that hosts the store."""
    target.injected_at.value = time.monotonic()
    os.kill(int(target.pid_of_host.read_text()), signal.SIGKILL)


def lose_the_store_and_die(target: Target) -> None:
    """Kill the host of the store, then this rank."""
    lose_the_store(target)
    die(target)
