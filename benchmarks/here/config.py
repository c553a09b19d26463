"""What benchmarks that have --here share of their arguments."""

from typing import Any

from isthmus.benchmarks.common.options import option
from isthmus.benchmarks.here.cluster import DEVICES

#: The ranges of nodes, and of ranks on each, that a launcher may start.
RANGES = {"nodes": (2, 65_536), "ranks_per_node": (1, 4096)}


def here_option() -> Any:
    """The field `here`: ranks are a launcher's, and nothing is simulated."""
    return option(False, "On the ranks that a launcher started, over the links that are there: nothing is simulated.")


def device_option() -> Any:
    """The field `device`."""
    return option("auto", "With --here: cpu or cuda.", only="here", show_default="cuda where ranks have GPUs, else cpu")


def check_device(device: str) -> None:
    """Raise ValueError naming the device and what it may be."""
    if device not in DEVICES:
        raise ValueError(f"device '{device}': expected one of {', '.join(DEVICES)}")
