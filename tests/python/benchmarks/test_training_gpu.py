"""`isthmus bench training --device cuda` on simulated nodes, which share a fake GPU under a made-up MPS."""

import json

import pytest
import torch
from typer.testing import CliRunner

from isthmus.benchmarks.common.model import ByteGpt
from isthmus.benchmarks.simulate.serve import SaysAll
from isthmus.benchmarks.training import run as training
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.benchmarks.training.worker import Worker
from isthmus.cli.main import app
from python.benchmarks.bench_cli import run
from python.benchmarks.test_simulated_gpus import made_up  # noqa: F401
from python.cuda.worlds import needs_fake_gpu
from support import fake_gpu
from support.machines import eight_gpus

TINY = ("training", "--device", "cuda", "--layers", 1, "--width", 128, "--context", 32, "--sequences", 2, "--quick")
ARMS = ("fsdp", "hsdp", "flat-tagc", "quant", "full", "hsdp-quant")


@pytest.mark.processes
@needs_fake_gpu
def test_a_run(made_up, tmp_path):  # noqa: F811
    with fake_gpu.environment() as variables:
        words = (*TINY, "--steps", 8, "--timed-steps", 1, "--lr", 0.002, "--arms", ",".join(ARMS))
        code, out, err = run(*words, "--output", tmp_path, **variables)
    assert code == 0, err
    assert not made_up.daemons
    report = json.loads((tmp_path / "report.json").read_text())
    assert [report["arguments"][name] for name in ("device", "nodes", "ranks_per_node")] == ["cuda", 2, 1]
    assert tuple(report["arms"]) == ARMS
    assert "1 x Fake GPU, shared by 2 ranks under MPS" in report["network"]
    for arm in report["arms"].values():  # the fake NCCL joins ranks past the links: these count nothing of it
        assert arm["check"]["collectives_equal"] and arm["check"]["payload_equal"] is not False, arm["check"]
    losses = {name: arm["val_loss"] for name, arm in report["arms"].items()}
    single_tier = losses.pop("flat-tagc")
    assert losses["fsdp"] < single_tier < report["arms"]["flat-tagc"]["steps"][0]["loss"] - 0.3, "it trains, and loses"
    assert all(abs(loss - losses["fsdp"]) < 0.2 for loss in losses.values()), losses
    assert losses["full"] == losses["quant"] != losses["fsdp"]
    memory = {name: arm["gpu_bytes"] for name, arm in report["arms"].items()}
    state = 4 * 3 * report["model"]["num_parameters"]  # weights and two moments
    assert memory["hsdp"] - memory["fsdp"] >= state / 2  # whole on each node
    shaped = [link for link in report["links"] if link != "unshaped"]
    assert list(report["carried_bits_per_s"]) == (report["links"] if shaped else [])
    assert "| full |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.png").stat().st_size > 10_000
    assert out.splitlines()[-1] == report["advice"]


@pytest.mark.processes
@needs_fake_gpu
def test_the_islands_of_a_machine(tmp_path):
    """Four of eight GPUs: NVLinks join the first with the third, and the second with the fourth."""
    machine = eight_gpus(tmp_path / "machine.xml", [""] * 8, [(0, 2), (1, 3)])
    arms = ("ddp", "ddp-bf16", "ddp-quant", "hsdp-quant")
    with fake_gpu.environment(FAKE_GPU_COUNT=4, HWLOC_XMLFILE=machine) as variables:
        words = (*TINY, "--islands", "--steps", 4, "--arms", ",".join(arms), "--output", tmp_path)
        code, out, err = run(*words, **variables)
    assert code == 0, err
    report = json.loads((tmp_path / "report.json").read_text())
    assert [report["arguments"][name] for name in ("device", "nodes", "ranks_per_node")] == ["cuda", 2, 2]
    assert report["network"] == "this machine's links, 4 x Fake GPU, one a rank, 2 islands by NVLink"
    assert report["links"] == ["islands"] == [report["headline_link"]]
    for arm in report["arms"].values():
        check = arm["check"]
        assert check["collectives_equal"] and check["payload_equal"] is not False, check
        assert check["link_bytes"] is None, check
    losses = [arm["val_loss"] for arm in report["arms"].values()]
    assert max(losses) - min(losses) < 0.2, losses
    assert "Nothing was shaped" not in out and "unshaped" not in out
    assert report["advice"].startswith("With ISTHMUS_NODES=islands: ")


@pytest.mark.processes
@needs_fake_gpu
def test_a_gpu_that_cannot_be_used_is_told_in_one_line(made_up, tmp_path):  # noqa: F811
    with fake_gpu.environment() as variables:
        code, _, err = run(*TINY, "--output", tmp_path, LD_PRELOAD=variables["LD_PRELOAD"])  # without kernels
    assert code == 2
    assert "--device cuda: torch cannot use the GPUs: fake GPU: cannot run a CUDA kernel" in err
    assert not made_up.daemons


def test_a_gpu_that_is_full_is_told(monkeypatch):
    def join(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 3 << 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 16 << 30))
    with pytest.raises(
        SaysAll, match=r"^its GPU is full: of 16\.0 GiB this rank has taken 3\.0 and wants more, and 1\.0"
    ):
        Worker(join).setup(print, TrainingConfig(), counts_links=False, num_steps=1)


def test_defaults_for_gpus():
    config = TrainingConfig(device="cuda").on_device()
    with torch.device("meta"):
        num_parameters = sum(parameter.numel() for parameter in ByteGpt(config.shape).parameters())
    assert 152e6 < num_parameters < 153e6
    assert config.links == ("10gbit", "25gbit")
    assert TrainingConfig(device="cpu").on_device() == TrainingConfig(device="cpu")
    of_a_user = TrainingConfig(device="cuda", given=("num_layers",), width=128, links=("1gbit", "2gbit"), quick=True)
    found = of_a_user.on_device()
    assert (found.num_layers, found.width, found.context) == (TrainingConfig.num_layers, 128, 1024)
    assert found.links == of_a_user.links
    assert TrainingConfig(device="cuda", quick=True).on_device().links == ("10gbit",)


def test_what_a_user_gives_is_kept_though_it_is_the_default(monkeypatch):
    taken = []

    def run_training(config, output, console):
        taken.append(config)
        raise ValueError("enough")

    monkeypatch.setattr(training, "run_training", run_training)
    CliRunner().invoke(app, ["bench", "training", "--layers", str(TrainingConfig.num_layers), "--ranks-per-node", "2"])
    (config,) = taken
    assert set(config.given) == {"num_layers", "ranks_per_node"}
    assert not config.is_default("ranks_per_node")
    assert config.is_default("width")
