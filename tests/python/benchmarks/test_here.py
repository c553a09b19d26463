"""Benchmarks on a launcher's ranks: what is refused and advised, how ranks meet, runs on two hosts, NICs' counts."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist
from typer.testing import CliRunner

from isthmus.benchmarks.collectives.config import CollectivesConfig
from isthmus.benchmarks.here import stage
from isthmus.benchmarks.here.cluster import (
    Member,
    check_alike,
    check_nodes,
    choose_device,
    count_on,
    gpu_index,
)
from isthmus.benchmarks.here.nics import find_counter
from isthmus.benchmarks.training.config import GPU_ARMS, TrainingConfig
from isthmus.benchmarks.training.report import advice
from isthmus.cli.main import app
from isthmus.group import meeting
from support import hosts, ranks

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
        (["--here"], TORCHRUN, "--here: torchrun does not say where rank 0 is: set MASTER_ADDR"),
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


@pytest.fixture(scope="module")
def two_hosts():
    yield from hosts.two_hosts("200mbit")


@pytest.mark.processes
def test_training_on_two_hosts_makes_the_report_of_simulated_ones(two_hosts, tmp_path):
    output = tmp_path / "out"
    steps = ["--steps", 3, "--audited-steps", 1, "--arms", "fsdp,quant", "--device", "cpu"]
    sent = [two_hosts.sent_bytes(node) for node in (0, 1)]
    told = hosts.as_torchrun(two_hosts, [2, 2], "bench", "training", "--here", *TINY_MODEL, *steps, "--output", output)
    sent = [two_hosts.sent_bytes(node) - before for node, before in zip((0, 1), sent, strict=True)]
    assert [code for code, _, _ in told] == [0] * 4, told
    report = json.loads((output / "report.json").read_text())
    arguments = report["arguments"]
    assert [arguments[name] for name in ("here", "device", "nodes", "ranks_per_node")] == [True, "cpu", 2, 2]
    assert report["network"] == "nodes by torchrun, cpu over gloo"
    assert report["links"] == ["here"] == [report["headline_link"]]
    for name, arm in report["arms"].items():
        check = arm["check"]
        assert check["collectives_equal"] and check["holds"] and check["link_bytes"], check
        assert check["payload_equal"] is (None if name == "fsdp" else True)
        assert arm["link_bytes_source"] == "interface"
        assert (arm["num_steps"], len(arm["steps"])) == (2, 4)
    counted = sum(step["link_sent_bytes"] for arm in report["arms"].values() for step in arm["steps"])
    assert 0 < counted < sum(sent)
    out, *of_others = (out for _, out, _ in told)
    assert out.splitlines()[-1] == report["advice"]
    assert "Median seconds a step" in out and f"{output / 'report.json'}" in out
    assert of_others == [""] * 3  # one rank alone speaks


@pytest.mark.processes
def test_collectives_on_two_hosts_are_verified_and_counted(two_hosts, tmp_path):
    path = tmp_path / "collectives.json"
    sizes = ["--min-bytes", "256K", "--max-bytes", "256K", "--iterations", 2, "--backends", "gloo,tagc", "--json", path]
    told = hosts.as_torchrun(two_hosts, [1, 1], "bench", "collectives", "--here", "--device", "cpu", *sizes)
    assert [code for code, _, _ in told] == [0] * 2, told
    report = json.loads(path.read_text())
    assert (report["link"], report["arguments"]["ranks_per_node"], len(report["rows"])) == ("here", 1, 6)
    assert {row["num_wrong"] for row in report["rows"]} == {0}
    linked = {(row["operation"], row["backend"]): row["link_bytes"] for row in report["rows"]}
    assert 0 < linked["reduce_scatter", "tagc"] < 0.5 * linked["reduce_scatter", "gloo"]
    assert "#wrong in all: 0" in told[0][1]
    assert [out for _, out, _ in told[1:]] == [""]


@pytest.mark.processes
def test_uneven_nodes_are_told_once(two_hosts):
    told = hosts.as_torchrun(two_hosts, [1, 2], "bench", "collectives", "--here", "--device", "cpu")
    assert [code for code, _, _ in told] == [2] * 3, told
    complaint = "nodes have 1 to 2 ranks, by torchrun; start as many on each, as with the same --nproc-per-node"
    assert [complaint in err for _, _, err in told] == [True, False, False], told


@pytest.mark.processes
def test_ranks_that_never_come_are_named_by_all_others(two_hosts):
    timeout_s = round(meeting.NOTICE_S) + 4
    told = hosts.as_torchrun(two_hosts, [2, 2], "bench", "training", "--here", "--timeout", timeout_s, missing=(1, 2))
    for (code, out, err), rank in zip(told, (0, 3), strict=True):
        assert code == 1, (out, err)
        assert f"--here: rank {rank} of 4 did not meet the others at " in err
        assert f"ranks 1, 2 did not come within {timeout_s} s" in err
        assert "Traceback" not in err
    early = [f"waiting for ranks 1, 2, up to {timeout_s} s" in err for _, _, err in told]
    assert early == [True, False]  # one of them says it while all still wait


def leave_after_the_slowest(rank: int, world_size: int, folder: str) -> None:
    """Rank 1 is late when the others have made the group of `_find_nodes`: they must not be gone when it is done."""
    ranks.init("gloo")
    made = Path(folder) / "made"
    find, destroy = stage.backend_of, dist.destroy_process_group
    left = []

    def late(group):
        if rank == 1:
            time.sleep(1)
            made.write_text("")
        return find(group)

    def watched(group=None):
        left.append(made.exists())
        destroy(group)

    stage.backend_of, dist.destroy_process_group = late, watched
    stage.check_nodes = lambda nodes, source, members: (len(set(nodes)), 1)
    os.environ["ISTHMUS_NODES"] = "2x1"
    assert stage._find_nodes(TrainingConfig(here=True), [])[:2] == (2, 1)
    assert left == [True]
    destroy()


@pytest.mark.processes
def test_no_rank_leaves_before_all_have_come(tmp_path):
    ranks.run(leave_after_the_slowest, 2, str(tmp_path))


# --- What NICs have counted ---

IB, NIC = "0000:01:00.0", "0000:02:00.0"


class CountedMachine:
    """Made-up trees like /sys and /proc, with NICs that have counted something."""

    def __init__(self, folder):
        self.roots = (folder / "sys", folder / "proc")

    def device(self, kind, name, on, **attributes):
        """A device of a PCI function, or a virtual one. kind: of /sys/class."""
        parent = self.roots[0] / ("devices/virtual" if on is None else f"devices/pci0000:00/{on}")
        link = self.roots[0] / "class" / kind / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(parent / kind / name)
        for attribute, value in attributes.items():
            self.write(parent / kind / name / attribute, value)

    def interface(self, name, on=None, kind=1, **attributes):
        self.device("net", name, on, type=kind, operstate="up", **attributes)

    def verbs(self, name, on, sent, layer="InfiniBand", state="4: ACTIVE", counter="counters/port_xmit_data"):
        """A port for each number in `sent`: what it has counted."""
        ports = [(f"ports/{port}", value) for port, value in enumerate(sent, 1)]
        attributes = {
            f"{port}/{attribute}": text
            for port, _ in ports
            for attribute, text in (("link_layer", layer), ("state", state))
        }
        self.device("infiniband", name, on, **attributes | {f"{port}/{counter}": value for port, value in ports})

    def write(self, path, value):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def net_dev(self, **sent):
        head = "Inter-|   Receive  |  Transmit\n face |bytes packets ...|bytes packets ...\n"
        lines = [f"{name:>6}: 7 1 0 0 0 0 0 0 {num_bytes} 1 0 0 0 0 0 0" for name, num_bytes in sent.items()]
        self.write(self.roots[1] / "self/net/dev", head + "\n".join(lines))


@pytest.fixture
def machine(tmp_path):
    return CountedMachine(tmp_path)


def test_an_adapter_counts_and_what_stands_on_it_does_not_again(machine):
    machine.interface("eth0", on=NIC)
    for virtual in ("lo", "bond0", "docker0", "veth12"):
        machine.interface(virtual)
    machine.net_dev(lo=9, eth0=2**40, bond0=2**40, docker0=5, veth12=5)
    read = find_counter(*machine.roots)
    assert read() == 2**40
    machine.net_dev(lo=9)
    with pytest.raises(KeyError, match="eth0"):
        read()


def test_in_a_namespace_of_virtual_interfaces_those_that_stand_on_no_other_count(machine):
    for virtual in ("lo", "veth0", "veth1"):
        machine.interface(virtual)
    machine.interface("bond0", lower_veth0="", lower_veth1="")
    machine.net_dev(lo=9, veth0=10, veth1=20, bond0=30)
    assert find_counter(*machine.roots)() == 30


def test_interfaces_that_sys_does_not_show_count_all(machine):
    """/sys of another namespace says nothing about this one's eth0."""
    machine.interface("eth0", on=NIC)
    machine.net_dev(lo=9, eth0=2, tap0=4)
    assert find_counter(*machine.roots)() == 2 + 4


def test_ports_of_infiniband_count_in_words_of_four_bytes_and_their_interfaces_not_again(machine):
    machine.verbs("mlx5_0", IB, [2**40])
    machine.interface("ib0", on=IB, kind=32)
    machine.interface("eth0", on=NIC)
    machine.net_dev(lo=9, ib0=4 * 2**40, eth0=2)
    assert find_counter(*machine.roots)() == 4 * 2**40 + 2


def test_roce_counts_beside_its_interface_and_efa_in_bytes(machine):
    machine.verbs("mlx5_0", NIC, [2], layer="Ethernet")
    machine.verbs("rdmap1s0", IB, [200], layer="Unspecified", counter="hw_counters/tx_bytes")
    machine.interface("eth0", on=NIC)
    machine.net_dev(eth0=2000)
    assert find_counter(*machine.roots)() == 2208


@pytest.mark.parametrize(("second_port", "counted"), [("no number", None), (5, 2 + 4 * (3 + 5))])
def test_nothing_is_counted_where_a_port_has_no_counter_and_ports_that_are_down_do_not_matter(
    machine, second_port, counted
):
    machine.verbs("mlx5_0", IB, [3, second_port])
    machine.verbs("mlx5_1", NIC, [], state="1: DOWN")
    machine.verbs("rxe0", None, [])
    machine.interface("eth0", on=NIC)
    machine.net_dev(eth0=2)
    read = find_counter(*machine.roots)
    assert (read and read()) == counted


def test_a_machine_without_a_nic_is_not_counted(machine):
    machine.net_dev(lo=9)
    assert find_counter(*machine.roots) is None
