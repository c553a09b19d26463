"""What a culprit does: how a rank dies, stops, goes elsewhere or sends damaged bytes."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from faults.interposer import Interposer


@dataclass
class Scene:
    """What a deed can reach."""

    interposer: Interposer
    moment: ctypes.c_double  # when it happened, as time.monotonic(); in memory that the laboratory shares
    store_pid: int | None  # of the process that hosts the store, if that is not rank 0


# Runs on the culprit when the others are about to call the operation. Returns what the culprit calls instead, if
# anything.
Deed = Callable[[Scene], Callable[[], None] | None]


def die(scene: Scene) -> None:
    """Kill -9 while nothing is under way."""
    scene.moment.value = time.monotonic()
    os.kill(os.getpid(), signal.SIGKILL)


def stop(scene: Scene) -> None:
    """Stand still for longer than the timeout."""
    scene.moment.value = time.monotonic()
    os.kill(os.getpid(), signal.SIGSTOP)


def die_within_the_transfer(num_bytes: int) -> Deed:
    """Kill -9 once the rank has sent so much of its operation."""
    return lambda scene: scene.interposer.kill_after_bytes(num_bytes)


def die_with_a_packet_encoded(scene: Scene) -> None:
    """Kill -9 between encode and exchange."""
    scene.interposer.kill_at_packet(1)


def die_with_a_result_encoded(scene: Scene) -> None:
    """Kill -9 between encoding the own chunk of an all-reduce's result and its exchange."""
    scene.interposer.kill_at_packet(2)


def die_while_disconnecting(scene: Scene) -> None:
    """Kill -9 in destroy_process_group, at the second connection that it closes."""
    scene.interposer.kill_at_close(2)


def leave(scene: Scene) -> Callable[[], None]:
    """Destroy the process group while the others go on."""
    scene.moment.value = time.monotonic()
    dist.destroy_process_group()
    return lambda: None


def call(operation: Callable[[], None]) -> Deed:
    """Call another operation than the others."""

    def deed(scene: Scene) -> Callable[[], None]:
        scene.moment.value = time.monotonic()
        return operation

    return deed


def flip(nth_packet: int, byte: int, mask: int = 1) -> Deed:
    """Send a packet with a flipped bit."""
    return lambda scene: scene.interposer.flip(nth_packet, byte, mask)


def lose_the_store(scene: Scene) -> None:
    """Kill the process that hosts the store."""
    assert scene.store_pid is not None
    scene.moment.value = time.monotonic()
    os.kill(scene.store_pid, signal.SIGKILL)


def lose_the_store_and_die(scene: Scene) -> None:
    """Kill the host of the store, then this rank."""
    lose_the_store(scene)
    die(scene)


def run_out_of_memory(needed_bytes: int) -> Deed:
    """Leave the process no `needed_bytes` in one piece, but something to report with."""

    def deed(scene: Scene) -> None:
        allocate = ctypes.CDLL(None).malloc
        allocate.restype = ctypes.c_void_p
        hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
        spare = None
        while spare is None:  # other threads take memory, too: there may be none left for this one
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + needed_bytes // 4
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
            # What was freed before counts as used: it goes in parts so small that what is left of it does not suffice.
            while last := allocate(ctypes.c_size_t(needed_bytes // 4)):
                spare = last
        ctypes.CDLL(None).free(ctypes.c_void_p(spare))
        scene.moment.value = time.monotonic()

    return deed
