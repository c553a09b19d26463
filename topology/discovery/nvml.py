"""GPUs as NVIDIA's driver reports them through NVML: names, NVLinks and multi-node fabric.

NVML is loaded when `read_nvml` is called, and only then. A machine without the library, the driver or a GPU is normal:
`NvmlFacts.missing` says which it is. An attribute that a driver does not know is None.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from isthmus.topology import pcie
from isthmus.topology.machine import Fabric, Gpu, TopologyError, printable

#: One NVLink in one direction by its version, where the driver does not say: NVIDIA's data sheets.
_NVLINK_GBIT_S = {1: 160.0, 2: 200.0, 3: 200.0, 4: 200.0, 5: 400.0}
_MOST_GBIT_S = 10_000.0


@dataclass(frozen=True)
class NvLink:
    """An active NVLink of a GPU, to a switch, another GPU or a processor. peer_bus_id: None where it is not said."""

    is_to_switch: bool
    peer_bus_id: str | None
    speed_gbit_s: float | None


@dataclass(frozen=True)
class NvmlFacts:
    """Everything that was read. Indices and order of GPUs are nvidia-smi's; nvlinks: theirs, by index.

    missing: why there is nothing, in words; None where NVML answered.
    """

    gpus: tuple[Gpu, ...] = ()
    nvlinks: Mapping[int, tuple[NvLink, ...]] = field(default_factory=dict)
    driver: str | None = None
    missing: str | None = None
    notes: tuple[str, ...] = ()


def read_nvml(library: ModuleType | None = None) -> NvmlFacts:
    """Ask NVML; `library` stands in for pynvml. Never raises for what NVML does not have."""
    try:
        nvml: Any = library or import_module("pynvml")
        nvml.nvmlInit()
    except Exception as error:  # ImportError, or NVML's: pynvml makes its classes of errors when it is imported
        return NvmlFacts(missing=f"NVML: {error}")
    try:
        return _read_all(nvml)
    except AttributeError as error:
        return NvmlFacts(missing=f"NVML: this pynvml is too old: {error}")
    finally:
        _ask(nvml, "nvmlShutdown")


def _read_all(nvml: Any) -> NvmlFacts:
    gpus, nvlinks, notes = [], {}, []
    for index in range(_ask(nvml, "nvmlDeviceGetCount") or 0):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            notes.append(f"NVML: GPU {index} left out: {error}")
            continue
        bus_id = _bus_id(_ask(nvml, "nvmlDeviceGetPciInfo", handle))
        model = _text(_ask(nvml, "nvmlDeviceGetName", handle))
        gpus.append(Gpu(index, bus_id, model, fabric=_fabric(nvml, handle)))
        nvlinks[index] = _nvlinks(nvml, handle)
    driver = _text(_ask(nvml, "nvmlSystemGetDriverVersion"))
    return NvmlFacts(tuple(gpus), nvlinks, driver, notes=tuple(notes))


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """Return the answer; None if this GPU, driver or version of pynvml has none."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _text(value: str | bytes | None) -> str | None:
    """Return text: some versions of pynvml return bytes."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return None if text is None else printable(text)


def _bus_id(pci_info: Any) -> str | None:
    """Return the bus id as Linux writes it: "0000:07:00.0" for NVML's "00000000:07:00.0"; all ones: no device."""
    text = "" if pci_info is None else _text(pci_info.busId) or ""
    try:
        return None if text.lower().startswith("ffffffff") else pcie.bus_id(text)
    except TopologyError:
        return None


def _nvlinks(nvml: Any, handle: Any) -> tuple[NvLink, ...]:
    links = []
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        if _ask(nvml, "nvmlDeviceGetNvLinkState", handle, number) != nvml.NVML_FEATURE_ENABLED:
            continue  # not there, switched off, or beyond what this GPU has
        peer = _ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
        peer_bus_id = _bus_id(_ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, number))
        speed_gbit_s = _nvlink_gbit_s(nvml, handle, number)
        links.append(NvLink(peer == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, peer_bus_id, speed_gbit_s))
    return tuple(links)


def _nvlink_gbit_s(nvml: Any, handle: Any, number: int) -> float | None:
    speed = _ask(nvml, "nvmlDeviceGetFieldValues", handle, [(nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0)])
    if speed and speed[0].nvmlReturn == nvml.NVML_SUCCESS and 0 < speed[0].value.uiVal * 8 / 1000 <= _MOST_GBIT_S:
        return int(speed[0].value.uiVal) * 8 / 1000
    return _NVLINK_GBIT_S.get(_ask(nvml, "nvmlDeviceGetNvLinkVersion", handle, number))


def _fabric(nvml: Any, handle: Any) -> Fabric | None:
    """Return the multi-node NVLink domain that the GPU has joined; one node's NVSwitches have no cluster id."""
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    if _ask(nvml, "nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
        return None
    joined = info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == nvml.NVML_SUCCESS
    cluster = bytes(info.clusterUuid)
    return Fabric(str(uuid.UUID(bytes=cluster)), int(info.cliqueId)) if joined and any(cluster) else None
