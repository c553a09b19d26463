"""The PCIe tree of this machine, from what sysfs says of each function."""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.topology.discovery.sysfs import PciDevice
from isthmus.topology.draft import DraftGpu, DraftNic, DraftPlace, fold_ports
from isthmus.topology.machine import PcieKind


class PcieTrees:
    """GPUs and NICs in their places.

    trees: one a host bridge, with the ports of each switch folded into it. loose: holds the devices that are not on
    the bus; it is no place of the machine.
    """

    def __init__(self, pci: Iterable[PciDevice], gpus: Iterable[DraftGpu], nics: Iterable[DraftNic]) -> None:
        self._device_at = {device.bus_id: device for device in pci}
        self._host_bridges: dict[str, DraftPlace] = {}
        self._place_of: dict[str, DraftPlace] = {}
        self.loose = DraftPlace(PcieKind.HOST_BRIDGE)
        for gpu in gpus:
            self._place(gpu.bus_id, PcieKind.GPU).gpus.append(gpu)
        for nic in nics:
            self._place(nic.bus_id, PcieKind.NIC).nics.append(nic)
        self.trees = [self._host_bridges[name] for name in sorted(self._host_bridges)]
        for tree in self.trees:
            fold_ports(tree)

    def _place(self, bus_id: str | None, kind: PcieKind) -> DraftPlace:
        """The place of a device, with all bridges above it. The functions of one network adapter share theirs."""
        device = self._device_at.get(bus_id or "")
        if device is None:
            return self.loose
        key = device.adapter if kind is PcieKind.NIC else device.bus_id
        if key not in self._place_of:
            above = self._host_bridge(device)
            for bridge in device.ancestors:
                above = self._bridge(bridge, above)
            self._place_of[key] = DraftPlace(kind, device.bus_id, device.link_gbit_s)
            above.children.append(self._place_of[key])
        return self._place_of[key]

    def _host_bridge(self, device: PciDevice) -> DraftPlace:
        tree = self._host_bridges.setdefault(device.host_bridge or "", DraftPlace(PcieKind.HOST_BRIDGE))
        if tree.numa_node is None:
            tree.numa_node = device.numa_node
        return tree

    def _bridge(self, bus_id: str, above: DraftPlace) -> DraftPlace:
        if bus_id not in self._place_of:
            bridge = self._device_at.get(bus_id)
            self._place_of[bus_id] = DraftPlace(PcieKind.SWITCH, bus_id, bridge.link_gbit_s if bridge else None)
            above.children.append(self._place_of[bus_id])
        return self._place_of[bus_id]
