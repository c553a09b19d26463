"""The benchmark of numbers of nodes: its arguments, and its figures."""

from dataclasses import replace

import pytest
from rich.console import Console

from isthmus.benchmarks.scaling import run as scaling
from isthmus.benchmarks.scaling.config import ScalingConfig
from isthmus.benchmarks.scaling.run import run_scaling
from python.benchmarks.test_training import synthetic_records


def config_of(*layouts):
    return ScalingConfig(arms=("fsdp", "tagc"), layouts=layouts, link="8mbit")


@pytest.mark.parametrize("text", ["", "4", "4x2x1", "4 x two"])
def test_a_layout_that_is_none_is_named(text):
    with pytest.raises(ValueError, match=f"layout '{text}': expected NODESxRANKS"):
        config_of(text)


@pytest.fixture
def runs(monkeypatch):
    done = []

    def run_training(config, output_dir, console):
        output_dir.mkdir(parents=True, exist_ok=True)
        done.append(f"{config.nodes}x{config.ranks_per_node}")
        return replace(synthetic_records(dict.fromkeys(config.arms, 3.0)), config=config)

    monkeypatch.setattr(scaling, "run_training", run_training)
    return done


def test_figures_are_of_one_node(runs, tmp_path):
    config = config_of("2x1", "4x2")
    report = run_scaling(config, tmp_path, Console(quiet=True))
    assert runs == ["2x1", "4x2"]
    assert list(report["layouts"]) == ["2x1", "4x2"]
    assert report["arguments"]["layouts"] == ("2x1", "4x2")
    figures = report["layouts"]["4x2"]["tagc"]
    assert figures["node_mb_per_step"] == pytest.approx(110 / 4 / 1e6)
    assert figures["reduction_node_mb_per_step"] == pytest.approx(41 / 4 / 1e6)  # as audited, over four nodes
    assert figures["median_step_s"] == 3.0
    assert (figures["check"]["link_bytes"], figures["check"]["holds"]) == (102, False)
    assert report["layouts"]["2x1"]["tagc"]["node_mb_per_step"] == pytest.approx(110 / 2 / 1e6)
