"""Ways to train: where tensors are placed, and what carries and compresses the collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isthmus.plan.packets import WireOptions
from isthmus.plan.placement import DDP, FSDP, FSDP_NODE, HSDP, Placements, Scope
from isthmus.plan.ranges import check_names
from isthmus.plan.volumes import Formula, IsthmusFormula, Kind, RingFormula
from isthmus.report.advice import MUON_BITS

if TYPE_CHECKING:
    from isthmus.plan.units import Unit  # which needs torch


@dataclass(frozen=True)
class Strategy:
    """A way to train. wire: options of Isthmus; None: an ordinary backend alone carries everything.

    defers: gradients are reduced between nodes in the last micro-batch of a step, not in each.
    """

    name: str
    description: str
    placements: Placements
    wire: WireOptions | None = None
    defers: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it does without Isthmus."""
        return self.wire is None

    @property
    def codec(self) -> str:
        """Of Isthmus; "none" of plain strategies."""
        return "none" if self.wire is None else self.wire.codec

    @property
    def is_compressed(self) -> bool:
        """Whether it loses something."""
        return self.codec != "none"

    @property
    def is_ddp(self) -> bool:
        """Whether weights, gradients and optimizer states are whole on every rank."""
        return self.placements == DDP

    @property
    def hybrid_sharded(self) -> bool:
        """Whether weights and gradients are sharded within a node and replicated across nodes."""
        return self.placements == HSDP

    @property
    def keeps_on_node(self) -> bool:
        """Whether each node keeps its own copy of the weights between the forward and the backward pass."""
        return self.placements == FSDP_NODE

    @property
    def reduction(self) -> Kind:
        """The collective that reduces between nodes."""
        return Kind.REDUCE_SCATTER if self.placements.parameters is Scope.WORLD else Kind.ALL_REDUCE

    @property
    def options(self) -> dict[str, str] | None:
        """The backend's options that make it this strategy; None of plain ones."""
        if self.wire is None:
            return None
        bits = {"bits": str(self.wire.bits)} if self.wire.codec == "quant" else {}
        weights = {"weights": self.wire.weights} if self.wire.sends_differences else {}
        return {"codec": self.wire.codec, **bits, "tiers": self.wire.tiers, **weights, "units": "*"}

    def formula(self, world: RingFormula) -> Formula:
        """Bytes of its collectives, where `world` is the ordinary backend."""
        return world if self.wire is None else IsthmusFormula(self.wire, world)

    def placements_of(self, unit: Unit) -> Placements:
        """How a unit's tensors are placed. FSDP2 keeps the root gathered until its backward pass."""
        placements = self.placements
        stays = unit.is_root and placements.kept is placements.parameters
        return replace(placements, kept=Scope.RANK) if stays else placements


_NONE = WireOptions(codec="none")
_TAGC = WireOptions(codec="tagc")
_FLAT_TAGC = replace(_TAGC, tiers="flat")
_QUANT = WireOptions()
_FULL = replace(_QUANT, weights="delta")

_NAMED = (
    Strategy("ddp", "weights, gradients and optimizer states on every rank", DDP),
    Strategy("fsdp", "FSDP2, sharded over all ranks", FSDP),
    Strategy("fsdp-node", "as fsdp, keeping weights on each node from the forward to the backward pass", FSDP_NODE),
    Strategy("hsdp", "FSDP2, sharded in the node, replicated across nodes", HSDP),
    Strategy("none", "as fsdp, on Isthmus: two tiers, exact", FSDP, _NONE),
    Strategy("flat-tagc", "as fsdp, on Isthmus: TAGC over all ranks in one tier, as in the paper", FSDP, _FLAT_TAGC),
    Strategy("tagc", "as fsdp, on Isthmus: two tiers, TAGC between nodes only", FSDP, _TAGC),
    Strategy("tagc-node", "as fsdp-node, on Isthmus: two tiers, TAGC between nodes only", FSDP_NODE, _TAGC),
    Strategy("quant", "as fsdp, on Isthmus: two tiers, rotated 4-bit codes between nodes", FSDP, _QUANT),
    Strategy("quant-node", "as fsdp-node, on Isthmus: two tiers, rotated 4-bit codes between nodes", FSDP_NODE, _QUANT),
    Strategy("full", "as quant, and weights between nodes as bit-exact differences", FSDP, _FULL),
    Strategy("hsdp-none", "as hsdp, on Isthmus, exact", HSDP, _NONE),
    Strategy("hsdp-tagc", "as hsdp, on Isthmus: TAGC in the all-reduce between nodes", HSDP, _TAGC),
    Strategy("hsdp-quant", "as hsdp, on Isthmus: rotated 4-bit codes between nodes", HSDP, _QUANT),
)
# Not compared unless they are asked for.
_ON_REQUEST = (Strategy("ddp-quant", "as ddp, on Isthmus: rotated 4-bit codes between nodes", DDP, _QUANT),)
#: What codec quant has beside its default of 4 bits.
_OTHER_BITS = (8, 7, 6, 5, 3, 2, 1)


def _every_strategy() -> Iterator[Strategy]:
    """Those named, each before the same with codec quant at its other widths: "quant3" for "quant"."""
    for strategy in (*_NAMED, *_ON_REQUEST):
        yield strategy
        if strategy.wire is not None and strategy.codec == "quant":
            for bits in _OTHER_BITS:
                text = f"as {strategy.name}, with {bits} bit{'s' * (bits > 1)}"
                wire = replace(strategy.wire, bits=bits)
                yield replace(strategy, name=f"{strategy.name}{bits}", description=text, wire=wire)


def _deferred(strategy: Strategy) -> Strategy:
    text = f"as {strategy.name}, reduced between nodes in the last micro-batch alone"
    return replace(strategy, name=f"{strategy.name}-last", description=text, defers=True)


_EACH = list(_every_strategy())
#: Each strategy by its name; last those that defer reductions.
STRATEGIES = {strategy.name: strategy for strategy in [*_EACH, *map(_deferred, _EACH)]}
#: What takes the place of strategies that have the default of bits.
_UNDER_MUON = {
    name: f"{name.removesuffix('-last')}{MUON_BITS}{'-last' * each.defers}"
    for name, each in STRATEGIES.items()
    if each.wire and (each.wire.codec, each.wire.bits) == (_QUANT.codec, _QUANT.bits)
}
DEFAULT_STRATEGIES = tuple(strategy.name for strategy in _NAMED)
#: The same where a step has several micro-batches: what one has to choose from, both ways.
ACCUMULATING = tuple(
    f"{name}{last}" for name in ("fsdp", "fsdp-node", "hsdp", "quant", "full", "hsdp-quant") for last in ("", "-last")
)
#: A pipeline over the link between nodes, as `PipelinePlan` has it.
PIPELINE = Strategy("pp", "a pipeline: a stage on each node, FSDP2 over the ranks of the node", FSDP)
#: The arm of the training benchmark whose gradients are bfloat16; those of ddp and ddp-quant are float32.
DDP_BF16 = Strategy("ddp-bf16", "as ddp, gradients as bfloat16 by torch's hook", DDP)
#: The arms of the training benchmark: with other widths than 4 bits where 2 are worth a run.
_ARMS = (*DEFAULT_STRATEGIES, "quant2", "hsdp-quant2", "ddp-quant", DDP_BF16.name)
ARMS = {
    name: strategy
    for name, strategy in (STRATEGIES | {each.name: each for each in (DDP_BF16, _deferred(DDP_BF16))}).items()
    if name.removesuffix("-last") in _ARMS
}


def strategies_named(names: Sequence[str], options: WireOptions, optimizer: str = "adamw") -> list[Strategy]:
    """The strategies of these names; those on Isthmus with `options`, but for what makes each what it is.

    optimizer: "muon" has "quant6" in place of "quant"; other bits than the default ones stay.
    """
    known = STRATEGIES | {PIPELINE.name: PIPELINE}
    if optimizer == "muon":
        names = [_UNDER_MUON.get(name, name) for name in names]
    check_names("strategy", names, known)
    found = []
    for strategy in (known[name] for name in names):
        if wire := strategy.wire:
            own = replace(options, codec=wire.codec, tiers=wire.tiers, bits=wire.bits, weights=wire.weights)
            strategy = replace(strategy, wire=own)
        found.append(strategy)
    return found


def check_deferred(kind: str, names: Sequence[str], micro_batches: int) -> None:
    """Raise ValueError for one that defers reductions to the last micro-batch, where there is but one."""
    for name in names if micro_batches == 1 else ():
        if name in STRATEGIES and STRATEGIES[name].defers:
            raise ValueError(f"{kind} '{name}' reduces in the last micro-batch: micro_batches 1: expected at least 2")
