"""What the reader makes of each recorded machine of topology/machines, as JSON in golden/.

Run it to write the files anew; look at the difference before it is committed.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

from isthmus.topology.formats.read import read_machine
from isthmus.topology.machine import Machine, farness, paths_to_devices

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MACHINES = ROOT / "topology" / "machines"
GOLDEN = HERE / "golden"


def recorded() -> list[Path]:
    """All recorded machines."""
    return sorted(path for path in MACHINES.iterdir() if path.suffix == ".xml")


def golden_of(path: Path) -> Path:
    """Where the golden output of a recorded machine lies."""
    return GOLDEN / f"{path.name.partition('.')[0]}.json"


def check(machine: Machine) -> None:
    """What holds of every machine: a link for each pair of devices, in order, and no other device in the PCIe tree."""
    assert [(link.a, link.b) for link in machine.links] == list(combinations(machine.device_ids, 2))
    assert set(paths_to_devices(machine.pcie)) <= set(machine.device_ids)
    for link in machine.links:
        assert machine.distance(link.b, link.a) == link.kind
        assert farness(link.kind) > 0
        assert link.speed_gbit_s is None or link.speed_gbit_s > 0


def as_text(machine: Machine) -> str:
    """JSON for eyes and diffs: a line for each device, link and place of the PCIe tree; what is unknown left out."""
    fields = [f"  {json.dumps(name)}: {_shown(name, value)}" for name, value in _known(machine.to_json()).items()]
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _known(item) for name, item in value.items() if item is not None and item != ()}
    return [_known(item) for item in value] if isinstance(value, list | tuple) else value


def _shown(name: str, value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    rows = [_tree(item, "    ") if name == "pcie" else "    " + json.dumps(item) for item in value]
    return "[\n" + ",\n".join(rows) + "\n  ]"


def _tree(place: dict[str, Any], indent: str) -> str:
    own = json.dumps({name: item for name, item in place.items() if name != "children"})
    if "children" not in place:
        return indent + own
    below = ",\n".join(_tree(child, indent + "  ") for child in place["children"])
    return f'{indent}{own[:-1]}, "children": [\n{below}]}}'


def main() -> None:
    """Write all golden files."""
    GOLDEN.mkdir(exist_ok=True)
    for path in recorded():
        golden_of(path).write_text(as_text(read_machine(path)))
        print(golden_of(path).relative_to(HERE))


if __name__ == "__main__":
    main()
