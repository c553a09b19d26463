"""The PCIe tree of this machine, from what sysfs says of each function."""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.topology.discovery.sysfs import PciDevice
from isthmus.topology.machine import Gpu, Nic, PcieKind
from isthmus.topology.places import Place, fold_ports


class PcieTrees:
    """GPUs and NICs in their places.

    trees: one a host bridge, with the ports of each switch folded into it. loose: holds the devices that are not on
    the bus; it is no place of the machine.
    """

    def __init__(self, pci: Iterable[PciDevice], devices: Iterable[Gpu | Nic]) -> None:
        self._device_at = {device.bus_id: device for device in pci}
        self._host_bridges: dict[str, Place] = {}
        self._place_of: dict[str, Place] = {}
        self.loose = Place(PcieKind.HOST_BRIDGE)
        for device in devices:
            self._place(device).devices.append(device)
        self.trees = [self._host_bridges[name] for name in sorted(self._host_bridges)]
        for tree in self.trees:
            fold_ports(tree)

    def _place(self, device: Gpu | Nic) -> Place:
        """The place of a device, with all bridges above it. The functions of one network adapter share theirs."""
        on_bus = self._device_at.get(device.bus_id or "")
        if on_bus is None:
            return self.loose
        is_gpu = isinstance(device, Gpu)
        key = on_bus.bus_id if is_gpu else on_bus.adapter
        if key not in self._place_of:
            above = self._host_bridges.setdefault(on_bus.host_bridge or "", Place(PcieKind.HOST_BRIDGE))
            if above.numa_node is None:
                above.numa_node = on_bus.numa_node
            for bridge in on_bus.ancestors:
                above = self._bridge(bridge, above)
            kind = PcieKind.GPU if is_gpu else PcieKind.NIC
            self._place_of[key] = Place(kind, on_bus.bus_id, on_bus.link_gbit_s)
            above.children.append(self._place_of[key])
        return self._place_of[key]

    def _bridge(self, bus_id: str, above: Place) -> Place:
        if bus_id not in self._place_of:
            bridge = self._device_at.get(bus_id)
            self._place_of[bus_id] = Place(PcieKind.SWITCH, bus_id, bridge.link_gbit_s if bridge else None)
            above.children.append(self._place_of[bus_id])
        return self._place_of[bus_id]
