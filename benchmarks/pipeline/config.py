"""Arguments of `isthmus bench pipeline`."""

from dataclasses import dataclass
from typing import Any

from isthmus.benchmarks.common.options import check_ranges, option, parse_bytes
from isthmus.benchmarks.simulate import parse_link_rate

CODECS: dict[str, dict[str, Any]] = {
    "none": {"codec": "none"},
    "quant 8": {"codec": "quant", "bits": 8},
    "quant 4": {"codec": "quant", "bits": 4},
    "quant 2": {"codec": "quant", "bits": 2},
    "sparse": {"codec": "sparse"},
    "tagc": {"codec": "tagc"},
}


@dataclass(frozen=True)
class PipelineConfig:
    """Arguments of `isthmus bench pipeline`. Raises ValueError naming field, value and range."""

    links: tuple[str, ...] = option(
        ("200mbit", "1gbit"), "Rate of each node's link; repeatable.", name="link", is_repeatable=True
    )
    codecs: tuple[str, ...] = option(
        tuple(CODECS), "Which codecs, comma-separated.", show_default="none, quant, sparse and tagc"
    )
    num_bytes: int = option(
        1 << 25, "Size of the float32 gradient.", name="bytes", default_text="32M", parse=parse_bytes
    )
    rounds: int = option(7, "Timed calls of each.")
    timeout_s: int = option(120, "Seconds that a collective may take.", name="timeout")

    def __post_init__(self) -> None:
        for link in self.links:
            parse_link_rate(link)
        for codec in self.codecs:
            if codec not in CODECS:
                raise ValueError(f"codec '{codec}': expected some of {', '.join(CODECS)}")
        check_ranges(self, {"num_bytes": (1 << 16, 1 << 32), "rounds": (1, 1000), "timeout_s": (5, 86_400)})
