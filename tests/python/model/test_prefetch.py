"""In which order forward passes of FSDP2 gather units and wait for them, in one process: the group's other ranks do not
exist, and its collectives do nothing."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from isthmus.model.collectives import UnitAllGather
from isthmus.model.models import fsdp2_units
from isthmus.model.prefetch import Prefetch
from isthmus.model.units import Prepared, prepared_units
from isthmus.torch_private.models import collectives_of, param_groups_of
from support.logs import logged

UNITS = 4
ORDER = tuple(range(UNITS))


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(UNITS))

    def forward(self, x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
        for index in order:
            x = self.layers[index](x)  # IndexError: the pass fails
        return x


class Followed:
    def __init__(self) -> None:
        self.model: Any = Model()
        mesh = init_device_mesh("cpu", (2,))
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.prefetch = Prefetch(self.model)
        for group, unit in fsdp2_units(self.model):
            prepared = Prepared("", "*", prefetches=True)
            unit.prepared = prepared
            prepared_units[group] = unit
        self.events: list[str] = []
        for index, layer in enumerate(self.model.layers):
            (unit,) = param_groups_of(layer)
            layer.set_custom_all_gather(Noted(unit, self.prefetch, str(index), self.events))
            layer.register_forward_hook(lambda *_, index=index: self.events.append(f"compute {index}"))

    def forward(self, *order: int) -> list[str]:
        self.events.clear()
        with torch.no_grad():
            self.model(torch.ones(1, 4), order)
        return list(self.events)

    def pending(self) -> list[int]:
        return [i for i, layer in enumerate(self.model.layers) if param_groups_of(layer)[0]._all_gather_result]


class Noted(UnitAllGather):
    def __init__(self, unit: Any, prefetch: Prefetch, name: str, events: list[str]) -> None:
        super().__init__(unit, collectives_of(unit)[0], prefetch)
        self._name, self._events = name, events

    def __call__(self, *arguments: Any, **named: Any) -> dist.Work | None:
        self._events.append(f"gather {self._name}")
        return super().__call__(*arguments, **named)


def at_the_call(*order: int) -> list[str]:
    return [f"{what} {unit}" for unit in order for what in ("gather", "compute")]


def ahead(*order: int) -> list[str]:
    pairs = [event for now, following in pairwise(order) for event in (f"gather {following}", f"compute {now}")]
    return [f"gather {order[0]}", *pairs, f"compute {order[-1]}"]


def test_the_first_pass_shows_the_order() -> None:
    followed = Followed()
    assert followed.forward(2, 0, 1, 3) == at_the_call(2, 0, 1, 3)
    with logged() as texts:
        assert followed.forward(2, 0, 1, 3) == ahead(2, 0, 1, 3)
        assert followed.forward(2, 0, 1, 3) == ahead(2, 0, 1, 3)
    assert not texts


@pytest.mark.parametrize("other", [(0, 1), (0, 2, 3), (1, 0, 2, 3), (3, 0, 1, 2)])
def test_another_order_ends_it_and_is_told_once(other: tuple[int, ...]) -> None:
    followed = Followed()
    followed.forward(*ORDER)
    with logged() as texts:
        followed.forward(*other)
        assert followed.pending() == []
        assert followed.forward(*ORDER) == at_the_call(*ORDER)
        assert followed.forward(*other) == at_the_call(*other)
    assert len(texts) == 1 and "different orders" in texts[0]


def test_a_pass_that_fails_leaves_nothing_gathered() -> None:
    followed = Followed()
    with pytest.raises(IndexError):
        followed.forward(0, UNITS)
    followed = Followed()
    followed.forward(*ORDER)
    with logged() as texts, pytest.raises(IndexError):
        followed.forward(0, UNITS)
    assert followed.events == ["gather 0", "gather 1", "compute 0"]
    assert followed.pending() == []
    assert not texts


def test_units_that_stay_gathered_are_no_other_order() -> None:
    followed = Followed()
    followed.forward(*ORDER)
    followed.model.layers[1].set_reshard_after_forward(False)
    followed.forward(*ORDER)
    with logged() as texts:
        assert "gather 1" not in followed.forward(*ORDER)
        followed.model.layers[1].reshard()
        assert followed.forward(*ORDER) == ahead(*ORDER)
    assert not texts


def test_a_unit_that_is_called_twice_has_no_next_one() -> None:
    followed = Followed()
    order = (0, 1, 0, 2)
    for _ in range(3):
        assert followed.forward(*order) == at_the_call(*order)


def test_what_a_model_was_told_stays() -> None:
    followed = Followed()
    followed.model.layers[0].set_modules_to_forward_prefetch([followed.model.layers[2]])
    for _ in range(2):
        assert followed.forward(*ORDER) == [
            *("gather 0", "gather 2", "compute 0", "gather 1", "compute 1"),
            *("compute 2", "gather 3", "compute 3"),
        ]


def test_what_a_user_gathers_is_no_part_of_a_pass() -> None:
    followed = Followed()
    layers = followed.model.layers
    followed.forward(*ORDER)
    layers[2].unshard(async_op=True)
    hook = layers[3].register_forward_hook(lambda *_: layers[0].unshard(async_op=True) and None)
    with logged() as texts:
        followed.forward(*ORDER)
        assert followed.pending() == [0]
        hook.remove()
        followed.forward(*ORDER)
        assert followed.forward(*ORDER) == ahead(*ORDER)
    assert not texts
