"""GPUs of simulated nodes: whose they are, MPS that comes and goes with a run, and machines that do not allow it."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from isthmus.benchmarks.simulate import gpus
from isthmus.benchmarks.simulate.gpus import Gpus
from isthmus.benchmarks.simulate.mps import Mps, open_mps
from python.benchmarks.bench_cli import assert_gone, refused
from support.places import PYTHONPATH

# A made-up nvidia-cuda-mps-control: its daemon is a `sleep`, whose number it keeps as the real one does.
CONTROL = """#!/bin/sh
pid="${CUDA_MPS_PIPE_DIRECTORY:-$MPS_OF_OTHERS}/nvidia-cuda-mps-control.pid"
if [ "$1" = -d ]; then
  [ -z "$MPS_REFUSES" ] || { echo "$MPS_REFUSES"; exit 1; }
  setsid sleep 1000 & echo $! | tee "$pid" >> "$MPS_STARTED"; exit 0
fi
read command
kill -0 "$(cat "$pid")" || { echo "Cannot find MPS control daemon process"; exit 1; }
[ "$command" != quit ] || kill "$(cat "$pid")"
"""
OPEN_AND_WAIT = """
import time
from isthmus.benchmarks.simulate.mps import open_mps
with open_mps() as mps:
    print(mps.is_own, flush=True)
    time.sleep(600)
"""


class MadeUpMps:
    """The command in PATH, and the daemons that it has started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._started = folder / "started"
        self.of_others = folder / "of-others"
        self.of_others.mkdir()
        self.put(folder / "bin", "nvidia-cuda-mps-control", CONTROL)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("MPS_STARTED", str(self._started))
        monkeypatch.setenv("MPS_OF_OTHERS", str(self.of_others))
        monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)

    @staticmethod
    def put(folder: Path, name: str, text: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    @property
    def daemons(self) -> list[psutil.Process]:
        numbers = map(int, self._started.read_text().split()) if self._started.exists() else ()
        return [psutil.Process(number) for number in numbers if psutil.pid_exists(number)]


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    made_up = MadeUpMps(tmp_path, monkeypatch)
    yield made_up
    for daemon in made_up.daemons:
        daemon.kill()


@pytest.mark.processes
def test_mps_comes_and_goes_with_the_run(made_up, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with open_mps() as found:
        assert (found.is_own, found.missing) == (True, "")
        folder = Path(found.environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert folder.is_dir()
        (daemon,) = made_up.daemons
        assert "CUDA_VISIBLE_DEVICES" not in daemon.environ()  # ranks number GPUs as they did before
    assert not folder.exists()
    assert not made_up.daemons


@pytest.mark.processes
def test_mps_goes_with_a_launcher_that_is_killed(made_up):
    words, env = [sys.executable, "-c", OPEN_AND_WAIT], os.environ | {"PYTHONPATH": PYTHONPATH}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as launcher:
        assert launcher.stdout.readline() == "True\n"
        everything = [*made_up.daemons, *psutil.Process(launcher.pid).children()]
        assert len(everything) == 2
        launcher.kill()
    assert_gone(everything)


@pytest.mark.processes
def test_mps_of_others_is_used_and_stays(made_up):
    own = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(made_up.of_others)}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=own, check=True)
    with open_mps() as found:
        assert found == Mps()
    assert len(made_up.daemons) == 1


@pytest.mark.parametrize(
    ("num_gpus", "ranks_per_node", "rank", "visible", "host"),
    [
        (8, 4, 0, "0,1,2,3,4,5,6,7", "node-0"),
        (8, 4, 5, "4,5,6,7,0,1,2,3", "node-1"),
        (1, 1, 1, "0", "node-1"),
        (4, 4, 6, "0,1,2,3", "node-1"),  # nodes share GPUs, the ranks of one node do not
        (1, 2, 3, "0", "rank-3"),  # ranks of a node share one, which NCCL takes for two hosts alone
    ],
)
def test_ranks_take_gpus_in_order(num_gpus, ranks_per_node, rank, visible, host):
    found = Gpus([str(index) for index in range(num_gpus)], ranks_per_node, Mps({"CUDA_MPS_PIPE_DIRECTORY": "x"}), "")
    environment = found.environment(rank)
    assert environment["CUDA_VISIBLE_DEVICES"] == visible
    assert environment["NCCL_HOSTID"] == f"isthmus-{host}"
    assert environment["NCCL_NET"] == "Socket"
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "x"


@pytest.mark.parametrize(("num_gpus", "ranks_per_node"), [(1, 1), (2, 1), (3, 1), (4, 2), (8, 4), (100, 16)])
def test_nodes_have_as_many_ranks_as_gpus_of_their_own(num_gpus, ranks_per_node, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    assert gpus.default_ranks_per_node(nodes=2, most=16) == ranks_per_node


def test_a_gpu_is_asked_for_where_there_is_none(monkeypatch):
    assert gpus.choose_device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpus.choose_device("auto") == "cpu"
    assert "--device cuda: " in refused("training", "--device", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpus, "why_no_gpu", lambda: "torch has no NCCL")
    with pytest.raises(ValueError, match="--device auto: torch has no NCCL; --device cpu trains on CPUs"):
        gpus.choose_device("auto")


class Tried:
    """In place of the process that tries GPUs. works: with MPS, and without."""

    def __init__(self, monkeypatch, num_gpus, *, alone=True, with_mps=True):
        self.works = {False: alone, True: with_mps}
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        monkeypatch.setattr(gpus, "_try_all", self)

    def __call__(self, visible, mps):
        if not self.works[bool(mps.environment)]:
            raise ValueError("--device cuda: torch cannot use the GPUs: GPU 0: busy")
        return ["H200"] * len(visible)


def lines_of(*islands):
    """What the process that tries GPUs says of these, by the island that each is on."""
    return lambda visible, mps, *words: [f"A40\t{island}\tPCIe switch" if words else "A40" for island in islands]


def test_islands_are_nodes_and_ranks_take_their_gpus(monkeypatch):
    monkeypatch.setattr(gpus, "choose_device", lambda asked: "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("ISTHMUS_NODES", raising=False)
    monkeypatch.setattr(gpus, "_try_all", lines_of("left", "right", "left", "right"))
    found = gpus.find_islands("cuda")
    assert (found.visible, found.ranks_per_node) == (["0", "2", "1", "3"], 2)
    assert found.description == "4 x A40, one a rank, 2 islands by PCIe switch"
    assert found.environment(2) == {"CUDA_VISIBLE_DEVICES": "1,3,0,2"}  # NCCL is to see one host, as it is
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5,3,1")
    assert gpus.find_islands("cuda").visible == ["7", "3", "5", "1"]
    for islands, why in (
        (("left",) * 4, "there is one island: set ISTHMUS_NODES=4x1"),
        (("left", "left", "left", "right"), "islands have 1 to 3 ranks: set ISTHMUS_NODES=4x1"),
        (("a", "b", "c", "d"), "nothing joins any two GPUs: set ISTHMUS_NODES=4x1"),
    ):
        monkeypatch.setattr(gpus, "_try_all", lines_of(*islands))
        with pytest.raises(ValueError, match=f"^--islands: {why}$"):
            gpus.find_islands("cuda")
    monkeypatch.setenv("ISTHMUS_NODES", "4x1")
    assert (gpus.find_islands("cuda").visible, gpus.find_islands("cuda").ranks_per_node) == (["7", "5", "3", "1"], 1)
    monkeypatch.setenv("ISTHMUS_NODES", "0,3|1,2")
    assert gpus.find_islands("cuda").visible == ["7", "1", "5", "3"]
    for nodes in ("1x4", "0|1,2,3"):
        monkeypatch.setenv("ISTHMUS_NODES", nodes)
        with pytest.raises(ValueError, match="of 4 GPUs: expected two or more of equal size"):
            gpus.find_islands("cuda")
    monkeypatch.setenv("ISTHMUS_NODES", "3x2")
    with pytest.raises(ValueError, match="3x2"):
        gpus.find_islands("cuda")


@pytest.mark.processes
def test_gpus_that_are_shared_and_that_are_not(made_up, monkeypatch):
    Tried(monkeypatch, 1)
    with gpus.open_gpus(2, 1) as found:
        assert found.description == "1 x H200, shared by 2 ranks under MPS"
        assert len(made_up.daemons) == 1
    assert not made_up.daemons
    Tried(monkeypatch, 8)
    with gpus.open_gpus(2, 4) as found:
        assert found.description == "8 x H200, one a rank"
        assert not made_up.daemons
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    Tried(monkeypatch, 2)
    with gpus.open_gpus(2, 1) as found:
        assert found.environment(1)["CUDA_VISIBLE_DEVICES"] == "7,4"


@pytest.mark.processes
def test_where_mps_does_not_work_ranks_take_turns_and_it_says_so(made_up, monkeypatch):
    Tried(monkeypatch, 1, with_mps=False)
    with gpus.open_gpus(2, 1) as found:
        assert "2 ranks take turns" in found.description
        assert "no MPS: under MPS --device cuda: torch cannot use the GPUs: GPU 0: busy" in found.description
        assert "CUDA_MPS_PIPE_DIRECTORY" not in found.environment(0)
        assert not made_up.daemons
    Tried(monkeypatch, 1, alone=False, with_mps=False)
    with pytest.raises(ValueError, match="GPU 0: busy"), gpus.open_gpus(2, 1):
        pass
    assert not made_up.daemons
