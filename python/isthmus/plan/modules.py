"""The units of a torch module, built on the meta device: no memory, no weights, only shapes."""

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from isthmus.plan.units import Model, Unit
from isthmus.units.layout import Parameter, clean_name


def units_of(module: nn.Module, wrap: Sequence[str] = ()) -> Model:
    """The units that FSDP2 would make of a module: what it wraps, and the root with everything else.

    Where FSDP2 has wrapped parts of it already, these are the units. Else every module whose class is named in `wrap`
    is one, and where that is empty every element of a `ModuleList` with parameters. A parameter that several modules
    share counts once, with the first. ValueError: a class that does not occur, or nothing to train.
    """
    owners = _wrapped(module, wrap)
    units: dict[str, list[Parameter]] = {name: [] for name in owners.values()}
    seen: set[int] = set()
    for path, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            units[_owner(path, owners)].append(Parameter(clean_name(path), tuple(parameter.shape)))
    made = [Unit(name or "root", tuple(found), is_root=not name) for name, found in units.items() if found]
    if not made:
        raise ValueError(f"{type(module).__name__} has no parameters")
    return Model(type(module).__name__, tuple(made))


def load_module(factory: str) -> nn.Module:
    """What "package.module:factory" makes, called without arguments on the meta device.

    The current directory is searched, too. ValueError names the factory and what is wrong with it.
    """
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name):
        raise ValueError(f"module '{factory}': expected package.module:factory")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        made = getattr(import_module(module_name), name)
        with torch.device("meta"):
            module = made()
    except (Exception, SystemExit) as error:
        raise ValueError(f"module '{factory}' failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(f"module '{factory}' made a {type(module).__name__}: expected a torch.nn.Module")
    for path, parameter in module.named_parameters():
        if parameter.device.type != "meta":
            raise ValueError(f"module '{factory}': parameter '{path}' is on {parameter.device}: expected meta")
    return module


def _wrapped(module: nn.Module, wrap: Sequence[str]) -> dict[str, str]:
    """Paths of the modules that become units, the root ("") first; to the name of the unit, in order."""
    from torch.distributed.fsdp import FSDPModule

    named = dict(module.named_modules())
    if any(isinstance(part, FSDPModule) for part in named.values()):
        chosen = [path for path, part in named.items() if isinstance(part, FSDPModule)]
    elif wrap:
        chosen = [path for path, part in named.items() if type(part).__name__ in wrap]
        found = {type(named[path]).__name__ for path in chosen}
        for missing in (name for name in wrap if name not in found):
            classes = sorted({type(part).__name__ for part in named.values()})
            raise ValueError(f"no module of class '{missing}': expected some of {', '.join(classes)}")
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
