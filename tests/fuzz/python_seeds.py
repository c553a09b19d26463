"""What the fuzzers in Python start from: recorded machines and small ones with what these do not have; a checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

MACHINES = Path(__file__).parents[2] / "topology/machines"

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


def write_machines(folder: Path) -> None:
    """Recorded machines, and the small ones."""
    for number, text in enumerate((DIRECT_NVLINKS, PCIE_SWITCH, NVLINK_SWITCHES, SMALLEST)):
        (folder / f"{number:02}").write_text(text)
    for path in MACHINES.glob("*.xml"):
        shutil.copy(path, folder)


def write_checkpoints(folder: Path) -> None:
    """A checkpoint of one unit with a residual, as torch writes it."""
    import torch
    import torch.distributed.checkpoint as dcp

    unit = {"name": "a", "num_elements": 6, "dtype": "float32", "collective": "reduce_scatter", "layout": 0, "step": 2}
    unit |= {"scale": 0.5, "sections": [[0, 3]], "parked": [], "residual_elements": 3, "result_residual_elements": 0}
    unit |= {"parked_values_elements": 0, "is_owned": False}
    group = {"ranks": [0], "node_of_rank": [0], "options": {}, "units": [unit]}
    text = json.dumps({"version": 2, "groups": [group]})
    with TemporaryDirectory() as name:
        state = {"rank0": text, "rank0/0/0/residual": torch.ones(3)}
        dcp.save({"isthmus": state}, checkpoint_id=name, no_dist=True)
        metadata = (Path(name) / ".metadata").read_bytes()
        data = (Path(name) / "__0_0.distcp").read_bytes()
    (folder / "saved").write_bytes(len(metadata).to_bytes(2, "little") + metadata + data)


SEEDS: dict[str, Callable[[Path], None]] = {"checkpoint": write_checkpoints, "machine_file": write_machines}


def write(folder: Path, target: str) -> None:
    """Write the seeds of a target into a folder."""
    SEEDS[target](folder)
