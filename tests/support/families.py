"""Trains one script on Gloo and on Isthmus, plainly and compressed, and compares what comes out.

A `Family` is a way to wrap a model and to train it. It is run in these modes, each with process groups of its own:

- gloo: the script over Gloo; none: the same over Isthmus with codec none. Equal up to the order of sums;
- default, tagc: with that codec. All ranks hold the same bits, the units that were compressed are those that are
  expected, and training follows the plain run as closely as the codec's error lets it. Where torch does not label
  reductions as gradients, none and default are exact: bit-equal to Gloo;
- prepared: as default after `isthmus.prepare`; backward: with the option gradients="backward";
- attached: the script over Gloo, and then `isthmus.attach`;
- delta, prepared delta: as default and prepared, which come before, but weights cross as differences. Equal bits
  throughout.
"""

import contextlib
import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

import isthmus
from isthmus.base.backends import backends_of
from isthmus.torch_private.groups import all_groups
from support import ranks
from support.checks import Table
from support.tested_codecs import CODECS, ERRORS, Options, environment

WORLD_SIZE = 4
FEATURES = 64
REDUCTIONS = ("reduce_scatter", "all_reduce")
BLOCKS = 3
STEPS = 3
NODES = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0", "ISTHMUS_LOG": "error"}
MODES: dict[str, Options] = {
    "gloo": {},
    "prepared": {},
    "attached": {},
    "backward": {"gradients": "backward"},
    **CODECS,
    "delta": {"weights": "delta", "replica_interval": 2},
    "prepared delta": {"weights": "delta", "replica_interval": 2},
}
UNITS = ("root", *(f"blocks.{index}" for index in range(BLOCKS)))
NO_GRADIENT = "not recognised as a gradient"
INSIDE_A_NODE = "the group is not on several nodes of one size"
# DDP cuts its buckets anew: up to five reductions with the first two sets of them are exact.
EXACT_AT_FIRST = "first two backward passes with these DDP buckets"
WHICH_ARE_USED = "not a sum of floating-point numbers"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + torch.tanh(self.linear(features))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(FEATURES, FEATURES)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.last = nn.Linear(FEATURES, FEATURES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = self.first(features)
        for block in self.blocks:
            features = block(features)
        output: torch.Tensor = self.last(features)
        return output


def batch(step: int, rank: int | None = None) -> torch.Tensor:
    """Return a rank's inputs, this one's by default: two batches by turns, so that training gets somewhere."""
    seed = 1000 * (step % 2) + (dist.get_rank() if rank is None else rank)
    features = torch.randn(16, FEATURES, generator=torch.Generator().manual_seed(seed), device="cpu")
    return features.to(torch.get_default_device())


def distance(outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return the loss: the model is to reverse the features."""
    return (outputs.float() - inputs.flip(1)).square().mean()


@dataclass
class Training:
    """What one training run is made of, for families to go their own ways at one step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, number: int) -> torch.Tensor:
        """Train one step; return the loss."""
        inputs = batch(number)
        loss = distance(self.model(inputs), inputs)
        loss.backward()
        return loss


Step = Callable[[Training, int], torch.Tensor]


@dataclass(frozen=True)
class Family:
    """A way to wrap a model and to train it, and what its run is expected to show."""

    wrap: Callable[[nn.Module], nn.Module]
    make: Callable[[], nn.Module] = Model
    backward: Step = Training.step
    rounding: float = 1e-5  # how far codec none may be from Gloo, as a share of the largest weight
    units: Iterable[str] = UNITS  # compressed at every step
    prepared_units: Iterable[str] | None = None  # None: as `units`
    collectives: tuple[str, ...] = ("reduce_scatter",)
    steps: int = STEPS
    exact: dict[str, int] = field(default_factory=dict)  # reductions that are exact in spite of the codec, by reason
    modes: tuple[str, ...] = ("default",)
    gathers: bool = True  # its parameters, over groups that span nodes
    labelled: bool = True  # False: only prepare or the option make gradients of its reductions, after a few steps
    clips: bool = True
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD


@dataclass
class Run:
    losses: list[float]  # means over the ranks
    norms: list[float]
    start: torch.Tensor | None  # all weights before (of the run over Gloo) and after, as float32, one after the other
    weights: torch.Tensor
    units: dict[str, int]  # compressed reductions by unit and collective, over all groups
    exact: Counter[str]
    compressed: int
    calls: Counter[str]  # in the two-tier path, by collective
    deltas: list[dict[str, Any]] = field(default_factory=list)  # what each group says of gathers of parameters


_runs = 0


@contextlib.contextmanager
def world(
    store: dist.Store, mode: str, env: dict[str, str] | None = None, backend: str | None = None
) -> Iterator[None]:
    """Make the default group of a mode, or of `backend`; all groups that the script makes besides go when it ends."""
    global _runs
    _runs += 1
    settings = {**NODES, **environment(MODES[mode]), **(env or {})}
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        name = backend or ("gloo" if mode in ("gloo", "attached") else "isthmus")
        ranks.init(name, store=dist.PrefixStore(f"run/{_runs}", store))
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)


def is_prepared(mode: str) -> bool:
    return mode.startswith("prepared")


def train(family: Family, mode: str) -> Run:
    model = family.wrap(family.make())
    if is_prepared(mode):
        isthmus.prepare(model)
    if mode == "attached":
        isthmus.attach(model)
    training = Training(model, family.optimizer(model.parameters(), lr=0.4))
    start = weights_of(model) if mode == "gloo" else None
    losses, norms = [], []
    for step in range(family.steps):
        losses.append(float(family.backward(training, step).detach()))
        if family.clips:
            norms.append(float(clip(model)))
        training.optimizer.step()
        training.optimizer.zero_grad()
    statistics = [backend.stats() for backend in isthmus_backends()]
    return Run(
        losses=[sum(column) / WORLD_SIZE for column in zip(*gathered(losses), strict=True)],
        norms=norms,
        start=start,
        weights=weights_of(model),
        units=units_of_groups(),
        exact=sum((Counter(entry["exact_calls"]) for entry in statistics), Counter()),
        compressed=sum(entry["compressed_calls"] for entry in statistics),
        calls=Counter({kind: sum(entry["collectives"][kind]["calls"] for entry in statistics) for kind in REDUCTIONS}),
        deltas=[entry["weights"] for entry in statistics],
    )


def clip(model: nn.Module) -> torch.Tensor:
    """Clip the norm of all gradients as the wrapper's manual says; return the norm."""
    if isinstance(model, FullyShardedDataParallel):
        return model.clip_grad_norm_(1.0)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return whole(norm)


def isthmus_groups() -> list[dist.ProcessGroup]:
    return [group for group in all_groups() if dist.get_backend(group) == "isthmus"]


def isthmus_backends() -> list[Any]:
    """Return the backends of all groups that this process is in, companions of attached models among them."""
    return list(backends_of(all_groups()))


def units_of_groups() -> dict[str, int]:
    states = [state for backend in isthmus_backends() for state in backend.unit_states()]
    return {f"{state['name']} {state['collective']}": state["step"] for state in states}


def weights_of(model: nn.Module) -> torch.Tensor:
    """Return all parameters of a model, whole, as one tensor."""
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        with FullyShardedDataParallel.summon_full_params(model):
            parts = [parameter.detach().clone() for parameter in model.parameters()]
    else:
        parts = [whole(parameter).detach() for parameter in model.parameters()]
    return torch.cat([part.flatten().float() for part in parts])


def whole(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:  # full_tensor() works with no backend then
        return torch.cat(gathered(tensor.detach().to_local()))
    return tensor.full_tensor()


def gathered(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def digest_of(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()


def same_on_all_ranks(value: Any) -> bool:
    """Return whether all ranks have an equal value; tensors are compared bit by bit."""
    return len(set(map(repr, gathered(digest_of(value) if isinstance(value, torch.Tensor) else value)))) == 1


def check_family(family: Family, store: dist.Store, plain_backend: str = "gloo") -> Run:
    """Run a family in all of its modes and hold the runs against the one over Gloo, which is returned."""
    with world(store, "gloo", backend=plain_backend):
        plain = train(family, "gloo")
        assert same_on_all_ranks(plain.weights)
    assert plain.losses[-1] < 0.9 * plain.losses[0], plain.losses  # else nothing below would mean anything
    check_against(plain, family, store)
    return plain


def check_against(plain: Run, family: Family, store: dist.Store) -> None:
    """Run a family over Isthmus and hold it against a run over Gloo."""
    runs = {}
    for mode in family.modes:
        with world(store, mode):
            run = train(family, mode)
            # These compare ranks, so all of them must get here.
            found = gathered((digest_of(run.weights), run.norms, run.exact))
        assert found == found[:1] * WORLD_SIZE, (mode, found)
        runs[mode] = run
        if mode.endswith("delta"):
            assert_same_bits(run, runs[{"delta": "default", "prepared delta": "prepared"}[mode]], family)
        elif not family.labelled and mode in ("none", "default"):
            assert run.compressed == 0
            assert torch.equal(run.weights, plain.weights)
            assert run.norms == plain.norms
        elif mode == "none":
            assert_equal_up_to_rounding(run, plain, family)
        else:
            assert_compressed(run, family, mode)
            assert_follows(run, plain, mode, 1 + any(unit.endswith("all_reduce") for unit in run.units))


def assert_same_bits(run: Run, plain: Run, family: Family) -> None:
    """Weights that cross as differences change nothing."""
    assert torch.equal(run.weights, plain.weights)
    assert (run.losses, run.norms, run.units) == (plain.losses, plain.norms, plain.units)
    gathers = sum(entry["gathers"] for entry in run.deltas)
    whole = sum(sum(entry["whole"].values()) for entry in run.deltas)
    assert bool(gathers) == family.gathers, run.deltas
    assert whole <= gathers / family.steps, run.deltas
    assert sum(entry["healed"] for entry in run.deltas) == 0, run.deltas


def assert_equal_up_to_rounding(run: Run, plain: Run, family: Family) -> None:
    """Codec none: sums in another order, and nothing else."""
    assert run.compressed == 0
    assert run.calls.total() > 0, "nothing took the two-tier path"
    limit = family.rounding * float(plain.weights.abs().max())
    assert float((run.weights - plain.weights).abs().max()) <= limit
    tolerance = 20 * family.rounding
    torch.testing.assert_close(torch.tensor(run.losses), torch.tensor(plain.losses), rtol=tolerance, atol=0)
    torch.testing.assert_close(torch.tensor(run.norms), torch.tensor(plain.norms), rtol=tolerance, atol=0)


def assert_compressed(run: Run, family: Family, mode: str) -> None:
    """The expected units were compressed at every step, and no reduction was exact that should not be."""
    units = family.units
    if is_prepared(mode) and family.prepared_units is not None:
        units = family.prepared_units
    assert run.compressed == sum(run.units.values())
    without_norms = {reason: count for reason, count in run.exact.items() if reason != NO_GRADIENT}
    if family.labelled:
        assert run.units == {f"{unit} {kind}": family.steps for unit in units for kind in family.collectives}, run.units
        assert without_norms == family.exact, run.exact
    else:
        assert set(without_norms) <= {EXACT_AT_FIRST, WHICH_ARE_USED, *family.exact}, run.exact
        norms_that_cross = len(run.norms) if run.calls["reduce_scatter"] else 0
        assert run.exact[EXACT_AT_FIRST] <= 5 and run.exact[NO_GRADIENT] == norms_that_cross, run.exact
        assert run.compressed >= 2 and run.compressed + run.exact[EXACT_AT_FIRST] == run.calls.total(), run.units


def assert_follows(run: Run, plain: Run, mode: str, crossings: int = 1) -> None:
    """Compressed training is as near to plain training as the codec's error says. `crossings`: encodings on the way.

    Half of each sum crosses; what a codec takes from a gradient's energy it takes from the sum's norm, and it moves the
    weights by the root of that.
    """
    assert not torch.equal(run.weights, plain.weights), "nothing was lossy"
    error = crossings * ERRORS.get(mode, ERRORS["default"])
    away, moved = run.weights - plain.weights, plain.weights - plain.start
    assert away.norm() < 0.65 * math.sqrt(error) * moved.norm(), (float(away.norm()), float(moved.norm()))
    # Noise averages out over the weights; what is lost from each does not. tagc leaves out, and quant does not.
    shorter = float(-(away @ moved) / (moved @ moved))
    assert -0.005 < shorter < (0.3 * error if mode == "tagc" else 0.005), shorter
    for step, (ours, theirs) in enumerate(zip(run.norms, plain.norms, strict=True)):
        assert abs(ours / theirs - 1) < (error if step else 0.6 * error), (run.norms, plain.norms)
    progress = (run.losses[0] - run.losses[-1]) / (plain.losses[0] - plain.losses[-1])
    assert abs(progress - 1) < error, (run.losses, plain.losses)


def run_table(rank: int, world_size: int, table: Table) -> dict[str, str]:
    """Run all checks of a table on this rank; they get the store that each of their worlds meets at."""
    store = ranks.store()
    failures = table.run_on_this_rank(store)
    store.add("left", 1)
    if rank == 0:  # the store's host goes last
        while store.add("left", 0) < world_size:
            time.sleep(0.01)
    return failures
