"""How long tests wait: all limits, in one place, so that they follow the machine.

Most limits end a hang and nothing else: no work that goes on reaches them, however busy the machine is. A test whose
subject is a timeout has to wait until that is over: it takes `scaled` timeouts.
"""

import os

# A world of ranks, or a program. pytest's own limit (pyproject.toml) is three of these, as a test may run several.
HANG_S = 900.0
# A process group's operation: less, so that ranks that wait for each other say so before their world is ended.
OPERATION_S = 300.0
# A burst of load, as of a build that has just ended, would make each test of a timeout take minutes.
MOST_SLOWNESS = 4.0


def _slowness() -> float:
    # The children of a test run wait as long as the run itself.
    if "TEST_SLOWNESS" not in os.environ:
        processors = len(os.sched_getaffinity(0))
        os.environ["TEST_SLOWNESS"] = f"{min(max(1, os.getloadavg()[0] / processors), MOST_SLOWNESS):.1f}"
    return float(os.environ["TEST_SLOWNESS"])


# How many processes wanted each processor in the minute before the tests began; at least 1, at most MOST_SLOWNESS.
SLOWNESS = _slowness()


def scaled(seconds_alone: float) -> float:
    """Return what takes so long on an idle machine, on this one."""
    return seconds_alone * SLOWNESS
