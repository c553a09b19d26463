"""Torch has each private name that is read, and it means what we read in it: run with each torch that is supported."""

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import isthmus
from isthmus.model.layout import clean_name
from isthmus.torch_private import callers, groups, models

MINUTE = timedelta(minutes=1)
RANKS = 4  # of a world in which only this process exists, and nothing is sent
WIDTH = 6  # not a multiple of the ranks


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers(features)  # type: ignore[no-any-return]

    def step(self) -> None:
        self(torch.ones(2, WIDTH, requires_grad=True)).sum().backward()


@pytest.fixture
def alone() -> Iterator[dist.Store]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=MINUTE)
    yield store
    dist.destroy_process_group()


@pytest.fixture
def hybrid() -> Iterator[dist.DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    dist.destroy_process_group()


def sharded(mesh: dist.DeviceMesh) -> tuple[Any, Any, list[Any]]:
    """A model of FSDP2, the unit of its first layer, and those of both."""
    model: Any = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    units = [unit for layer in model.layers for unit in models.param_groups_of(layer)]
    assert len(units) == 2
    return model, units[0], units


# --- Process groups ---


def test_groups_and_the_store(alone: dist.Store) -> None:
    groups.job_store().set("key", "value")
    other = dist.new_group([0], backend="gloo")
    assert groups.all_groups() == [dist.group.WORLD, other]
    assert any("key" in key for key in alone.list_keys())


def test_backends_and_timeouts(alone: dist.Store) -> None:
    world: Any = dist.group.WORLD
    found = groups.backends_by_device(world)
    assert isinstance(found["cpu"], dist.ProcessGroupGloo)
    assert groups.timeout_of(found["cpu"].options) == MINUTE
    groups.set_timeout_of_backend(found["cpu"], 2 * MINUTE)
    assert groups.timeout_of(found["cpu"].options) == 2 * MINUTE
    options = isthmus.Options()
    groups.set_timeout(options, MINUTE)
    assert groups.timeout_of(options) == MINUTE


def test_a_backend_and_a_group_of_one() -> None:
    devices = [dist.ProcessGroupGloo.create_device(interface="lo", lazy_init=False)]
    backend = groups.make_gloo(dist.HashStore(), 0, 1, MINUTE, devices)
    assert groups.timeout_of(backend.options) == MINUTE
    made = groups.make_group(backend, dist.HashStore(), 0, 1, ["cpu", "cuda"])
    assert groups.backends_by_device(made) == {"cpu": backend, "cuda": backend}
    tensor = torch.ones(3)
    made.allreduce([tensor]).wait()
    assert tensor.tolist() == [1, 1, 1]


class CountingStore(dist.Store):
    """A store that counts what it is asked."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.store = store
        self.calls: list[tuple[str, list[str]]] = []

    def set(self, key: str, value: str) -> None:
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        self.calls.append(("get", [key]))
        return self.store.get(key)

    def wait(self, keys: list[str], timeout: timedelta) -> None:  # type: ignore[override]
        self.calls.append(("wait", keys))
        self.store.wait(keys, timeout)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.calls.append(("multi_get", keys))
        return self.store.multi_get(keys)


def test_ranks_of_a_backend_ask_the_store_once_for_each_device() -> None:
    shared = dist.HashStore()
    stores = [CountingStore(shared) for _ in range(3)]

    def connected(rank: int) -> torch.Tensor:
        devices = [dist.ProcessGroupGloo.create_device(interface="lo", lazy_init=False) for _ in range(2)]
        backend = groups.make_gloo(stores[rank], rank, 3, MINUTE, devices)
        tensor = torch.full((3,), float(rank))
        backend.allreduce([tensor]).wait()
        return tensor

    with ThreadPoolExecutor() as threads:
        assert [sums.tolist() for sums in threads.map(connected, range(3))] == [[3.0] * 3] * 3
    by_device = [[f"{device}/{rank}" for rank in range(3)] for device in range(2)]
    for store in stores:
        assert store.calls == [(call, keys) for keys in by_device for call in ("wait", "multi_get")]


def test_other_keys_of_a_backend_go_through() -> None:
    store = CountingStore(dist.HashStore())
    addresses = groups.Addresses(store, 2)
    for key in ("0/2", "name", "rank/x"):
        addresses.set(key, f"of {key}")
        addresses.wait([key], MINUTE)
        assert addresses.get(key) == f"of {key}".encode()
    with pytest.raises(dist.DistStoreError):
        addresses.wait(["0/0"], timedelta(seconds=0.1))
    assert store.calls[-1] == ("wait", ["0/0", "0/1"])


@pytest.mark.skipif(torch.cuda.is_available() or not dist.is_nccl_available(), reason="a GPU, or torch without NCCL")
def test_nccl_is_asked_for(alone: dist.Store) -> None:
    """All names are there up to the one that makes it, which finds no GPU."""
    with pytest.raises((RuntimeError, ValueError), match=r"GPU|CUDA device"):
        groups.make_nccl(dist.HashStore(), 0, [0], MINUTE, "name", None)


def test_a_backward_pass() -> None:
    seen = []
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda _: seen.append(groups.is_in_backward_pass()))
    seen.append(groups.is_in_backward_pass())
    tensor.sum().backward()
    assert seen == [False, True]


# --- FSDP2 ---


def test_units(hybrid: dist.DeviceMesh) -> None:
    model, unit, _ = sharded(hybrid)
    first = model.layers[0]
    assert models.is_fsdp2(first)
    assert not models.is_fsdp2(Model()) and not models.param_groups_of(Model())
    assert models.param_groups_of(model) == []  # has no parameter of its own
    assert models.modules_of(unit) == [first]
    assert models.device_of(unit) == torch.device("cpu")
    assert (models.root_of(first), models.path_of(unit)) == (None, None)
    model.step()
    assert (models.root_of(first), models.path_of(unit)) == (model, "layers.0")


def test_parameters_of_a_unit(hybrid: dist.DeviceMesh) -> None:
    model, _, (_, unit) = sharded(hybrid)
    layer = model.layers[1]
    weight, bias = models.parameters_of(unit)
    assert (weight.module, weight.name, tuple(weight.shape), weight.dim) == (layer, "weight", (WIDTH, WIDTH), 0)
    assert (bias.module, bias.name, tuple(bias.shape)) == (layer, "bias", (WIDTH,))
    assert weight.tensor is layer.weight and isinstance(weight.tensor, DTensor)
    assert [models.section_elements(unit, index) for index in range(2)] == [WIDTH // 2 * WIDTH, WIDTH // 2]
    assert models.trainable_indexes(unit) == (0, 1)
    layer.weight.requires_grad_(False)
    assert models.trainable_indexes(unit) == (1,)


def test_rows_are_padded(hybrid: dist.DeviceMesh) -> None:
    _, unit, _ = sharded(init_device_mesh("cpu", (RANKS,)))
    assert models.section_elements(unit, 0) == -(-WIDTH // RANKS) * WIDTH


def test_the_mesh_of_a_unit(hybrid: dist.DeviceMesh) -> None:
    _, unit, _ = sharded(hybrid)
    assert models.mesh_of(unit) == hybrid
    assert models.gather_group(unit) == hybrid.get_group("shard")
    assert models.replicate_group(unit) == hybrid.get_group("replicate")
    _, flat, _ = sharded(hybrid["shard"])
    assert models.replicate_group(flat) is None
    assert models.root_mesh(hybrid["shard"]) == models.root_mesh(hybrid) == hybrid
    assert models.ranks_of_meshes_like(hybrid) == [[0, 1, 2, 3]]
    assert models.ranks_of_meshes_like(hybrid["shard"]) == [[0, 1], [2, 3]]
    assert models.ranks_of_meshes_like(hybrid["replicate"]) == [[0, 2], [1, 3]]


def test_a_separate_group_of_reductions(hybrid: dist.DeviceMesh) -> None:
    model, unit, _ = sharded(hybrid["shard"])
    assert models.separate_shard_group(unit) in (None, models.gather_group(unit))
    if not hasattr(model, "set_separate_reduce_scatter_group"):
        pytest.skip("this torch has none")
    model.set_separate_reduce_scatter_group(True)
    assert models.separate_shard_group(unit) not in (None, models.gather_group(unit))


def test_input_buffers(hybrid: dist.DeviceMesh) -> None:
    model, unit, _ = sharded(hybrid)
    model.step()
    models.set_input_buffers([unit], 2)
    if hasattr(model, "set_reduce_scatter_max_input_buffers"):
        assert unit.reduce_scatter_max_input_buffers == unit.comm_ctx.reduce_scatter_max_input_buffers == 2
        models.set_input_buffers([unit], 3)
        assert unit.reduce_scatter_max_input_buffers == 2  # the model was told so


def test_where_a_pass_is(hybrid: dist.DeviceMesh) -> None:
    model, unit, units = sharded(hybrid)
    seen = []

    def look(*_: Any) -> None:
        before = [each._all_gather_result is not None for each in units]
        models.gather_ahead(units[1])
        after = [each._all_gather_result is not None for each in units]
        seen.append((models.is_in_forward(unit), models.is_in_a_pass(unit), before, after))

    model.layers[0].register_forward_pre_hook(look)
    model.layers[0].register_full_backward_hook(
        lambda *_: seen.append((models.is_in_forward(unit), models.is_in_a_pass(unit)))
    )
    assert not models.is_in_a_pass(unit)
    model.step()
    assert seen == [(True, True, [False, False], [False, True]), (False, True)]
    assert not models.is_in_a_pass(unit)


def test_whether_the_user_prefetches(hybrid: dist.DeviceMesh) -> None:
    model, _, _ = sharded(hybrid)
    first, second = model.layers
    first.set_modules_to_forward_prefetch([second])
    assert [models.prefetches(layer) for layer in model.layers] == [True, False]


def test_who_calls_a_collective(hybrid: dist.DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    model, unit, units = sharded(hybrid)
    own = models.collectives_of(unit)
    assert [type(each).__name__ for each in own] == ["DefaultAllGather", "DefaultReduceScatter"]
    seen: dict[str, list[Any]] = {"gathers": [], "reduces": [], "hook": [], "begins": []}

    def gather(**keywords: Any) -> Any:
        seen["gathers"].append(callers.gathering_object())
        return own[0](**keywords)

    def reduce(**keywords: Any) -> Any:
        seen["reduces"].append(callers.reduction_of(keywords["output_tensor"], keywords["input_tensor"]))
        return own[1](**keywords)

    class Label(torch.profiler.record_function):
        def __enter__(self) -> Any:
            if self.name == "FSDP::root_pre_forward":
                seen["begins"].append(callers.beginning_pass())
            return super().__enter__()

    for call, comm in ((gather, own[0]), (reduce, own[1])):
        call.allocate = comm.allocate  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.profiler, "record_function", Label)
    for layer in model.layers:
        layer.set_custom_all_gather(gather)
        layer.set_custom_reduce_scatter(reduce)
        layer.set_all_reduce_hook(lambda shard: seen["hook"].append(callers.hooked_reduction_of(shard)))
    model.layers[1].bias.requires_grad_(False)
    model.step()
    backwards = [(units[1], (0,)), (units[0], (0,))]
    assert seen["gathers"] == [*units, *reversed(units)]
    assert seen["reduces"] == seen["hook"] == backwards
    assert seen["begins"] == [model]


# --- FSDP1, DDP and the rest ---


def test_fsdp1(hybrid: dist.DeviceMesh) -> None:
    strategy = ShardingStrategy.HYBRID_SHARD
    arguments: Any = {"device_mesh": hybrid, "device_id": torch.device("cpu"), "use_orig_params": True}
    module = FullyShardedDataParallel(nn.Linear(WIDTH, 5), sharding_strategy=strategy, **arguments)
    handle = models.handle_of(module)
    assert models.handle_of(nn.Linear(1, 1)) is None
    flat = models.flat_parameter_of(handle)
    assert isinstance(flat, nn.Parameter)
    assert models.is_sharded(handle)
    assert models.first_name_of(handle) == "weight"
    assert models.first_name_of(module) is None
    parts = [(name, tuple(shape)) for name, shape in models.parts_of(flat)]
    assert [part for part in parts if part[0]] == [("weight", (5, WIDTH)), ("bias", (5,))]
    assert sum(torch.Size(shape).numel() for _, shape in parts) == 2 * flat.numel()
    assert [(spec, type(made)) for spec, made in models.parameters_in(flat)] == [(None, nn.Parameter)] * 2
    assert models.hybrid_group(module) == hybrid.get_group("replicate")
    assert models.fsdp1_mesh(module) == hybrid
    assert module.process_group == hybrid.get_group("shard")


def test_who_calls_a_collective_of_fsdp1(hybrid: dist.DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    module = FullyShardedDataParallel(nn.Linear(WIDTH, 5), device_id=torch.device("cpu"))
    handle = models.handle_of(module)
    seen = []
    reducing = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    gather, reduce = dist.all_gather, getattr(dist, reducing)

    def noted_gather(*arguments: Any, **keywords: Any) -> Any:
        seen.append(callers.gathering_object())
        return gather(*arguments, **keywords)

    def noted_reduce(output: Any, input: Any, *arguments: Any, **keywords: Any) -> Any:
        seen.append(callers.reduction_of(output, input))
        return reduce(output, input, *arguments, **keywords)

    monkeypatch.setattr(dist, "all_gather", noted_gather)
    monkeypatch.setattr(dist, reducing, noted_reduce)
    module(torch.ones(2, WIDTH)).sum().backward()
    assert seen == [handle, (module, handle)]


def test_ddp(alone: dist.Store) -> None:
    module = nn.parallel.DistributedDataParallel(Model())
    before = pickle.dumps(module)
    module.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(module)
    models.unlist_newest_hook(module)
    assert len(pickle.dumps(module)) == len(before)


@pytest.mark.filterwarnings("ignore:FSDP is switching")  # one rank has nothing to shard
def test_names_of_wrapped_modules(alone: dist.Store) -> None:
    compiled: Any = torch.compile(nn.Linear(1, 1))
    wrapped = FullyShardedDataParallel(
        checkpoint_wrapper(compiled), device_id=torch.device("cpu"), use_orig_params=True
    )
    names = [name for name, _ in wrapped.named_parameters()]
    assert all(wrapper in name for name in names for wrapper in models.WRAPPERS)
    assert [clean_name(name) for name in names] == ["weight", "bias"]
