"""The arms of `python -m isthmus.benchmarks.convergence`: ways to reduce gradients, in one table."""

from dataclasses import dataclass, field
from typing import Any

#: The arm that all others are compared with.
BASELINE = "exact"
_COMMON = {"units": "*", "min_elements": 0, "error_interval": 20}


@dataclass(frozen=True)
class CodecArm:
    """One way to reduce gradients. options: of Isthmus, with those that its codec reads, whatever their defaults."""

    name: str
    options: dict[str, Any] = field(hash=False)
    #: The single tier merges what all ranks send, so it needs more than one rank on each node to show what it costs.
    ranks_per_node: int = 1
    #: "fsdp"; "hsdp" and "ddp": each node has all weights; "diloco": and trains by itself.
    layout: str = "fsdp"
    #: DiLoCo's steps between two means of pseudo-gradients.
    local_steps: int = 0


def _quant(bits: int) -> dict[str, Any]:
    return {"codec": "quant", "tiers": "two", "bits": bits, "error_feedback": "off"}


def _tagc(sparsity: float, ratio: float, **more: Any) -> dict[str, Any]:
    return {"codec": "tagc", "tiers": "two", "sparsity": sparsity, "ratio": ratio} | more


_OPTIONS: dict[str, dict[str, Any]] = {
    BASELINE: {"codec": "none", "tiers": "two"},
    # 8 bits are the control: their interval shows what a codec does to a trajectory whose error is next to nothing.
    **{f"quant-{bits}": _quant(bits) for bits in (8, 6, 5, 4, 3, 2, 1)},
    **{f"quant-{bits}-fb": _quant(bits) | {"error_feedback": "on"} for bits in (4, 3, 2, 1)},
    "full": _quant(4) | {"weights": "delta"},
    # The settings of tagc's paper, in two tiers and in its single one.
    "tagc-10x": _tagc(0.9875, 10),
    "tagc-4x": _tagc(0.90, 4),
    "tagc-2x": _tagc(0.80, 2),
    "tagc-10x-flat": _tagc(0.9875, 10, tiers="flat"),
}
ARMS = {
    name: CodecArm(name, _COMMON | options, 2 if options["tiers"] == "flat" else 1)
    for name, options in _OPTIONS.items()
}
# HSDP and DDP with one rank on each node: their all-reduces code each sum and each result.
ARMS |= {
    f"{layout}-{name}": CodecArm(f"{layout}-{name}", _COMMON | options, layout=layout)
    for layout in ("hsdp", "ddp")
    for name, options in _OPTIONS.items()
    if name.startswith("quant")
}
# DiLoCo with what the reductions of these arms do: diloco-10 is exact, diloco-10-2-fb has 2 bits and error feedback.
ARMS |= {
    f"diloco-{steps}{suffix}": CodecArm(f"diloco-{steps}{suffix}", _COMMON | options, 1, "diloco", steps)
    for steps in (10, 50)
    for suffix, options in {
        "": _OPTIONS[BASELINE],
        **{f"-{bits}": _quant(bits) for bits in (8, 4, 2, 1)},
        **{f"-{bits}-fb": _quant(bits) | {"error_feedback": "on"} for bits in (8, 4, 2, 1)},
    }.items()
}

# Two ranks on each node, whose sum is coded.
ARMS["quant-4-2x2"] = CodecArm("quant-4-2x2", _COMMON | _quant(4), ranks_per_node=2)

#: What is trained beside the baseline, unless something else is asked for.
FINALISTS = ("quant-4", "quant-3", "quant-2", "quant-1", "tagc-10x")
