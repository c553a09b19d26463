"""What programs say of their checks: a line of JSON each, among whatever else they print.

{"check": "tagc, 1025 elements", "result": "ok", "seconds": 0.2, "detail": "", "figures": {"GB/s": 1234.5}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

OK = "ok"
FAILED = "failed"
NOT_RUN = "not run"
RESULTS = (OK, FAILED, NOT_RUN)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. detail: why it failed or was not run. figures: what was measured."""

    check: str
    result: str
    seconds: float = 0
    detail: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the line that `parse` reads."""
        return json.dumps(asdict(self))


def parse(line: str) -> Check | None:
    """Return the check that a line tells of; None if it is any other line."""
    if not line.startswith('{"check":'):
        return None
    try:
        values = json.loads(line)
        check = Check(**values)
    except (json.JSONDecodeError, TypeError):
        return Check(check="a record", result=FAILED, detail=f"not a record of a check: {line.strip()[:200]}")
    if check.result not in RESULTS:
        return Check(check=str(check.check), result=FAILED, detail=f"result {check.result!r} is none of {RESULTS}")
    return check
