"""`isthmus bench ... --here` with CUDA tensors, on two hosts whose ranks have a fake GPU."""

import json

import pytest

from isthmus.benchmarks.training.check import check_report
from python.benchmarks.launched import as_ranks, two_hosts  # noqa: F401
from python.cuda.worlds import needs_fake_gpu
from support import fake_gpu

pytestmark = [pytest.mark.processes, needs_fake_gpu]


def on_fake_gpus(network, *arguments):
    """Run `isthmus bench ... --here` on two hosts of two ranks; returns what they tell."""
    with fake_gpu.environment(FAKE_GPU_COUNT=2) as variables:
        return as_ranks(network, [2, 2], *arguments, **variables)


def test_training(two_hosts, tmp_path):  # noqa: F811
    output = tmp_path / "out"
    size = ["--layers", 1, "--width", 128, "--context", 32, "--steps", 3, "--audited-steps", 1]
    arms = ["--arms", "fsdp,none,quant,full"]
    told = on_fake_gpus(two_hosts, "training", "--here", "--device", "cuda", *size, *arms, "--output", output)
    assert [code for code, _, _ in told] == [0] * 4, told
    report = json.loads((output / "report.json").read_text())
    assert [report["arguments"][name] for name in ("device", "nodes", "ranks_per_node")] == ["cuda", 2, 2]
    assert report["network"] == "nodes by torchrun, cuda over nccl"
    checks = {check.arm: check for check in check_report(report)}
    assert list(checks) == ["fsdp", "none", "quant", "full"]
    assert all(check.collectives_equal for check in checks.values())
    losses = {name: arm["val_loss"] for name, arm in report["arms"].items()}
    assert losses["fsdp"] < report["arms"]["fsdp"]["steps"][0]["loss"] - 0.2, "it trains"
    assert all(abs(loss - losses["fsdp"]) < 0.005 for loss in losses.values()), losses
    assert losses["quant"] != losses["fsdp"]  # the codec took part
    assert losses["full"] == losses["quant"]
    assert told[0][1].splitlines()[-1] == report["advice"]
