"""The report of CUDA kernels' resources, from what ptxas printed once."""

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from support.places import ROOT

# One kernel as nvcc 13.0 reports it, with the numbers to fill in.
REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{symbol}' for 'sm_90'
ptxas info    : Function properties for {symbol}
    0 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 12.3 ms
"""
# run_pass<isthmus::kernels::cuda::Peel<true>, 1024, 131072l>(isthmus::kernels::cuda::Peel<true>)
PEEL = "_ZN7isthmus7kernels4cuda8run_passINS1_4PeelILb1EEELi1024ELl131072EEEvT_"


@pytest.fixture(scope="module")
def resources() -> ModuleType:
    path = ROOT / "tools" / "cuda_resources.py"
    spec = importlib.util.spec_from_file_location("cuda_resources", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(registers: int = 50, stores: int = 0, loads: int = 0) -> str:
    return REPORT.format(symbol=PEEL, registers=registers, stores=stores, loads=loads)


@pytest.mark.processes
def test_a_spill_fails_and_is_named(
    resources: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (kernel,) = resources.parse(report())
    assert (kernel.arch, kernel.threads, kernel.registers, kernel.spill_bytes) == (90, 1024, 50, 0)
    assert (kernel.static_shared_bytes, kernel.dynamic_shared_bytes) == (256, 131072)
    path = tmp_path / "a.cu.o.ptxas"
    monkeypatch.setattr("sys.argv", ["cuda_resources.py", str(path)])
    path.write_text(report(stores=16, loads=8))
    assert resources.main() == 1
    assert "Peel<true> for sm_90 spills 24 bytes" in capsys.readouterr().err
    path.write_text(report())
    assert resources.main() == 0


@pytest.mark.processes
def test_the_launcher_keeps_the_report_and_prints_the_rest(tmp_path: Path) -> None:
    launcher = ROOT / "tools" / "keep_ptxas_report"
    compiler = tmp_path / "nvcc"
    compiler.write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{report()}a.cu(3): warning: odd\nE\nexit 3\n")
    compiler.chmod(0o755)
    done = subprocess.run(
        [launcher, compiler, "-c", "a.cu", "-o", tmp_path / "a.o", "-g"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr == "a.cu(3): warning: odd\n"
    assert report() in (tmp_path / "a.o.ptxas").read_text()
