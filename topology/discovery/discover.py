"""The machine that this process runs on, from what exists at run time.

- sysfs: processors, NUMA nodes, the PCIe tree with the best speed of each link, NICs. Always present.
- NVML: the GPUs, their names, their NVLinks and their multi-node fabric.

A source that is missing is normal, and named in `Machine.notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from isthmus.topology.discovery.nvml import NvLink, NvmlFacts, read_nvml
from isthmus.topology.discovery.sysfs import Facts, Roots, read_facts
from isthmus.topology.discovery.sysfs_nics import find_nics
from isthmus.topology.discovery.sysfs_tree import PcieTrees
from isthmus.topology.distance import NvLinks, link_devices
from isthmus.topology.machine import Gpu, Machine
from isthmus.topology.pcie import gpu_model
from isthmus.topology.places import UNNUMBERED, number_devices


def discover(roots: Roots | None = None, ask_nvml: Callable[[], NvmlFacts] = read_nvml) -> Machine:
    """Describe this machine. The parameters replace it in tests.

    Raises TopologyError for more devices than a machine may have; whatever else is missing is None or noted.
    """
    facts = read_facts(roots)
    nvml = ask_nvml()
    notes = [nvml.missing] if nvml.missing else list(nvml.notes)
    found_gpus = _find_gpus(facts, nvml, notes)
    found_nics, about_nics = find_nics(facts)
    notes += about_nics
    numa_nodes = facts.numa_nodes
    places = PcieTrees(facts.pci, [*found_gpus, *found_nics])
    roots_of_places = [*places.trees, places.loose]
    if len(numa_nodes) == 1:
        for root in roots_of_places:
            root.numa_node = numa_nodes[0].index
    gpus, nics = number_devices(roots_of_places, notes)
    pcie = tuple(place for tree in places.trees if (place := tree.finish()))
    on_bus = {device.bus_id for device in facts.pci}
    lost = [gpu.id for gpu in gpus if gpu.bus_id not in on_bus] + [nic.id for nic in nics if nic.bus_id not in on_bus]
    if not facts.pci:
        notes.append("sysfs shows no PCIe bus: distances are those between NUMA nodes")
    elif lost:
        notes.append(f"not on the PCIe bus that sysfs shows: {', '.join(lost)}")
    return Machine(
        name=facts.host_name or "this machine",
        source="discovery",
        sockets=facts.sockets,
        numa_nodes=numa_nodes,
        gpus=gpus,
        nics=nics,
        links=link_devices(gpus, nics, pcie, _nvlinks(nvml), len(numa_nodes)),
        pcie=pcie,
        notes=tuple(dict.fromkeys(notes)),
    )


def _find_gpus(facts: Facts, nvml: NvmlFacts, notes: list[str]) -> list[Gpu]:
    """NVML decides which GPUs there are: a container may see fewer than the bus has."""
    on_bus = {device.bus_id: gpu_model(device.vendor, device.device) for device in facts.pci if device.is_gpu}
    if nvml.missing is not None:
        if on_bus:
            notes.append("without NVML, NVLinks are unknown, and GPUs are those of the bus")
        return [Gpu(UNNUMBERED, bus_id, model) for bus_id, model in on_bus.items()]
    if hidden := sorted(set(on_bus) - {gpu.bus_id for gpu in nvml.gpus}):
        notes.append(f"NVML does not show {', '.join(hidden)}: left out")
    return list(nvml.gpus)


def _speed_of_all(links: Sequence[NvLink]) -> float | None:
    speeds = [link.speed_gbit_s for link in links]
    known = [speed for speed in speeds if speed is not None]
    return sum(known) if known and len(known) == len(speeds) else None


def _nvlinks(nvml: NvmlFacts) -> dict[tuple[int, int], NvLinks]:
    """Return bonded NVLinks of each pair: direct ones, or as many as both have to switches, which reach every GPU."""
    pairs = {}
    for a, b in combinations(nvml.gpus, 2):
        of_a, of_b = nvml.nvlinks[a.index], nvml.nvlinks[b.index]
        direct = [link for link in of_a if link.peer_bus_id is not None and link.peer_bus_id == b.bus_id]
        through_switches = min(([link for link in links if link.is_to_switch] for links in (of_a, of_b)), key=len)
        if bonded := direct or through_switches:
            pairs[a.index, b.index] = NvLinks(len(bonded), _speed_of_all(bonded))
    return pairs
