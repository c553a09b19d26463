"""The arms of `isthmus bench convergence`: every way to reduce gradients that is compared, in one table."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

#: The arm that all others are compared with.
BASELINE = "exact"
#: The arm that sends nothing between nodes: a codec that loses as much is none.
FLOOR = "nothing-sent"
#: The share of the steps in which the arms with a dense start stay exact.
_DENSE_SHARE = 0.1
#: Options that are gone, with the value that counts now: results that were recorded with it are still of an arm.
SETTLED = {
    "block_elements": 0,
    "group_elements": 128,
    "own_piece": "exact",
    "peel_rounds": 64,
    "ramp_steps": 0,
    "rotate": True,
    "rounding": "nearest",
    "scale": "unbiased",
    "scale_type": "bf16",
}
#: Names that arms had in such results, when `quant-4` had another scale.
RENAMED = {f"quant-{bits}-unbiased": f"quant-{bits}" for bits in (4, 2, 1)}


@dataclass(frozen=True)
class CodecArm:
    """One way to reduce gradients. options: of Isthmus, with every one that its codec reads, whatever its default."""

    name: str
    options: dict[str, Any] = field(hash=False)
    #: The flat paths merge what all ranks send, so they need more than one rank on each node to show what they cost.
    ranks_per_node: int = 1
    #: The share of the steps that are exact.
    dense_share: float = 0.0
    #: No codec, but what other nodes' pieces got in an earlier version's screening: normal noise "spread" over a group
    #: or "alike", in proportion to each element, or all "dropped".
    noise: str = ""

    def options_for(self, num_steps: int) -> dict[str, Any]:
        """Options of a run of so many steps."""
        return _COMMON | self.options | {"dense_steps": round(self.dense_share * num_steps)}


_COMMON = {"units": "*", "min_elements": 0, "error_interval": 20}


def _tagc(name: str, sparsity: float, ratio: float, cell_type: str = "fp32", **more: Any) -> dict[str, Any]:
    codec = {"codec": "tagc", "sparsity": sparsity, "ratio": ratio, "cell_type": cell_type, "tiers": "two"}
    return {"name": f"tagc-{name}", "options": codec | more}


def _quant(bits: int, error_feedback: bool = False) -> dict[str, Any]:
    name = f"quant-{bits}" + ("-fb" if error_feedback else "")
    feedback = "on" if error_feedback else "off"
    return {"name": name, "options": {"codec": "quant", "tiers": "two", "bits": bits, "error_feedback": feedback}}


def _named(suffix: str, arm: dict[str, Any], **more: Any) -> CodecArm:
    return CodecArm(**(arm | {"name": f"{arm['name']}-{suffix}"} | more))


def _flat(arm: dict[str, Any]) -> CodecArm:
    options = arm["options"] | {"tiers": "flat", "index_bits": 1}
    return _named("flat", arm | {"options": options}, ranks_per_node=2)


def _dense(arm: dict[str, Any]) -> CodecArm:
    return _named("dense", arm, dense_share=_DENSE_SHARE)


def _all_arms() -> Iterable[CodecArm]:
    exact = {"codec": "none", "tiers": "two"}
    yield CodecArm(BASELINE, exact)
    # The control: so near to exact that its interval shows how far two runs drift apart by themselves.
    yield CodecArm(**_quant(8))
    for bits in (4, 3, 2, 1):
        yield CodecArm(**_quant(bits))
    # The paper's own settings, in two tiers and in its single one.
    paper = [_tagc("10x", 0.9875, 10), _tagc("4x", 0.90, 4), _tagc("2x", 0.80, 2)]
    for arm in paper:
        yield CodecArm(**arm)
        yield _flat(arm)
    for bits in (8, 4, 3, 2, 1):
        yield CodecArm(**_quant(bits, error_feedback=True))
    for arm in (_quant(2), _quant(1), _tagc("10x", 0.9875, 10)):
        yield _dense(arm)
    # What is kept back by a ratio, or not; and what sketch cells hold.
    for cell_type in ("bf16", "fp16", "int8"):
        yield CodecArm(**_tagc(f"10x-{cell_type}", 0.9875, 10, cell_type))
    for cell_type in ("fp32", "bf16", "int8"):
        yield CodecArm(**_tagc(f"lossless-{cell_type}", 0.9875, 0, cell_type))
    # Why a codec costs what it costs: the same relative squared error, on other elements.
    for noise in ("spread", "alike"):
        yield CodecArm(f"noise-{noise}", exact, noise=noise)
    yield CodecArm(FLOOR, exact, noise="dropped")


ARMS: dict[str, CodecArm] = {arm.name: arm for arm in _all_arms()}

#: What is trained on the real backend, beside the baseline, unless something else is asked for.
FINALISTS = ("quant-4", "quant-3", "quant-2", "quant-1", "tagc-10x")
