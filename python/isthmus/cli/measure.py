"""Times the links of both tiers over a real process group, and shows them.

All ranks of a tier send to the next of them at once, in a ring, so that every link is busy in both directions as it is
in a reduction. Nodes are timed side by side, and so are rails: ranks share links as they do in training.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console

from isthmus.base.backends import backend_of
from isthmus.base.job import refuse
from isthmus.group.gloo import gloo_interfaces
from isthmus.group.nodes.launchers import rendezvous, uneven
from isthmus.group.nodes.node_map import ranks_by_node, tiers_of

#: What a rank sends at once, in bytes. Larger ones are left out where they would take longer than the budget.
SIZES = tuple(1 << exponent for exponent in range(10, 25, 2))
#: How long one tier may take, about.
BUDGET_S = 3.0
#: All sizes are timed as often, one after the other, so that what disturbs a moment does not own a size. The fastest
#: round of a size counts: other work on the machines can only add time.
_ROUNDS = 5
_MAX_REPEATS = 50
_GROWTH = SIZES[1] // SIZES[0]
#: Of an interface's rated speed. TCP reaches nine tenths of it and more.
_FAR_BELOW = 0.75
_SIOCGIFADDR = 0x8915  # linux/sockios.h: asks for an interface's address
_COMMAND = "torchrun --nproc-per-node 4 -m isthmus topo --measure"
#: For all ranks to join, and for each exchange.
_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class LinkSample:
    """One size of message, and how long all ranks of a tier took, in the fastest round, to send it at once."""

    num_bytes: int
    time_us: float


@dataclass(frozen=True)
class MeasuredLink:
    """One tier's link: time_us = latency_us + bits / bandwidth. Both directions are busy at once.

    Intra: what one rank sends to its neighbour while every rank of the node does. Inter: what one *node* sends to the
    next while all its rails do.
    """

    latency_us: float
    bandwidth_gbit_s: float
    samples: tuple[LinkSample, ...]


@dataclass(frozen=True)
class MeasuredLinks:
    """Both tiers of one cluster. A tier of one rank has no link: None. num_hosts: of those that took part."""

    intra: MeasuredLink | None
    inter: MeasuredLink | None
    num_nodes: int
    ranks_per_node: int
    num_hosts: int

    def options(self) -> str:
        """What gives `isthmus plan` this cluster and its links."""
        options = f"--nodes {self.num_nodes} --ranks-per-node {self.ranks_per_node}"
        for tier, link in (("inter", self.inter), ("intra", self.intra)):
            if link is not None:
                options += f" --{tier} {link.bandwidth_gbit_s:.4g}gbit --{tier}-latency-us {link.latency_us:.4g}"
        return options


def measure_links() -> MeasuredLinks:
    """Time the links between all ranks, whose default group is Isthmus's. Collective; equal on all ranks.

    Nothing else should run on the group meanwhile. Raises ValueError for one rank, and for nodes of unequal size: there
    are no two tiers.
    """
    world = dist.group.WORLD
    assert world is not None
    backend = backend_of(world)
    sizes = [len(ranks) for ranks in ranks_by_node(backend.node_of_rank)]
    if sizes == [1]:
        raise ValueError("a group of one rank has no links to measure")
    if min(sizes) < max(sizes):
        raise ValueError(uneven(sizes, backend.stats()["node_map_source"]))
    node, rail = tiers_of(world.rank(), backend.node_of_rank)
    hosts: list[Any] = [None] * world.size()
    dist.all_gather_object(hosts, socket.gethostname())
    intra = inter = None
    if len(node) > 1:
        intra = fit_link(time_sizes(_ring(world, node), 1, BUDGET_S))
    if len(rail) > 1:
        inter = fit_link(time_sizes(_ring(world, rail), len(node), BUDGET_S))
    return MeasuredLinks(intra, inter, len(rail), len(node), len(set(hosts)))


def measure_world(console: Console, as_json: bool) -> None:
    """Join the world that a launcher made, measure its links, and print them on rank 0: `isthmus topo --measure`.

    Raises ValueError where no launcher made a world of ranks; ends all ranks where it has no tiers.
    """
    os.environ.update(rendezvous(os.environ, "--measure", _COMMAND))
    dist.init_process_group("isthmus", timeout=_TIMEOUT)
    try:
        rank = dist.get_rank()
        links = measure_links()
        dist.barrier()  # the store ends with the rank that hosts it
    except ValueError as error:
        refuse(error)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    if rank == 0 and as_json:
        print(json.dumps(asdict(links), indent=2))
    elif rank == 0:
        print_links(links, console)
        if text := shortfall(links, *used_interface()):
            console.print(text, soft_wrap=True, highlight=False)


def print_links(links: MeasuredLinks, console: Console) -> None:
    """Print both tiers, and the options of `isthmus plan` that say the same."""
    for tier, link in (("within a node, a rank sends", links.intra), ("between nodes, a node sends", links.inter)):
        if link:
            text = f"{tier} {link.bandwidth_gbit_s:.4g} Gbit/s after {link.latency_us:.4g} us, over Gloo"
            console.print(text, soft_wrap=True, highlight=False)
    if links.num_hosts < min(links.num_nodes, 2):  # nodes that ISTHMUS_NODES makes of one machine
        console.print("all nodes are on one host: that is its memory, no network", highlight=False)
    console.print(f"isthmus plan {links.options()}", soft_wrap=True, highlight=False)


def used_interface(net: Path = Path("/sys/class/net")) -> tuple[str, float | None]:
    """Return the interface that Gloo takes on this host, and its rated Gbit/s; "" and None where that is not known."""
    name = gloo_interfaces()[0]
    try:
        name = name or _interface_of(socket.gethostbyname(socket.gethostname()))
        mbit_s = int((net / name / "speed").read_text())
        is_real = (net / name / "device").exists() or any((net / name).glob("lower_*"))
    except (OSError, ValueError):  # the host's name has no address, or the interface (a virtual one) no speed
        return name, None
    return name, mbit_s / 1000 if mbit_s > 0 and is_real else None  # veth says 10 Gbit/s of whatever is behind it


def _interface_of(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                request = struct.pack("256s", name.encode())
                if fcntl.ioctl(asked, _SIOCGIFADDR, request)[20:24] == socket.inet_aton(address):
                    return name
    return ""


def shortfall(links: MeasuredLinks, interface: str, rated_gbit_s: float | None) -> str:
    """Return what to look at where nodes send to each other far below the interface's rated speed; "" elsewhere."""
    if links.inter is None or links.num_hosts < 2 or rated_gbit_s is None:
        return ""
    if links.inter.bandwidth_gbit_s >= _FAR_BELOW * rated_gbit_s:
        return ""
    return (
        f"{links.inter.bandwidth_gbit_s:.3g} of the {rated_gbit_s:.4g} Gbit/s of {interface}: look at its MTU "
        "(`ip link`; 9000 where all switches allow it), at whether a node has one rank and so one connection (one core "
        "often fills no link above 10 Gbit/s), and at whether this is the interface that you mean (GLOO_SOCKET_IFNAME)"
    )


def fit_link(samples: Sequence[LinkSample]) -> MeasuredLink:
    """Put time = latency + bytes / bandwidth through the smallest and the largest message.

    Small messages are latency and large ones bandwidth; in between links are faster than any line (a shaped one lets a
    burst through) or slower (protocols change), and a fit to all would misjudge both ends. A message takes no longer
    than a larger one: where it did, it was disturbed in all rounds, and the larger one's time stands for it. Where the
    largest message takes no longer than the smallest, the bandwidth is the best that was seen.
    """
    largest = samples[-1]
    smallest_us = min(sample.time_us for sample in samples)
    more_us = largest.time_us - smallest_us
    if more_us <= 0:
        best_gbit_s = max(8e-3 * sample.num_bytes / sample.time_us for sample in samples)
        return MeasuredLink(largest.time_us, best_gbit_s, tuple(samples))
    us_per_byte = more_us / (largest.num_bytes - samples[0].num_bytes)
    latency_us = max(0.0, smallest_us - us_per_byte * samples[0].num_bytes)
    return MeasuredLink(latency_us, 8e-3 / us_per_byte, tuple(samples))


#: Sends so many bytes so many times, and returns the seconds of the slowest rank; equal on all ranks.
Burst = Callable[[int, int], float]


def time_sizes(burst_s: Burst, senders: int, budget_s: float) -> list[LinkSample]:
    """Time messages of growing size, two sizes at least. senders: ranks that share the link, whose bytes add up."""
    burst_s(SIZES[0], 1)  # connects
    first_s: list[float] = []
    for num_bytes in SIZES:
        if len(first_s) > 1 and _ROUNDS * (sum(first_s) + _GROWTH * first_s[-1]) > budget_s:
            break
        first_s.append(min(burst_s(num_bytes, 1) for _ in range(2)))
    share_s = budget_s / len(first_s) / _ROUNDS
    repeats = [max(1, min(_MAX_REPEATS, int(share_s / each_s))) for each_s in first_s]
    sizes = SIZES[: len(first_s)]
    rounds_s = [
        [burst_s(num_bytes, times) / times for num_bytes, times in zip(sizes, repeats, strict=True)]
        for _ in range(_ROUNDS)
    ]
    return [
        LinkSample(senders * num_bytes, 1e6 * min(times_s))
        for num_bytes, times_s in zip(sizes, zip(*rounds_s, strict=True), strict=True)
    ]


def _ring(world: dist.ProcessGroup, ranks: list[int]) -> Burst:
    """Bursts from each rank of a tier to the next, over the connections that tiers use. All ranks begin together."""
    own = ranks.index(world.rank())
    following, previous = ranks[(own + 1) % len(ranks)], ranks[own - 1]
    outgoing, incoming = torch.zeros(2, SIZES[-1], dtype=torch.uint8)

    def burst_s(num_bytes: int, repeats: int) -> float:
        dist.barrier()
        start_s = time.perf_counter()
        for _ in range(repeats):
            arrives = world.recv([incoming[:num_bytes]], previous, 0)
            world.send([outgoing[:num_bytes]], following, 0).wait()
            arrives.wait()
        taken_s = torch.tensor(time.perf_counter() - start_s, dtype=torch.float64)
        dist.all_reduce(taken_s, dist.ReduceOp.MAX)
        return float(taken_s)

    return burst_s
