"""weights="delta": gathers of parameters are recognised, cost what they say, and have the bits of weights="plain"."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import isthmus
from python.model.identity import TwoLayers
from support.checkpoints import (
    Block,
    Model,
    backward,
    batch,
    fsdp1,
    fsdp2,
    local,
    mesh_of,
    options_of,
    seed,
    train,
)
from support.checks import Table
from support.families import run_table, same_on_all_ranks, world

NUM_NODES = 2
HEADER_BYTES = 64
FIRST = "the first gather"
UNITS = 3  # of checkpoints.Model: two blocks and the root
table = Table()


def group_with(weights: str, **options: Any) -> dist.ProcessGroup:
    own = options_of("none", weights=weights, **options)
    return dist.new_group(backend="isthmus", pg_options=own)


def counts(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    return dict(isthmus.stats(group)["weights"])


def sent_bytes(group: dist.ProcessGroup | None = None) -> int:
    sent: int = isthmus.stats(group)["collectives"]["all_gather"]["inter"]["sent_bytes"]
    return sent


class Gathers:
    """How many gathers of weights a block of code makes, how many of them of what had not changed, and what they send.

    The counts of a group as they grew from `__enter__` to `__exit__`.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def __enter__(self) -> Gathers:
        self._before, self._sent_before = counts(self._group), sent_bytes(self._group)
        return self

    def __exit__(self, *error: object) -> None:
        after = counts(self._group)
        self.all = after["gathers"] - self._before["gathers"]
        self.unchanged = after["unchanged"] - self._before["unchanged"]
        self.whole = sum(after["whole"].values()) - sum(self._before["whole"].values())
        self.healed = after["healed"] - self._before["healed"]
        self.sent = sent_bytes(self._group) - self._sent_before

    def __repr__(self) -> str:
        return f"{self.all} gathers, {self.unchanged} unchanged, {self.whole} whole, {self.sent} bytes"


def evaluated(model: nn.Module, number: int = 99) -> torch.Tensor:
    """Return the outputs of a forward pass, and leave the model as before: FSDP2 keeps its root gathered."""
    with torch.no_grad():
        result: torch.Tensor = model(batch(number))
    if isinstance(model, FSDPModule):
        model.reshard()
    return result.float()


def sharded(group: dist.ProcessGroup) -> nn.Module:
    return fsdp2(mesh_of(group))


# --- What crosses ---


@table
def backward_gathers_and_evaluation_send_headers(store: dist.Store) -> None:
    with world(store, "none"):
        group = group_with("delta", replica_interval=2)
        model: Any = sharded(group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Gathers(group) as first:
            output = model(batch(0))
        assert (first.all, first.unchanged, first.whole) == (UNITS, 0, UNITS), first
        whole_bytes = sum(local(p).numel() for p in model.blocks.parameters()) * 4
        assert first.sent > (NUM_NODES - 1) * (whole_bytes + UNITS * HEADER_BYTES)
        with Gathers(group) as again:
            output.square().sum().backward()
        # The root stays gathered until its backward pass.
        assert (again.all, again.unchanged, again.whole) == (UNITS - 1, UNITS - 1, 0), again
        assert again.sent == again.all * HEADER_BYTES * (NUM_NODES - 1), again
        optimizer.step()
        optimizer.zero_grad()
        with Gathers(group) as moved:
            evaluated(model)
        assert (moved.all, moved.unchanged, moved.whole) == (UNITS, 0, 0), moved
        assert UNITS * HEADER_BYTES < moved.sent / (NUM_NODES - 1) < first.sent / (NUM_NODES - 1), moved
        isthmus.clear_residuals(model)  # not what others hold of the weights
        with Gathers(group) as quiet:
            for _ in range(2):
                evaluated(model)
        assert (quiet.all, quiet.unchanged) == (2 * UNITS, 2 * UNITS), quiet
        assert quiet.sent == quiet.all * HEADER_BYTES * (NUM_NODES - 1), quiet


# --- Whose weights ---


@table
def models_of_equal_names_have_replicas_of_their_own(store: dist.Store) -> None:
    with world(store, "none"):
        groups = {kind: group_with(kind) for kind in ("delta", "plain")}
        outputs: dict[str, list[torch.Tensor]] = {}
        for kind, group in groups.items():
            models, optimizers = [], []
            for number in range(2):
                with seed(number):
                    models.append(sharded(group))
                optimizers.append(torch.optim.SGD(models[-1].parameters(), lr=0.1))
            outputs[kind] = []
            for step in range(4):
                for model, optimizer in zip(models, optimizers, strict=True):
                    train(model, optimizer, range(step, step + 1))
                    outputs[kind].append(evaluated(model))
        assert all(map(torch.equal, outputs["delta"], outputs["plain"]))
        assert not torch.equal(outputs["delta"][0], outputs["delta"][1])
        names = {"root", "blocks.0", "blocks.1"}
        units = isthmus.stats(groups["delta"])["units"]
        assert {unit["name"] for unit in units if unit["codec"] == "delta"} == names | {f"{name} (2)" for name in names}
        assert counts(groups["delta"])["whole"] == {FIRST: 2 * UNITS}


@table
def a_model_that_is_gone_frees_its_replicas(store: dist.Store) -> None:
    with world(store, "none"):
        for wrap in (
            sharded,
            lambda group: fsdp1(mesh_of(group)),
            lambda group: isthmus.prepare(sharded(group), name="critic"),
        ):
            group = group_with("delta")
            models = [wrap(group) for _ in range(3)]
            for model in models:
                backward(model, 0)
                evaluated(model)
            of_all = counts(group)["replica_bytes"]
            assert of_all > 0 and of_all % 3 == 0
            del model, models[1]
            gc.collect()
            assert counts(group)["replica_bytes"] == of_all * 2 // 3
            before = [evaluated(model) for model in models]
            assert counts(group)["replica_bytes"] == of_all * 2 // 3, (wrap, counts(group))
            models.append(wrap(group))
            for _ in range(2):
                assert all(map(torch.equal, before, map(evaluated, models)))
            evaluated(models[2])
            assert counts(group)["replica_bytes"] == of_all


# --- Which gathers ---


def inputs_of(step: int) -> torch.Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


@table
def other_gathers_stay_as_they_are(store: dist.Store) -> None:
    with world(store, "none", {"ISTHMUS_WEIGHTS": "delta"}):
        mesh = init_device_mesh("cpu", (4,))
        model: Any = fully_shard(TwoLayers(), mesh=mesh)
        model(inputs_of(0)).sum().backward()
        rank = dist.get_rank()
        with Gathers() as gathers:
            before = sent_bytes()
            gathered = torch.empty(4000)
            dist.all_gather_into_tensor(gathered, torch.full((1000,), float(rank)))
            assert torch.equal(gathered, torch.arange(4.0).repeat_interleave(1000))
            assert sent_bytes() - before == (NUM_NODES - 1) * 4000
            for parameter in model.parameters():
                assert same_on_all_ranks(parameter.full_tensor())
                assert same_on_all_ranks(parameter.grad.full_tensor())
        assert gathers.all == 0, gathers

        plan = {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))}
        split: Any = isthmus.prepare(parallelize_module(TwoLayers(), mesh, plan))
        with Gathers() as gathers:
            calls = isthmus.stats()["collectives"]["all_gather"]["calls"]
            inputs = inputs_of(1).requires_grad_()
            split(inputs).square().sum().backward()
            assert isthmus.stats()["collectives"]["all_gather"]["calls"] > calls
        assert gathers.all == 0, gathers


# --- Types of weights ---


class BlockOfTwoTypes(Block):
    """A layer in bfloat16, which is frozen, and one in float32. FSDP2 gathers both as bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.up.to(torch.bfloat16).requires_grad_(False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + self.down(torch.tanh(self.up(features.bfloat16())).float())  # type: ignore[no-any-return]


def of_two_types(group: dist.ProcessGroup) -> nn.Module:
    model = Model()
    model.blocks = nn.ModuleList(BlockOfTwoTypes() for _ in range(2))
    return fsdp2(mesh_of(group), model)


@table
def weights_of_two_types_cross_as_bytes(store: dist.Store) -> None:
    with world(store, "none"):
        outputs = []
        for kind in ("plain", "delta"):
            group = group_with(kind)
            with seed(0):
                model = of_two_types(group)
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            train(model, torch.optim.SGD(trained, lr=1e-3), range(2))
            with torch.no_grad():
                for parameter in model.parameters():  # the frozen ones, too
                    local(parameter).mul_(1.01)
            outputs.append(evaluated(model))
        assert torch.equal(*outputs)
        found = counts(group)
        assert found["whole"] == {FIRST: UNITS}, found
        assert found["gathers"] > found["unchanged"] > 0, found


test_weights = table.in_world(partial(run_table, table=table))
