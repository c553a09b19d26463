"""Islands: GPUs of one host that NVLinks, else one PCIe switch, else one NUMA node joins. They can be nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from isthmus.group.nodes.node_map import machine_identity

#: The value of option `nodes`.
ISLANDS = "islands"
_WANTED = 'nodes "islands"'


@cache
def find_island(bus_id: str, is_slice: bool) -> tuple[str, str]:
    """Return the island that this rank is on, a text equal on all its ranks, and what joins its GPUs.

    bus_id: of the rank's GPU; "": it has none, and is where its processors are. is_slice: it is a MIG device. Raises
    ValueError: one line that names what was looked for.
    """
    if is_slice:
        raise ValueError(f"{_WANTED}: looked for links between GPUs, and this rank has a MIG device, which has none")
    try:
        from isthmus import _topology

        machine = _topology.discover()
    except (ImportError, ValueError) as error:
        raise ValueError(f"{_WANTED}: looked for this machine's GPUs and NUMA nodes: {error}") from None
    name, by = _gpu(machine, bus_id) if bus_id else _processors(machine.facts["numa_nodes"])
    return f"{machine_identity()} {name}", by


def _gpu(machine: Any, bus_id: str) -> tuple[str, str]:
    facts, islands = machine.facts, machine.islands
    name = next((f"GPU{gpu['index']}" for gpu in facts["gpus"] if gpu["bus_id"] == bus_id), "")
    members = next((gpus for gpus in islands["gpus"] if name in gpus), None)
    hides = len(facts["gpus"]) > 1 and not (islands["by"] or facts["pcie"])
    if members is None or hides:
        seen = f"{len(facts['gpus'])} GPUs without a PCIe bus" if members else f"not the GPU at {bus_id}"
        raise ValueError(
            f"{_WANTED}: looked for NVLinks (NVML), PCIe switches and NUMA nodes (hwloc, sysfs), and this process sees "
            f"{seen}, as in a container that hides them: list the ranks of each node instead"
        )
    return " ".join(members), islands["by"] or "nothing"


def _processors(numa_nodes: Sequence[dict[str, Any]]) -> tuple[str, str]:
    allowed = os.sched_getaffinity(0)
    near = [node["index"] for node in numa_nodes if allowed & _numbers(node["cpus"] or "")]
    if len(near) != 1:
        raise ValueError(
            f"{_WANTED}: looked for a GPU, and for the NUMA node that this rank is bound to, and it may run on "
            f"{len(near) or 'none'} of {len(numa_nodes)}: bind it to one (numactl --cpunodebind)"
        )
    return f"NUMA node {near[0]}", "NUMA node"


def _numbers(text: str) -> set[int]:
    """Return the numbers of "0-3,8"; of "12-", which has no end, the first."""
    ranges = [part.split("-") for part in text.split(",") if part]
    return {number for part in ranges for number in range(int(part[0]), int(part[-1] or part[0]) + 1)}


def misfit(sizes: Sequence[int]) -> str:
    """Return why islands of so many ranks make no two tiers; "" where they do, or there is one rank."""
    if sum(sizes) < 2:
        return ""
    if len(sizes) == 1:
        return "there is one island"
    if len(set(sizes)) > 1:
        return f"islands have {min(sizes)} to {max(sizes)} ranks"
    return "nothing joins any two GPUs" if sizes[0] == 1 else ""


def instead(sizes: Sequence[int]) -> str:
    """Return the same with what to set."""
    why = misfit(sizes)
    return f"{why}: set ISTHMUS_NODES={sum(sizes)}x1" if why else ""


def advice(islands: dict[str, Any]) -> str:
    """Return what to set for a job on such a machine alone; "" where fast links join all GPUs, or there are no two.

    islands: as the JSON of `isthmus topo` has them.
    """
    gpus, by = islands["gpus"], islands["by"]
    if sum(map(len, gpus)) < 2 or (len(gpus) == 1 and by not in ("PCIe switch", "NUMA node")):
        return ""
    named = " | ".join(",".join(gpu.removeprefix("GPU") for gpu in island) for island in gpus)
    what = f"Islands: GPUs {named}" + (f", by {by}" if by else "")
    if text := instead([len(island) for island in gpus]):
        return f"{what}; {text} for a job on this machine alone"
    speed = "unknown" if islands["gbit_s"] is None else f"at most {islands['gbit_s']:.4g} Gbit/s of each GPU"
    what += f"; between them ({islands['distance']}) {speed}"
    return f"{what}: set ISTHMUS_NODES=islands for a job on this machine alone"
