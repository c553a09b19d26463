"""How property tests run: on slow machines too, the same each time, and without leaving files."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

PROPERTY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
