"""hwloc's description of this machine: its XML, from the library loaded at run time.

Nothing links against hwloc: a machine without it is normal. Its XML goes through the same parser as a recorded file's.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_LIBRARY = "libhwloc.so.15"  # hwloc 2.x: one binary interface since 2.0
_KEEP_ALL = 0  # HWLOC_TYPE_FILTER_KEEP_ALL


@dataclass(frozen=True)
class HwlocFacts:
    """xml: what hwloc exports; None where it is not available. missing: why, in words. version: such as "2.8"."""

    xml: bytes | None = None
    version: str | None = None
    missing: str | None = None


def read_hwloc(library: str = _LIBRARY) -> HwlocFacts:
    """Ask hwloc for everything it finds, I/O devices included. Never raises for what is missing."""
    try:
        hwloc = ctypes.CDLL(library)
    except OSError:
        return HwlocFacts(missing=f"hwloc: {library} is not installed")
    version = _version(hwloc)
    topology = ctypes.c_void_p()
    if hwloc.hwloc_topology_init(ctypes.byref(topology)) != 0:
        return HwlocFacts(version=version, missing="hwloc: no topology could be made")
    try:
        hwloc.hwloc_topology_set_io_types_filter(topology, _KEEP_ALL)
        if hwloc.hwloc_topology_load(topology) != 0:
            return HwlocFacts(version=version, missing="hwloc: the topology could not be read")
        xml = _export(hwloc, topology)
    finally:
        hwloc.hwloc_topology_destroy(topology)
    if xml is None:
        return HwlocFacts(version=version, missing="hwloc: the topology could not be written as XML")
    return HwlocFacts(xml, version)


def hwloc_version(library: str = _LIBRARY) -> str | None:
    """Return the version of the library, without reading the machine; None: it is not installed."""
    try:
        return _version(ctypes.CDLL(library))
    except OSError:
        return None


def _version(hwloc: ctypes.CDLL) -> str:
    number = int(hwloc.hwloc_get_api_version())  # 0x00020800 for 2.8
    return f"{number >> 16}.{number >> 8 & 0xFF}"


def _export(hwloc: ctypes.CDLL, topology: ctypes.c_void_p) -> bytes | None:
    buffer = ctypes.c_char_p()
    length = ctypes.c_int()
    if hwloc.hwloc_topology_export_xmlbuffer(topology, ctypes.byref(buffer), ctypes.byref(length), ctypes.c_ulong(0)):
        return None
    try:
        return buffer.value
    finally:
        hwloc.hwloc_free_xmlbuffer(topology, buffer)
