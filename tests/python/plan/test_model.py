"""Models for plans: presets against published totals, units of modules, and what is refused."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from isthmus.plan.units import PRESETS, load_module, preset, train_only, units_of

#: As the models' cards and papers have them, to the parameter.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
}


def test_presets_have_the_published_number_of_parameters():
    assert {name: preset(name).num_parameters for name in PRESETS} == PUBLISHED


def test_a_preset_has_a_root_and_a_unit_for_each_block():
    model = preset("Mistral-7B")
    assert [(unit.name, unit.is_root) for unit in model.units[:2]] == [("root", True), ("layers.0", False)]
    assert len(model.units) == 33


def test_each_parameter_is_padded_along_its_first_dimension():
    model = units_of(Odd())
    (unit,) = model.units
    assert unit.num_parameters == 7 * 3 + 7 + 1
    assert unit.padded_elements(1) == 29
    assert unit.padded_elements(2) == 8 * 3 + 8 + 2
    assert unit.padded_elements(8) == 8 * 3 + 8 + 8


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 7)
        self.scale = nn.Parameter(torch.ones(1))


class Nested(nn.Module):
    """A list in a list, a shared matrix, and a list without parameters."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList(nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(4, 4)])}) for _ in range(2))
        self.activations = nn.ModuleList([nn.ReLU()])
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight


def sizes(model):
    return {unit.name: unit.num_parameters for unit in model.units}


def test_elements_of_the_outermost_lists_are_units_and_what_is_shared_counts_once():
    assert sizes(units_of(Nested())) == {"root": 40, "blocks.0": 20, "blocks.1": 20}


def test_a_module_without_lists_is_one_unit_and_one_without_parameters_is_refused():
    assert sizes(units_of(nn.Linear(3, 2))) == {"root": 8}
    with pytest.raises(ValueError, match="ReLU has no parameters to train"):
        units_of(nn.ReLU())
    with pytest.raises(ValueError, match="Linear has no parameters to train"):
        units_of(nn.Linear(3, 2).requires_grad_(False))


def trained(model):
    return {unit.name: unit.num_trained for unit in model.units}


def test_what_requires_no_gradient_is_frozen():
    module = Nested()
    module.blocks[0].requires_grad_(False)
    module.blocks[1]["experts"][0].bias.requires_grad_(False)
    model = units_of(module)
    assert sizes(model) == {"root": 40, "blocks.0": 20, "blocks.1": 20}
    assert trained(model) == {"root": 40, "blocks.0": 0, "blocks.1": 16}


def test_a_share_or_names_are_trained():
    model = preset("llama2-7b")
    assert trained(train_only(model, "1")) == sizes(model)
    assert train_only(model, "0.01").num_trained == pytest.approx(0.01 * model.num_parameters, rel=1e-5)
    named = train_only(model, "layers.*.q_proj, lm_head")
    assert trained(named) == {"root": 32000 * 4096} | {f"layers.{n}": 4096**2 for n in range(32)}
    assert sizes(named) == sizes(model)
    module = units_of(Nested())
    assert trained(train_only(module, "blocks.1.*")) == {"root": 0, "blocks.0": 0, "blocks.1": 20}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        *((share, f"trainable {share}: expected a share above 0, up to 1") for share in ("0", "-1", "1.5", "nan")),
        ("*lora_*", r"trainable '\*lora_\*': no parameter of llama2-7b has such a name; it has embed_tokens, norm"),
        ("lm_head,", "trainable '': no parameter"),
    ],
)
def test_shares_out_of_range_and_names_that_nothing_has_are_named(what, message):
    with pytest.raises(ValueError, match=message):
        train_only(preset("llama2-7b"), what)


def test_what_fsdp2_has_wrapped_already_are_the_units():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with torch.device("meta"):
            model = nn.Sequential(nn.ModuleList([nn.Linear(4, 4)]), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
        mesh = init_device_mesh("cpu", (1,))
        for module in (model[1], model):
            fully_shard(module, mesh=mesh)
        assert sizes(units_of(model)) == {"root": 20, "1": 30}
    finally:
        dist.destroy_process_group()


FACTORIES = """
import torch
from torch import nn
def model(): return nn.Sequential(nn.Linear(1_000_000, 100_000), nn.ReLU())
def fails(): raise RuntimeError("no such weights")
def leaves(): raise SystemExit(3)
number = lambda: 7
"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "plan_factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "plan_factories"
    sys.modules.pop("plan_factories", None)


def test_a_factory_is_called_on_the_meta_device(factories):
    assert units_of(load_module(f"{factories}:model")).num_parameters == 100_000_100_000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "failed: RuntimeError: no such weights"),
        ("leaves", "failed: SystemExit: 3"),
        ("number", "failed: AttributeError"),
        ("absent", "failed: AttributeError"),
    ],
)
def test_a_bad_factory_is_named_with_what_is_wrong(factories, name, message):
    with pytest.raises(ValueError, match=f"module '{factories}:{name}'.*{message}"):
        load_module(f"{factories}:{name}")


@pytest.mark.parametrize("text", ["", "module", ":factory", "module:", "no.such:factory"])
def test_a_factory_needs_a_module_and_a_name(text):
    with pytest.raises(ValueError, match=r"failed: (ValueError|ModuleNotFoundError)"):
        load_module(text)
