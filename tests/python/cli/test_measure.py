"""Links measured: the fit, who joins which world, mistakes, and one run over simulated nodes with a slow link."""

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from isthmus.benchmarks.simulate.network import Network
from isthmus.cli.main import app
from isthmus.cli.measure import (
    _ROUNDS,
    SIZES,
    LinkSample,
    MeasuredLink,
    MeasuredLinks,
    fit_link,
    measure_world,
    shortfall,
    time_sizes,
    used_interface,
)
from isthmus.group.nodes.node_map import tiers_of
from python.cli.planned import report
from support import ranks
from support.hosts import as_torchrun, two_hosts

RATE = "50mbit"


MIDDLE = SIZES[len(SIZES) // 2]


@pytest.mark.parametrize(
    ("time_us", "latency_us", "gbit_s"),
    [
        *((lambda size, a=a, b=b: a + 8e-3 * size / b, a, b) for a, b in ((20, 100), (5000, 0.05), (0, 10))),
        # The ends decide: what lies between (a burst that a shaped link lets through, say) does not count.
        (lambda size: 21.0 if size == MIDDLE else 20 + 8e-3 * size / 100, 20, 100),
        # Small messages that were disturbed: 2083 us at 1 KiB and 176 at 4 KiB say that the first was not the link's.
        (lambda size: 2083.0 if size == SIZES[0] else 176 + 8e-3 * size / 25, 176, 25),
        (lambda size: 7.0, 7.0, 8e-3 * SIZES[-1] / 7),  # nothing but latency
        (lambda size: 1e9 / size, 1e9 / SIZES[-1], 8e-12 * SIZES[-1] ** 2),  # noise: larger is faster
        (lambda size: size**1.5, 0.0, 8e-3 / SIZES[-1] ** 0.5),  # the line would begin below 0
    ],
)  # fmt: skip
def test_the_fit_finds_latency_and_bandwidth(time_us: Callable[[int], float], latency_us: float, gbit_s: float) -> None:
    given = [LinkSample(size, time_us(size)) for size in SIZES]
    link = fit_link(given)
    assert link.latency_us == pytest.approx(latency_us, rel=0.01, abs=1e-6)
    assert link.bandwidth_gbit_s == pytest.approx(gbit_s, rel=0.01)
    assert link.samples == tuple(given)  # as they were measured


def made_up_burst_s(num_bytes: int, repeats: int) -> float:
    """Bursts over a link of 10 us and 8 Gbit/s whose first one connects, and whose second round meets other work."""
    bursts.append((num_bytes, repeats))
    each_s = 10e-6 + num_bytes / 1e9
    if len(bursts) == 1:
        return 3.0
    return repeats * each_s + (0.5 if len(bursts) in disturbed_bursts else 0.0)


bursts: list[tuple[int, int]] = []
disturbed_bursts: range = range(0)


def test_connecting_does_not_count_and_a_disturbed_round_owns_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    bursts.clear()
    second_round = 1 + 2 * len(SIZES) + len(SIZES) + 1
    monkeypatch.setitem(globals(), "disturbed_bursts", range(second_round, second_round + len(SIZES)))
    found = time_sizes(made_up_burst_s, 2, 3.0)
    assert [sample.num_bytes for sample in found] == [2 * size for size in SIZES]
    assert [sample.time_us for sample in found] == pytest.approx([10 + size / 1e3 for size in SIZES])
    assert [size for size, _ in bursts[-len(SIZES) :]] == list(SIZES)  # a round has every size once
    link = fit_link(found)
    assert (link.latency_us, link.bandwidth_gbit_s) == pytest.approx((10, 16))


@pytest.mark.parametrize(("budget_s", "num_sizes"), [(1e-9, 2), (1e-3, 4), (0.1, 7), (3.0, 8)])
def test_sizes_end_with_the_budget(budget_s: float, num_sizes: int) -> None:
    bursts.clear()
    found = time_sizes(made_up_burst_s, 1, budget_s)
    assert len(found) == num_sizes
    assert len(bursts) == 1 + (2 + _ROUNDS) * num_sizes
    taken_s = sum(repeats * (10e-6 + size / 1e9) for size, repeats in bursts)
    assert num_sizes == 2 or taken_s < 3 * budget_s


def test_tiers_of_a_rank() -> None:
    assert tiers_of(2, [0, 1, 1, 0, 2, 2]) == ([1, 2], [3, 2, 5])
    assert (tiers_of(1, [0, 0]), tiers_of(1, [0, 1])) == (([0, 1], [1]), ([1], [0, 1]))


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--measure"], "no launcher started this process"),
        (["--measure", "--nodes", "2x2"], "no other option"),
    ],
)
def test_mistakes_on_the_command_line(options: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, *OPEN_MPI):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["topo", *options])
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.fixture(scope="module")
def slow_network() -> Any:
    yield from two_hosts(RATE)


MEASURED = MeasuredLinks(
    intra=MeasuredLink(12.5, 40.0, (LinkSample(1024, 13.0), LinkSample(1 << 20, 222.0))),
    inter=MeasuredLink(50.0, 10.0, (LinkSample(1024, 51.0),)),
    num_nodes=2,
    ranks_per_node=4,
    num_hosts=2,
)


def test_the_options_are_those_of_a_plan_of_the_same_links() -> None:
    found = report("--preset", "llama2-7b", *MEASURED.options().split())
    assert found["cluster"] == {"nodes": 2, "ranks_per_node": 4}
    links = {"inter_gbit_s": 10, "intra_gbit_s": 40, "inter_latency_us": 50, "intra_latency_us": 12.5}
    assert {name: found["links"][name] for name in links} == links
    assert (
        replace(MEASURED, inter=None, num_nodes=1).options().startswith("--nodes 1 --ranks-per-node 4 --intra 40gbit")
    )


def test_a_link_far_below_its_interface_is_told() -> None:
    text = shortfall(MEASURED, "eth0", 25.0)
    assert text.startswith("10 of the 25 Gbit/s of eth0: look at its MTU")
    assert shortfall(MEASURED, "eth0", 10.0) == ""
    assert shortfall(MEASURED, "veth0", None) == ""  # a virtual interface may have no speed
    assert shortfall(replace(MEASURED, num_hosts=1), "eth0", 25.0) == ""  # memory, no network
    assert shortfall(replace(MEASURED, inter=None), "eth0", 25.0) == ""


@pytest.mark.parametrize(("beside", "rated"), [((), None), (("device",), 10.0), (("lower_eth0", "lower_eth1"), 10.0)])
def test_an_interface_that_software_made_has_no_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: tuple[str, ...], rated: float | None
) -> None:
    """The kernel says 10 Gbit/s of a veth; that of a bond is its ports'."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "some0")
    for name in beside:
        (tmp_path / "some0" / name).mkdir(parents=True)
    (tmp_path / "some0").mkdir(exist_ok=True)
    (tmp_path / "some0/speed").write_text("10000\n")
    assert used_interface(tmp_path) == ("some0", rated)


def test_the_interface_is_the_one_that_gloo_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "absent0,eth9")
    assert used_interface() == ("absent0", None)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    assert used_interface() == ("lo", None)
    monkeypatch.setattr("socket.gethostname", lambda: "no.such.host.invalid")
    assert used_interface() == ("", None)


@pytest.mark.processes
def test_two_nodes_behind_a_slow_link(slow_network: Network) -> None:
    sent = [slow_network.sent_bytes(node) for node in (0, 1)]
    told = as_torchrun(slow_network, [2, 2], "topo", "--measure", "--json", ISTHMUS_LOG="info")
    sent = [slow_network.sent_bytes(node) - before for node, before in zip((0, 1), sent, strict=True)]
    assert [code for code, _, _ in told] == [0] * 4, told
    assert [out for _, out, _ in told[1:]] == [""] * 3
    assert "group of 4 ranks: 2 nodes x 2 ranks, in blocks, by torchrun\n" in told[0][2]

    links = json.loads(told[0][1])
    assert (links["num_nodes"], links["ranks_per_node"], links["num_hosts"]) == (2, 2, 1)
    intra, inter = links["intra"], links["inter"]
    sizes = [sample["num_bytes"] for sample in intra["samples"]]
    assert sizes == list(SIZES[: len(sizes)]) and len(sizes) >= 2
    sizes = [sample["num_bytes"] for sample in inter["samples"]]
    assert sizes == [2 * size for size in SIZES[: len(sizes)]] and len(sizes) >= 2
    assert inter["bandwidth_gbit_s"] < intra["bandwidth_gbit_s"]
    assert all(num_bytes > 2 * sum(sizes) for num_bytes in sent)  # the first exchange and a burst of each


def refused(rank: int, world_size: int) -> tuple[object, str]:
    told = io.StringIO()
    with contextlib.redirect_stderr(told), pytest.raises(SystemExit) as ended:
        measure_world(Console(), as_json=False)
    return ended.value.code, told.getvalue()


@pytest.mark.processes
def test_uneven_nodes_are_told_once() -> None:
    told = ranks.run(refused, 3, env={"ISTHMUS_NODES": "0|1,2", "ISTHMUS_LOG": "error"})
    complaint = "isthmus: nodes have 1 to 2 ranks, by ISTHMUS_NODES; start as many on each, as with "
    assert told[0][0] == 2 and told[0][1].startswith(complaint) and "srun's --ntasks-per-node" in told[0][1]
    assert told[1:] == [(2, "")] * 2
