"""A reduction gets its own unit's state and seeds, whatever else there is: twins, garbage, copies, other meshes."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import isthmus
from python.model.identity import KEEPING, REASONS, UNITS, TwoLayers, group_of, world_of
from python.training.wraps import simple_fsdp
from support.checkpoints import backward, exact_calls, fsdp1, fsdp2, mesh_of, steps_of, trained
from support.checkpoints import group as tagc_group
from support.checks import Table
from support.families import run_table, world

table, table_of_worlds = Table(), Table()


# --- Twins: models of equal names and sizes ---


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 64, bias=False)

    def forward(self, features: torch.Tensor, factor: float) -> torch.Tensor:
        return factor * self.layer(features).square().mean()


def norm_of_no_gradient(wrap: Callable[[nn.Module], nn.Module], steps: int = 6) -> float:
    """Train twins by turns; return the largest gradient that the one gets whose true gradient is always zero."""
    twins = [wrap(Critic()), wrap(Critic())]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in twins]
    largest = 0.0
    for step in range(steps):
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        for model, optimizer, factor in zip(twins, optimizers, (1.0, 0.0), strict=True):
            optimizer.zero_grad()
            model(inputs, factor).backward()
            optimizer.step()
        norms = [
            float(p.grad.full_tensor().norm() if isinstance(p.grad, DTensor) else p.grad.norm())
            for p in twins[1].parameters()
            if p.grad is not None
        ]
        largest = max(largest, *norms)
    return largest


@table
def twins_of_ddp_are_exact_where_the_codec_keeps_residuals() -> None:
    for name, options in KEEPING.items():
        process_group = group_of(gradients="backward", **options)
        leaked = norm_of_no_gradient(lambda m, g=process_group: DistributedDataParallel(m, process_group=g))
        assert leaked == 0, (name, leaked)
        assert exact_calls(process_group)[REASONS.WHOSE_RESIDUAL.text] == 12, name
        notes = " ".join(isthmus.stats(process_group)["notes"])
        assert "isthmus.prepare(model)" in notes and "residual" in notes


WRAPS: dict[str, tuple[Callable[[nn.Module, dist.ProcessGroup], nn.Module], int]] = {  # and how many calls are lossy
    "fsdp2": (lambda model, group: fully_shard(model, mesh=mesh_of(group)), 12),
    "fsdp1": (
        lambda model, group: FullyShardedDataParallel(model, process_group=group, device_id=torch.device("cpu")),
        12,
    ),
    "ddp prepared": (
        lambda model, group: isthmus.prepare(DistributedDataParallel(model, process_group=group)),
        8,  # all but the first two passes of each
    ),
}


@table
def twins_keep_their_gradients_apart() -> None:
    for kind, (wrap, lossy) in WRAPS.items():
        for name, options in KEEPING.items():
            process_group = group_of(**options)
            assert norm_of_no_gradient(lambda m, w=wrap, g=process_group: w(m, g)) == 0, (kind, name)
            assert isthmus.stats(process_group)["compressed_calls"] == lossy, (kind, name)
            if lossy == 12:
                assert exact_calls(process_group) == {}, (kind, name)


class ByTurns(nn.Module):
    """Two equal layers, used in an order that each call chooses; the second one's gradient is zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(2))

    def forward(self, features: torch.Tensor, order: tuple[int, int]) -> torch.Tensor:
        losses = [float(index == 0) * self.layers[index](features).square().mean() for index in order]
        return losses[0] + losses[1]


@table_of_worlds
def layers_used_by_turns_keep_their_gradients_apart(store: dist.Store) -> None:
    for option in ("labelled", "backward"):
        for name, options in KEEPING.items():
            with world_of(store, gradients=option, **options):
                check_layers_used_by_turns(name, prepare=option == "labelled")


def check_layers_used_by_turns(name: str, *, prepare: bool) -> None:
    model: Any = simple_fsdp(ByTurns())
    if prepare:
        isthmus.prepare(model)
    for step in range(6):
        model.zero_grad()
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        model(inputs, (0, 1) if step % 2 else (1, 0)).backward()
        first, second = (layer.parametrizations.weight.original.grad for layer in model.layers)
        assert float(first.full_tensor().norm()) > 0, (name, prepare, step)
        assert float(second.full_tensor().norm()) == 0, (name, prepare, step)
    assert isthmus.stats()["compressed_calls"] == 12, (name, prepare)


@table_of_worlds
def prepared_dtensors_have_names(store: dist.Store) -> None:
    with world_of(store):
        model = simple_fsdp(ByTurns())
        isthmus.prepare(model, name="actor", units="!layers.1*")
        model(torch.randn(8, 64), (0, 1)).backward()
        statistics = isthmus.stats()
    assert statistics["compressed_calls"] == 1
    assert statistics["exact_calls"]["excluded by prepare(units=...)"] == 1
    names = [unit["name"] for unit in statistics["units"]]
    assert "actor/layers.0.parametrizations.weight.original" in names, names


# --- Activations ---


@table_of_worlds
def activations_of_dtensors_are_exact_whatever_their_mesh_is_called(store: dist.Store) -> None:
    """A model that is split over the ranks of both nodes: nothing that it reduces is a gradient of a parameter."""
    expected = None
    for mode, name in (("gloo", "tp"), ("none", "model"), ("none", "sp")):
        with world(store, mode, {"ISTHMUS_CODEC": isthmus.Options().codec}):
            plan = {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))}
            model = parallelize_module(TwoLayers(), init_device_mesh("cpu", (4,), mesh_dim_names=(name,)), plan)
            if mode != "gloo":
                isthmus.prepare(model)
            inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(dist.get_rank()), requires_grad=True)
            for _ in range(3):
                model(inputs).square().sum().backward()
            found = torch.cat([p.grad.to_local().flatten() for p in model.parameters()] + [inputs.grad.flatten()])
            if mode == "gloo":
                expected = found
                continue
            statistics = isthmus.stats()
        assert statistics["compressed_calls"] == 0, statistics["units"]
        assert statistics["exact_calls"]["not labelled, in a backward pass"] == 3, statistics["exact_calls"]
        assert torch.equal(found, expected), name


# --- Whatever is alive ---


@table
def a_model_that_one_rank_keeps_makes_no_difference() -> None:
    for prepare in (False, True):
        process_group = tagc_group()
        kept = []
        for ordinal in range(3):
            model = fsdp2(mesh_of(process_group))
            trained(isthmus.prepare(model) if prepare else model)
            if dist.get_rank() == 0:
                kept.append(model)
            suffix = f" ({ordinal + 1})" if ordinal else ""
            steps = steps_of(model)
            assert {name: steps.get(name + suffix) for name in UNITS} == dict.fromkeys(UNITS, 2), (ordinal, steps)
            del model
            if dist.get_rank() == 1:
                gc.collect()
        assert exact_calls(process_group) == {}
    # FSDP1's units are numbered as they are first reduced.
    process_group = tagc_group()
    kept = []
    for _ in range(3):
        model = trained(fsdp1(mesh_of(process_group)))
        if dist.get_rank() == 0:
            kept.append(model)
        del model
        gc.collect()
    assert exact_calls(process_group) == {}
    names = {unit["name"] for unit in isthmus.stats(process_group)["units"]}
    assert len(names) == 3 * len(UNITS), names


@table
def live_models_are_told_apart_without_collecting_garbage() -> None:
    process_group = tagc_group()
    models = [fsdp2(mesh_of(process_group)) for _ in range(3)]
    collections: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    gc.disable()
    for step in range(4):
        for model in models:
            trained(model, 1)
        if step == 0:
            gc.callbacks.append(note)
    gc.callbacks.remove(note)
    gc.enable()
    assert collections == []
    assert exact_calls(process_group) == {}
    names = [name + suffix for suffix in ("", " (2)", " (3)") for name in UNITS]
    assert steps_of(models[0]) == dict.fromkeys(names, 4)


@table
def frozen_models_count_by_their_first_pass() -> None:
    process_group = tagc_group()
    teacher: Any = fsdp2(mesh_of(process_group)).requires_grad_(False)
    student = fsdp2(mesh_of(process_group))
    for step in range(2):
        with torch.no_grad():
            teacher(torch.randn(2, 24))
        backward(student, step)
        student.zero_grad()
    teacher.reshard()
    teacher.requires_grad_(True)
    backward(student, 2)
    assert exact_calls(process_group) == {}
    assert steps_of(student) == {f"{name} (2)": 3 for name in UNITS}


@table
def one_of_two_may_be_prepared() -> None:
    process_group = tagc_group()
    first, second = (fsdp2(mesh_of(process_group)) for _ in range(2))
    isthmus.prepare(first, name="first")
    trained(first)
    trained(second)
    assert steps_of(first) == dict.fromkeys([*UNITS, *(f"first/{name}" for name in UNITS)], 2)
    assert exact_calls(process_group) == {}


test_identity = table.in_world()


test_identity_of_dtensors = table_of_worlds.in_world(partial(run_table, table=table_of_worlds))
