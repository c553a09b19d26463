"""MPI as the tier between nodes, in jobs that mpiexec starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import isthmus
from isthmus.group import mpi_tier as _mpi_tier
from python.backend import mpi_ranks
from support import ranks
from support.limits import HANG_S
from support.places import PYTHONPATH

SCRIPT = Path(__file__).with_name("mpi_ranks.py")
# Open MPI as root, and with more ranks than cores. MPICH needs nothing.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMP_NUM_THREADS": "1",
}


def mpiexec() -> str:
    """Return the mpiexec of the MPI that isthmus was built with. Skips where there is none."""
    _mpi = pytest.importorskip("isthmus._mpi", reason="isthmus was built without MPI")
    suffix = "openmpi" if _mpi.library().startswith("Open MPI") else "mpich"
    command = shutil.which(f"mpiexec.{suffix}") or shutil.which("mpiexec")
    if command is None:
        pytest.skip("there is no mpiexec")
    return command


def run(command: list[str], case: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, sys.executable, str(SCRIPT), case, str(directory)],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.mark.processes
def test_over_mpiexec(tmp_path: Path) -> None:
    result = run([mpiexec(), "-n", "4"], "same_bits_as_gloo", tmp_path)
    assert result.returncode == 0, result.stderr[-4000:]
    assert len(list(tmp_path.glob("done.*"))) == 4, result.stderr[-4000:]


@pytest.mark.processes
def test_without_mpiexec(tmp_path: Path) -> None:
    mpiexec()
    ranks.run(mpi_ranks.not_started_by_mpiexec, 1, str(tmp_path))


@pytest.mark.processes
def test_a_rank_that_raises_ends_the_job(tmp_path: Path) -> None:
    result = run([mpiexec(), "-n", "2"], "a_rank_raises", tmp_path)
    assert result.returncode != 0
    assert "out of luck" in result.stderr
    assert len(list(tmp_path.glob("started.*"))) == 2


def test_a_build_without_mpi_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isthmus._mpi", None)
    monkeypatch.delattr(isthmus, "_mpi", raising=False)
    with pytest.raises(ImportError, match="inter_tier=mpi: isthmus was built without MPI, or its library is missing"):
        _mpi_tier.join(0, 1)
