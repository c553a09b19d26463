"""The units of a model: what FSDP gathers and reduces together, and the parameters that they hold.

A torch module is built on the meta device: no memory, no weights, only shapes.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from isthmus.model.layout import Parameter, clean_name, rows
from isthmus.plan.ranges import check_choice


@dataclass(frozen=True)
class Unit:
    """What is gathered and reduced at once. is_root: FSDP2's outermost unit, which gathers first and reduces last.

    trained: of its parameters, those that are reduced, too; None: all.
    """

    name: str
    parameters: tuple[Parameter, ...]
    is_root: bool = False
    trained: tuple[Parameter, ...] | None = None

    @cached_property
    def num_parameters(self) -> int:
        """Elements of all its parameters."""
        return self.padded_elements(1)

    @cached_property
    def num_trained(self) -> int:
        """Elements of those that are trained."""
        return self.padded_trained(1)

    def padded_elements(self, num_ranks: int) -> int:
        """Elements of FSDP2's tensor for it: every rank holds an equal part of each parameter's first dimension."""
        return rows(self.parameters, num_ranks).num_elements

    def padded_trained(self, num_ranks: int) -> int:
        """Elements of FSDP2's tensor for its gradients."""
        return rows(self.parameters if self.trained is None else self.trained, num_ranks).num_elements


@dataclass(frozen=True)
class Model:
    """A model as FSDP sees it. units: in the order in which their parameters are gathered, the root first.

    width: elements of a token between two blocks; None: not known.
    """

    name: str
    units: tuple[Unit, ...]
    width: int | None = None

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of all units."""
        return sum(unit.num_parameters for unit in self.units)

    @cached_property
    def num_trained(self) -> int:
        """Those of them that are trained."""
        return sum(unit.num_trained for unit in self.units)


def units_of(module: nn.Module) -> Model:
    """The units that FSDP2 would make of a module: what it wraps, and the root with everything else.

    Where FSDP2 has wrapped parts of it already, these are the units. Else every element of a `ModuleList` with
    parameters is one. A parameter that several modules share counts once, with the first. What requires no gradient is
    frozen. ValueError: nothing to train.
    """
    owners = _wrapped(module)
    units: dict[str, dict[Parameter, bool]] = {name: {} for name in owners.values()}  # whether it is trained
    for path, parameter in module.named_parameters():
        found = Parameter(clean_name(path), tuple(parameter.shape))
        units[_owner(path, owners)][found] = parameter.requires_grad
    made = tuple(
        Unit(name or "root", tuple(own), not name, tuple(each for each, is_trained in own.items() if is_trained))
        for name, own in units.items()
        if own
    )
    if not any(unit.num_trained for unit in made):
        raise ValueError(f"{type(module).__name__} has no parameters to train")
    return Model(type(module).__name__, made)


def train_only(model: Model, what: str) -> Model:
    """The model with only a share of each parameter trained ("0.01"), or those that patterns name ("*lora_*,*.head").

    ValueError names a share that is out of range, and a pattern that no parameter has.
    """
    try:
        share = float(what)
    except ValueError:
        return _train_named(model, [pattern.strip() for pattern in what.split(",")])
    if not 0 < share <= 1:
        raise ValueError(f"trainable {what}: expected a share above 0, up to 1, or names of parameters")
    units = tuple(
        replace(unit, trained=tuple(Parameter(p.name, (math.ceil(share * p.num_elements),)) for p in unit.parameters))
        for unit in model.units
    )
    return model if share == 1 else replace(model, units=units)


def _train_named(model: Model, patterns: Sequence[str]) -> Model:
    names = [parameter.name for unit in model.units for parameter in unit.parameters]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join(names[:3] + names[-1:])
            raise ValueError(f"trainable '{pattern}': no parameter of {model.name} has such a name; it has {some}, ...")
    units = (
        replace(unit, trained=tuple(p for p in unit.parameters if any(fnmatchcase(p.name, each) for each in patterns)))
        for unit in model.units
    )
    return replace(model, units=tuple(units))


def load_module(factory: str) -> nn.Module:
    """What "package.module:factory" makes, called without arguments on the meta device.

    The current directory is searched, too. ValueError names the factory and what is wrong with it.
    """
    module_name, _, name = factory.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        with torch.device("meta"):
            module: nn.Module = getattr(import_module(module_name), name)()
        module.named_parameters()
    except (Exception, SystemExit) as error:
        raise ValueError(f"module '{factory}' failed: {type(error).__name__}: {error}") from error
    return module


def _wrapped(module: nn.Module) -> dict[str, str]:
    """Paths of the modules that become units, the root ("") first; to the name of the unit, in order."""
    from torch.distributed.fsdp import FSDPModule

    named = dict(module.named_modules())
    if any(isinstance(part, FSDPModule) for part in named.values()):
        chosen = [path for path, part in named.items() if isinstance(part, FSDPModule)]
    else:
        chosen = list(_elements_of_lists(named))
    return {path: clean_name(path) for path in ["", *(path for path in chosen if path)]}


def _elements_of_lists(named: dict[str, nn.Module]) -> Iterator[str]:
    """Elements of the outermost lists: what is within such an element belongs to it."""
    taken: list[str] = []
    for path, part in named.items():
        parent = named.get(path.rpartition(".")[0])
        is_element = isinstance(parent, nn.ModuleList) and not isinstance(part, nn.ModuleList)
        if is_element and not any(path.startswith(f"{outer}.") for outer in taken):
            taken.append(path)
            yield path


def _owner(path: str, owners: dict[str, str]) -> str:
    """The unit of a parameter: the innermost wrapped module that it is in."""
    while path and path not in owners:
        path = path.rpartition(".")[0]
    return owners[path]


#: From config.json of meta-llama/Llama-2-*-hf, meta-llama/Meta-Llama-3* and mistralai/Mistral-7B-v0.1: layers, width,
#: width within the MLP, heads for keys and values (of 128 elements; those of queries may share them), and vocabulary.
#: The head is a matrix of its own.
_SIZES = {
    "llama2-7b": (32, 4096, 11008, 32, 32000),
    "llama2-13b": (40, 5120, 13824, 40, 32000),
    "llama2-70b": (80, 8192, 28672, 8, 32000),
    "llama3-8b": (32, 4096, 14336, 8, 128256),
    "llama3-70b": (80, 8192, 28672, 8, 128256),
    "llama3-405b": (126, 16384, 53248, 8, 128256),
    "mistral-7b": (32, 4096, 14336, 8, 32000),
}
PRESETS = tuple(_SIZES)


def preset(name: str) -> Model:
    """The published model of that name: each transformer block is a unit, everything else the root's.

    ValueError names those that are known.
    """
    check_choice("preset", name.lower(), PRESETS)
    num_layers, d, hidden, num_kv_heads, vocabulary = _SIZES[name.lower()]
    kv = 128 * num_kv_heads
    root = {"embed_tokens": (vocabulary, d), "norm": (d,), "lm_head": (vocabulary, d)}
    block = {
        "self_attn.q_proj": (d, d),
        "self_attn.k_proj": (kv, d),
        "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, d),
        "mlp.gate_proj": (hidden, d),
        "mlp.up_proj": (hidden, d),
        "mlp.down_proj": (d, hidden),
        "input_layernorm": (d,),
        "post_attention_layernorm": (d,),
    }
    names = [f"layers.{index}" for index in range(num_layers)]
    blocks = (Unit(name, _parameters(block, f"{name}.")) for name in names)
    return Model(name.lower(), (Unit("root", _parameters(root), is_root=True), *blocks), width=d)


def _parameters(shapes: dict[str, tuple[int, ...]], prefix: str = "") -> tuple[Parameter, ...]:
    return tuple(Parameter(prefix + name, shape) for name, shape in shapes.items())
