"""The machine that this process runs on, from what exists at run time.

- sysfs: processors, NUMA nodes, the PCIe tree with the best speed of each link, NICs. Always present.
- NVML: the GPUs, their names, their NVLinks and their multi-node fabric.

A source that is missing is normal, and named in `Machine.notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from isthmus.topology.discovery.nvml import NvmlFacts, read_nvml
from isthmus.topology.discovery.sysfs import Facts, PciDevice, Roots, read_facts
from isthmus.topology.discovery.sysfs_nics import find_nics
from isthmus.topology.machine import Gpu, Link, Machine, Nic, PcieKind, all_known
from isthmus.topology.pcie import gpu_model
from isthmus.topology.tree import UNNUMBERED, Place, link_devices, number_devices


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
    trees, loose = _place_devices(facts.pci, [*found_gpus, *found_nics])
    if len(facts.numa_nodes) == 1:
        for root in (*trees, loose):
            root.numa_node = facts.numa_nodes[0].index
    gpus = number_devices([*trees, loose], Gpu, notes)
    nics = number_devices([*trees, loose], Nic, notes)
    pcie = tuple(place for tree in trees if (place := tree.finish()))
    if not facts.pci:
        notes.append("sysfs shows no PCIe bus: distances are those between NUMA nodes")
    elif loose.devices:
        lost = sorted(loose.devices, key=lambda device: (isinstance(device, Nic), device.index))
        notes.append(f"not on the PCIe bus that sysfs shows: {', '.join(device.id for device in lost)}")
    return Machine(
        name=facts.host_name or "this machine",
        source="discovery",
        sockets=facts.sockets,
        numa_nodes=facts.numa_nodes,
        gpus=gpus,
        nics=nics,
        links=link_devices(gpus, nics, pcie, partial(_nvlinks, nvml), len(facts.numa_nodes)),
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


def _place_devices(pci: Iterable[PciDevice], devices: Iterable[Gpu | Nic]) -> tuple[list[Place], Place]:
    """Return a tree for each host bridge, and a place outside of them for devices that are not on the bus.

    The kernel lists a switch as a bridge towards the root with a bridge towards each device below it: it becomes one
    place. The port of the processor that a device or a switch is plugged into becomes none, unless several hang from
    it. The functions of one network adapter share a place.
    """
    on_bus = {device.bus_id: device for device in pci}
    host_bridges: dict[str, Place] = {}
    place_of: dict[str, Place] = {}
    loose = Place(PcieKind.HOST_BRIDGE)
    for device in devices:
        function = on_bus.get(device.bus_id or "")
        if function is None:
            loose.devices.append(device)
            continue
        is_gpu = isinstance(device, Gpu)
        key = function.bus_id if is_gpu else function.adapter
        if key not in place_of:
            above = host_bridges.setdefault(function.host_bridge or "", Place(PcieKind.HOST_BRIDGE))
            if above.numa_node is None:
                above.numa_node = function.numa_node
            for bridge in function.ancestors[:1] + function.ancestors[1::2]:
                if bridge not in place_of:
                    speed_gbit_s = on_bus[bridge].link_gbit_s if bridge in on_bus else None
                    place_of[bridge] = Place(PcieKind.SWITCH, bridge, speed_gbit_s)
                    above.children.append(place_of[bridge])
                above = place_of[bridge]
            place_of[key] = Place(PcieKind.GPU if is_gpu else PcieKind.NIC, function.bus_id, function.link_gbit_s)
            above.children.append(place_of[key])
        place_of[key].devices.append(device)
    trees = [host_bridges[name] for name in sorted(host_bridges)]
    for tree in trees:
        tree.children = [
            place for port in tree.children for place in (port.children if len(port.children) == 1 else [port])
        ]
    return trees, loose


def _nvlinks(nvml: NvmlFacts, a: Gpu, b: Gpu) -> Link | None:
    """Return bonded NVLinks of two GPUs: direct ones, or as many as both have to switches, which reach every GPU."""
    of_a, of_b = nvml.nvlinks.get(a.index, ()), nvml.nvlinks.get(b.index, ())
    direct = [link for link in of_a if link.peer_bus_id is not None and link.peer_bus_id == b.bus_id]
    bonded = direct or min(([link for link in links if link.is_to_switch] for links in (of_a, of_b)), key=len)
    if not bonded:
        return None
    return Link(a.id, b.id, f"NV{len(bonded)}", sum(all_known(link.speed_gbit_s for link in bonded)) or None)
