"""What isthmus.prepare does for models on the real backend, and what it leaves alone. (Kinds of models: families.)"""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

import isthmus
from isthmus.torch_private.models import param_groups_of
from support.checkpoints import (
    Model,
    ddp,
    exact_calls,
    fingerprint,
    fsdp1,
    fsdp2,
    group,
    hsdp_mesh,
    mesh_of,
    options_of,
    steps_of,
    trained,
    unit_states,
)
from support.checks import Table

table = Table()


@table
def models_are_kept_alive_by_nothing() -> None:
    makers: dict[str, Any] = {
        "fsdp2": lambda: fsdp2(mesh_of(process_group)),
        "hsdp": lambda: fsdp2(hsdp_mesh("2x2")),
        "fsdp1": lambda: fsdp1(mesh_of(process_group)),
        "ddp": lambda: ddp(process_group),
    }
    for kind, make in makers.items():
        process_group = group()
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(2):
            model = trained(isthmus.prepare(make(), scaler=scaler), 3)
            kept_by_torch = kind == "fsdp1"  # its flat parameters, on Gloo as well
            remains = [weakref.ref(model), *([] if kept_by_torch else map(weakref.ref, model.parameters()))]
            del model
            gc.collect()
            assert not any(reference() is not None for reference in remains), kind


@table
def preparing_again_does_nothing() -> None:
    model = isthmus.prepare(fsdp2(mesh_of(group())), name="m", units="*")
    trained(model)
    before = fingerprint(model)
    assert isthmus.prepare(model, name="m") is model
    assert fingerprint(model) == before
    trained(model)
    assert set(steps_of(model).values()) == {4}
    for arguments in ({"name": "other"}, {"name": "m", "units": "!root"}, {}, {"name": "m", "prefetch": False}):
        with pytest.raises(ValueError, match="this model was prepared with name='m', units='\\*' and prefetch=True"):
            isthmus.prepare(model, **arguments)


@table
def layers_are_chosen_by_pattern() -> None:
    """By the model's own names, under FSDP2, HSDP and FSDP1; what is left out is exact and says so."""
    process_group, mesh = group(), hsdp_mesh("2x2")
    models = {
        process_group: isthmus.prepare(fsdp2(mesh_of(process_group)), name="a", units="blocks.*,!*.1"),
        mesh.get_group("replicate"): isthmus.prepare(fsdp2(mesh), name="b", units="blocks.*,!*.1"),
    }
    for crossing, model in models.items():
        trained(model)
        assert [name.rpartition("/")[2] for name in steps_of(model)] == ["blocks.0"]
        assert exact_calls(crossing) == {"excluded by prepare(units=...)": 4}
    fsdp1_group = group()
    model = trained(isthmus.prepare(fsdp1(mesh_of(fsdp1_group)), units="!root"))
    assert list(steps_of(model)) == ["blocks.0", "blocks.1"]
    assert exact_calls(fsdp1_group) == {"excluded by prepare(units=...)": 2}
    ddp_group = group()
    trained(isthmus.prepare(ddp(ddp_group, find_unused_parameters=True), units="!bucket *"), 3)
    assert exact_calls(ddp_group)["excluded by prepare(units=...)"] >= 3


@table.skip_if(not hasattr(FSDPModule, "set_reduce_scatter_max_input_buffers"), "this torch packs one gradient")
def the_users_number_of_packed_gradients_stays() -> None:
    for number, expected in ((1, 2), (3, 3)):
        model: Any = fsdp2(mesh_of(group()))
        model.set_reduce_scatter_max_input_buffers(number)
        isthmus.prepare(model)
        units = [unit for module in model.modules() for unit in param_groups_of(module)]
        assert {unit.reduce_scatter_max_input_buffers for unit in units} == {expected}


@table
def memory_of_the_process_group_may_be_asked_for_before() -> None:
    model: Any = fsdp2(mesh_of(group()))
    for module in (*model.blocks, model):
        module.set_allocate_memory_from_process_group_for_comm(True)
    trained(isthmus.prepare(model))
    assert steps_of(model) == {"blocks.0": 2, "blocks.1": 2, "root": 2}
    assert all(unit["layout"] for unit in unit_states(model))


@table
def copies_of_ddp_are_as_without() -> None:
    """DDP over the default group can be copied and pickled. The copy is not prepared, and can be."""
    model: Any = isthmus.prepare(
        nn.parallel.DistributedDataParallel(Model(), find_unused_parameters=True), name="original"
    )
    for name, other in {"copy": copy.deepcopy(model), "pickled": pickle.loads(pickle.dumps(model))}.items():
        trained(isthmus.prepare(other, name=name), 3)
        assert set(steps_of(other)) == {f"{name}/bucket 0"}
        isthmus.clear_residuals(other)
    trained(model, 3)
    assert set(steps_of(model)) == {"original/bucket 0"}
    isthmus.clear_residuals(model)


@table
def other_hooks_of_ddp_are_not_replaced() -> None:
    model: Any = ddp(group())
    model.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
    with pytest.raises(ValueError, match="has a communication hook already"):
        isthmus.prepare(model)


@table
def several_ddp_modules_are_prepared_one_by_one() -> None:
    model = nn.ModuleList([ddp(group()), ddp(group())])
    with pytest.raises(ValueError, match="there are 2 DDP modules in this model: prepare each of them"):
        isthmus.prepare(model)
    for index, module in enumerate(model):
        isthmus.prepare(module, name=str(index))


@table
def what_cannot_be_prepared_is_described() -> None:
    with pytest.raises(ValueError, match="found a model without FSDP, DDP or DTensors, and no process group"):
        isthmus.prepare(nn.Linear(2, 2))
    gloo = dist.new_group(backend="gloo")
    for make, kind in ((lambda: fsdp2(mesh_of(gloo)), "3 FSDP2 units"), (lambda: ddp(gloo), "1 DDP modules")):
        with pytest.raises(ValueError, match=f"found {kind}.* on gloo"):
            isthmus.prepare(make())


@table
def parts_of_prepared_models_belong_to_them() -> None:
    model: Any = isthmus.prepare(fsdp2(mesh_of(group())), name="whole")
    with pytest.raises(ValueError, match=r"unit 'blocks\.0' of FSDP2 belongs to another prepared model"):
        isthmus.prepare(trained(model).blocks[0], name="part")


def main(rank: int, world_size: int) -> dict[str, str]:
    return table.run_in_world(pg_options=options_of())


test_prepare = table.in_world(main)
