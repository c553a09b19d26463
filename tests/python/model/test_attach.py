"""Models over Gloo that are attached train as those over backend "isthmus", and go back to what they were."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import isthmus
from isthmus.base import backends as _backends
from isthmus.base import native
from isthmus.group import process as _process
from isthmus.model.collectives import UnitAllGather, UnitReduceScatter
from isthmus.report.statistics import with_notes
from isthmus.torch_private.models import param_groups_of, section_elements, trainable_indexes
from support.checkpoints import (
    WIDTH,
    Model,
    OwnReduceScatter,
    backends,
    batch,
    ddp,
    fingerprint,
    fsdp1,
    fsdp2,
    group,
    mesh_of,
    options_of,
    seed,
    steps_of,
    trained,
    unit_states,
)
from support.checks import Table

table = Table()

UNITS = {"blocks.0", "blocks.1", "root"}
Make = Callable[[str], nn.Module]  # a model whose gradients and weights cross nodes over a backend of that name


def over(backend: str, ranks: list[int] | None = None, **options: Any) -> dist.ProcessGroup:
    settings = {"pg_options": options_of(**options)} if backend == "isthmus" else {}
    return dist.new_group(ranks, backend=backend, **settings)


def gloo() -> dist.ProcessGroup:
    return over("gloo")


def of_this_rank(backend: str, enumeration: list[list[int]], **options: Any) -> dist.ProcessGroup:
    groups = [over(backend, members, **options) for members in enumeration]
    return next(found for found, members in zip(groups, enumeration, strict=True) if dist.get_rank() in members)


# --- Bit for bit as by name ---


def history(model: Any, passes: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for step in range(passes):
        loss = model(batch(step, getattr(model, "data_rank", None))).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def counters(model: nn.Module) -> list[Any]:
    """Return the statistics of the groups that a model is reduced over, without times."""
    return [without_times(with_notes(backend.stats())) for backend in backends(model)]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(entry) for key, entry in value.items() if not key.endswith("_s")}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


def same_both_ways(make: Make, passes: int = 3, **options: Any) -> None:
    with seed(0):
        by_name = isthmus.prepare(make("isthmus"))
    with seed(0):
        attached = isthmus.attach(make("gloo"), options=options_of(**options))
    assert history(attached, passes) == history(by_name, passes)
    for ours, theirs in zip(counters(attached), counters(by_name), strict=True):
        theirs["world"] = ours["world"]  # a companion has no world backend
        theirs["calls"] = {kind: theirs["calls"][kind] for kind in ours["calls"]}  # DDP makes others when it is made
        differing = {key: (ours[key], theirs[key]) for key in theirs if ours[key] != theirs[key]}
        assert not differing, differing
    assert len(counters(attached)) == 1
    assert fingerprint(attached) == fingerprint(by_name)


def sharded(settings: dict[str, Any], **options: Any) -> Make:
    return lambda backend: fsdp2(mesh_of(over(backend, **options)), **settings)


class SometimesUsed(Model):
    """Leaves a layer of a unit out, every second pass and on all ranks alike."""

    passes = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        features = self.blocks[1](self.blocks[0](features))
        return self.out(features) if self.passes % 2 else features + self.spare(features)  # type: ignore[no-any-return]

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(WIDTH, WIDTH)


def sometimes_used(backend: str) -> nn.Module:
    return fsdp2(mesh_of(over(backend)), SometimesUsed())


RANKS = torch.arange(4).view(2, 2)
NODES, RAILS = [[0, 1], [2, 3]], [[0, 2], [1, 3]]


def hsdp(shards: str, replicas: str, **options: Any) -> nn.Module:
    """HSDP over backends of these names: shards on a node, or two nodes of one rank, by the options."""
    groups = [of_this_rank(replicas, RAILS, **options), of_this_rank(shards, NODES, **options)]
    return fsdp2(DeviceMesh.from_group(groups, "cpu", mesh=RANKS, mesh_dim_names=("replicate", "shard")))


DELTA = {"codec": "default", "weights": "delta", "replica_interval": 2}
BOTH_WAYS: dict[str, tuple[Make, dict[str, Any]]] = {
    "fsdp2": (sharded({}), {}),
    "fsdp2_kept_on_each_node": (sharded({"reshard_after_forward": 2}, **DELTA), DELTA),
    "fsdp2_without_some_gradients": (sometimes_used, {}),
    "hsdp_with_shards_across_nodes": (lambda backend: hsdp(backend, "gloo", nodes="4x1"), {"nodes": "4x1"}),
    "ddp": (lambda backend: ddp(over(backend)), {"passes": 4}),  # its first two are exact
}
for case, (make, options) in BOTH_WAYS.items():
    table.checks[f"as_by_name_{case}"] = partial(same_both_ways, make, **options)


@table
def the_default_codec_has_compressed_and_only_what_crosses_is_handed_over() -> None:
    process_group = gloo()
    with seed(0):
        model = isthmus.attach(fsdp2(mesh_of(process_group)), nodes="2x2", min_elements=0, weights="delta")
    history(model, 2)
    dist.barrier(process_group)
    dist.all_reduce(torch.ones(3), group=process_group)
    statistics = isthmus.stats(process_group)
    assert statistics["compressed_calls"] == 2 * len(UNITS)
    assert set(statistics["calls"]) == {"_allgather_base", "_reduce_scatter_base"}
    assert statistics["weights"]["gathers"] > statistics["weights"]["unchanged"] > 0
    assert dist.get_backend(process_group) == "gloo"
    assert isthmus.explain(process_group).count("bits an element sent") == 2 * len(UNITS)  # gradients and weights


# --- What is handed over needs no label of torch ---


@table
def collectives_know_their_unit_without_the_stack() -> None:
    process_group = gloo()
    options = options_of("default", weights="delta")
    model: Any = isthmus.attach(fsdp2(mesh_of(process_group)), options=options, name="m")
    (unit,) = param_groups_of(model.blocks[1])
    elements = 4 * sum(section_elements(unit, index) for index in trainable_indexes(unit))
    shard = torch.empty(elements // 4)
    unit._reduce_scatter_comm(shard, torch.ones(elements), process_group, dist.ReduceOp.AVG)
    assert shard.mean().item() == pytest.approx(1, abs=0.01)
    assert steps_of(model) == {"m/blocks.1": 1}
    unit._all_gather_comm(torch.empty(8), torch.ones(2), process_group)
    assert isthmus.stats(process_group)["weights"]["gathers"] == 1
    # Some parameters have no gradient, and nothing tells which.
    unit._reduce_scatter_comm(torch.empty(3), torch.ones(12), process_group, dist.ReduceOp.SUM)
    assert isthmus.stats(process_group)["exact_calls"] == {native.load().Reason.UNKNOWN_SET.text: 1}


def calls_by_name(train: Callable[[], Any]) -> Counter[str]:
    """Count calls of collectives as torch's own tests of FSDP2 do: under the names in `torch.distributed`."""
    calls = Counter[str]()

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(dist, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **keywords)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"):
            if hasattr(dist, name):
                patch.setattr(dist, name, counted(name))
        train()
    return calls


@table
def whoever_watches_torch_sees_the_calls_that_fsdp2_makes() -> None:
    plain = fsdp2(mesh_of(gloo()))
    attached = isthmus.attach(fsdp2(mesh_of(gloo())), options=options_of())
    expected = calls_by_name(lambda: trained(plain))
    assert len(expected) == 2 and min(expected.values()) == 2 * len(UNITS)
    assert calls_by_name(lambda: trained(attached)) == expected


# --- Again, and back ---


@table
def attaching_again_does_nothing() -> None:
    process_group = gloo()
    model = trained(isthmus.attach(fsdp2(mesh_of(process_group)), name="m", options=options_of()))
    before, groups = fingerprint(model), len(dist.distributed_c10d._world.pg_map)
    assert isthmus.attach(model, name="m", options=options_of()) is model
    assert isthmus.prepare(model, name="m") is model
    assert (fingerprint(model), len(dist.distributed_c10d._world.pg_map)) == (before, groups)
    trained(model)
    assert steps_of(model) == {f"m/{unit}": 4 for unit in UNITS}


def collectives(model: Any) -> list[Any]:
    units = [unit for module in model.modules() for unit in param_groups_of(module)]
    return [collective for unit in units for collective in (unit._all_gather_comm, unit._reduce_scatter_comm)]


@table
def detached_models_train_as_if_they_had_never_been_attached() -> None:
    makers: dict[str, Callable[[dist.ProcessGroup], nn.Module]] = {
        "fsdp2": lambda process_group: fsdp2(mesh_of(process_group)),
        "ddp": lambda process_group: ddp(process_group),
    }
    for make in makers.values():
        process_group = gloo()
        models = []
        for _ in range(2):
            with seed(0):
                models.append(make(process_group))
        plain, model = models
        before, groups = collectives(model), len(dist.distributed_c10d._world.pg_map)
        assert isthmus.detach(isthmus.attach(model, options=options_of())) is model
        assert collectives(model) == before
        assert len(dist.distributed_c10d._world.pg_map) == groups
        assert history(model, 4) == history(plain, 4)
        assert unit_states(model) == []
        with pytest.raises(ValueError, match="the backend of this group is gloo, not isthmus"):
            isthmus.stats(process_group)
        with pytest.raises(ValueError, match=r"isthmus\.detach: this model is not attached"):
            isthmus.detach(model)
        isthmus.attach(model, options=options_of(bits=2))
        trained(model, 4)
        assert steps_of(model) and all(step >= 1 for step in steps_of(model).values())
        assert not any("(2)" in name for name in steps_of(model))


class Steep(nn.Module):
    """Its gradient is near the largest float16: the sum of two is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float16))

    def forward(self) -> torch.Tensor:
        return (self.weight * 40000).sum()


@table
def the_hook_that_ddp_keeps_divides_before_it_sums_as_ddp_does() -> None:
    model = nn.parallel.DistributedDataParallel(Steep(), process_group=gloo())
    isthmus.detach(isthmus.attach(model, options=options_of()))
    model().backward()
    assert model.module.weight.grad.tolist() == [40000] * 3


@table
def models_share_a_companion_until_the_last_is_detached() -> None:
    process_group = gloo()
    first = trained(isthmus.attach(fsdp2(mesh_of(process_group)), options=options_of()))
    second = trained(isthmus.attach(fsdp2(mesh_of(process_group)), options=options_of()))
    assert set(steps_of(first)) == UNITS | {f"{unit} (2)" for unit in UNITS}
    isthmus.detach(first)
    trained(second)
    assert steps_of(second) == {f"{unit} (2)": 4 for unit in UNITS}  # the first one's are gone
    isthmus.detach(second)
    assert _backends.isthmus_backend(process_group) is None


@table
def models_are_kept_alive_by_nothing() -> None:
    for make in (lambda: fsdp2(mesh_of(gloo())), lambda: ddp(gloo())):
        model = trained(isthmus.attach(make(), options=options_of(), scaler=torch.amp.GradScaler("cpu")), 3)
        remains = [weakref.ref(model), *map(weakref.ref, model.parameters())]
        del model
        gc.collect()
        assert not any(reference() is not None for reference in remains)


# --- What else works on models and groups ---


@table
def a_companion_is_saved_once() -> None:
    attached = trained(isthmus.attach(fsdp2(mesh_of(gloo())), options=options_of(), name="saved"))
    assert isthmus.state_dict()[f"rank{dist.get_rank()}"].count("saved/root") == 1
    isthmus.detach(attached)


@table
def a_companion_takes_the_timeout_of_its_group() -> None:
    process_group = dist.new_group(backend="gloo", timeout=timedelta(seconds=77))
    isthmus.attach(fsdp2(mesh_of(process_group)), options=options_of())
    assert _backends.backend_of(process_group).options._timeout == timedelta(seconds=77)


@table
def a_separate_group_of_reductions_has_a_companion_of_its_own() -> None:
    """As torch 2.13 makes one where it is asked to; older versions do not look at it."""
    gathers, reductions = gloo(), gloo()
    model = fsdp2(mesh_of(gathers))
    for module in model.modules():
        for unit in param_groups_of(module):
            unit.mesh_info.reduce_scatter_process_group = reductions
    isthmus.attach(model, options=options_of())
    companions = [_backends.companion_of(found) for found in (gathers, reductions)]
    assert len({id(companion) for companion in (*companions, None)}) == 3
    isthmus.detach(model)
    assert [_backends.companion_of(found) for found in (gathers, reductions)] == [None, None]


@table
def reductions_that_get_a_group_of_their_own_later_stay_attached() -> None:
    """As torch 2.13 makes one where it is asked to; older versions do not look at it."""
    models = []
    for has_separate in (False, True):
        with seed(0):
            model: Any = isthmus.attach(fsdp2(mesh_of(gloo())), options=options_of())
        reductions = gloo()
        for unit in {unit for module in model.modules() for unit in param_groups_of(module) if has_separate}:
            unit.mesh_info.reduce_scatter_process_group = reductions
        models.append(model)
    assert history(models[0], 3) == history(models[1], 3)
    assert fingerprint(models[0]) == fingerprint(models[1])
    assert set(steps_of(models[1])) == UNITS
    isthmus.load_state_dict(isthmus.state_dict(models[1]), models[1])
    for model in models:
        isthmus.detach(model)


# --- What is refused ---


def refused(model: Any, **arguments: Any) -> str:
    """Return the error, which must be the same on every rank and leave no trace."""
    groups = len(dist.distributed_c10d._world.pg_map)
    before = collectives(model) if isinstance(model, nn.Module) else []
    with pytest.raises(ValueError, match=r"^isthmus\.attach: ") as caught:
        isthmus.attach(model, **({"nodes": "2x2"} | arguments if "options" not in arguments else arguments))
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, str(caught.value))
    assert len(set(texts)) == 1, texts
    assert len(dist.distributed_c10d._world.pg_map) == groups
    if isinstance(model, nn.Module):
        assert collectives(model) == before
    return texts[0].removeprefix("isthmus.attach: ")  # type: ignore[no-any-return]


@table
def models_that_cannot_be_attached() -> None:
    assert "found nothing of FSDP2 or DDP in this Linear: call it after fully_shard" in refused(nn.Linear(2, 2))
    assert "expected a model of FSDP2 or DDP, got a int" in refused(3)
    assert "FSDP1 hands nobody its collectives: wrap the model with fully_shard" in refused(fsdp1(mesh_of(gloo())))
    assert "are on Isthmus already: call isthmus.prepare(model)" in refused(fsdp2(mesh_of(group())))
    assert "there are 2 DDP modules in this model" in refused(nn.ModuleList([ddp(gloo()), ddp(gloo())]))
    other = ddp(gloo())
    other.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
    assert "this DDP model has a communication hook already" in refused(other)
    attached = isthmus.attach(ddp(gloo()), options=options_of())
    assert "this DDP model has a communication hook already" in refused(
        nn.ModuleList([attached]), options=options_of(), name="outer"
    )
    assert steps_of(trained(attached, 4))


@table
def a_model_that_is_wrong_on_one_rank_is_refused_on_all() -> None:
    process_group = gloo()
    model = fsdp2(mesh_of(process_group)) if dist.get_rank() != 2 else nn.Linear(2, 2)
    assert refused(model).startswith("rank 2: found nothing of FSDP2 or DDP")
    with seed(0):
        model = isthmus.attach(fsdp2(mesh_of(process_group)), options=options_of())  # nothing is left of that
    assert steps_of(trained(model)) == dict.fromkeys(UNITS, 2)


@table
def options_that_are_refused() -> None:
    model = fsdp2(mesh_of(gloo()))
    assert 'option bits="99": expected' in refused(model, bits=99)
    assert "there is no option bitz" in refused(model, bitz=3)
    assert "give options=, or keywords (bits), not both" in refused(model, options=options_of(), bits=2)
    assert "options: expected isthmus.Options, got dict" in refused(model, options={"bits": 2})
    rank = dist.get_rank()
    assert refused(model, bits=99 if rank == 3 else 4).startswith('rank 3: option bits="99": expected')
    assert "expected a GradScaler, got int" in refused(model, scaler=3)
    assert refused(model, nodes="3x2") == 'nodes "3x2" makes 6 ranks, but the group has 4'


@table
def groups_within_a_node() -> None:
    for model in (fsdp2(mesh_of(gloo())), ddp(gloo())):
        assert "no group of this model spans several nodes of one size" in refused(model, nodes="1x4")
        assert "simulate nodes: isthmus.attach(model, nodes=" in refused(model, nodes="0|1,2,3")
    assert 'backend_override={"replicate": "isthmus"}' in refused(hsdp("gloo", "gloo"))


@table
def groups_whose_ranks_torch_would_sort() -> None:
    model = fsdp2(mesh_of(gloo()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_process_group_ranks", lambda group: [3, 2, 1, 0])
        assert "not in ascending order, which torch needs: [3, 2, 1, 0]" in refused(model)


@table
def other_arguments_than_before() -> None:
    process_group = gloo()
    model = isthmus.attach(fsdp2(mesh_of(process_group)), nodes="2x2")
    assert "this model is attached with bits=4 and not 2: call isthmus.detach(model) first" in refused(model, bits=2)
    assert "attached with name='' and not 'other'" in refused(model, name="other")
    assert "attached with prefetch=True and not False" in refused(model, prefetch=False)
    second = fsdp2(mesh_of(process_group))
    text = "another model over the group of ranks 0, 1, 2, 3 is attached with bits=4 and not 2"
    assert text in refused(second, bits=2)
    isthmus.detach(model)
    isthmus.attach(second, nodes="2x2", bits=2)
    assert "unit 'root' belongs to another attached model" in refused(second.blocks[0])


@table
def models_in_a_pass() -> None:
    model: Any = fsdp2(mesh_of(gloo()))
    handle = model.unshard(async_op=True)
    assert "unit 'root' is in a forward or backward pass, or being gathered" in refused(model)
    handle.wait()
    model.reshard()
    isthmus.attach(model, options=options_of())
    errors: list[str] = []

    def try_it(*_: Any) -> None:
        for change in (isthmus.detach, lambda found: isthmus.attach(found.blocks[0], options=options_of())):
            with pytest.raises(ValueError, match=r"in a forward or backward pass|belongs to another") as caught:
                change(model)
            errors.append(str(caught.value))

    handle = model.blocks[0].register_forward_hook(try_it)
    trained(model, 1)
    handle.remove()
    assert len(errors) == 2
    isthmus.detach(model)


@table
def collectives_of_ones_own() -> None:
    class Own(UnitAllGather):
        pass

    for method, own, text in (
        ("set_custom_all_gather", Own(nn.Linear(1, 1), None), "belongs to another attached model"),
        ("set_custom_reduce_scatter", UnitReduceScatter(nn.Linear(1, 1), None), "belongs to another attached model"),
        ("set_custom_reduce_scatter", OwnReduceScatter(), "has a OwnReduceScatter of its own already: take that away"),
    ):
        model: Any = fsdp2(mesh_of(gloo()))
        getattr(model.blocks[1], method)(own)
        assert f"unit 'blocks.1' {text}" in refused(model)


@table
def memory_of_the_process_group_is_given_back() -> None:
    model: Any = fsdp2(mesh_of(gloo()))
    model.set_allocate_memory_from_process_group_for_comm(True)
    before = collectives(model)
    trained(isthmus.attach(model, options=options_of()))
    assert steps_of(model) == dict.fromkeys(UNITS, 2)
    isthmus.detach(model)
    assert collectives(model) == before


@table
def figures_of_an_attached_group_count_once() -> None:
    model = isthmus.attach(sharded({})("gloo"), options=options_of())
    trained(model)
    before = dict(_process._last_stats)
    level = _process.logger.level
    try:
        _process.logger.setLevel("INFO")
        _process._log_summary()
        logged = list(_process._last_stats.values())[len(before) :]
    finally:
        _process.logger.setLevel(level)
        _process._last_stats = before
    (own,) = counters(model)
    seen = [found for found in map(without_times, isthmus.stats()["groups"].values()) if found == own]
    assert len(seen) == 1
    assert dist.get_rank() > 0 or [without_times(found) for found in logged].count(own) == 1


@table
def models_that_were_prepared() -> None:
    model = isthmus.prepare(hsdp("gloo", "isthmus", nodes="4x1"))
    assert "this model was prepared before" in refused(model, nodes="4x1")


def main(rank: int, world_size: int) -> dict[str, str]:
    return table.run_in_world(backend="gloo")


test_attach = table.in_world(main)
