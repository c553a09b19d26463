"""PCIe's names and numbers: bus ids, link speeds, classes of devices."""

from __future__ import annotations

import re

from isthmus.topology.machine import NicKind, TopologyError

#: The fastest generation that is planned (7), and the widest link.
_MOST_GT_S, _MOST_LANES = 128.0, 32
_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_NVIDIA, _AMD, AMAZON = 0x10DE, 0x1002, 0x1D0F
#: By PCI device id, from the public list of PCI ids.
_NVIDIA_MODELS = {
    0x15F9: "Tesla P100-SXM2-16GB",
    0x1DB1: "Tesla V100-SXM2-16GB",
    0x1DB5: "Tesla V100-SXM2-32GB",
    0x1EB8: "Tesla T4",
    0x20B0: "NVIDIA A100-SXM4-40GB",
    0x20B2: "NVIDIA A100-SXM4-80GB",
    0x2237: "NVIDIA A10G",
    0x2330: "NVIDIA H100 80GB HBM3",
    0x2335: "NVIDIA H200",
    0x26B9: "NVIDIA L40S",
    0x27B8: "NVIDIA L4",
    0x2901: "NVIDIA B200",
    0x2941: "NVIDIA GB200",
}
#: What names of devices begin with.
_NAMES = {
    NicKind.ROCE: ("rocep", "bnxt_re"),
    NicKind.INFINIBAND: ("ibp",),
    NicKind.EFA: ("rdmap", "efa"),
    NicKind.ETHERNET: ("eth", "en"),
}


def bus_id(text: str) -> str:
    """The canonical form of a bus id: "0000:07:00.0". TopologyError: it is malformed."""
    match = _BUS_ID.fullmatch(text.strip())
    if not match:
        raise TopologyError(f"'{text[:40]}' is no PCI bus id: expected one like 0000:07:00.0")
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or 0}"


def link_speed_gbit_s(*ends: tuple[str, str]) -> float | None:
    """The speed of a link in one direction, which both ends support; if one end's is unknown, the other's.

    ends: speed and width, as sysfs and NCCL have them: "16.0 GT/s PCIe", "8 GT/s"; "16". Whatever is no such number,
    as "Unknown" and 255 lanes, is unknown. None: the link's is.
    """
    speeds = [value for speed, _ in ends if (value := _number(speed, _MOST_GT_S))]
    lanes = [value for _, width in ends if (value := _number(width, _MOST_LANES))]
    if not speeds or not lanes:
        return None
    gt_s = min(speeds)
    # 8b/10b encoding up to generation 2, 128b/130b up to 5, flow control units from 6 on.
    lane_gbit_s = gt_s * 8 / 10 if gt_s <= 5 else gt_s * 128 / 130 if gt_s < 64 else gt_s * 242 / 256
    return round(lane_gbit_s * min(lanes), 3)


def _number(text: str, most: float) -> float | None:
    match = _NUMBER.match(text)
    return float(match[0]) if match and float(match[0]) <= most else None


def is_gpu(class_code: int, vendor: int | None) -> bool:
    """Whether a device computes. class_code: 16 bits, such as 0x0302. Consoles of the board's controller do not."""
    if class_code >> 8 == 0x12:  # processing accelerator
        return vendor == _AMD
    return class_code >> 8 == 0x03 and (vendor in (_NVIDIA, _AMD) or (vendor is None and class_code != 0x0380))


def gpu_model(vendor: int | None, device: int | None) -> str | None:
    """The name of a GPU by its PCI ids; None: unknown."""
    return _NVIDIA_MODELS.get(device) if vendor == _NVIDIA and device is not None else None


def is_nic(class_code: int) -> bool:
    """Whether a device is a network controller."""
    return class_code >> 8 == 0x02


def nic_kind(class_code: int | None, vendor: int | None, name: str | None, speaks_verbs: bool) -> NicKind:
    """The protocol of a NIC, from its class, its maker, and the name of its device."""
    if vendor == AMAZON:
        return NicKind.EFA if speaks_verbs or name is None else NicKind.ETHERNET
    if class_code == 0x0207:
        return NicKind.INFINIBAND
    named = next((kind for kind, starts in _NAMES.items() if name and name.startswith(starts)), NicKind.UNKNOWN)
    if named is NicKind.UNKNOWN and class_code == 0x0200:
        return NicKind.ROCE if speaks_verbs else NicKind.ETHERNET
    return named
