"""The calls of each step of the soak: random, but the same on every rank and in every run with the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Whole numbers to this size: sums over MOST_RANKS ranks are exact in every type, in any order.
LARGEST_VALUE = 4
#: Groups have at most so many ranks, and tensors sizes that all these numbers divide.
MOST_RANKS = 10
NUM_ELEMENTS = (5040, 10 * 2520, 34 * 2520)
#: Below are the plain tensors.
MIN_ELEMENTS = 20_000
MOST_CALLS = 4

_FLOATS = ("float32", "bfloat16", "float16")
_OTHERS = ("float64", "int64", "uint8")

#: Exact ones: the world backend's, or of two tiers and exact; and what they may be called with.
_EXACT_KINDS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_list",
    "reduce_scatter",
    "all_to_all",
    "send_receive",
    "barrier",
)
_GRADIENT_KINDS = ("gradient_reduce_scatter", "gradient_all_reduce")
#: As FSDP2 gathers a unit's parameters.
_WEIGHTS_KIND = "gather_weights"
#: Groups by name. Gradients only go through those that span nodes evenly.
GROUPS = ("default", "tagc", "plain", "rails", "nodes", "all but the last", "all but the first")
_GRADIENT_GROUPS = ("default", "tagc", "plain", "rails")
#: The options of those of them that compress. Nothing is set for the default codec; the others keep residuals.
LOSSY_GROUPS: dict[str, dict[str, str]] = {
    "default": {},
    "tagc": {"codec": "tagc", "ratio": "4.0", "sparsity": "0.9", "weights": "delta", "replica_interval": "4"},
    "rails": {"codec": "tagc", "ratio": "0", "cell_type": "int8", "sparsity": "0.9", "weights": "delta"},
}


@dataclass(frozen=True)
class Call:
    """One collective of a step."""

    kind: str
    group: str
    dtype: str
    num_elements: int
    operator: str  # sum, avg, max, min; what does not reduce ignores it
    root: int  # rank in the group
    asynchronous: bool

    @property
    def unit(self) -> str:
        """The unit whose gradient this is: of one shape, type and scale."""
        return f"soak.{self.kind}.{self.group}.{self.dtype}.{self.num_elements}.{self.operator}"

    @property
    def is_gradient(self) -> bool:
        """Whether it is labelled as the reduction of a gradient."""
        return self.kind in _GRADIENT_KINDS

    @property
    def is_compressed(self) -> bool:
        """Whether it goes through a lossy codec."""
        return self.is_gradient and self.group in LOSSY_GROUPS and self.num_elements >= MIN_ELEMENTS

    @property
    def is_of_weights(self) -> bool:
        """Whether it gathers a unit's parameters."""
        return self.kind == _WEIGHTS_KIND

    @property
    def sends_differences(self) -> bool:
        """Whether it sends what changed of the parameters alone."""
        options = LOSSY_GROUPS.get(self.group, {})
        return self.is_of_weights and options.get("weights") == "delta" and self.num_elements >= MIN_ELEMENTS

    @property
    def keeps_residual(self) -> bool:
        """Whether the codec keeps what it does not send."""
        return self.is_compressed and self.group != "default"

    def __str__(self) -> str:
        how = "asynchronous" if self.asynchronous else "synchronous"
        return f"{self.kind} ({self.operator}) of {self.num_elements} x {self.dtype} in group '{self.group}', {how}"


def calls_of_step(seed: int, step: int, smallest_group: int) -> list[Call]:
    """Return the calls of one step, at most one for each unit. Roots are in 0 ... smallest_group - 1."""
    choose = random.Random(f"{seed}/{step}")
    calls: dict[str, Call] = {}
    for _ in range(choose.randint(1, MOST_CALLS)):
        place = choose.random()
        make = _gradient if place < 0.4 else _weights if place < 0.55 else None
        call = make(choose) if make else _exact(choose, smallest_group)
        calls.setdefault(call.unit, call)
    return list(calls.values())


def _gradient(choose: random.Random) -> Call:
    return Call(
        kind=choose.choice(_GRADIENT_KINDS),
        group=choose.choice(_GRADIENT_GROUPS),
        dtype=choose.choice(_FLOATS[:2]),
        num_elements=choose.choice(NUM_ELEMENTS),
        operator=choose.choice(("sum", "avg")),
        root=0,
        asynchronous=choose.random() < 0.5,
    )


def _weights(choose: random.Random) -> Call:
    return Call(
        kind=_WEIGHTS_KIND,
        group=choose.choice(_GRADIENT_GROUPS),
        dtype=choose.choice((*_FLOATS, "float64")),
        num_elements=choose.choice(NUM_ELEMENTS),
        operator="sum",
        root=0,
        asynchronous=choose.random() < 0.5,
    )


def _exact(choose: random.Random, smallest_group: int) -> Call:
    kind = choose.choice(_EXACT_KINDS)
    dtype = choose.choice(_FLOATS + _OTHERS)
    operators = ("sum", "max", "min") if kind in ("all_reduce", "reduce") else ("sum",)
    return Call(
        kind=kind,
        group=choose.choice(GROUPS),
        dtype=dtype,
        num_elements=choose.choice(NUM_ELEMENTS),
        operator=choose.choice((*operators, "avg") if kind == "all_reduce" and dtype in _FLOATS else operators),
        root=choose.randrange(smallest_group),
        asynchronous=choose.random() < 0.5,
    )
