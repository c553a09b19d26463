"""MPI as the tier between nodes: mpiexec starts this file with the name of one of its functions."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import isthmus
from isthmus.group import mpi_tier as _mpi_tier
from support import ranks
from support.limits import HANG_S, OPERATION_S
from support.places import PYTHONPATH
from support.tested_codecs import CODECS, LOSSY

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
SIZE = int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("PMI_SIZE", "1")))
STEPS = 5


def start(directory: str, rank: int = RANK, **options: Any) -> None:
    dist.init_process_group(
        "isthmus",
        init_method=f"file://{directory}/store",
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=OPERATION_S),
        pg_options=isthmus.Options(nodes=f"2x{SIZE // 2}" if SIZE > 1 else "", min_elements=0, **options),
    )


def train(group: dist.ProcessGroup) -> tuple[str, dict[str, Any]]:
    """Train with FSDP2; return a hash of all parameters' bits on this rank, and the statistics."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("shard",))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(2 + RANK)
    for _ in range(STEPS):
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    bits = b"".join(parameter.to_local().detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(bits).hexdigest(), isthmus.stats(group)


def same_bits_as_gloo(directory: str) -> None:
    """Twice: a group whose ranks are not MPI's has failed before."""
    wrong = Path(directory, "wrong")
    wrong.mkdir(exist_ok=True)
    text = f"rank 0: inter_tier=mpi: rank 0 of {SIZE} is rank {SIZE - 1} of {SIZE} in MPI_COMM_WORLD"
    expect_error(str(wrong), text, SIZE - 1 - RANK)
    start(directory)
    hashes = set()
    for codec in LOSSY:
        settings = {"nodes": "2x2", "min_elements": 0, **CODECS[codec]}
        gloo_hash, gloo_stats = train(dist.new_group(pg_options=isthmus.Options(**settings)))
        options = isthmus.Options(**settings, inter_tier="mpi")
        mpi_hash, mpi_stats = train(dist.new_group(pg_options=options))
        assert "inter_tier=mpi" in mpi_stats["options"] and "inter_tier=gloo" in gloo_stats["options"]
        assert mpi_hash == gloo_hash, codec
        hashes.add(mpi_hash)
        assert mpi_stats["compressed_calls"] == gloo_stats["compressed_calls"] == 3 * STEPS
        for kind in ("reduce_scatter", "all_gather"):
            sent = mpi_stats["collectives"][kind]["inter"]
            assert sent == gloo_stats["collectives"][kind]["inter"]
            assert sent["inter_node_sent_bytes"] > 0
    assert len(hashes) == len(LOSSY), "the codecs do not differ"
    # A subgroup of ranks on both nodes has its own tier; one inside a node has none.
    pairs = [dist.new_group([rank, rank + 2], pg_options=options) for rank in range(2)]
    inside = [dist.new_group([2 * node, 2 * node + 1], pg_options=options) for node in range(2)]
    assert "1 rank" in isthmus.stats(pairs[RANK % 2])["node_map"]
    assert isthmus.stats(inside[RANK // 2])["one_tier"]
    dist.barrier()  # nobody leaves while another still connects
    dist.destroy_process_group()
    Path(directory, f"done.{RANK}").touch()


def expect_error(directory: str, text: str, rank: int = RANK) -> None:
    try:
        start(directory, rank=rank, inter_tier="mpi")
    except isthmus.OptionError as error:
        assert text in str(error), error
        Path(directory, f"done.{RANK}").touch()
    else:
        raise AssertionError("the group was made")


def not_started_by_mpiexec(rank: int, world_size: int, directory: str) -> None:
    expect_error(directory, "inter_tier=mpi: this process was not started by mpiexec")


def a_rank_raises(directory: str) -> None:
    """The others wait for it in a reduction: mpiexec ends the job long before their timeout."""
    start(directory, inter_tier="mpi")
    world = dist.group.WORLD
    assert world is not None
    Path(directory, f"started.{RANK}").touch()
    if RANK == 1:
        while len(list(Path(directory).glob("started.*"))) < SIZE:
            time.sleep(0.01)
        raise RuntimeError("out of luck")
    train(world)


# --- Tests ---

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
        [*command, sys.executable, __file__, case, str(directory)],
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
    ranks.run(not_started_by_mpiexec, 1, str(tmp_path))


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


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
