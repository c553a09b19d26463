"""Benchmarks on a launcher's ranks: what is refused, what is advised, and runs on two hosts."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from isthmus.benchmarks.collectives.config import CollectivesConfig
from isthmus.benchmarks.here.cluster import (
    Member,
    check_alike,
    check_nodes,
    choose_device,
    count_on,
    gpu_index,
)
from isthmus.benchmarks.training.check import check_report
from isthmus.benchmarks.training.config import GPU_ARMS, TrainingConfig
from isthmus.benchmarks.training.report import advice
from isthmus.cli.main import app
from python.benchmarks.launched import as_ranks, two_hosts, with_torchrun  # noqa: F401

TINY_MODEL = ["--layers", 1, "--width", 128, "--context", 32]


def members(machines="aabb", **facts):
    common = {"no_gpu": "torch sees no GPU", "num_gpus": 0, "nics_count": True}
    return [
        Member(**{"arguments": {"steps": 3}, "host": f"host-{name}", "machine": name} | common | facts)
        for name in machines
    ]


def test_nodes_of_equal_size_on_several_machines_are_taken():
    assert check_nodes([0, 0, 1, 1], "torchrun", members()) == (2, 2)
    assert check_nodes([0, 0, 1, 1], "torchrun", members("abcd")) == (2, 2)  # a node may be several machines


@pytest.mark.parametrize(
    ("nodes", "machines", "message"),
    [
        ([0, 0, 0, 0], "aabb", "all 4 ranks are on one node, by Slurm: nothing crosses a link; start ranks on several"),
        ([0, 0, 1, 1], "aaaa", "all 4 ranks are on one machine, host-a: nothing crosses a link; start ranks"),
        ([0, 1, 1, 1], "aabb", "nodes have 1 to 3 ranks, by Slurm; start as many on each"),
        ([0, 1, 2, 3], "aabb", "ranks 0, 1 are on one machine, host-a, and on several nodes by Slurm"),
        (
            [0, 1, 0, 1],
            "abab",
            r"ranks are not placed node by node \(nodes by rank: 0, 1, 0, 1\), by Slurm; start them in blocks",
        ),
    ],
)
def test_nodes_between_which_figures_would_mean_nothing_are_refused(nodes, machines, message):
    with pytest.raises(ValueError, match=f"--here: {message}"):
        check_nodes(nodes, "Slurm", members(machines))


def test_ranks_with_other_arguments_are_named():
    ranks = members()
    check_alike(ranks)
    ranks[2] = replace(ranks[2], arguments={"steps": 4})
    with pytest.raises(ValueError, match="different options: steps is '3' on ranks 0, 1, 3, '4' on rank 2;"):
        check_alike(ranks)


def test_the_device_is_that_of_all_ranks_or_none():
    gpu = {"no_gpu": "", "num_gpus": 2}
    assert choose_device("auto", members()) == "cpu"
    assert choose_device("auto", members(**gpu)) == "cuda"
    assert choose_device("cpu", members(**gpu)) == "cpu"
    assert [gpu_index(rank, members(**gpu)) for rank in range(4)] == [0, 1, 0, 1]
    assert [gpu_index(rank, members(**gpu | {"num_gpus": 1})) for rank in range(4)] == [0] * 4  # each has its own
    with pytest.raises(ValueError, match="--device cuda: torch sees no GPU; --device cpu trains"):
        choose_device("cuda", members())
    with pytest.raises(ValueError, match="--device auto: rank 2: torch sees no GPU"):
        choose_device("auto", [*members("aa", **gpu), *members("b"), *members("b", **gpu)])
    with pytest.raises(ValueError, match="--device auto: rank 2: host-a has 2 GPUs for more ranks"):
        choose_device("auto", members("aaabb", **gpu))


def test_one_rank_of_each_machine_counts_and_none_where_a_nic_does_not():
    assert [count_on(rank, members("abab")) for rank in range(4)] == [True, True, False, False]
    some = members("aabb")
    some[3] = replace(some[3], nics_count=False)
    assert not any(count_on(rank, some) for rank in range(4))


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}


@pytest.mark.parametrize("bench", ["training", "collectives"])
@pytest.mark.parametrize(
    ("options", "environment", "complaint"),
    [
        (
            ["--here"],
            {},
            "--here: no launcher started this process: start it on every rank, as in `torchrun --nnodes",
        ),
        (["--here"], TORCHRUN, "--here: set MASTER_ADDR"),
        (["--here", "--link", "1gbit"], TORCHRUN, "--link: only for simulated nodes; with --here nodes are the"),
        (["--here", "--device", "tpu"], TORCHRUN, "device 'tpu': expected one of auto, cpu, cuda"),
        (["--nodes", "1"], {}, "nodes 1: expected 2 to 8"),
    ],
)
def test_mistakes_on_the_command_line(bench, options, environment, complaint, monkeypatch):
    for name in (*TORCHRUN, "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["bench", bench, *options])
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize(
    ("config", "names", "on_gpu", "refused"),
    [
        (TrainingConfig, "arms", {*GPU_ARMS}, []),
        (
            CollectivesConfig,
            "backends",
            {"nccl", "none", "flat-tagc", "tagc", "quant"},
            [("cuda", "gloo"), ("cpu", "nccl")],
        ),
    ],
)
def test_arms_and_backends_fit_the_device(config, names, on_gpu, refused):
    assert set(getattr(config(here=True, device="cuda").on_device(), names)) == on_gpu
    assert getattr(config(here=True, device="cpu").on_device(), names) == getattr(config, names)
    for device, name in refused:
        with pytest.raises(ValueError, match=f"'{name}': not for tensors on {device}"):
            config(here=True, device=device, **{names: (name, "none")}).on_device()


def arms(**seconds):
    return {name.replace("_", "-"): {"median_step_s": step_s, "val_loss": 2.5} for name, step_s in seconds.items()}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (
            {"fsdp": 4.0, "hsdp": 3.0, "none": 2.5, "full": 1.5},
            "Set init_process_group(\"isthmus\", pg_options=isthmus.Options(codec='quant', bits=4, weights='delta')) "
            "(or ISTHMUS_CODEC=quant ISTHMUS_BITS=4 ISTHMUS_WEIGHTS=delta), sharded over all ranks: full was the "
            "fastest arm, 2.00 times as fast as hsdp, the best plain one (1.5 s a step against 3 s; validation loss "
            "2.500 against 2.500).",
        ),
        ({"fsdp": 2.0, "flat_tagc": 1.0}, "ISTHMUS_CODEC=tagc ISTHMUS_TIERS=flat), sharded over all ranks: flat-tagc"),
        ({"fsdp": 2.0, "hsdp_quant": 1.0}, "BITS=4), sharded in the node and replicated across nodes: hsdp-quant"),
        (
            {"fsdp": 2.0, "hsdp": 1.0, "quant": 0.96},
            "Set nothing: plain hsdp, sharded in the node and replicated across nodes, is as good here. quant, the "
            "fastest arm on Isthmus, was 1.04 times as fast (0.96 s a step against 1 s).",
        ),
        ({"fsdp": 2.0}, "Nothing to set: it takes a plain arm and one on Isthmus to compare."),
    ],
)
def test_the_advice_names_options_or_says_that_plain_is_as_good(seconds, expected):
    text = advice(arms(**seconds), 8, [])
    assert expected in text
    assert "disturbed" not in text


@pytest.mark.processes
def test_training_on_two_hosts_makes_the_report_of_simulated_ones(two_hosts, tmp_path):  # noqa: F811
    output = tmp_path / "out"
    steps = ["--steps", 3, "--audited-steps", 1, "--arms", "fsdp,quant", "--device", "cpu"]
    sent = [two_hosts.sent_bytes(node) for node in (0, 1)]
    told = with_torchrun(two_hosts, 2, "training", "--here", *TINY_MODEL, *steps, "--output", output)
    sent = [two_hosts.sent_bytes(node) - before for node, before in zip((0, 1), sent, strict=True)]
    assert [code for code, _, _ in told] == [0, 0], told
    report = json.loads((output / "report.json").read_text())
    arguments = report["arguments"]
    assert [arguments[name] for name in ("here", "device", "nodes", "ranks_per_node")] == [True, "cpu", 2, 2]
    assert report["network"] == "nodes by torchrun, cpu over gloo"
    assert report["links"] == ["here"] == [report["headline_link"]]
    for check in check_report(report):
        assert check.collectives_equal and check.holds and check.link_bytes, check
        assert check.payload_equal is (None if check.arm == "fsdp" else True)
    for arm in report["arms"].values():
        assert arm["link_bytes_source"] == "interface"
        assert (arm["num_steps"], len(arm["steps"])) == (2, 4)
    counted = sum(step["link_sent_bytes"] for arm in report["arms"].values() for step in arm["steps"])
    assert 0 < counted < sum(sent)
    (_, out, _), (_, out_of_other, _) = told
    assert out.splitlines()[-1] == report["advice"]
    assert "Median seconds a step" in out and f"{output / 'report.json'}" in out
    assert out_of_other == ""  # one rank alone speaks


@pytest.mark.processes
def test_collectives_on_two_hosts_are_verified_and_counted(two_hosts, tmp_path):  # noqa: F811
    path = tmp_path / "collectives.json"
    sizes = ["--min-bytes", "256K", "--max-bytes", "256K", "--iterations", 2, "--backends", "gloo,tagc"]
    told = as_ranks(two_hosts, [1, 1], "collectives", "--here", "--device", "cpu", *sizes, "--json", path)
    assert [code for code, _, _ in told] == [0] * 2, told
    report = json.loads(path.read_text())
    assert (report["link"], report["arguments"]["ranks_per_node"], len(report["rows"])) == ("here", 1, 6)
    assert {row["num_wrong"] for row in report["rows"]} == {0}
    linked = {(row["operation"], row["backend"]): row["link_bytes"] for row in report["rows"]}
    assert 0 < linked["reduce_scatter", "tagc"] < 0.5 * linked["reduce_scatter", "gloo"]
    assert "#wrong in all: 0" in told[0][1]
    assert [out for _, out, _ in told[1:]] == [""]


@pytest.mark.processes
def test_ranks_with_other_options_are_refused_on_every_rank(two_hosts):  # noqa: F811
    told = as_ranks(two_hosts, [1, 1], "training", "--here", of_rank=lambda rank: ["--steps", 3 + rank])
    for code, out, err in told:
        assert code == 2, (out, err)
        assert "different options: steps is '3' on rank 0, '4' on rank 1" in err
