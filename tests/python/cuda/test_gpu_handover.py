"""tests/gpu/run as on a lent machine, on the fake GPU: the sources, a folder that was built here, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any

import pytest

from gpu.harness import pack, prebuilt
from gpu.harness.main import INCOMPLETE
from gpu.harness.records import FAILED, NOT_RUN, OK
from python.cuda import worlds as cuda_worlds
from support import fake_gpu
from support.limits import HANG_S
from support.places import ROOT

NATIVE = ROOT / "build/native" / Path(sys.prefix).name
pytestmark = [
    pytest.mark.processes,
    cuda_worlds.needs_fake_gpu,
    pytest.mark.skipif(
        not all(pack.built_program(NATIVE, name).exists() for name in pack.PROGRAMS),
        reason="the programs are not built",
    ),
]


class Machine:
    """A copy of the working tree without ignored files, what is carried, and a Python that has no isthmus."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.output = folder / "out"
        listed = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).exists() or (ROOT / name).is_symlink():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name, follow_symlinks=False)
        pack.pack(NATIVE, self.root / "build/gpu-carry")
        for program in (self.root / "build/gpu-carry/programs").iterdir():
            program.chmod(0o644)  # as modes may get lost
        self.manifest = self.root / "build/gpu-carry" / prebuilt.MANIFEST
        fake_gpu.library()
        (self.root / "build/fake_gpu").symlink_to(ROOT / "build/fake_gpu")
        self.python = self._make_python(folder / Path(sys.prefix).name)

    def _make_python(self, place: Path) -> Path:
        """What its .pth names is found after all else, and without the hooks of an editable isthmus."""
        venv.create(place, symlinks=True)
        site = next(place.glob("lib/python*/site-packages"))
        (site / "base.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
        return place / "bin/python"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run the command there."""
        command = [str(self.python), "tests/gpu/run", "--device", "fake", "--prebuilt", "build/gpu-carry"]
        command += ["--output", str(self.output), "--commit", "c0ffee", *arguments]
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")}
        return subprocess.Popen(command, cwd=self.root, env=env)

    def report(self) -> dict[str, Any]:
        """What it has written so far; nothing at first."""
        path = self.output / "report-fake-gpu.json"
        values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"steps": []}
        return values

    def results(self) -> dict[str, str]:
        """The results of steps that have ended."""
        return {step["name"]: step["result"] for step in self.report()["steps"]}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("lent"))


def test_what_was_built_here_runs_there(machine: Machine) -> None:
    chosen = ("codecs", "link")
    process = machine.start("--time-limit", str(HANG_S), *(f"--only={name}" for name in chosen))
    assert process.wait(HANG_S) == INCOMPLETE, (machine.output / "report-fake-gpu.md").read_text()
    assert machine.results() == {"prebuilt": OK, "import": OK, "codecs": NOT_RUN, "link": OK}
    assert (machine.output / "report-fake-gpu.md").read_text().startswith("# Isthmus on fake GPU: NOT RUN: codecs\n")
    report = machine.report()
    assert report["versions"]["commit"] == "c0ffee"
    assert sorted(path.name for path in machine.output.iterdir()) == [
        *("logs.tar.gz", "report-fake-gpu.json", "report-fake-gpu.md")
    ]
    with tarfile.open(machine.output / "logs.tar.gz") as logs:
        assert logs.getnames() == ["import.log", "link.log"]


def test_an_older_system_is_told(machine: Machine) -> None:
    manifest = json.loads(machine.manifest.read_text())
    assert (2, 17) < prebuilt.version_numbers(manifest["glibc"]) < (3, 0)
    folder = machine.output.parent / "newer"
    folder.mkdir()
    (folder / prebuilt.MANIFEST).write_text(json.dumps(manifest | {"glibc": "9.9"}))
    assert "glibc 9.9 and newer, here 2." in prebuilt.why_unfit(folder, {})


def test_programs_run_where_the_module_does_not_load(machine: Machine) -> None:
    (module,) = (machine.root / "build/gpu-carry/site/isthmus").glob("_C.*.so")
    module.rename(module.with_suffix(".away"))
    try:
        process = machine.start("--time-limit", str(HANG_S), "--only=bench", "--only=order")
        assert process.wait(HANG_S) == 1
        steps = {step["name"]: (step["result"], step["reason"]) for step in machine.report()["steps"]}
        assert steps["import"][0] == FAILED
        assert steps["order"] == (NOT_RUN, "isthmus does not load")
        assert steps["bench"] == (NOT_RUN, "the fake GPU has no kernels")  # asked, and not left out for the module
    finally:
        module.with_suffix(".away").rename(module)
