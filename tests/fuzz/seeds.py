"""What the fuzzers start from, written into a folder for each."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

MACHINES = Path(__file__).parents[2] / "topology/machines"

# Small files with what recorded machines do not have.
DIRECT_NVLINKS = """<system version="2"><cpu numaid="0">
<pci busid="0000:06:00.0" class="0x03"><gpu sm="70"><nvlink target="0000:07:00.0" count="1" tclass="0x030200"/>
<nvlink target="0004:04:00.0" count="3" tclass="0x068001"/></gpu></pci>
<pci busid="0000:07:00.0" class="0x03"><gpu sm="70"><nvlink target="0000:06:00.0" count="2"/></gpu></pci>
</cpu></system>"""
PCIE_SWITCH = """<system version="1">
<cpu numaid="0" affinity="00ffffff" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
<pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
<pci busid="0003:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
<pci busid="0103:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/></pci></cpu>
<cpu numaid="1"><pci busid="0001:00:00.0" class="0x030200" link_speed="Unknown" link_width=""/></cpu>
</system>"""
NVLINK_SWITCHES = """<system version="1">
<cpu host_hash="0x1" numaid="-1" arch="arm64">
<pci busid="0000:07:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:c7:00.0" count="6" tclass="0x068000"/>
<nvlink target="fffffff:ffff:ff" count="6"/></gpu></pci>
<pci busid="0000:0f:00.0" class="0x030200"><gpu dev="1" sm="80">
<nvlink target="0000:c7:00.0" count="12" tclass="0x068000"/><c2c bw="43125" count="8"/></gpu></pci>
<pci busid="0000:61:00.0" class="0x020000" vendor="0x15b3"><nic><net name="mlx5_4" dev="0" speed="200000"/>
<net name="mlx5_5" dev="1" speed="-1"/></nic></pci>
<nic><net name="eth0" dev="2" speed="10000"/></nic></cpu>
<cpu host_hash="0x2" numaid="0"/></system>"""
SMALLEST = '<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>'
_SETS = 'cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1"'
HWLOC = f"""<?xml version="1.0" encoding="UTF-8"?>
<topology version="2.0"><object type="Machine" os_index="0" {_SETS} allowed_cpuset="0x1" allowed_nodeset="0x1">
<object type="NUMANode" os_index="0" {_SETS}/><object type="PU" os_index="0" {_SETS}/>
<object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-02]">
<object type="Bridge" bridge_type="1-1" depth="1" bridge_pci="0000:[01-02]" pci_busid="0000:00:01.0"
 pci_type="0604 [1000:c010] [0000:0000] b0 00" pci_link_speed="31.507692">
<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0302 [10de:20b2] [0000:0000] 00 00" pci_link_speed="0.0">
<object type="OSDev" gp_index="11" name="nvml0" osdev_type="1"><info name="GPUModel" value="A100"/></object></object>
<object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0207 [15b3:101b] [0000:0000] 00 00">
<object type="OSDev" name="mlx5_0" osdev_type="3"><info name="Port1State" value="4"/></object></object>
</object></object></object>
<distances2 type="OSDev" nbobjs="2" kind="9" name="NVLinkBandwidth" indexing="gp"><indexes length="6">11 11 </indexes>
<u64values length="10">0 50000 50000 0 </u64values></distances2></topology>"""
MATRIX = """\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\t0-7\t0\tN/A
GPU1\tNV18\t X \tSYS\t8-15\t1\tN/A
NIC0\tPIX\tSYS\t X \n
NIC Legend:
  NIC0: mlx5_0
"""

# Values of options and node maps. Which field takes one is the fuzzer's choice: their number grows.
TEXTS = (
    *("2x4", "0,1|2,3|4,5|6,7", "0,2,4,6|1,3,5,7", "0|0", "1x", "-1", "", "tagc", "flat", "10.0", "64", "1e308"),
    *("0.9875", "nan", "4", "256", "100", "1024", "*,!*attn*", "backward", "65536", "99999999999999999999", "yes"),
    *("0", "1", "debug"),
)


def machines(folder: Path) -> None:
    """Recorded machines, and small files."""
    for number, text in enumerate((DIRECT_NVLINKS, PCIE_SWITCH, NVLINK_SWITCHES, SMALLEST, HWLOC, MATRIX)):
        (folder / f"{number:02}").write_text(text)
    for path in MACHINES.glob("*.*.*"):
        shutil.copy(path, folder)


def options(folder: Path) -> None:
    """A text, the number of ranks, and which field takes it, as LLVM's FuzzedDataProvider reads them."""
    for field, text in enumerate(TEXTS):
        (folder / f"{field:02}").write_bytes(text.encode() + bytes([7, field]))


def choices(folder: Path, target: str) -> None:
    """Choices and damage drawn at random: any input makes a packet."""
    drawn = random.Random(target)
    for number in range(60):
        (folder / f"{number:02}").write_bytes(drawn.randbytes(drawn.randrange(16, 100)))


def old_weights() -> dict[str, Any]:
    """Weights of three types."""
    import torch

    return {"a": torch.linspace(-1, 1, 40).bfloat16(), "b": torch.arange(5), "c": torch.linspace(0, 1, 20)}


def updates(folder: Path) -> None:
    """Updates of one tensor and of several, as they are and with checksums that are made to fit."""
    from isthmus.weights import encode

    old = old_weights()
    new = {name: tensor + 1 for name, tensor in old.items()}
    updates = [encode(old, new), encode(old["a"], new["a"]), encode(old, old)]
    updates += [encode({name: old[name]}, {name: new[name]}) for name in old]
    for number, update in enumerate(updates):
        for fits in (0, 1, 3):
            (folder / f"{number}-{fits}").write_bytes(bytes([fits]) + update)


SEEDS: dict[str, Callable[[Path], None]] = {
    **{"machines": machines, "options": options, "updates": updates},
    **{target: partial(choices, target=target) for target in ("quant", "tagc", "tagc_flat", "weights")},
}
