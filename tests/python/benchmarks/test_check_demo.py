"""tools/check_demo.py finds what is wrong with a report of the demo, one fault at a time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from isthmus.benchmarks.training.check import predict
from isthmus.benchmarks.training.config import TrainingConfig
from support.places import ROOT

SPECIFICATION = importlib.util.spec_from_file_location("check_demo", ROOT / "tools/check_demo.py")
assert SPECIFICATION and SPECIFICATION.loader
check_demo = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(check_demo)

LOSSES = {"hsdp": [5.5, 3.0, 2.9], "quant": [5.5, 3.1, 2.9], "full": [5.5, 3.1, 2.9]}
CONFIG = TrainingConfig(arms=("hsdp", "quant", "full"), dtype="fp32")


def made_report() -> dict[str, Any]:
    """As the demo's should be."""
    arms = {}
    for arm, losses in LOSSES.items():
        options = None if arm == "hsdp" else {"codec": "quant", "weights": "delta" if arm == "full" else "exact"}
        predicted = predict(CONFIG, arm, options)
        fields = ("kind", "num_ranks", "num_elements", "element_bytes")
        packets = {"all_gather": 8_000_000 if arm == "full" else 0, "reduce_scatter": 0}
        links = {phase: count + packets[phase] for phase, count in predicted.bytes_by_phase.items()}
        step = {
            "kind": "audited",
            "collectives": [dict(zip(fields, call, strict=True)) for call in predicted.collectives.elements()],
            "audited_link_bytes": links,
            "weights": {"packet_bytes": packets["all_gather"]},
        }
        if options:
            counted = predicted.counted_by_phase
            step["payload_bytes"] = {phase: count + packets[phase] for phase, count in counted.items()}
        arms[arm] = {
            "options": options,
            "val_loss": losses[-1],
            "steps": [{"kind": "loss", "loss": losses[0]}, step | {"loss": losses[1]}],
            **{f"{phase}_link_bytes_per_step": count for phase, count in links.items()},
        }
    return {"arguments": CONFIG.as_json(), "arms": arms}


def test_a_report_as_it_must_be() -> None:
    assert list(check_demo.faults(made_report())) == []


def test_protocols_add_to_packets_of_weights_as_well() -> None:
    report = made_report()
    links = audited(report["arms"], "full")["audited_link_bytes"]
    links["all_gather"] *= 1.02  # more than a tenth of what is predicted for this arm
    assert list(check_demo.faults(report)) == []
    links["all_gather"] *= 1.06
    assert any("full: its bytes" in fault for fault in check_demo.faults(report))


def audited(arms: Any, arm: str) -> Any:
    return arms[arm]["steps"][1]


def set_losses(arms: Any, value: float, *names: str) -> None:
    for name in names:
        arms[name]["val_loss"] = value


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda arms: arms.pop("full"), "arms ['hsdp', 'quant']: expected"),
        (lambda arms: audited(arms, "full").pop("payload_bytes"), "full: its bytes are not counted"),
        (lambda arms: audited(arms, "quant").pop("collectives"), "quant: its bytes are not counted"),
        (lambda arms: audited(arms, "hsdp").pop("audited_link_bytes"), "hsdp: its bytes are not counted"),
        (lambda arms: audited(arms, "quant")["payload_bytes"].update(reduce_scatter=1), "quant: its bytes are not"),
        (lambda arms: set_losses(arms, 2.9000001, "full"), "losses of full"),
        (lambda arms: set_losses(arms, 3.0, "quant", "full"), "validation losses: quant 3.0"),
        (lambda arms: set_losses(arms, 5.0, "hsdp", "quant", "full"), "validation losses: quant 5.0"),
        (lambda arms: audited(arms, "hsdp").update(loss=3.1), "nothing was compressed"),
        (lambda arms: arms["quant"].update(reduce_scatter_link_bytes_per_step=2e6), "quant: 2000000 bytes of reduce"),
        (lambda arms: arms["full"].update(reduce_scatter_link_bytes_per_step=0), "full: 0 bytes of reduce_scatter"),
        (lambda arms: arms["full"].update(all_gather_link_bytes_per_step=1.4e7), "full: 14000000 bytes of all_gather"),
    ],
)
def test_each_fault_is_found(spoil: Callable[[Any], Any], says: str) -> None:
    report = made_report()
    spoil(report["arms"])
    found = list(check_demo.faults(report))
    assert len(found) == 1 and says in found[0], found
