"""What a summary says of made-up statistics, what loggers get, and for which ranks this one waited."""

import gc
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import isthmus
from isthmus.base import job
from isthmus.group import process
from isthmus.report import loggers
from isthmus.report.checks import behind, behind_since_last_check, in_words
from isthmus.report.statistics import added
from isthmus.report.summary import crossing, summary_lines
from python.report import made_up_stats as made_up
from support import ranks


def lines(*groups: dict[str, Any]) -> list[str]:
    return list(summary_lines(added({f"group{index}": each for index, each in enumerate(groups)})))


def test_bytes_and_what_they_would_have_been() -> None:
    crossed = crossing(made_up.group())
    assert (crossed.sent_bytes, crossed.exact_bytes) == (10_000, 11_500)
    assert crossed.weights_share == pytest.approx(0.95)
    twice = crossing(made_up.group(units=[made_up.unit(collective="all_reduce")]))
    assert twice.exact_bytes == 13_000
    exact = crossing(made_up.group(units=[made_up.unit(codec="none", packet_bytes=2064), made_up.unit(dtype="")]))
    assert exact.exact_bytes == 10_000


def test_what_the_world_backend_carries_crosses_too() -> None:
    def world(**sent_bytes: int) -> dict[str, Any]:
        counted = {call: {"calls": 1, "sent_bytes": sent, "received_bytes": sent} for call, sent in sent_bytes.items()}
        return made_up.group(world=counted)

    gathers = crossing(world(allgather=10_000, barrier=0))
    assert (gathers.sent_bytes, gathers.exact_bytes) == (20_000, 21_500)
    assert (gathers.weights_share, gathers.gradients_share) == (pytest.approx(0.975), pytest.approx(0.025))
    text = lines(world(alltoall_base=90_000, broadcast=500))
    assert text[1] == (
        "between nodes: 100 kB (500 B reduce-scatters, 9.5 kB weights and other gathers, "
        "by the world backend 90 kB alltoall_base, 500 B broadcast)"
    )
    assert text[2] == "exact it would have been 102 kB: 1.01 times as much"
    assert text[-1] == "alltoall_base is 90% of what crosses through Isthmus, and exact"
    alone = lines(made_up.empty(world={"send": {"calls": 1, "sent_bytes": 7, "received_bytes": 0}}))
    assert alone[1] == "between nodes: 7 B (by the world backend 7 B send)"


def test_one_screen() -> None:
    units = [made_up.unit(f"layers.{index}") for index in range(40)]
    units += [made_up.unit("norm", codec="none", settings="", reason="below min_elements", relative_squared_error=None)]
    text = lines(made_up.group(units=units))
    assert text == [
        "summary: 2 nodes x 2 ranks, in blocks, by option nodes; this rank's figures",
        "between nodes: 10 kB (500 B reduce-scatters, 9.5 kB weights and other gathers)",
        "exact it would have been 71.5 kB: 7.15 times as much",
        "within nodes: 9 kB",
        "seconds: 10.00 in calls, 4.00 waited for and 6.00 hidden",
        "of these, waited for others' messages: 2.00 s for rank 2 between nodes; 0.25 s for rank 1 within the node",
        "seconds by phase, some beside others: 5.00 between nodes, 0.00 within, 0.50 in codecs",
        "40 x reduce_scatter (layers.0, layers.1, layers.10, ...; 80,000 elements): quant bits=4; 4 bits an element, "
        "relative squared error 0.01",
        "1 x reduce_scatter (norm; 2,000 elements): exact (below min_elements)",
        "weights are 95% of what crosses through Isthmus. To try: HSDP (no weights cross), "
        'reshard_after_forward=<ranks of a node> (once a step), weights="delta" (differences): docs/choosing.md',
    ]


def test_many_settings_end_with_their_number() -> None:
    units = [made_up.unit(str(bits), settings=f"quant bits={bits}") for bits in range(20)]
    assert "... 8 more settings: isthmus.explain()" in lines(made_up.group(units=units))


def test_advice_follows_what_dominates() -> None:
    gradients = made_up.group()["collectives"] | {"all_gather": made_up.collective()}
    assert "gradients are 100% of what crosses through Isthmus" in lines(made_up.group(collectives=gradients))[-1]
    assert lines(made_up.group(waited_s=0.5))[-1].startswith("to try: nothing.")
    assert 'weights="delta"' in lines(made_up.group())[-1]
    in_use = lines(made_up.group(weights={"gathers": 3, "whole": {}}))[-1]
    assert "HSDP" in in_use and "delta" not in in_use
    nothing = lines(made_up.empty())
    assert "nothing crossed between nodes" in nothing
    assert nothing[-1].startswith("no gradient was compressed: nothing was reduced yet")


class Board:
    def __init__(self) -> None:
        self.written: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.written.append((tag, value, step))


def test_muon_is_told_of_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def advice(*others: dict[str, Any], **changes: Any) -> list[str]:
        return [line for line in lines(made_up.group(**changes), *others) if "Muon" in line]

    def says_fewer_bits() -> bool:
        gradients = made_up.group()["collectives"] | {"all_gather": made_up.collective()}
        return any("fewer bits" in line for line in lines(made_up.group(collectives=gradients)))

    def step(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> None:
        parameter.grad = torch.ones_like(parameter)
        handle = register_optimizer_step_post_hook(process._stepped)
        optimizer.step()
        handle.remove()

    monkeypatch.setattr(job, "_next", job.Job())  # whose steps are counted
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    adam = torch.optim.AdamW([parameter])
    step(adam, parameter)
    assert not advice()
    assert says_fewer_bits()
    optimizer = torch.optim.Muon([parameter])
    step(optimizer, parameter)
    assert len(advice()) == 1
    assert not says_fewer_bits(), "it would lose more still"
    units = {bits: [made_up.unit(settings=f"quant bits={bits} error_feedback=codec")] for bits in (6, 8)}
    assert [len(advice(units=each)) for each in units.values()] == [1, 0]
    assert len(advice(made_up.group(), units=units[8])) == 1, "of another group"
    assert advice(units=[made_up.unit(settings="quant bits=4 error_feedback=on")]), "it makes no difference there"
    assert not advice(units=[made_up.unit(codec="none", settings="", reason="codec none")])
    del optimizer
    gc.collect()
    assert not advice()


def test_a_summary_costs_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many objects the program has."""

    def walks(*_: Any) -> None:
        raise AssertionError("it looks at all objects of the process")

    for function in ("get_objects", "get_referrers", "collect"):
        monkeypatch.setattr(gc, function, walks)
    assert lines(made_up.group())


def test_loggers_get_means_of_a_step_since_the_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[dict[str, Any]] = [added({"default": made_up.group()})]
    monkeypatch.setattr(loggers, "stats", lambda: now[-1])
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer, other = (torch.optim.SGD([parameter], lr=0.1) for _ in range(2))
    board = Board()
    handle = isthmus.log_to(board, every=2)
    for _ in range(2):
        optimizer.step()
        other.step()  # no step of its own
    found = {tag: (value, step) for tag, value, step in board.written}
    assert found["isthmus/sent_bytes"] == (5000, 2)
    assert found["isthmus/waited_s"] == (2.0, 2)
    assert found["isthmus/compression"] == (pytest.approx(1.15), 2)
    assert found["isthmus/relative_squared_error"] == (0.01, 2)
    board.written.clear()
    now.append(added({"default": made_up.group(), "other": made_up.group(exact_calls={"float64": 3})}))
    for _ in range(2):
        optimizer.step()
    found = {tag: (value, step) for tag, value, step in board.written}
    assert found["isthmus/sent_bytes"] == (5000, 4)
    assert found["isthmus/exact_calls"] == (3, 4)
    board.written.clear()
    now.append(added({"default": made_up.group(ran_s=1.0)}))  # reset_stats() was called
    for _ in range(2):
        optimizer.step()
    assert ("isthmus/ran_s", 0.5, 6) in board.written
    handle.remove()
    board.written.clear()
    for _ in range(2):
        optimizer.step()
    assert board.written == []


@pytest.mark.parametrize(
    ("writer", "every", "error", "text"),
    [
        (object(), 1, TypeError, r"writer object: expected add_scalar\(tag, value, step\) or log\(dict\)"),
        (Board(), 0, ValueError, "every=0: expected 1 or more steps"),
        (Board(), 1.5, TypeError, "every=1.5: expected a whole number of steps"),
        (Board(), True, TypeError, "every=True: expected a whole number"),
    ],
)
def test_bad_loggers(writer: Any, every: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        isthmus.log_to(writer, every=every)


def test_a_rank_is_behind_where_others_of_its_tier_are_not() -> None:
    (text,) = behind({"inter": {4: 3.0, 8: 0.2}, "intra": {1: 0.1, 2: 0.1}, "flat": {}}, 10.0)
    assert text.startswith(
        "3.0 of the last 10.0 s were spent on waiting for rank 4 between nodes, and at most 0.2 s for any other"
    )


@pytest.mark.parametrize(
    "waits",
    [
        {"inter": {4: 9.0}},  # of two nodes: it may be the link
        {"inter": {4: 5.0, 8: 4.0}},  # all are slow
        {"inter": {4: 0.9, 8: 0.0}},  # who cares
        {"inter": {4: -5.0, 8: -6.0}},  # the counters were reset
        {"inter": {}, "intra": {}, "flat": {}},
    ],
)
def test_nobody_is_behind(waits: dict[str, dict[int, float]]) -> None:
    assert list(behind(waits, 10.0)) == []


def test_in_words() -> None:
    assert in_words({"intra": {1: 0.5}, "inter": {2: 0.25, 4: 3.0}, "flat": {}}) == (
        "3.00 s for rank 4, 0.25 s for rank 2 between nodes; 0.50 s for rank 1 within the node"
    )
    assert in_words({"intra": {}, "inter": {}, "flat": {}}) == ""


def one_is_late(rank: int, world_size: int) -> tuple[dict[int, float], str]:
    ranks.init()

    def step() -> None:
        time.sleep(1.0 if rank == 2 else 0.0)
        with isthmus.unit("x"):
            dist.reduce_scatter_tensor(torch.empty(4096), torch.ones(3 * 4096))

    step()
    behind_since_last_check([isthmus.stats()])
    for _ in range(3):
        step()
    found: dict[int, float] = isthmus.stats()["peer_waits_s"]["inter"]
    return found, behind_since_last_check([isthmus.stats()])


@pytest.mark.processes
def test_a_late_rank_is_named_by_all_but_itself() -> None:
    outcomes = ranks.run(one_is_late, 3, env={"ISTHMUS_NODES": "3x1", "ISTHMUS_MIN_ELEMENTS": "0"})
    for rank in (0, 1):
        waits, text = outcomes[rank]
        assert set(waits) == {0, 1, 2} - {rank}
        assert "waiting for rank 2 between nodes" in text, outcomes
    assert "rank 2" not in outcomes[2][1]
