"""Recorded machines against their golden output, and speeds that the text does not have."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from isthmus.cli.terminal import WIDTH
from isthmus.topology.formats.read import read_machine
from isthmus.topology.overview import overview, print_overview
from machines import checks
from support.places import ROOT

MACHINES = ROOT / "topology/machines"


@pytest.mark.parametrize("name", ["aws-p4de", "dgx-a100"])
def test_the_text_is_the_golden_output(name: str) -> None:
    """A third one, of a cloud node with Ethernet, stands in docs/topology.md."""
    path, golden = MACHINES / f"{name}.nccl.xml", ROOT / f"tests/machines/golden/{name}.txt"
    machine = read_machine(path)
    checks.check(machine)
    shown = io.StringIO()
    print_overview(overview(machine, None), Console(file=shown, width=WIDTH))
    assert shown.getvalue() == golden.read_text(), f"isthmus topo --from {path} > {golden}, and look at the difference"


def test_speeds_of_links_of_a_dgx_a100() -> None:
    machine = read_machine(MACHINES / "dgx-a100.nccl.xml")
    assert machine.link("GPU0", "GPU7").speed_gbit_s == 300 * 8  # GB/s in one direction
    assert machine.link("GPU0", "NIC0").speed_gbit_s == pytest.approx(16 * 16 * 128 / 130, abs=0.001)
    assert machine.link("GPU0", "NIC4").speed_gbit_s is None  # no file has the speed between sockets
