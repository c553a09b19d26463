"""Made-up machines, which hwloc takes for this one: HWLOC_XMLFILE."""

from collections.abc import Sequence
from pathlib import Path

_SETS = 'cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1"'
_IDS = '[0000:0000] 00 00" pci_link_speed="31.5"'


def eight_gpus(path: Path, nics: Sequence[str], islands: Sequence[Sequence[int]] = (range(8),)) -> str:
    """Write the machine; return its path. GPU n is at 0000:0(n+1):00.0, as a fake one is.

    nics: names of the NICs beside them; an empty one: there is none. islands: GPUs that 12 NVLinks join.
    """
    ports = []
    for gpu, nic in enumerate(nics):
        inside = f"""<object type="PCIDev" pci_busid="0000:0{gpu + 1}:00.0" pci_type="0302 [10de:20b2] {_IDS}>
<object type="OSDev" gp_index="{100 + gpu}" name="nvml{gpu}" osdev_type="1"/></object>"""
        if nic:
            inside += f"""<object type="PCIDev" pci_busid="0000:1{gpu + 1}:00.0" pci_type="0207 [15b3:101b] {_IDS}>
<object type="OSDev" gp_index="{200 + gpu}" name="{nic}" osdev_type="3"/></object>"""
        ports.append(f"""<object type="Bridge" bridge_type="1-1" depth="1" bridge_pci="0000:[01-18]"
 pci_busid="0000:00:0{gpu + 1}.0" pci_type="0604 [1000:c010] {_IDS}>{inside}</object>""")
    together = [[300_000 * any(a in each and b in each for each in islands) for b in range(8)] for a in range(8)]
    values = "".join(f"{together[a][b] * (a != b)} " for a in range(8) for b in range(8))
    indexes = "".join(f"{100 + gpu} " for gpu in range(8))
    path.write_text(f"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" os_index="0" {_SETS} allowed_cpuset="0x1" allowed_nodeset="0x1">
<object type="NUMANode" os_index="0" {_SETS}/><object type="PU" os_index="0" {_SETS}/>
<object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-18]">{"".join(ports)}</object></object>
<distances2 type="OSDev" nbobjs="8" kind="9" name="NVLinkBandwidth" indexing="gp">
<indexes length="{len(indexes)}">{indexes}</indexes><u64values length="{len(values)}">{values}</u64values>
</distances2></topology>""")
    return str(path)
