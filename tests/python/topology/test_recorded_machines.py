"""Recorded machines against their golden output, and against what is published of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.topology.formats.read import read_machine
from isthmus.topology.machine import NicKind
from machines import goldens

RECORDED = goldens.recorded()


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_reader_gives_the_golden_output(path: Path) -> None:
    golden = goldens.golden_of(path)
    machine = read_machine(path)
    goldens.check(machine)
    assert goldens.as_text(machine) == golden.read_text(), f"run {goldens.__file__} and look at the diff"


def test_every_golden_file_has_its_machine() -> None:
    assert sorted(goldens.GOLDEN.iterdir()) == sorted({goldens.golden_of(path) for path in RECORDED})
    assert len({goldens.golden_of(path) for path in RECORDED}) == len(RECORDED) >= 4


def test_dgx_a100_is_as_its_owners_matrix() -> None:
    machine = read_machine(goldens.MACHINES / "dgx-a100.nccl.xml")

    def kinds(device: str) -> list[str]:
        return [machine.distance(device, other) for other in machine.device_ids]

    assert kinds("GPU0") == ["X"] + ["NV12"] * 7 + ["PXB"] * 2 + ["SYS"] * 10
    assert kinds("GPU3") == ["NV12"] * 3 + ["X"] + ["NV12"] * 4 + ["SYS"] * 2 + ["PXB"] * 2 + ["SYS"] * 8
    assert kinds("GPU5")[8:] == ["SYS"] * 6 + ["PXB"] * 2 + ["SYS"] * 4
    assert machine.distance("NIC4", "NIC5") == "PIX"
    assert [gpu.numa_node for gpu in machine.gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert machine.link("GPU0", "GPU7").speed_gbit_s == 300 * 8  # GB/s in one direction
    assert machine.link("GPU0", "NIC0").speed_gbit_s == pytest.approx(16 * 16 * 128 / 130, abs=0.001)
    assert [nic.kind for nic in machine.nics] == [
        NicKind.ROCE if nic.index in (4, 5, 10, 11) else NicKind.INFINIBAND for nic in machine.nics
    ]
    assert {nic.speed_gbit_s for nic in machine.nics} == {200.0}
