"""A wheel is installed where nothing can be compiled, does what the README and the start page say, and is removed."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from isthmus.base.native import fitting
from support.documents import programs
from support.limits import HANG_S
from support.places import ROOT

pytestmark = pytest.mark.processes


class Environment:
    """A fresh environment with torch, into which the wheel alone is installed. Its PATH has no compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, symlinks=True)
        site = next(folder.glob("lib/python*/site-packages"))
        # What the wheel requires, and pip, without the hooks of an editable isthmus.
        (site / "requirements.pth").write_text("".join(f"{path}\n" for path in sys.path if "site-packages" in path))
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("ISTHMUS_", "PYTHON"))}
        self._variables = {**variables, "PATH": str(folder / "bin"), "OMP_NUM_THREADS": "1"}

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            env={**self._variables, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )

    def says(self, *command: str, **variables: str) -> str:
        result = self.run(*command, **variables)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` makes, of the module that is built already."""
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("auditwheel is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    built = ROOT / "build/native" / Path(sys.prefix).name
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    commands = [
        [*pip, f"--config-settings=build-dir={built}", "--wheel-dir", str(folder / "built"), str(ROOT)],
        [sys.executable, str(ROOT / "tools/finish_wheel.py"), "", str(folder)],
    ]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in commands:
        command = [argument or str(next((folder / "built").iterdir())) for argument in command]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stdout + result.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("fresh") / "environment")
    made.says("python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    return made


def test_name_and_requirements_say_which_torch_it_fits(wheel: Path, environment: Environment) -> None:
    assert wheel.name.startswith(f"isthmus-{version('isthmus')}+torch{fitting(torch.__version__).replace('+', '.')}-")
    assert "manylinux" in wheel.name
    requirements = environment.says("python", "-c", "import importlib.metadata as m; print(m.requires('isthmus'))")
    assert f"'torch=={fitting(torch.__version__.partition('+')[0])}.*'" in requirements


def test_what_it_carries_has_its_license(environment: Environment) -> None:
    (site,) = environment.folder.glob("lib/python*/site-packages")
    carried = {path.name.partition("-")[0].partition(".")[0] for path in site.glob("isthmus.libs/*")}
    assert "libhwloc" in carried
    texts = {name: next(site.glob(f"isthmus-*.dist-info/licenses/{name}.txt")).read_text() for name in carried}
    assert "Redistribution and use in source and binary forms" in texts["libhwloc"]


def test_the_readme_script_trains_without_a_compiler(environment: Environment) -> None:
    place = environment.says("python", "-c", "import isthmus; print(isthmus.__file__)").strip()
    assert Path(place).is_relative_to(environment.folder)
    (environment.folder / "train.py").write_text(programs("README.md")["train.py"])
    launch = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "train.py")
    environment.says(*launch, ISTHMUS_NODES="2x2")


def test_commands_run(environment: Environment) -> None:
    shown = re.findall(r"^isthmus .*", (ROOT / "docs/start.md").read_text(), re.MULTILINE)
    info, plan = (environment.says(*shlex.split(command, comments=True)) for command in shown)
    assert "torch" in info
    assert "quant" in plan
    assert "NUMA node" in environment.says("isthmus", "topo")
    show = "import isthmus._topology; print(open('/proc/self/maps').read())"
    assert "isthmus.libs/libhwloc" in environment.says("python", "-c", show)


def test_benchmarks_of_those_who_develop_stay_in_the_repository(environment: Environment) -> None:
    listing = environment.says(
        "python", "-c", "import isthmus, os; print(*os.listdir(isthmus.__path__[0] + '/benchmarks'))"
    )
    assert {"training", "collectives", "weights", "here"} <= set(listing.split())
    assert not {"convergence", "survival", "record", "codecs"} & set(listing.split())


def test_another_torch_is_told_which_wheel_it_needs(environment: Environment) -> None:
    program = "import torch; torch.__version__ = '2.99.0+cu999'; import isthmus; isthmus.Options()"
    result = environment.run("python", "-c", program)
    assert result.returncode != 0
    assert "install the wheel whose version ends in +torch2.99.cu999" in result.stderr.splitlines()[-1]


def test_nothing_is_left_after_its_removal(environment: Environment) -> None:
    environment.says("python", "-m", "pip", "uninstall", "--quiet", "--yes", "isthmus")
    assert not list(environment.folder.glob("lib/python*/site-packages/isthmus*"))
