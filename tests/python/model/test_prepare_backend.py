"""What isthmus.prepare does for models on the real backend, and what it leaves alone. (Kinds of models: families.)"""

import copy
import gc
import pickle
import re
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

import isthmus
from isthmus.base.job import this_job
from isthmus.report.checks import warn_of_findings
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
from support.logs import logged

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


class Joined(nn.Module):
    """Several modules in one unit, as Accelerate makes one of embedding, norm and head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 40)
        self.norm = nn.LayerNorm(40)
        self.other = nn.Linear(40, 40)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(self.other(self.embed(tokens)))  # type: ignore[no-any-return]


def joined(process_group: dist.ProcessGroup, **arguments: Any) -> str:
    """Train a model that is prepared with these arguments; return the advice about its embedding's rows."""
    model: Any = Joined()
    fully_shard([model.embed, model.norm], mesh=mesh_of(process_group))
    with logged() as messages:
        isthmus.prepare(fully_shard(model, mesh=mesh_of(process_group)), **arguments)
    model(torch.arange(16)).square().sum().backward()
    (advice,) = re.findall(r"units='(.*)' leaves the unit exact", " ".join(messages)) or [""]
    told: list[Any] = [advice]
    dist.broadcast_object_list(told)
    warned_of = this_job().warned_of
    warned_of -= {text for text in warned_of if "share groups" in text}  # in the next model, too
    return str(told[0])


@table
def advice_works_where_it_is_pasted() -> None:
    """Of units whose names are no globs, and lists of several."""
    for name in ("", "policy", "a, b[0]", "rl/policy"):
        advice = joined(group("default"), name=name)
        assert advice == f"!{name and name + '/'}embed, norm".replace(",", "[,]").replace("b[0", "b[[]0")
        in_prepare = group("default")
        assert joined(in_prepare, name=name, units=advice) == ""
        assert exact_calls(in_prepare) == {"excluded by prepare(units=...)": 1}
        in_option = group("default", units=advice)
        assert joined(in_option, name=name) == ""
        assert exact_calls(in_option) == {"excluded by policy (units)": 1}
        for found in (in_prepare, in_option):
            assert isthmus.stats(found)["compressed_calls"] == 1, "of the root"
        short = group("default")
        joined(short, name=name, units="!embed[,] norm")
        assert exact_calls(short) == {"excluded by prepare(units=...)": 1}


@table
def globs_of_prepare_that_match_nothing_are_warned_of() -> None:
    models = {
        "": isthmus.prepare(fsdp2(mesh_of(group())), units="blok*"),
        "m": isthmus.prepare(fsdp2(mesh_of(group())), name="m", units="blocks.*,!m/root,!x[,]*"),
        "ddp": isthmus.prepare(ddp(group()), name="ddp", units="!bucket *, !nosuch"),
    }
    for model in models.values():
        trained(model, 1)
    with logged() as messages:
        warn_of_findings(is_first=True)
    warned = [message for message in messages if message.startswith("isthmus.prepare")]
    assert warned == (
        [
            "isthmus.prepare: units=blok*: no unit matches blok*; there are 3: blocks.0, blocks.1, root",
            "isthmus.prepare(name='m'): units=m/blocks.*,!m/root,!m/x[,]*: no unit matches !m/x[,]*; there are 3: "
            "m/blocks.0, m/blocks.1, m/root",
            "isthmus.prepare(name='ddp'): units=!ddp/bucket *,!ddp/nosuch: no unit matches !ddp/nosuch; there are 1: "
            "ddp/bucket 0",
        ]
        if dist.get_rank() == 0
        else []
    )


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
