"""`isthmus bench training`: arguments, schedule, predictions, reports, and a tiny run from end to end."""

import io
import json
import sys

import pytest
import torch
from rich.console import Console

from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.common.shape import ModelShape
from isthmus.benchmarks.simulate.network import NamespaceNetwork, open_network
from isthmus.benchmarks.training import run as training
from isthmus.benchmarks.training.check import check_arm, predict, print_checks
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.benchmarks.training.picture import picture_of
from isthmus.benchmarks.training.report import build_report
from isthmus.benchmarks.training.run import TrainingRecords, merge_ranks
from isthmus.benchmarks.training.schedule import UNSHAPED, schedule, steps_per_arm
from isthmus.plan.strategies import ARMS
from python.benchmarks import bench_cli
from python.benchmarks.bench_cli import refused, run

TINY = ["training", "--nodes", 2, "--layers", 1, "--width", 128, "--context", 32]


def has_links():
    with open_network(2) as network:
        return isinstance(network, NamespaceNetwork)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("nodes", 1, "nodes 1: expected 2 to 8"),
        ("width", 100, "width 100: expected a multiple of 64"),
        ("dtype", "fp8", "dtype 'fp8': expected one of bf16, fp32"),
        ("lr", 0.0, "lr 0.0: expected above 0"),
        ("arms", ("fsdp", "zap"), "arm 'zap': expected some of ddp, .*hsdp-quant2, ddp-quant, .*ddp-bf16"),
        ("arms", ("fsdp", "fsdp"), "arm 'fsdp' is named twice"),
        ("arms", (), "no arm"),
        ("arms", ("hsdp", "hsdp-last"), "'hsdp-last' reduces in the last micro-batch: micro_batches 1: expected at l"),
        ("micro_batches", 0, "micro_batches 0: expected 1 to 4096"),
        ("micro_batches", 3, "micro_batches 3: expected what divides the 4 sequences of a rank"),
    ],
)
def test_a_bad_argument_names_field_value_and_range(field, value, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**{field: value})


def test_with_micro_batches_arms_come_both_ways_unless_others_are_named():
    arms = TrainingConfig(micro_batches=2).on_device().arms
    assert {"fsdp", "fsdp-last", "hsdp-quant", "hsdp-quant-last", "full-last"} <= set(arms)
    assert TrainingConfig(micro_batches=2, arms=("hsdp",)).on_device().arms == ("hsdp",)
    assert not any(arm.endswith("-last") for arm in TrainingConfig().on_device().arms)


def test_schedule_gives_every_arm_the_same_steps_and_alternates():
    config = TrainingConfig(arms=("fsdp", "tagc"), steps=25, timed_steps=6, audited_steps=2)
    segments = schedule(config, ["200mbit", "50mbit"])
    for arm in config.arms:
        own = [segment for segment in segments if segment.arm == arm]
        count = {kind: sum(s.num_steps for s in own if s.kind == kind) for kind in ("loss", "audited", "timed")}
        assert count == {"loss": 25, "audited": 2, "timed": 12}
        assert steps_per_arm(segments) == sum(segment.num_steps for segment in own)
    loss_arms = [segment.arm for segment in segments if segment.kind == "loss"]
    assert loss_arms == ["fsdp", "tagc", "tagc", "fsdp", "fsdp", "tagc"]
    timed = [index for index, segment in enumerate(segments) if segment.kind == "timed"]
    assert all(segments[index - 1].kind == "settling" for index in timed)
    assert all(segments[index - 1].link == segments[index].link for index in timed)
    assert [segment.link for segment in segments] == sorted(
        (segment.link for segment in segments), key=[UNSHAPED, "200mbit", "50mbit"].index
    )


def test_model_is_causal_and_starts_near_chance():
    torch.manual_seed(0)
    model = ByteGpt(ModelShape(width=64, num_layers=1, context=16))
    batch = torch.randint(256, (4, 17))
    changed = batch.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    difference = (model(batch[:, :-1]) - model(changed[:, :-1])).abs().amax(dim=(0, 2))
    assert (difference[:9] == 0).all()
    assert (difference[9:] > 0).all()
    assert loss_of(model, batch).item() == pytest.approx(5.55, abs=0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(20):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss_of(model, batch).item() < 4, "it learns a batch by heart"


def record(seconds, link=None):
    phases = {"compute": seconds / 2, "all_gather": seconds / 4, "reduce_scatter": seconds / 4}
    return {
        "loss": 2.0 * seconds,
        "seconds": seconds,
        "phases_s": phases,
        "link_sent_bytes": link,
        "gpu_bytes": 1000 * seconds,
        "payload_bytes": None,
        "collectives": None,
    }


def test_merge_ranks_takes_the_slowest_time_the_mean_loss_and_the_sum_of_bytes():
    merged = merge_ranks((record(1.0, 100), record(3.0), record(2.0, 50), record(2.0)))
    assert merged["seconds"] == 3.0
    assert merged["loss"] == 4.0
    assert merged["phases_s"] == {"compute": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5}
    assert merged["link_sent_bytes"] == 150
    assert merged["gpu_bytes"] == 3000  # of the rank that holds most
    assert merge_ranks((record(1.0), record(1.0)))["link_sent_bytes"] is None


def synthetic_records(seconds, loss_steps=2):
    """Records of one link where arm a takes seconds[a] a step."""
    steps = {}
    for arm, step_s in seconds.items():
        kinds = [*[("loss", UNSHAPED)] * loss_steps, ("audited", UNSHAPED), ("settling", "1gbit")]
        kinds += [("timed", "1gbit")] * 3
        steps[arm] = [
            merge_ranks((record(0.1 if kind == "loss" else step_s, 110),)) | {"step": step, "link": link, "kind": kind}
            for step, (kind, link) in enumerate(kinds)
        ]
        steps[arm][-5]["audited_link_bytes"] = {"all_gather": 61, "reduce_scatter": 41}
        steps[arm][-4]["seconds"] = 1e6  # not timed
    config = TrainingConfig(arms=tuple(seconds), links=("1gbit",))
    return TrainingRecords(config, "test", ["1gbit"], 1, steps, dict.fromkeys(seconds, 2.5))


def test_disturbed_times_are_reported():
    records = synthetic_records({"fsdp": 2.0, "tagc": 1.0})
    assert not any(note.startswith("DISTURBED") for note in build_report(records)["notes"])
    records.steps["fsdp"][-1]["seconds"] = 3.0
    notes = [note for note in build_report(records)["notes"] if note.startswith("DISTURBED")]
    assert len(notes) == 1
    assert "fsdp 1.5x" in notes[0]
    assert "tagc" not in notes[0]


def test_headline_figures_are_those_of_timed_steps_at_the_slowest_link():
    records = synthetic_records({"tagc": 4.0})
    for step, seconds in zip(records.steps["tagc"][-3:], (5.0, 3.0, 4.0), strict=True):
        step["seconds"] = seconds
    arm = build_report(records)["arms"]["tagc"]
    assert arm["median_step_s"] == 4.0
    assert arm["by_link"]["unshaped"]["median_step_s"] == 0.1
    assert arm["by_link"]["unshaped"]["num_steps"] == 1  # the first step warms up
    assert arm["link_bytes_per_step"] == 110
    # Audited steps count 61 and 41 bytes. Gradients have the same in each step, and the rest is weights.
    assert arm["reduce_scatter_link_bytes_per_step"] == 41
    assert arm["all_gather_link_bytes_per_step"] == 110 - 41
    assert (arm["check"]["link_bytes"], arm["check"]["holds"]) == (102, False)


@pytest.mark.parametrize(("arm", "loss_steps", "timed"), [("fsdp", 7, 6), ("ddp-quant", 7, 4), ("ddp-quant", 2, 1)])
def test_passes_of_ddp_that_are_still_exact_are_not_timed(arm, loss_steps, timed):
    assert (
        build_report(synthetic_records({arm: 2.0}, loss_steps))["arms"][arm]["by_link"]["unshaped"]["num_steps"]
        == timed
    )


def test_without_counters_bytes_are_those_of_the_prediction():
    records = synthetic_records({"fsdp": 2.0})
    for step in records.steps["fsdp"]:
        step["link_sent_bytes"] = None
        step.pop("audited_link_bytes", None)
    arm = build_report(records)["arms"]["fsdp"]
    assert arm["link_bytes_source"] == "prediction"
    assert arm["link_bytes_per_step"] == sum(arm["check"]["predicted"]["bytes_by_phase"].values()) > 0


def test_the_picture_has_loss_bytes_and_the_time_of_a_step_in_the_unit_of_the_device():
    """On the CPU by phase, on a GPU, where phases overlap, whole."""
    report = build_report(synthetic_records({"fsdp": 2.0, "full": 1.0}))
    by_steps, by_time, of_bytes, of_time = picture_of(report).axes
    for axes, unit in ((by_steps, 1), (by_time, 2.0)):
        line = axes.lines[0]
        assert line.get_label() == "fsdp (val 2.500)"
        assert list(line.get_xdata()) == [unit * (step + 1) for step in range(7)]
        assert list(line.get_ydata()[:3]) == pytest.approx([0.2, 0.2, (0.2 + 0.2 + 4.0) / 3])
    assert [text.get_text() for text in of_time.texts] == [" 2.00", " 1.00"]
    assert [bar.get_width() for bar in of_time.patches] == [1.0, 0.5, 0.5, 0.25, 0.5, 0.25]
    assert [bar.get_width() for bar in of_bytes.patches] == pytest.approx([69e-6, 69e-6, 41e-6, 41e-6])
    report["arguments"]["device"] = "cuda"
    for arm in report["arms"].values():
        arm["phases_s"] = {"step": arm["median_step_s"]}
    of_time = picture_of(report).axes[3]
    assert of_time.get_xlabel() == "ms"
    assert [text.get_text() for text in of_time.texts] == [" 2000.0", " 1000.0"]


def test_without_matplotlib_a_run_says_that_no_picture_was_drawn(tmp_path, monkeypatch):
    for name in ("isthmus.plan.picture", "isthmus.benchmarks.training.picture"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    records = synthetic_records({"fsdp": 2.0})
    monkeypatch.setattr(training, "run_training", lambda *arguments: records)
    code, out, err = run("training", "--output", tmp_path)
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if "report.json" in line]
    assert "report.md; no picture: " in line and "(`pip install isthmus[bench]`)" in line
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "report.md"}


def assert_predicted(report):
    """What placement alone says of each arm's step is what transports counted, to the byte, and links within 5%."""
    for name, arm in report["arms"].items():
        check = arm["check"]
        assert (check["arm"], check["collectives_equal"], check["holds"]) == (name, True, True), check
        assert check["payload_equal"] is (True if ARMS[name].options else None), check


@pytest.mark.processes
def test_tiny_run_reports_every_arm(tmp_path, monkeypatch):
    links = has_links()
    arms = ("fsdp", "quant", "hsdp-none", "hsdp-tagc", "fsdp-last", "full-last", "hsdp-none-last")
    arms += ("ddp", "ddp-bf16", "ddp-quant", "ddp-last", "ddp-quant-last")
    steps = ["--steps", 3, "--timed-steps", 1, "--audited-steps", 1, "--link", "200mbit", "--arms", ",".join(arms)]
    steps += ["--micro-batches", 2]
    monkeypatch.setitem(bench_cli.WIDE, "COLUMNS", "80")
    code, out, err = run(*TINY, "--ranks-per-node", 2, *steps, "--output", tmp_path)
    assert code == 0, err
    report = json.loads((tmp_path / "report.json").read_text())
    assert tuple(report["arms"]) == arms
    assert all(report[name] for name in ("versions", "machine", "arguments", "model", "network", "notes", "fields"))
    assert report["headline_link"] == ("200mbit" if links else UNSHAPED)
    assert out.splitlines()[-1] == report["advice"]
    assert report["advice"].startswith(f"Over simulated nodes, link {report['headline_link']}: ")
    for arm in report["arms"].values():
        assert arm["median_step_s"] > 0
        assert arm["link_bytes_per_step"] >= arm["reduce_scatter_link_bytes_per_step"] > 0
        assert arm["reduce_scatter_link_bytes_per_step"] > 0
        assert 2 < arm["val_loss"] < arm["steps"][0]["loss"] - 0.5, "it trains"
        assert set(arm["phases_s"]) == {"compute", "all_gather", "reduce_scatter"}
        assert len(arm["steps"]) == (6 if links else 4)
        assert [step["step"] for step in arm["steps"]] == list(range(len(arm["steps"])))
        assert arm["link_bytes_source"] == ("interface" if links else "prediction")
    assert_predicted(report)
    first = {name: arm["steps"][0]["loss"] for name, arm in report["arms"].items()}
    of_ddp = {loss for name, loss in first.items() if name.startswith("ddp")}
    assert len({*first.values()} - of_ddp) == len(of_ddp) == 1, first  # the same weights and data in each arm
    assert max(first.values()) - min(first.values()) < 0.01, first  # DDP's are cast elsewhere
    of_ddp = {name: report["arms"][name]["check"]["predicted"] for name in arms if name.startswith("ddp")}
    ring = 2 * 3 / 4 * 2 * report["model"]["num_parameters"]  # twice round, two edges, three quarters of the tensor
    sent = {name: predicted["bytes_by_phase"]["reduce_scatter"] for name, predicted in of_ddp.items()}
    assert [sent[name] for name in ("ddp", "ddp-bf16", "ddp-last")] == pytest.approx([8 * ring, 4 * ring, 4 * ring])
    assert sent["ddp-quant"] == 2 * sent["ddp-quant-last"] < 0.15 * sent["ddp"]
    ended = {name: report["arms"][name]["val_loss"] for name in ("fsdp", "quant", "hsdp-none")}
    assert max(ended.values()) - min(ended.values()) < 0.005, ended
    assert len(set(ended.values())) == 3, ended  # they sum in other orders, and quant loses something
    assert (tmp_path / "report.png").stat().st_size > 10_000
    assert f"{tmp_path / 'report.json'}, report.md, report.png  (" in out
    assert "…" not in out  # tables keep their columns in a pipe, whatever COLUMNS says
    exact, tagc = (report["arms"][name]["check"] for name in ("hsdp-none", "hsdp-tagc"))
    assert exact["predicted"]["bytes_by_phase"]["all_gather"] == 0  # weights stay in the node
    assert tagc["payload_bytes"] < 0.6 * exact["payload_bytes"]
    # Reductions of two micro-batches, or of the last. What is deferred is the model, or a node's half of it.
    each, last = (report["arms"][name]["check"] for name in ("hsdp-none", "hsdp-none-last"))
    assert each["payload_bytes"] == 2 * last["payload_bytes"]
    assert each["predicted"]["deferred_bytes"] == 0
    assert last["predicted"]["deferred_bytes"] == report["model"]["num_parameters"] * 2 // 2
    assert "Arms *-last reduce between nodes in the last of 2 micro-batches" in out


def test_bad_arguments_are_reported_before_anything_starts(tmp_path):
    assert "arm 'zap'" in refused("training", "--arms", "fsdp,zap")
    assert "--islands: nodes are the launcher's with --here" in refused("training", "--here", "--islands")
    assert "--link: only for simulated nodes; with --here" in refused("training", "--islands", "--link", "1gbit")
    assert "--nodes: only for simulated nodes" in refused("training", "--islands", "--nodes", "2")
    assert "--islands: they are of GPUs: device 'cpu'" in refused("training", "--islands", "--device", "cpu")
    assert "absent.txt' does not exist" in refused("training", "--text", tmp_path / "absent.txt", "--output", tmp_path)
    assert not list(tmp_path.iterdir())


CONFIG = TrainingConfig(arms=("fsdp", "tagc"), nodes=2, ranks_per_node=2, width=64, num_layers=1, context=16)
OPTIONS = {
    "codec": "tagc",
    "tiers": "two",
    "ratio": 10.0,
    "min_elements": 1000,
}


def audited_steps():
    """Of each arm on which the checks are tried, as predicted but for 1% more on links."""
    found = {}
    for arm, options in (("fsdp", None), ("tagc", OPTIONS)):
        predicted = predict(CONFIG, arm, options)
        fields = ("kind", "num_ranks", "num_elements", "element_bytes")
        step = {
            "kind": "audited",
            "collectives": [dict(zip(fields, call, strict=True)) for call in predicted.collectives.elements()],
            "audited_link_bytes": {phase: 1.01 * count for phase, count in predicted.bytes_by_phase.items()},
        }
        if options:
            step["payload_bytes"] = predicted.counted_by_phase
        found[arm] = step
    return found


def checks_of(steps):
    return [
        check_arm(CONFIG, arm, OPTIONS if arm == "tagc" else None, [{"kind": "loss"}, step])
        for arm, step in steps.items()
    ]


def test_a_prediction_comes_from_the_arguments_alone():
    predicted = predict(CONFIG, "fsdp", None)
    block, root = 12 * 64 * 64 + 4 * 64, 2 * 256 * 64 + 16 * 64 + 2 * 64
    assert predicted.collectives == {
        ("all_gather", 4, root, 2): 1,
        ("all_gather", 4, block, 2): 2,
        ("reduce_scatter", 4, root, 2): 1,
        ("reduce_scatter", 4, block, 2): 1,
    }
    ring = 2 * 3 / 4 * 2  # two edges, three quarters of the tensor, two bytes
    assert predicted.bytes_by_phase == {
        "all_gather": ring * (root + 2 * block),
        "reduce_scatter": 2 * ring * (root + block),
    }
    assert predicted.counted_by_phase == {"all_gather": 0, "reduce_scatter": 0}


def test_a_report_as_predicted_holds():
    checks = checks_of(audited_steps())
    assert [(check["arm"], check["holds"]) for check in checks] == [("fsdp", True), ("tagc", True)]
    assert checks[1]["link_over_expected"] == pytest.approx(0.01)
    out = io.StringIO()
    print_checks(checks, Console(file=out, width=200))
    assert out.getvalue().count("equal") == 3
    assert out.getvalue().count("+1.0%") == 2


def test_buckets_of_ddp_must_hold_the_model():
    by_unit = predict(CONFIG, "ddp", None).collectives
    whole = sum(count * size for (_, _, size, _), count in by_unit.items())
    sizes = (1000, whole - 1000)
    calls = [{"kind": "all_reduce", "num_ranks": 4, "num_elements": size, "element_bytes": 4} for size in sizes]
    steps = [{"kind": "loss"}, {"kind": "audited", "collectives": calls}]
    check = check_arm(CONFIG, "ddp", None, steps)
    assert check["collectives_equal"]
    assert sum(check["predicted"]["bytes_by_phase"].values()) == sum(2 * (2 * size * 4 * 3 // 4) for size in sizes)
    calls[0]["num_elements"] += 1
    assert check_arm(CONFIG, "ddp", None, steps)["collectives_equal"] is False
    assert check_arm(CONFIG, "ddp-bf16", None, steps)["collectives_equal"] is False


@pytest.mark.parametrize(
    "spoil",
    [
        lambda step: step.update(payload_bytes={"all_gather": 0, "reduce_scatter": 1}),
        lambda step: step["audited_link_bytes"].update(all_gather=10**6),
        lambda step: step["collectives"][0].update(num_elements=1),
    ],
)
def test_a_byte_a_link_and_a_collective_too_many_are_found(spoil):
    steps = audited_steps()
    spoil(steps["tagc"])
    assert [check["holds"] for check in checks_of(steps)] == [True, False]
