"""Facts for a bug report: versions, what was built in or found, options, and variables in force.

Needs no process group, no GPU and no native module that loads: what is missing is reported, not raised.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module, metadata
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from isthmus.base import native
from isthmus.base.variables import unknown_variables, variables_set
from isthmus.group.rails import devices_by_id, gpus_in_words, rails_in_words, way_out

#: The version of the JSON.
SCHEMA = 2

#: A library or tool that Isthmus can use: its ``name``, whether it ``is_available``, and as ``detail`` its version, or
#: why it is missing.
Feature = dict[str, Any]


def collect() -> dict[str, Any]:
    """Return all facts as plain values. Where ``options_error`` says why options cannot be read, there are none."""
    environment = os.environ
    torch, torch_error = _attempt(lambda: import_module("torch"))
    core, native_error = _attempt(native.load)
    if core is not None:
        variables = [variable for _, variable, *_ in core.option_fields()]
        options, options_error = _attempt(lambda: _options(core, environment))
    else:
        # Only the native module knows the options: without it they can be neither checked nor told from mistyped ones.
        variables = sorted(name for name in environment if name.startswith("ISTHMUS_"))
        options, options_error = (), f"{native_error}; set in the environment: {', '.join(variables) or 'nothing'}"
    return {
        "versions": dict(_versions(torch)),
        "features": list(_features(torch, torch_error, core, native_error)),
        "options": list(options or ()),
        "options_error": options_error,
        "variables": variables_set(environment, variables if core else ()),
        "unknown_variables": unknown_variables(environment, variables),
    }


def _attempt(read: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return what `read` returns, or why it failed, in one line."""
    try:
        return read(), None
    except Exception as error:  # a broken installation may raise anything
        return None, " ".join(str(error).split()) or type(error).__name__


def _options(core: Any, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Options as a group would get them. source: the variable that sets it, or "default"."""
    options = core.Options()
    return [
        {
            "name": name,
            "value": str(getattr(options, name)),
            "source": variable if environment.get(variable) else "default",
        }
        for name, variable, *_ in core.option_fields()
    ]


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that matter."""
    found = {package: _attempt(partial(metadata.version, package)) for package in ("isthmus", "torch", "numpy")}
    return {package: installed or "not installed" for package, (installed, _) in found.items()}


def _versions(torch: Any) -> Iterator[tuple[str, str]]:
    yield from package_versions().items()
    if torch is not None:
        nccl, _ = _attempt(torch.cuda.nccl.version)
        yield "CUDA of torch", torch.version.cuda or "none"
        yield "NCCL of torch", ".".join(map(str, nccl)) if isinstance(nccl, tuple) else "none"
    build, _ = _attempt(lambda: import_module("isthmus._build_info"))
    if build is not None:
        yield "built for torch", build.TORCH_VERSION
        yield "built with", f"{build.COMPILER}, {build.BUILD_TYPE}, {f'CUDA {build.CUDA}' if build.CUDA else 'no CUDA'}"
    yield "Python", f"{platform.python_implementation()} {platform.python_version()}"
    release, _ = _attempt(platform.freedesktop_os_release)
    yield "system", release["PRETTY_NAME"] if release else platform.system()
    yield "kernel", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "C library", " ".join(platform.libc_ver()).strip() or "unknown"


def _feature(name: str, is_available: bool, detail: str) -> Feature:
    return {"name": name, "is_available": is_available, "detail": detail}


def _features(torch: Any, torch_error: str | None, core: Any, native_error: str | None) -> Iterator[Feature]:
    loaded = "" if core is None else f"loaded; its loops on the CPU use {core.INSTRUCTION_SET}"
    yield _feature("native module", core is not None, native_error or loaded)
    if torch is None:
        yield _feature("torch", False, torch_error or "")
    else:
        yield from _torch_features(torch)
    library, error = _attempt(lambda: import_module("isthmus._mpi").library())
    if native_error is not None:
        yield _feature("MPI", False, "needs the native module")
    elif library is None:
        yield _feature("MPI", False, f"not built in, or its library is missing: {error}")
    else:
        yield _feature("MPI", True, library.partition("\n")[0].strip("\0 "))
    yield from _topology_features()


def _torch_features(torch: Any) -> Iterator[Feature]:
    dist = torch.distributed
    if not dist.is_available():
        yield _feature("torch.distributed", False, "this torch was built without it")
        return
    registered = hasattr(dist.Backend, "ISTHMUS")
    yield _feature("backend", registered, "registered" if registered else "not registered: `import isthmus` does that")
    for name, available in (("Gloo", dist.is_gloo_available()), ("NCCL", dist.is_nccl_available())):
        yield _feature(name, available, "in torch" if available else "not in this torch")
    devices, error = _attempt(torch.cuda.device_count)
    yield _feature("CUDA devices", bool(devices), error or f"{devices or 'none'}")


def _topology_features() -> Iterator[Feature]:
    topology, error = _attempt(lambda: import_module("isthmus._topology"))
    if topology is None:
        yield _feature("hwloc, NVML", False, str(error))
        return
    yield _feature(
        "hwloc", bool(topology.HWLOC), topology.HWLOC or "not built in: libhwloc-dev or libexpat1-dev was missing"
    )
    nvml = topology.nvml()
    missing = nvml["missing"].removeprefix("NVML: ")
    machine, error = _attempt(topology.discover)
    if machine is not None:
        facts, rails = machine.facts, machine.rails()[0]
        devices = devices_by_id(facts)
        nics = [way_out(devices, rail["nics"]) for rail in rails]
        leaves = rails_in_words(nics) if nics else "no NIC"
        yield _feature("machine", True, f"{gpus_in_words(facts) or 'no GPU'}; {leaves}")
    yield _feature("NVML", not missing, missing or f"driver {nvml['driver']}, {len(nvml['fabrics'])} GPUs")


def print_info(info: Mapping[str, Any], console: Console) -> None:
    """Print everything as plain text for pasting."""
    _print_rows(console, "Versions", list(info["versions"].items()))
    features = [(one["name"], "yes" if one["is_available"] else "no", one["detail"]) for one in info["features"]]
    _print_rows(console, "Features", features)
    if info["options_error"] is not None:
        told = f"\n  cannot be told: {info['options_error']}"
        console.print(Text.assemble(("\nOptions", "bold"), told), soft_wrap=True)
    else:
        _print_rows(console, "Options", [(one["name"], one["value"] or '""', one["source"]) for one in info["options"]])
    in_force = [(one["name"], one["value"] or '""', one["group"]) for one in info["variables"]]
    _print_rows(console, "Variables in force", in_force or [("none", "", "")])
    unknown = [(name, f"did you mean {meant}?" if meant else "") for name, meant in info["unknown_variables"].items()]
    if unknown:
        _print_rows(console, "Variables that nothing reads (values not shown)", unknown)


def _print_rows(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        printable = ("".join(one if one.isprintable() else "?" for one in cell) for cell in ("", *row))
        table.add_row(*map(Text, printable))
    console.print(Text(f"\n{title}", "bold"))
    console.print(table)
