"""What to do about what statistics show. All that Isthmus says of it stands here.

`isthmus.stats` has it as ``notes``, `isthmus.summary` prints it, and checks of the statistics warn of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from isthmus.base import native

if TYPE_CHECKING:
    from isthmus.model.units import Unit
    from isthmus.report.summary import Crossing

_MUST_GET_THE_SAME = "copies of the same parameters, as under tensor parallelism, and must get the same bits"
#: By the name of the reason for which reductions stayed exact. There is nothing to do about others.
_EXACT = {
    "NOT_LABELLED": (
        "in backward passes, because nothing says that they are gradients: call isthmus.prepare(model), or set "
        'gradients="backward" if all reductions in backward passes of this group are (compiled graphs need that)'
    ),
    "MIXED_COPIES": (
        "of units in which tensor parallelism splits some parameters and copies others: give those that it copies "
        "(norms, biases) a unit of their own, fully_shard([block.norm1, block.norm2])"
    ),
    "UNKNOWN_COPIES": (
        "of units over a mesh that leaves ranks of the job out, as one of DeviceMesh.from_group does: these may reduce "
        f'{_MUST_GET_THE_SAME}. Cut the mesh out of one over all ranks, init_device_mesh(...)["dp"]'
    ),
    "WHOSE_RESIDUAL": (
        "in backward passes, because nothing says whose gradients they are, and another's residual must not be added "
        "to them: call isthmus.prepare(model), or take a codec that keeps none (quant)"
    ),
    "MAY_HOLD_COPIES": (
        "in backward passes, because nothing says whose gradients they are: ranks outside of this group may reduce "
        f"{_MUST_GET_THE_SAME}. Call isthmus.prepare(model)"
    ),
    "OWN_REDUCE_SCATTER": (
        "that a reduce-scatter of the program's own made of other tensors than FSDP2's (set_custom_reduce_scatter): "
        'name them in it, with isthmus.unit("name"), or leave it out'
    ),
    "NOT_FSDPS": (
        "inside of FSDP's reduction that hooks of yours made (an optimizer in the backward pass), which is as it "
        "should be. If there are no such hooks, do not compile the backward pass, or report the version of torch"
    ),
}


def on_exact(exact_calls: Mapping[str, int], min_elements: int | None = None) -> Iterator[tuple[int, str]]:
    """What to do about reductions that stayed exact, counted by the text of the reason: how many, and a note.

    min_elements: smaller ones are told of, too, which is as asked unless all are.
    """
    names = {reason.text: name for name, reason in native.load().Reason.__members__.items()}
    for text, calls in exact_calls.items():
        if names[text] in _EXACT:
            yield calls, f"exact reductions: {calls} {_EXACT[names[text]]}"
        elif names[text] == "TOO_SMALL" and min_elements is not None:
            yield (
                calls,
                f"exact reductions: {calls} of fewer elements than min_elements={min_elements}: set a smaller one",
            )


def on_spikes(spikes: int) -> str:
    """What to do about residuals that were dropped so often; "" where none was."""
    if not spikes:
        return ""
    return (
        f"residuals dropped: {spikes} times, as gradients were far larger than before. If the program throws such "
        "steps away, let it call isthmus.begin_step(model) and isthmus.skip_step(model)"
    )


def on_kept(reasons: Mapping[str, int]) -> Iterator[str]:
    """Tell how many units of FSDP2 keep their collectives, by reason."""
    for reason, number in reasons.items():
        yield (
            f"units of FSDP2 that keep their collectives, whose reductions do not overlap on a GPU: {number}, as each "
            f"{reason}"
        )


def on_replaced(replaced: Iterable[tuple[Unit, str]]) -> str:
    """Name units whose collectives are not Isthmus's any more, "" if there are none."""
    units = ", ".join(sorted(f"{unit.full_name} ({others})" for unit, others in replaced))
    return units and (
        "the program replaced collectives of FSDP2 that Isthmus had handed out, and what they move is not compressed: "
        f"{units}. Set yours before isthmus.prepare or isthmus.attach, which then say so, or leave them out"
    )


ON_PLAIN_WEIGHTS = (
    "option weights=delta changed nothing in the first two steps: it is for parameters that FSDP gathers, min_elements "
    "or more at once (DDP gathers none)"
)


#: Of codec quant under Muon: the fewest trained with a loss that ends below .25% in each layout: docs/convergence.md.
MUON_BITS = 8


def _loses_under_muon(unit: dict[str, Any]) -> bool:
    """Whether these bits may lose more than that."""
    return unit["codec"] == "quant" and f"bits={MUON_BITS}" not in unit["settings"].split()


def to_try(found: dict[str, Any], crossed: Crossing, *, trains_with_muon: bool) -> Iterator[str]:
    """What dominates what crosses, by `isthmus.stats`, and what to try."""
    loses_under_muon = trains_with_muon and any(map(_loses_under_muon, found["units"]))
    if not crossed.sent_bytes:
        pass
    elif found["ran_s"] and found["waited_s"] < 0.1 * found["ran_s"]:
        yield "to try: nothing. Less than a tenth of communication is waited for, as far as wait() shows"
    elif crossed.weights_share > 0.5:
        differences = "" if found["weights"]["gathers"] else ', weights="delta" (differences)'  # in use already
        yield (
            f"weights are {crossed.weights_share:.0%} of what crosses through Isthmus. To try: HSDP (no weights "
            f"cross), reshard_after_forward=<ranks of a node> (once a step){differences}: docs/choosing.md"
        )
    elif crossed.gradients_share < 0.5 and crossed.by_world:
        most = max(crossed.by_world, key=crossed.by_world.__getitem__)
        yield f"{most} is {crossed.by_world[most] / crossed.sent_bytes:.0%} of what crosses through Isthmus, and exact"
    elif found["compressed_calls"]:
        fewer_bits = "" if loses_under_muon else "fewer bits, or "
        yield (
            f"gradients are {crossed.gradients_share:.0%} of what crosses through Isthmus. To try where steps wait "
            f"for the link: {fewer_bits}fewer reductions by accumulating gradients: docs/choosing.md"
        )
    if loses_under_muon:
        yield (
            f"this process trains with Muon, which may lose less with bits={MUON_BITS}; under FSDP on two nodes 6 are "
            "enough: docs/choosing.md"
        )
