"""The package's names and versions, and what only a fresh interpreter shows: import orders, exits."""

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Mapping

import pytest

import isthmus
from isthmus import _build_info
from isthmus.base import native
from support import ranks
from support.limits import HANG_S
from support.places import ROOT

pytestmark = pytest.mark.processes

INITIALISE = """
    import torch, isthmus
    import torch.distributed as dist
    for name in ("isthmus", "cpu:isthmus"):
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(3))
        print(isthmus.stats()["calls"])
        dist.destroy_process_group()
"""


def start(script: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**clean, "ISTHMUS_LOG": "error", "OMP_NUM_THREADS": "1", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python(script: str, env: Mapping[str, str] | None = None) -> str:
    process = start(script, env)
    output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    return output.strip()


@pytest.mark.parametrize(
    ("imports", "env"),
    [
        ("import torch", {}),
        ("import isthmus", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
    ],
)
def test_every_order_of_imports_registers_the_backend(imports: str, env: dict[str, str]) -> None:
    assert python(imports + "\n" + textwrap.dedent(INITIALISE), env).splitlines() == ["{'allreduce': 1}"] * 2


def test_importing_loads_nothing_heavy() -> None:
    script = """
        import isthmus, sys
        print("torch" in sys.modules)
        import torch
        print("isthmus._C" in sys.modules)
        print("torch.distributed.tensor" in sys.modules)  # which takes seconds
        print("isthmus._topology" in sys.modules)
    """
    assert python(script).split() == ["False"] * 4


def test_which_versions_of_torch_a_build_fits() -> None:
    assert native.fitting("2.15.1+cu132") == native.fitting("2.15.0+cu132") == "2.15+cu132"
    assert native.fitting("2.15.1") == "2.15"
    assert native.fitting("2.16.0a0+git08187d9") == "2.16.0a0+git08187d9"


def test_another_patch_release_of_the_same_torch() -> None:
    script = """
        import sys, torch
        from isthmus import _build_info
        from isthmus.base import native
        base, _, local = torch.__version__.partition("+")
        patch = base.rpartition(".")[0] + ".99"

        def says(version):
            _build_info.TORCH_VERSION = version
            try:
                return native.load().__name__
            except ImportError as error:
                return error

        print(says(patch + "+of_another_kind"))
        sys.modules["isthmus._C"] = None
        print(says(patch + "+" * bool(local) + local))
        del sys.modules["isthmus._C"]
        print(says(patch + "+" * bool(local) + local))
    """
    other_kind, not_loaded, loaded = python(script).splitlines()
    assert "+of_another_kind, but torch" in other_kind
    assert re.search(r"isthmus was built for torch \S+\.99\S*, but torch .* \(import of isthmus._C halted", not_loaded)
    assert loaded == "isthmus._C"


EXIT_WITHOUT_DESTROY = """
    import torch, torch.distributed as dist
    dist.init_process_group("isthmus")
    output = torch.empty(2000)
    works = [dist.all_gather_into_tensor(output, torch.ones(1000), async_op=True) for _ in range(3)]
    if dist.get_rank() == 0:
        works[-1].wait()
        group = dist.group.WORLD
"""


def test_exit_without_destroy() -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.free_port()), "WORLD_SIZE": "2"}
    env |= {"ISTHMUS_NODES": "2x1", "ISTHMUS_MIN_ELEMENTS": "0"}
    processes = [start(EXIT_WITHOUT_DESTROY, {**env, "RANK": str(rank)}) for rank in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, errors


def test_dir_shows_what_is_for_users_and_nothing_else() -> None:
    shown = [name for name in dir(isthmus) if not name.startswith("__")]
    assert shown == sorted(isthmus.__all__)
    for name in shown:
        assert getattr(isthmus, name) is not None


def test_there_is_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert isthmus.__version__ == _build_info.VERSION == version
    assert version not in (ROOT / "CMakeLists.txt").read_text()
