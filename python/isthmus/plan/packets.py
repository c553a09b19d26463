"""The options that decide what crosses, and the sizes of packets, which the library knows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from isthmus.base import native


@dataclass(frozen=True)
class WireOptions:
    """The options of Isthmus that decide how many bytes cross, and how many stay as residuals; its defaults.

    Every unit is compressed (`units="*"`), and every reduction is recognised as a gradient's.
    """

    codec: str = "quant"
    tiers: str = "two"
    bits: int = 4
    sparsity: float = 0.9875
    ratio: float = 10.0
    segments: int = 0
    error_feedback: str = "codec"
    min_elements: int = 65536
    weights: str = "plain"
    #: With weights="delta": bits of each element of a shard that changed, the headers apart (docs/weights.md).
    weight_bits: float = 1.3

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "WireOptions":
        """Those of `isthmus.Options`, given by name. Options that an older report lacks have their defaults."""
        return cls(**{field.name: options[field.name] for field in fields(cls) if field.name in options})

    @property
    def is_flat(self) -> bool:
        """Whether reductions take a single tier."""
        return self.tiers == "flat"

    @property
    def sends_differences(self) -> bool:
        """Whether gathers of weights send what changed alone."""
        return self.weights == "delta"

    @property
    def keeps_residual(self) -> bool:
        """Whether the codec has error feedback."""
        return self.codec == "tagc" or (self.codec == "quant" and self.error_feedback == "on")


def piece_bytes(num_elements: int, element_bytes: int, codec: str, options: WireOptions) -> int:
    """All packets of a piece in a codec, with the rest of the options. element_bytes: of the tensor that is reduced."""
    return packet_bytes(num_elements, element_bytes, codec, options, options.segments)


def packet_bytes(num_elements: int, element_bytes: int, codec: str, options: WireOptions, segments: int = 1) -> int:
    """A single packet, as a result crosses in; with other `segments` those of a piece."""
    import torch

    # The type counts with codec none alone: it sends what the tensor has.
    dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[element_bytes] if codec == "none" else torch.float32
    num_bytes: int = native.load().packet_bytes(_library_options(codec, options, segments), num_elements, dtype)
    return num_bytes


def flat_bytes(num_elements: int, options: WireOptions) -> tuple[int, int]:
    """Index and sketch of one owner's chunk in a single tier."""
    index_bytes, sketch_bytes = native.load().flat_bytes(_library_options("tagc", options, 0), num_elements)
    return index_bytes, sketch_bytes


def weights_packet_bytes(num_elements: float, element_bytes: int, options: WireOptions) -> int:
    """What a shard of weights sends that changed; `weight_bits` are measured, so this is no bound."""
    return math.ceil(num_elements * min(options.weight_bits, 8 * element_bytes) / 8)


@lru_cache(maxsize=1024)
def _library_options(codec: str, options: WireOptions, segments: int) -> Any:
    shape = {name: getattr(options, name) for name in ("bits", "sparsity", "ratio")}
    return native.load().Options(codec=codec, segments=segments, **shape)
