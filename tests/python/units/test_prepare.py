"""isthmus.prepare names every reduction and the parameters in it. Real FSDP2 and DDP over Gloo; what the native module
would be told is recorded, and held against what was reduced."""

import types

import pytest

from isthmus.units.prepared import EXCLUDED, matches
from support import ranks
from support.checks import Table, World, finish

check = Table()


class Native:
    """Records tags in place of the native module; every Gloo backend counts as one of Isthmus."""

    REPLICAS = "replicas"

    def __init__(self):
        import torch.distributed as dist

        self.Backend = dist.ProcessGroupGloo
        self.labels = []  # name, places of parameters, why exact: of each reduction of FSDP2
        self.buckets = []

    def allocate(self, size, *, dtype, device):
        import torch

        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *, output_tensor, input_tensor, group, op, async_op=False):
        """Take the place of FSDP2's reduce-scatter: the native module asks from within it."""
        import torch.distributed as dist

        from isthmus.units import identify as _identify

        (name, _, exact, owner, sections), is_label, flat_parameter = _identify.fsdp_caller(output_tensor, input_tensor)
        assert owner > 0 and flat_parameter is None
        self.labels.append(("" if is_label else name, sections, exact))
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, group=group, op=op, async_op=async_op)

    def push_unit(self, name, layout, exact, owner):
        self.buckets.append((name, layout, exact))

    def pop_unit(self):
        pass

    def forget_owner(self, owner):
        pass

    def Sections(self, pairs):
        return tuple(index for index, _ in pairs)


def make(native, width=6):
    import torch
    from torch.distributed.fsdp import fully_shard

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(width, width)
            self.second = torch.nn.Linear(width, width)

        def forward(self, x, which="both"):
            if which in ("first", "both"):
                x = self.first(x)
            return self.second(x) if which in ("second", "both") else x

    torch.manual_seed(0)
    model = torch.nn.Module()
    model.block = Block()
    model.out = torch.nn.Linear(width, 3)
    model.forward = types.MethodType(lambda self, x, which="both": self.out(self.block(x, which)), model)
    fully_shard(model.block)
    fully_shard(model)
    model.block.set_custom_reduce_scatter(native)
    model.set_custom_reduce_scatter(native)
    return model


def step(model, which="both"):
    import torch

    model(torch.randn(2, 6), which).sum().backward()


@check
def reductions_of_equal_size_from_different_parameters_have_different_sections(native):
    from isthmus.units import prepare as _prepare

    model = _prepare.prepare(make(native))
    step(model)
    native.labels.clear()
    for which in ("first", "second", "both"):
        step(model, which)
    block = [entry for entry in native.labels if entry[0] == "block"]
    assert [exact for _, _, exact in block] == ["", "", ""]
    assert [places for _, places, _ in block] == [(0, 1), (2, 3), (0, 1, 2, 3)]
    assert [name for name, *_ in native.labels] == ["root", "block"] * 3


def buffers_of(model):
    from isthmus.units.models import param_groups_of

    modules = (model, model.block)
    return [getattr(group, "reduce_scatter_max_input_buffers", None) for m in modules for group in param_groups_of(m)]


def with_input_buffers(model, of_block):
    """Where torch is older than 2.13: give the model what FSDP2 has since."""
    from torch.distributed.fsdp import FSDPModule

    from isthmus.units.models import param_groups_of

    def set_buffers(self, number, *, recurse=True):
        assert not recurse
        for group in param_groups_of(self):
            group.reduce_scatter_max_input_buffers = number

    if not hasattr(FSDPModule, "set_reduce_scatter_max_input_buffers"):
        for module, number in ((model, 1), (model.block, of_block)):
            module.set_reduce_scatter_max_input_buffers = types.MethodType(set_buffers, module)
            module.set_reduce_scatter_max_input_buffers(number, recurse=False)
    model.block.set_reduce_scatter_max_input_buffers(of_block, recurse=False)
    return model


@check
def gradients_are_packed_while_others_are_reduced(native):
    from isthmus.units import prepare as _prepare

    assert buffers_of(_prepare.prepare(with_input_buffers(make(native), 1), name="overlapping")) == [2, 2]


@check
def the_users_number_of_packed_gradients_stays(native):
    from isthmus.units import prepare as _prepare

    assert buffers_of(_prepare.prepare(with_input_buffers(make(native), 3), name="told")) == [1, 3]


@check
def the_first_step_may_lack_gradients(native):
    from isthmus.units import prepare as _prepare

    model = _prepare.prepare(make(native), name="m")
    native.labels.clear()
    step(model, "first")
    assert [places for name, places, exact in native.labels if name == "m/block" and not exact] == [(0, 1)]


@check
def units_without_names_are_told_apart_by_the_places_of_their_parameters(native):
    model = make(native)
    step(model)
    native.labels.clear()
    for which in ("first", "second", "both"):
        step(model, which)
    names, places, reasons = zip(*native.labels, strict=True)
    assert set(names) == set(reasons) == {""}
    assert places[1::2] == ((0, 1), (2, 3), (0, 1, 2, 3))
    assert places[::2] == ((0, 1),) * 3  # the root's, of which all have gradients


@check
def gradients_that_accumulate_without_reductions_count(native):
    from isthmus.units import prepare as _prepare

    model = _prepare.prepare(make(native), name="accumulating")
    step(model)
    native.labels.clear()
    model.set_requires_gradient_sync(False)
    step(model, "first")
    assert not native.labels
    model.set_requires_gradient_sync(True)
    step(model, "second")
    (entry,) = [entry for entry in native.labels if entry[0] == "accumulating/block"]
    assert entry == ("accumulating/block", (0, 1, 2, 3), "")


@check
def units_are_excluded_by_name(native):
    from isthmus.units import prepare as _prepare

    model = _prepare.prepare(make(native), name="excluding", units="!block")
    native.labels.clear()
    step(model)
    assert {name: exact for name, _, exact in native.labels} == {
        "excluding/root": "",
        "excluding/block": EXCLUDED,
    }


@check
def preparing_again_changes_nothing_and_twins_are_numbered(native):
    from isthmus.units import prepare as _prepare

    model = _prepare.prepare(make(native), name="again")
    assert _prepare.prepare(model, name="again") is model
    with pytest.raises(ValueError, match="was prepared with name='again'"):
        _prepare.prepare(model, name="other")
    twin = _prepare.prepare(make(native), name="again")
    del model
    for other in (twin, _prepare.prepare(make(native), name="again")):
        step(other)
    numbers = ("", " (2)", " (3)")
    assert {name for name, _, _ in native.labels if name.startswith("again/block")} <= {
        f"again/block{n}" for n in numbers
    }
    assert [name for name, _, _ in native.labels[-4:]] == [
        f"again/{unit}{number}" for number in numbers[1:] for unit in ("root", "block")
    ]


@check
def what_cannot_be_prepared_is_named(native):
    import torch

    from isthmus.units import prepare as _prepare

    with pytest.raises(ValueError, match="found a model without FSDP, DDP or DTensors"):
        _prepare.prepare(torch.nn.Linear(2, 2))


@check
def buckets_are_exact_until_their_layout_is_settled(native):
    import torch

    from isthmus.units import buckets as _buckets
    from isthmus.units import prepare as _prepare

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    _prepare.prepare(model, name="ddp")
    native.buckets.clear()
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
    names = {name for name, _, _ in native.buckets}
    assert names == {"ddp/bucket 0"}
    assert native.buckets[0][2] == _buckets.FIRST_BUCKETS
    assert native.buckets[-1][2] == ""
    torch.testing.assert_close(model.module.weight.grad, torch.full((4, 4), 8.0))


def main(rank, world_size):
    from isthmus import native as _native

    ranks.init("gloo")
    native = Native()
    _native.load = lambda: native
    failures = check.run_on_this_rank(native)
    finish()
    return failures


@pytest.fixture(scope="module")
def world():
    return World(main, 2)


@pytest.mark.processes
@pytest.mark.parametrize("name", check.names)
def test_prepare(world, name):
    world.check(name)


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        ("*", "blocks.0", True),
        ("!*attn*", "blocks.0.attn", False),
        ("!*attn*", "blocks.0.mlp", True),
        ("blocks.*, out", "out", True),
        ("blocks.*", "out", False),
        ("*,!out", "out", False),
        ("", "out", False),
    ],
)
def test_patterns_mean_what_the_option_units_means(patterns, name, expected):
    assert matches(patterns, name) is expected
