"""`isthmus bench overhead`: the tiers by hand, the figures made from records, and a tiny run from end to end."""

import json

import pytest
import torch
import torch.distributed as dist

from isthmus.benchmarks.overhead.bare_tiers import BareTiers
from isthmus.benchmarks.overhead.config import OverheadConfig
from isthmus.benchmarks.overhead.run import (
    CALL_TARGET_US,
    CALLS,
    STEP_TARGET,
    call_row,
    is_correct,
    pooled,
    step_figures,
    verdicts,
)
from python.benchmarks.bench_cli import run
from support import checks, ranks

table = checks.Table()


@table
def reduce_scatter_sums_every_rank_s_part(tiers, rank):
    inputs = [torch.arange(24.0) * (r + 1) for r in range(4)]
    shard = torch.empty(6)
    tiers.reduce_scatter(shard, inputs[rank], scale=0.25)
    assert torch.equal(shard, sum(inputs)[6 * rank : 6 * rank + 6] * 0.25)


@table
def reduce_scatter_sums_in_float32(tiers, rank):
    gradient = torch.full((4,), 1.0 if rank else 256.0, dtype=torch.bfloat16)  # 256 + 1 is 256 in bfloat16
    shard = torch.empty(1, dtype=torch.bfloat16)
    tiers.reduce_scatter(shard, gradient, scale=1.0)
    assert shard.item() in (258.0, 260.0)  # one rounding where a node's sum crosses, one at the end


@table
def all_gather_puts_every_shard_in_its_place(tiers, rank):
    output = torch.empty(12)
    own = output[3 * rank : 3 * rank + 3]  # as FSDP2 passes it: a part of the output
    own.copy_(torch.arange(3.0) + 10 * rank)
    tiers.all_gather(output, own)
    assert torch.equal(output, torch.cat([torch.arange(3.0) + 10 * r for r in range(4)]))


def run_table(rank, world_size):
    ranks.init("gloo")
    intra, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    rail, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    failures = table.run_on_this_rank(BareTiers(intra, rail), rank)
    checks.finish()
    return failures


@pytest.fixture(scope="module")
def world():
    return checks.World(run_table, 4)


@pytest.mark.processes
@pytest.mark.parametrize("name", table.names)
def test_tiers_by_hand(world, name):
    world.check(name)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("nodes", 1, "nodes 1: expected 2 to 8"),
        ("rounds", 1, "rounds 1: expected 2"),
        ("batch_calls", 0, "batch_calls 0: expected 1"),
        ("steps", 1, "steps 1: expected 0, or 2"),
        ("width", 100, "width 100: expected a multiple of 64"),
    ],
)
def test_a_bad_argument_names_field_value_and_range(field, value, message):
    with pytest.raises(ValueError, match=message):
        OverheadConfig(**{field: value})


def times(issue, full, cpu=0.0):
    return {"issue_us": issue, "full_us": full, "thread_cpu_us": [cpu] * 2, "process_cpu_us": [2 * cpu] * 2}


def row(*added_us, operation="all_reduce", num_wrong=0):
    """One rank, whose calls take 100 us on Gloo."""
    gloo = times([10.0] * len(added_us), [100.0] * len(added_us), cpu=5.0)
    isthmus = times([11.0] * len(added_us), [100.0 + added for added in added_us], cpu=8.0)
    return call_row(operation, 8, [{"gloo": gloo, "isthmus": isthmus, "num_wrong": num_wrong}])


def test_what_is_added_is_taken_call_by_call():
    gloo, isthmus = times([1, 2], [100, 10_000]), times([2, 3], [110, 10_030])
    made = call_row("barrier", 0, [{"gloo": gloo, "isthmus": isthmus, "num_wrong": 0}] * 2)
    assert made["added"]["issue_us"] == {"median": 1, "low_quartile": 1, "high_quartile": 1}
    assert made["added"]["full_us"] == {"median": 20, "low_quartile": 10, "high_quartile": 30}
    assert made["full_us"]["gloo"] == 5050
    assert row(1.0, 2.0)["added"]["thread_cpu_us"]["median"] == 3
    assert row(1.0, 2.0)["added"]["process_cpu_us"]["median"] == 6


def test_kinds_of_calls_are_pooled_with_equal_weight():
    rows = [row(1.0, 1.0, 1.0, 1.0, 1.0, 1.0), row(7.0, 7.0), row(30.0, 30.0)]
    assert pooled(rows)["full_us"] == {"median": 7.0, "worst": 30.0}


def rank_steps(bare_s, isthmus_s, loss=2.0):
    return {
        "bare": {"seconds": bare_s, "cpu_s": bare_s, "loss": [2.0] * len(bare_s)},
        "isthmus": {"seconds": isthmus_s, "cpu_s": isthmus_s, "loss": [loss] * len(bare_s)},
    }


def test_a_step_takes_as_long_as_its_slowest_rank():
    figures = step_figures([rank_steps([1.0, 2.0], [3.0, 1.0]), rank_steps([2.0, 1.0], [1.0, 4.0])])
    assert figures["seconds"] == {"bare": [2.0, 2.0], "isthmus": [3.0, 4.0]}
    assert figures["ratio"]["median"] == 1.75
    assert figures["cpu_ratio"]["median"] == pytest.approx((4 / 3 + 5 / 3) / 2)


@pytest.mark.parametrize(("loss", "agree"), [(2.0, True), (2.03, True), (2.05, False), (1.95, False)])
def test_losses_that_differ_by_more_than_rounding_are_wrong(loss, agree):
    figures = step_figures([rank_steps([1.0, 1.0], [1.0, 1.0], loss)])
    assert figures["losses_agree"] is agree
    assert is_correct({"calls": [row(1.0, 1.0)], "steps": figures}) is agree


def test_a_wrong_result_fails_and_a_missed_target_does_not():
    assert is_correct({"calls": [row(1e6, 1e6)], "steps": None})
    assert not is_correct({"calls": [row(1.0, 1.0), row(1.0, 1.0, num_wrong=1)], "steps": None})


def report(added_us, step_ratio):
    rows = [row(added, added, operation=name) for name, added in zip(CALLS, added_us, strict=False)]
    steps = step_figures([rank_steps([1.0, 1.0], [step_ratio, step_ratio])])
    return {"calls": rows, "all_calls": pooled(rows), "steps": steps}


def test_verdicts_at_and_beyond_the_targets():
    calls, steps = verdicts(report([CALL_TARGET_US] * 3, STEP_TARGET))
    assert calls.count("[green]met[/green]") == 2
    assert "1.050 (1.050 to 1.050) times" in steps
    assert "[green]met[/green]" in steps
    calls, steps = verdicts(report([1.0, CALL_TARGET_US, CALL_TARGET_US + 0.1], STEP_TARGET + 0.001))
    assert "all_gather" not in calls
    assert "+20.1 us the worst (reduce_scatter, 8 bytes)" in calls
    assert "[green]met[/green] at the median, [red]missed[/red] by the worst" in calls
    assert "[red]missed[/red]" in steps


@pytest.mark.processes
def test_tiny_run(tmp_path):
    path = tmp_path / "overhead.json"
    sizes = ["--rounds", 2, "--batch-calls", 2, "--steps", 2, "--width", 128, "--layers", 1]
    code, out, err = run("overhead", *sizes, "--json", path, "--logs", tmp_path)
    assert code == 0, err + out
    made = json.loads(path.read_text())
    kinds = {(row["operation"], row["bytes"]) for row in made["calls"]}
    assert kinds == {(name, size) for name in CALLS if name != "barrier" for size in (8, 65536)} | {("barrier", 0)}
    for call in made["calls"]:
        assert call["num_wrong"] == 0
        assert call["full_us"]["gloo"] > call["issue_us"]["gloo"] > 0
        assert call["full_us"]["isthmus"] > call["issue_us"]["isthmus"] > 0
    assert len(made["steps"]["seconds"]["bare"]) == len(made["steps"]["seconds"]["isthmus"]) == 2
    assert made["steps"]["losses_agree"] is True
    for field in ("versions", "machine", "arguments", "targets", "columns"):
        assert made[field], field
    assert "target 1.05 times" in " ".join(out.split())
