"""The head of all reports, and how they are written."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isthmus.benchmarks.common.machine import machine, versions


def report_head(**of_machine: Any) -> dict[str, Any]:
    """Schema, time, versions and machine. of_machine: further facts about it, such as its load before the run."""
    return {
        "schema": 1,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine() | of_machine,
    }


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write the report, and make its folder where that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
