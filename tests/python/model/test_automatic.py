"""Models of FSDP2 that nobody prepared prepare themselves in their first forward pass: as by isthmus.prepare(model)."""

import gc
import re
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

import isthmus
from isthmus.base import native
from isthmus.model import automatic
from isthmus.model.collectives import UnitAllGather, UnitReduceScatter
from isthmus.model.models import held_units
from isthmus.report.checks import warn_of_replaced_collectives
from isthmus.torch_private.models import collectives_of, param_groups_of
from support import ranks
from support.checkpoints import (
    BFLOAT16,
    WIDTH,
    Block,
    Model,
    OwnReduceScatter,
    backward,
    batch,
    exact_calls,
    fingerprint,
    fsdp2,
    group,
    hsdp_mesh,
    mesh_of,
    seed,
    steps_of,
    train,
    trained,
)
from support.checks import Table, finish
from support.logs import logged

table = Table()
UNITS = ("blocks.0", "blocks.1", "root")


def units_in(model: nn.Module) -> list[Any]:
    return list(dict.fromkeys(unit for module in model.modules() for unit in param_groups_of(module)))


def collectives_in(model: nn.Module) -> set[type]:
    return {type(own) for unit in units_in(model) for own in (unit._all_gather_comm, unit._reduce_scatter_comm)}


OURS = {UnitAllGather, UnitReduceScatter}


def made(make: Callable[[], nn.Module]) -> nn.Module:
    with seed(0):
        return make()


def history(model: nn.Module) -> str:
    train(model, torch.optim.SGD(model.parameters(), lr=1e-3), range(3))
    return fingerprint(model)


# --- As prepared ---

KINDS: dict[str, Callable[[], nn.Module]] = {
    "fsdp2": lambda: fsdp2(mesh_of(group())),
    "the default codec, differences of weights in bfloat16, gathered within nodes": lambda: fsdp2(
        mesh_of(group("default", weights="delta")), mp_policy=BFLOAT16, reshard_after_forward=2
    ),
    "hsdp": lambda: fsdp2(hsdp_mesh("2x2")),
    "replicas": lambda: fsdp2(hsdp_mesh("4x1")),
}


@table
def bits_and_names_are_those_of_prepared_models() -> None:
    for kind, make in KINDS.items():
        expected = history(isthmus.prepare(made(make)))
        model = made(make)
        assert history(model) == expected, kind
        assert tuple(sorted(steps_of(model))) == UNITS, kind
        assert collectives_in(model) == OURS, kind
        if hasattr(units_in(model)[0], "reduce_scatter_max_input_buffers"):
            limits = {unit.comm_ctx.reduce_scatter_max_input_buffers for unit in units_in(model)}
            assert limits == {2}, kind


@table
def whatever_the_first_pass_is_for() -> None:
    expected = history(made(KINDS["fsdp2"]))
    modes: list[AbstractContextManager[Any]] = [torch.no_grad(), nullcontext()]  # torch refuses inference_mode first
    for mode in modes:
        model: Any = made(KINDS["fsdp2"])
        with mode:
            model(batch(9))
        assert collectives_in(model) == OURS
        for module in model.modules():
            if param_groups_of(module):
                module.reshard()
        assert history(model) == expected


def checkpointed(model: nn.Module) -> nn.Module:
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    return model


def compiled(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


@table
def compiled_and_checkpointed_models_do_too() -> None:
    for change in (checkpointed, compiled):
        expected = history(change(isthmus.prepare(made(KINDS["fsdp2"]))))
        model = change(made(KINDS["fsdp2"]))
        assert history(model) == expected, change
        assert tuple(sorted(steps_of(model))) == UNITS, change


@table
def without_word_of_passes_the_first_reduction_finds_the_model() -> None:
    expected = history(made(KINDS["fsdp2"]))
    native.load().set_pass_function(lambda: None)
    try:
        model = made(KINDS["fsdp2"])
        assert history(model) == expected
        assert collectives_in(model) == OURS
    finally:
        native.load().set_pass_function(automatic.pass_begins)


# --- Several models ---


@table
def blocks_alone_are_models_of_their_own() -> None:
    process_group = group()
    model = nn.Sequential(*(fully_shard(nn.Linear(WIDTH, WIDTH), mesh=mesh_of(process_group)) for _ in range(3)))
    for _ in range(2):
        model(batch(0)).sum().backward()
    assert [[unit.name for unit in held_units(block)] for block in model] == [["root"], ["root (2)"], ["root (3)"]]
    assert len(isthmus.base.backends.backend_of(process_group).unit_states()) == 3
    assert exact_calls(process_group) == {}


@table
def a_part_that_was_prepared_keeps_its_names() -> None:
    process_group = group()
    model: Any = fsdp2(mesh_of(process_group))
    isthmus.prepare(model.blocks[0], name="part")
    trained(model)
    assert set(steps_of(model)) == {"part/root", "blocks.1", "root"}


# --- Prepared later ---


@table
def what_was_prepared_by_itself_is_prepared_anew() -> None:
    """Before the first step and after it, by the model, what is around it, and a part of it."""
    for passes in (0, 2):
        process_group = group()
        model: Any = fsdp2(mesh_of(process_group))
        with torch.no_grad():
            model(batch(0))
        trained(model, passes)
        expected = dict.fromkeys(UNITS, passes + 2)
        assert steps_of(trained(isthmus.prepare(model))) == expected, "names are as they were, and states go on"
        assert exact_calls(process_group) == {}
    for wrap, names in (
        (nn.Sequential, {f"m/0.{name}" for name in UNITS[:2]} | {"m/0"}),
        (None, {f"m/{u}" for u in UNITS}),
    ):
        model = trained(fsdp2(mesh_of(group())))
        isthmus.prepare(wrap(model) if wrap else model, name="m", units="!*blocks.1")
        trained(model)
        assert set(steps_of(model)) == {name for name in names if "blocks.1" not in name}, wrap
    model = trained(fsdp2(mesh_of(group())))
    isthmus.prepare(model.blocks[0], name="part")
    assert steps_of(trained(model)) == {"part/root": 2, "blocks.1": 4, "root": 4}, "another name has another state"


@table
def states_find_models_that_had_no_pass() -> None:
    process_group = group()
    model = trained(fsdp2(mesh_of(process_group)))
    saved = isthmus.state_dict(model)
    del model
    gc.collect()
    resumed = fsdp2(mesh_of(process_group))
    assert len(isthmus.load_state_dict(saved, resumed).restored) == len(UNITS)
    backward(resumed, 2)
    assert steps_of(resumed) == {f"{name} (2)": 3 for name in UNITS}


# --- What keeps torch's collectives ---


@table
def what_a_user_handed_to_fsdp2_stays_and_is_counted() -> None:
    expected = history(made(KINDS["fsdp2"]))
    process_group = group()
    model: Any = made(lambda: fsdp2(mesh_of(process_group)))
    model.blocks[1].set_custom_reduce_scatter(OwnReduceScatter())
    assert history(model) == expected
    assert collectives_in(model) > OURS
    (note,) = isthmus.stats(process_group)["notes"]
    assert note.startswith("units of FSDP2 that keep their collectives, ")
    assert ": 1, as each has a OwnReduceScatter of its own" in note
    assert exact_calls(process_group) == {}


class Copying(OwnReduceScatter):
    """One that reduces tensors of its own, in two calls, of which the second is inside of a block of isthmus.unit."""

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> None:
        half = torch.empty_like(output_tensor)
        dist.reduce_scatter_tensor(half, input_tensor / 2, op, group)
        with isthmus.unit("second half"):
            dist.reduce_scatter_tensor(output_tensor, input_tensor / 2, op, group)
        output_tensor += half


@table
def what_a_users_reduce_scatter_reduces_otherwise_is_called_that() -> None:
    process_group = group()
    model: Any = made(lambda: fsdp2(mesh_of(process_group)))
    model.blocks[1].set_custom_reduce_scatter(Copying())
    trained(model)
    assert exact_calls(process_group) == {native.load().Reason.OWN_REDUCE_SCATTER.text: 2}
    assert [steps_of(model).get(name) for name in UNITS] == [2, None, 2]
    assert "second half" in {unit["name"] for unit in isthmus.stats(process_group)["units"]}
    assert any('isthmus.unit("name")' in note for note in isthmus.stats(process_group)["notes"])


@table
def gradients_of_complex_parameters_are_called_no_floating_point_numbers() -> None:
    """Torch all-reduces them between replicas as pairs of real numbers."""
    mesh = hsdp_mesh("2x2")
    model = fully_shard(nn.Linear(WIDTH, WIDTH, dtype=torch.complex64), mesh=mesh)
    model(torch.ones(2, WIDTH, dtype=torch.complex64)).abs().sum().backward()
    assert exact_calls(mesh.get_group("replicate")) == {native.load().Reason.NO_SUM.text: 1}


# --- What takes the place of ours later ---


@table
def collectives_that_a_user_replaces_later_are_named() -> None:
    process_group = group()
    model: Any = made(lambda: fsdp2(mesh_of(process_group)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(1))
    assert isthmus.stats(process_group)["notes"] == []
    model.blocks[1].set_custom_reduce_scatter(OwnReduceScatter())
    model.set_custom_all_gather(type("Gather", (), {"allocate": OwnReduceScatter.allocate, "__call__": gather})())
    with logged() as messages:
        train(model, optimizer, range(1, 4))
        warn_of_replaced_collectives()  # looks come at longer and longer intervals of this world's steps
    note = notes_on(process_group, "the program replaced")
    assert ": blocks.1 (reduce-scatter OwnReduceScatter), root (all-gather Gather). Set yours before" in note
    told = [text for text in messages if "replaced" in text]
    assert told == ([note] if dist.get_rank() == 0 else []), messages
    isthmus.prepare(model)  # does as for any collectives of a user's own
    assert notes_on(process_group, "the program replaced") == ""
    assert "as each has a OwnReduceScatter of" in notes_on(process_group, "units of FSDP2 that keep")
    gathers, reduces = zip(*map(collectives_of, units_in(model)), strict=True)
    assert [type(each).__name__ for each in reduces].count("OwnReduceScatter") == 1
    assert [type(each).__name__ for each in gathers].count("Gather") == 1


def notes_on(process_group: dist.ProcessGroup, begin: str) -> str:
    return "; ".join(note for note in isthmus.stats(process_group)["notes"] if note.startswith(begin))


def gather(_self: Any, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
    return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)


@table
def other_backends_models_stay_as_they_are() -> None:
    model = trained(fsdp2(mesh_of(dist.new_group(backend="gloo"))))
    assert not collectives_in(model) & OURS
    isthmus.attach(model, nodes="2x2", min_elements=0)
    assert collectives_in(trained(model)) == OURS
    other = trained(fsdp2(mesh_of(units_in(model)[0].mesh_info.shard_process_group)))
    assert not collectives_in(other) & OURS, "the companion is for the model that was attached"
    trained(isthmus.detach(model))
    assert not collectives_in(model) & OURS


@table
def nothing_keeps_them_alive() -> None:
    for make in KINDS.values():
        model = trained(make())
        remains = [weakref.ref(model), *map(weakref.ref, model.parameters())]
        del model
        gc.collect()
        assert not any(reference() is not None for reference in remains)


test_automatic = table.in_world(env={"ISTHMUS_NODES": "2x2", "ISTHMUS_LOG": "error"})


# --- Two models whose backward passes run in another order on one rank ---


def outcome_of_backward_passes(rank: int, world_size: int) -> str:
    ranks.init(timeout_s=86_400)  # nobody waits for it
    models = [fsdp2(mesh_of(dist.group.WORLD), Model()) for _ in range(2)]
    losses = [model(batch(0)).sum() for model in models]
    try:
        for loss in losses[::-1] if rank == 3 else losses:
            loss.backward()
    except dist.DistBackendError as error:
        return str(error)
    return ""


@pytest.mark.processes
def test_another_order_of_backward_passes_is_told() -> None:
    """By name alone, between nodes and within one."""
    for nodes in ("2x2", "4x1"):
        env = {"ISTHMUS_NODES": nodes, "ISTHMUS_MIN_ELEMENTS": "0"}
        for error in ranks.run(outcome_of_backward_passes, 4, env=env):
            assert re.search(r"blocks\.1(?! \()", error) and "blocks.1 (2)" in error, (nodes, error)


FEATURES = 64
ADVICE = "set_reduce_scatter_unused_params"


class Choice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(2))

    def forward(self, features: torch.Tensor, index: int) -> torch.Tensor:
        return self.layers[index](features)  # type: ignore[no-any-return]


def outcome_of_a_pass(rank: int, world_size: int, backend: str, reduces_unused: bool) -> Any:
    """Even ranks use the first layer: each rail agrees. Return the error, or the sums of the layers' gradients."""
    ranks.init(backend, timeout_s=86_400)  # nobody waits for it
    model: Any = fully_shard(Choice())
    if backend == "isthmus":
        isthmus.prepare(model)
    if reduces_unused:
        getattr(model, ADVICE)(True)
    try:
        model(torch.full((1, FEATURES), rank + 1.0), rank % 2).sum().backward()
    except dist.DistBackendError as error:
        return str(error)
    sums = []
    for layer in model.layers:
        gradient = layer.weight.grad
        assert gradient is None or isinstance(gradient, DTensor)
        sums.append(None if gradient is None else round(float(gradient.full_tensor().sum()) / FEATURES**2, 3))
    finish()
    return sums


ENV = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0"}


@pytest.mark.processes
def test_ranks_of_one_node_that_reduce_other_parameters_are_told_at_once() -> None:
    for rank, error in enumerate(ranks.run(outcome_of_a_pass, 4, "isthmus", False, env=ENV)):
        assert f'unit "root": rank {rank ^ 1} reduces another unit, or other parameters of it' in error
        assert f"model.{ADVICE}(True)" in error


if hasattr(FSDPModule, ADVICE):  # torch 2.11 lacks it

    @pytest.mark.processes
    def test_what_the_error_advises_helps() -> None:
        """Means over 4 ranks of what ranks 0, 2 and 1, 3 have."""
        assert ranks.run(outcome_of_a_pass, 4, "isthmus", True, env=ENV) == [[(1 + 3) / 4, (2 + 4) / 4]] * 4
