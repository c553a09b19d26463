"""Made-up machines: trees like /sys and /proc in a folder, and an NVML that answers what a test wants."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from isthmus.topology.discovery.discover import discover
from isthmus.topology.discovery.nvml import NvmlFacts
from isthmus.topology.discovery.sysfs import Roots
from isthmus.topology.machine import Machine
from machines import checks

NVIDIA, MELLANOX, AMAZON = 0x10DE, 0x15B3, 0x1D0F
GPU, VGA, ETHERNET, INFINIBAND, BRIDGE, USB = 0x030200, 0x030000, 0x020000, 0x020700, 0x060400, 0x0C0330


class MadeUpMachine:
    """Writes the files that Linux would show. Attributes given as None are left out."""

    def __init__(self, folder: Path) -> None:
        self.roots = Roots(folder / "sys", folder / "proc")
        self._sys = self.roots.sys
        self._place: dict[str, Path] = {}
        self._write(self.roots.proc / "sys/kernel/hostname", "made-up")

    def processors(self, sockets: int, cpus_per_socket: int, model: str | None = "Some CPU") -> None:
        for cpu in range(sockets * cpus_per_socket):
            folder = self._sys / f"devices/system/cpu/cpu{cpu}"
            self._write(folder / "topology/physical_package_id", cpu // cpus_per_socket)
        if model is not None:
            self._write(self.roots.proc / "cpuinfo", f"processor\t: 0\nmodel name\t: {model}\n")

    def numa(self, *cpulists: str) -> None:
        for index, cpus in enumerate(cpulists):
            self._write(self._sys / f"devices/system/node/node{index}/cpulist", cpus)

    def pci(
        self,
        bus_id: str,
        class_code: int,
        above: str = "pci0000:00",
        vendor: int | None = MELLANOX,
        device: int | None = 0x101B,
        numa: int | None = None,
        speed: str | None = "16.0 GT/s PCIe",
        width: str | None = "16",
    ) -> Path:
        """A function below a host bridge ("pci0000:00") or a bridge's bus id; speed and width at their best."""
        parent = self._sys / "devices" / above if above.startswith("pci") else self._place[above]
        folder = parent / bus_id
        self._place[bus_id] = folder
        attributes = {
            "class": f"0x{class_code:06x}",
            "vendor": None if vendor is None else f"0x{vendor:04x}",
            "device": None if device is None else f"0x{device:04x}",
            "numa_node": numa,
            "max_link_speed": speed,
            "max_link_width": width,
            "current_link_speed": "2.5 GT/s PCIe",
            "current_link_width": "1",
        }
        for name, value in attributes.items():
            if value is not None:
                self._write(folder / name, value)
        self._link(self._sys / "bus/pci/devices" / bus_id, folder)
        return folder

    def switch(self, upstream: str, downstream: list[str], above: str, numa: int | None = None) -> None:
        """A PCIe switch: a bridge towards the root, and one towards each device."""
        self.pci(upstream, BRIDGE, above, numa=numa)
        for bus_id in downstream:
            self.pci(bus_id, BRIDGE, upstream, numa=numa)

    def gpu(self, bus_id: str, above: str, numa: int | None = None, **more: Any) -> None:
        self.pci(bus_id, GPU, above, vendor=NVIDIA, device=0x20B2, numa=numa, **more)

    def interface(
        self,
        name: str,
        on: str | None = None,
        speed: int | str | None = 100_000,
        kind: int = 1,
        state: str = "up",
        below: str = "",
        **attributes: Any,
    ) -> Path:
        """An interface of a PCI function, which is made if missing, or a virtual one; `below`: folders between."""
        parent = self._sys / "devices/virtual" if on is None else self._function(on, ETHERNET) / below
        folder = parent / "net" / name
        for attribute, value in {"speed": speed, "type": kind, "operstate": state, **attributes}.items():
            if value is not None:
                self._write(folder / attribute, value)
        self._link(self._sys / "class/net" / name, folder)
        return folder

    def verbs(
        self,
        name: str,
        on: str | None,
        layer: str | None = "InfiniBand",
        rate: str | None = "200 Gb/sec (4X HDR)",
        state: str = "4: ACTIVE",
        ports: int = 1,
        node_type: str = "1: CA",
    ) -> None:
        """A verbs device of a PCI function, or one made by software."""
        parent = self._sys / "devices/virtual" if on is None else self._function(on, INFINIBAND)
        folder = parent / "infiniband" / name
        self._write(folder / "node_type", node_type)
        for port in range(1, ports + 1):
            for attribute, value in {"link_layer": layer, "rate": rate, "state": state}.items():
                if value is not None:
                    self._write(folder / f"ports/{port}/{attribute}", value)
        self._link(self._sys / "class/infiniband" / name, folder)

    def _function(self, bus_id: str, class_code: int) -> Path:
        return self._place.get(bus_id) or self.pci(bus_id, class_code, f"pci{bus_id[:4]}:00")

    def virtual_function(self, bus_id: str, of: str, above: str) -> None:
        folder = self.pci(bus_id, ETHERNET, above)
        self._link(folder / "physfn", self._place[of])

    def _write(self, path: Path, value: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def _link(self, link: Path, target: Path) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def eight_gpu_node(folder: Path, layer: str = "InfiniBand") -> MadeUpMachine:
    """2 sockets, each with 2 host bridges, each with a switch that has 2 GPUs and 2 NICs; and a console's VGA.

    GPUs 0 and 1 hang below host bridge 00, 2 and 3 below 20, 4 and 5 below 40, 6 and 7 below 60.
    """
    machine = MadeUpMachine(folder)
    machine.processors(2, 4)
    machine.numa("0-3", "4-7")
    machine.pci("0000:00:1f.0", VGA, vendor=0x1A03, device=0x2000, speed=None)
    for quarter in range(4):
        bus = 0x20 * quarter
        root, numa = f"0000:{bus:02x}:01.0", quarter // 2
        machine.pci(root, BRIDGE, f"pci0000:{bus:02x}", numa=numa)
        ports = [f"0000:{bus + 2:02x}:{slot:02x}.0" for slot in range(4)]
        machine.switch(f"0000:{bus + 1:02x}:00.0", ports, root, numa)
        for half in range(2):
            number = 2 * quarter + half
            machine.gpu(f"0000:{bus + 3 + half:02x}:00.0", ports[half], numa)
            nic = f"0000:{bus + 5 + half:02x}:00.0"
            machine.pci(nic, INFINIBAND if layer == "InfiniBand" else ETHERNET, ports[2 + half], numa=numa)
            machine.verbs(f"mlx5_{number}", nic, layer)
            machine.interface(f"net{number}", nic, 200_000, 32 if layer == "InfiniBand" else 1)
    machine.interface("lo", speed=None, kind=772, state="unknown")
    return machine


@dataclass
class MadeUpGpu:
    """What NVML says of a GPU; None: it does not support that."""

    bus_id: str
    name: str = "NVIDIA A100-SXM4-80GB"
    #: Each link's peer ("gpu" or "switch"; or "off"), bus id.
    nvlinks: list[tuple[str, str]] = field(default_factory=list)
    nvlink_mbyte_s: int | None = 25_000
    nvlink_version: int | None = 3
    cluster: bytes = bytes(16)
    clique: int = 0
    fabric_state: int | None = None
    is_lost: bool = False


class MadeUpNvml:
    """Stands in for pynvml, with its names, constants and errors."""

    def __init__(self, *gpus: MadeUpGpu) -> None:
        self._gpus = gpus
        self.is_shut_down = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(pynvml, name)
        if name.startswith("nvml") and callable(value):
            raise AssertionError(f"{name}: not made up")
        return value

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.is_shut_down = True

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> MadeUpGpu:
        if self._gpus[index].is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return self._gpus[index]

    def nvmlDeviceGetPciInfo(self, gpu: MadeUpGpu) -> Any:
        return SimpleNamespace(busId=f"0000{gpu.bus_id}".upper())

    def nvmlDeviceGetName(self, gpu: MadeUpGpu) -> bytes:
        return gpu.name.encode()

    def nvmlDeviceGetNvLinkState(self, gpu: MadeUpGpu, link: int) -> int:
        if link >= len(gpu.nvlinks):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return pynvml.NVML_FEATURE_ENABLED if gpu.nvlinks[link][0] != "off" else pynvml.NVML_FEATURE_DISABLED

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: MadeUpGpu, link: int) -> Any:
        return SimpleNamespace(busId=gpu.nvlinks[link][1])

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: MadeUpGpu, link: int) -> int:
        return {
            "gpu": pynvml.NVML_NVLINK_DEVICE_TYPE_GPU,
            "switch": pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH,
        }[gpu.nvlinks[link][0]]

    def nvmlDeviceGetNvLinkVersion(self, gpu: MadeUpGpu, link: int) -> int:
        return _supported(gpu.nvlink_version)

    def nvmlDeviceGetFieldValues(self, gpu: MadeUpGpu, fields: list[tuple[int, int]]) -> list[Any]:
        assert fields == [(pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0)]
        code = pynvml.NVML_ERROR_NOT_SUPPORTED if gpu.nvlink_mbyte_s is None else pynvml.NVML_SUCCESS
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=gpu.nvlink_mbyte_s))]

    def nvmlDeviceGetGpuFabricInfoV(self, gpu: MadeUpGpu, reference: Any) -> int:
        info = reference._obj
        assert info.version == pynvml.nvmlGpuFabricInfo_v2
        info.state = _supported(gpu.fabric_state)
        info.clusterUuid = (ctypes.c_uint8 * 16)(*gpu.cluster)
        info.cliqueId = gpu.clique
        return pynvml.NVML_SUCCESS


def _supported(value: int | None) -> int:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


NO_NVML = NvmlFacts(missing="NVML: not asked")


def found(machine: MadeUpMachine, nvml: NvmlFacts = NO_NVML) -> Machine:
    """What discovery makes of it; every machine must hold together."""
    result = discover(machine.roots, lambda: nvml)
    checks.check(result)
    return result


def noted(machine: Machine, text: str) -> bool:
    return any(text in note for note in machine.notes)
