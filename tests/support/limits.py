"""How long tests wait: all limits, in one place, so that they follow the machine.

Most limits end a hang and nothing else: no work that goes on reaches them, however busy the machine is. A test whose
subject is a timeout has to wait until that is over: it takes `scaled` timeouts.
"""

import os

# A world of ranks, or a program. pytest's own limit (pyproject.toml) is three of these, as a test may run several.
HANG_S = 900.0
# The others of a world in which a rank has failed: that ends the test, and what they do is told for a minute or two.
AFTER_FAILURE_S = 120.0
# A process group's operation: less, so that ranks that wait for each other say so before their world is ended.
OPERATION_S = 300.0
# A burst of load, as of a build that has just ended, would make each test of a timeout take minutes.
MOST_SLOWNESS = 4.0


def _load() -> float:
    """Return how many processes wanted each processor in the last minute: 1 to MOST_SLOWNESS."""
    return min(max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))), MOST_SLOWNESS)


def _slowness() -> float:
    # The children of a test run wait as long as the run itself.
    return float(os.environ.setdefault("TEST_SLOWNESS", f"{_load():.1f}"))


# The load before the tests began.
SLOWNESS = _slowness()


def scaled(seconds_alone: float) -> float:
    """Return what takes so long on an idle machine, on this one."""
    return seconds_alone * SLOWNESS


def longest(seconds_alone: float) -> float:
    """Return how long that may have taken at most, now that it is over: the load may have come with the tests."""
    return seconds_alone * max(SLOWNESS, _load())
