"""A torch.distributed backend that compresses only what crosses between nodes.

``dist.init_process_group("isthmus")`` is enough: ``import torch`` registers the backend through the entry point
``torch.backends``, and so does ``import isthmus``. Neither loads the native module; the first process group does.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any


def _autoload() -> None:
    """Register the backend. Torch calls this at the end of its own import, so it must come before imports of torch."""
    from isthmus.group.register import register

    register()


def _torch_will_autoload() -> bool:
    enabled = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    return enabled and any(point.name == "isthmus" for point in entry_points(group="torch.backends"))


if TYPE_CHECKING:
    from isthmus import weights
    from isthmus._C import Error, OptionError, Options, PacketError, TransportError
    from isthmus.model.attach import attach, detach
    from isthmus.model.prepare import prepare, unit
    from isthmus.model.residuals import (
        begin_step,
        clear_residuals,
        load_checkpoint,
        load_state_dict,
        scale_residuals,
        skip_step,
        state_dict,
    )
    from isthmus.model.saved_state import LoadReport
    from isthmus.report.explain import explain
    from isthmus.report.loggers import log_to
    from isthmus.report.statistics import reset_stats, stats
    from isthmus.report.summary import summary

__all__ = [
    "Error",
    "LoadReport",
    "OptionError",
    "Options",
    "PacketError",
    "TransportError",
    "attach",
    "begin_step",
    "clear_residuals",
    "detach",
    "explain",
    "load_checkpoint",
    "load_state_dict",
    "log_to",
    "prepare",
    "reset_stats",
    "scale_residuals",
    "skip_step",
    "state_dict",
    "stats",
    "summary",
    "unit",
    "weights",
]

# Which module has which names; the native module has the rest.
_MODULES = {
    "model.attach": ("attach", "detach"),
    "report.explain": ("explain",),
    "report.loggers": ("log_to",),
    "report.statistics": ("reset_stats", "stats"),
    "report.summary": ("summary",),
    "model.saved_state": ("LoadReport",),
    "model.residuals": (
        *("begin_step", "clear_residuals", "load_checkpoint", "load_state_dict"),
        *("scale_residuals", "skip_step", "state_dict"),
    ),
    "model.prepare": ("prepare", "unit"),
}


def __getattr__(name: str) -> Any:
    # Names that need torch or the native module are loaded on first use.
    if name == "__version__":
        return version("isthmus")
    if name not in __all__:
        raise AttributeError(f"module 'isthmus' has no attribute {name!r}")
    if name == "weights":
        return import_module("isthmus.weights")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"isthmus.{module}"), name)
    from isthmus.base import native

    return getattr(native.load(), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", *(name for name in globals() if name.startswith("__"))])


if "torch" in sys.modules or not _torch_will_autoload():
    _autoload()
