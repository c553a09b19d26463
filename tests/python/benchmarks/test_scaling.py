"""`isthmus bench scaling`: layouts, figures, and a tiny run from end to end."""

import pytest
from rich.console import Console

from isthmus.benchmarks.scaling import run as scaling
from isthmus.benchmarks.scaling.config import ScalingConfig
from isthmus.benchmarks.scaling.run import run_scaling
from isthmus.benchmarks.training.run import TrainingRecords
from isthmus.benchmarks.training.schedule import UNSHAPED


def config_of(*layouts):
    return ScalingConfig(arms=("fsdp", "tagc"), layouts=layouts, link="8mbit")


@pytest.mark.parametrize("text", ["", "4", "4x", "x2", "4x2x1", "-4x2", "4 x two"])
def test_a_layout_that_is_none_is_named(text):
    with pytest.raises(ValueError, match=f"layout '{text}': expected NODESxRANKS"):
        config_of(text)


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        (("2x1", "9x1"), "nodes 9: expected 2 to 8"),
        (("2x1", "2x1"), "layout 2x1 is named twice"),
        ((), "no layouts"),
    ],
)
def test_layouts_are_checked_before_anything_runs(layouts, message):
    with pytest.raises(ValueError, match=message):
        config_of(*layouts)


def step(number, kind, link, link_bytes):
    return {
        "step": number,
        "kind": kind,
        "link": link,
        "loss": 2.0,
        "seconds": 3.0,
        "phases_s": {"compute": 1.0, "all_gather": 1.5, "reduce_scatter": 0.5},
        "link_sent_bytes": link_bytes,
        "audited_link_bytes": {"all_gather": 636_000, "reduce_scatter": 424_000},
    }


def records(config, link_bytes=2_000_000):
    """What the training benchmark would return at this layout: 2 MB a step, over all nodes, at 8 Mbit/s."""
    steps = [("loss", UNSHAPED), ("loss", UNSHAPED), ("audited", UNSHAPED), ("timed", "8mbit")]
    by_arm = {arm: [step(i, *kind, link_bytes) for i, kind in enumerate(steps)] for arm in config.arms}
    model = {"num_parameters": 1, "options": {}}
    return TrainingRecords(config, "test", ["8mbit"], model, by_arm, dict.fromkeys(config.arms, 2.5))


@pytest.fixture
def runs(monkeypatch):
    """Layouts that were run, in place of real runs."""
    done = []

    def run_training(config, output_dir, console):
        output_dir.mkdir(parents=True, exist_ok=True)
        done.append(f"{config.nodes}x{config.ranks_per_node}")
        return records(config)

    monkeypatch.setattr(scaling, "run_training", run_training)
    return done


def test_figures_are_of_one_node(runs, tmp_path):
    config = config_of("2x1", "4x2")
    report = run_scaling(config, tmp_path, Console(quiet=True))
    assert runs == ["2x1", "4x2"]
    assert list(report["layouts"]) == ["2x1", "4x2"]
    assert report["arguments"]["layouts"] == ("2x1", "4x2")
    figures = report["layouts"]["4x2"]["tagc"]
    assert figures["node_mb_per_step"] == pytest.approx(0.5)
    assert figures["reduction_node_mb_per_step"] == pytest.approx(0.106)  # as audited, over four nodes
    assert figures["median_step_s"] == 3.0
    assert (figures["check"]["link_bytes"], figures["check"]["holds"]) == (1_060_000, False)
    assert report["layouts"]["2x1"]["tagc"]["node_mb_per_step"] == pytest.approx(1.0)
