"""Worlds of ranks on a machine without a GPU, whose processes believe that they have one: tests/fake_gpu/README.md."""

import contextlib
import ctypes
import faulthandler
import fcntl
import functools
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from support import ranks
from support.limits import OPERATION_S
from support.places import ROOT

_MODULES = ["torch", "torch.distributed", "torch.distributed.fsdp", "isthmus.group.register", "support.ranks"]


def why_not() -> str:
    """Say what keeps this torch from having a fake GPU, or nothing. One that cannot be built is a failure."""
    import torch

    return "torch was built without CUDA" if torch.version.cuda is None else ""


def library() -> Path:
    """Build the library; return where it is."""
    build = ROOT / "build/fake_gpu" / Path(sys.prefix).name
    if not (build / "cmake_install.cmake").exists():  # a build configures again where it has to
        wheels = [str(path) for path in Path(find_spec("torch").origin).parents[1].glob("nvidia/*/include")]
        source = ("-S", str(ROOT / "tests/fake_gpu"), "-B", str(build))
        cmake(build, *source, f"-DFAKE_GPU_HINTS={';'.join(wheels)}")
    cmake(build, "--build", str(build), "-j", "2")
    return build / "libfake_gpu.so"


def cmake(build: Path, *arguments: str) -> None:
    """Run CMake, one process at a time in a build folder."""
    build.mkdir(parents=True, exist_ok=True)
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.run(["cmake", *arguments], capture_output=True, text=True)
    assert process.returncode == 0, f"cmake {' '.join(arguments)}: {(process.stdout + process.stderr)[-2000:]}"


@contextlib.contextmanager
def environment(**more: Any) -> Iterator[dict[str, str]]:
    """Yield the variables with which a program, and each that it starts, has the fake GPU, on simulated nodes too."""
    with tempfile.TemporaryDirectory(prefix="nccl", dir="/tmp") as folder:  # of sockets, whose paths are short
        own = {
            "LD_PRELOAD": library(),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/support/fake_gpu_site"), *filter(None, sys.path)]),
            "FAKE_NCCL_FOLDER": folder,
            "FAKE_NCCL_TIMEOUT_S": f"{OPERATION_S:.0f}",
        }
        yield {name: str(value) for name, value in (own | more).items()}


def run(function: Callable[..., Any], world_size: int, *arguments: Any, **settings: Any) -> list[Any]:
    """Do as `ranks.run`, in processes that have the fake GPU."""
    return ranks.values_of(run_any(function, world_size, *arguments, **settings))


def run_any(function: Callable[..., Any], world_size: int, *arguments: Any, **settings: Any) -> list[ranks.Outcome]:
    """Do as `ranks.run_any`, in processes that have the fake GPU. `function`: of a module, by name."""
    sys.audit("ranks.run")
    task = (function.__module__, function.__name__, arguments)
    return _server().run((world_size, task, settings))


class _Server:
    """A process that has the fake GPU, and whose forks the ranks are: importing torch takes seconds."""

    def __init__(self) -> None:
        preloaded = library()
        env = {
            **os.environ,
            "LD_PRELOAD": str(preloaded),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "FAKE_NCCL_TIMEOUT_S": f"{OPERATION_S:.0f}",
        }
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from support import fake_gpu; fake_gpu._serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
            )

    def run(self, task: Any) -> list[ranks.Outcome]:
        """Run a task; print what its ranks print."""
        assert self._process.stdin and self._process.stdout
        seen = self._log.stat().st_size
        pickle.dump(task, self._process.stdin)
        self._process.stdin.flush()
        try:
            outcomes, error = pickle.load(self._process.stdout)
        finally:
            print(self._log.read_bytes()[seen:].decode(errors="replace"))
        assert not error, error
        return outcomes  # type: ignore[no-any-return]


_server = functools.cache(_Server)


def stop() -> None:
    """End the server, if there is one: the next ranks get another."""
    if _server.cache_info().currsize:
        _server()._process.communicate()
        _server.cache_clear()


def _serve() -> None:
    """Run tasks until there are no more. Without torch: the ranks have it of their own server."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what ranks print is no answer
    ranks.preload("support.fake_gpu")
    while True:
        try:
            world_size, task, settings = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: Any
        try:
            answer = (ranks.run_any(_rank, world_size, *task, **settings), "")
        except AssertionError as error:
            answer = ([], str(error))
        pickle.dump(answer, answers)
        answers.flush()


def _rank(rank: int, world_size: int, module: str, function: str, arguments: tuple[Any, ...]) -> Any:
    faulthandler.enable(sys.__stderr__)
    run_kernels_on_host()
    return getattr(importlib.import_module(module), function)(rank, world_size, *arguments)


# --- torch's own kernels

# What traces kernels, if anything does: gpu_trace.note().
note_kernel: Callable[..., None] | None = None

# Have no kernel to replace: they allocate or say which memory is whose.
_KEPT = {"resize_", "set_", "record_stream", "is_set_to", "is_pinned", "_pin_memory"}


@functools.cache
def run_kernels_on_host() -> Any:
    """Let torch's CPU kernels do what its CUDA kernels cannot do here, in the same memory."""
    import torch

    warnings.filterwarnings("ignore", "Warning only once for all operators")
    library = torch.library.Library("aten", "IMPL")
    for registration in [*torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"), "aten::copy_"]:
        namespace, _, name = registration.partition("::")
        name, _, overload = name.partition(".")
        on_cpu = torch._C._dispatch_has_computed_kernel_for_dispatch_key(registration, "CPU")
        if namespace != "aten" or name in _KEPT or not on_cpu:
            continue
        op = getattr(getattr(torch.ops.aten, name), overload or "default")
        if _computes(op._schema):
            library.impl(op, functools.partial(_on_host, op), "CUDA", allow_override=True)
    return library  # its end would undo all this


def _computes(schema: Any) -> bool:
    makes_view = any(result.alias_info and not result.alias_info.is_write for result in schema.returns)
    allocates = any(argument.name == "device" for argument in schema.arguments)
    return not makes_view and not allocates


def _on_host(op: Any, *arguments: Any, **named: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    pairs: list[tuple[Any, Any]] = []  # tensors on the device and on the host

    def to_host(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            pairs.append((value, host_view(value)))
            return pairs[-1][1]
        return value

    def to_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        given = [on_device for on_device, on_host in pairs if on_host is value]
        return given[0] if given else value.cuda()

    results = op(*tree_map(to_host, arguments), **tree_map(to_host, named))
    if note_kernel is not None:
        written = _written(op._schema, arguments, named)
        read = tuple(on_device for on_device, _ in pairs if all(on_device is not one for one in written))
        note_kernel(str(op), *written, read=read)
    for on_device, on_host in pairs:
        if on_device.shape != on_host.shape:  # an output, resized
            on_device.resize_(on_host.shape).copy_(on_host)
    return tree_map(to_device, results)


def _written(schema: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Return the tensors on the device that an operation writes."""
    from torch.utils._pytree import tree_leaves

    values = dict(zip((argument.name for argument in schema.arguments), arguments, strict=False)) | named
    writes = {argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write}
    leaves = tree_leaves([values[name] for name in writes if name in values])
    return [leaf for leaf in leaves if getattr(leaf, "is_cuda", False)]


def host_view(tensor: Any) -> Any:
    """Return a CPU tensor in the memory of one of the fake GPU."""
    import torch

    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    memory = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    on_host = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return empty.set_(on_host, tensor.storage_offset(), tensor.size(), tensor.stride())
