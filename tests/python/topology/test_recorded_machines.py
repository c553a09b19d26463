"""Recorded machines against their golden output, and against what is published of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.topology.formats.machine_json import parse_machine_json
from isthmus.topology.formats.read import read_machine
from isthmus.topology.machine import Fabric, Machine, NicKind
from machines import goldens

RECORDED = goldens.recorded()


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_reader_gives_the_golden_output(path: Path) -> None:
    golden = goldens.golden_of(path)
    assert goldens.as_text(read_machine(path)) == golden.read_text(), f"run {goldens.__file__} and look at the diff"


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_golden_output_reads_back_as_the_same_machine(path: Path) -> None:
    machine = read_machine(path)
    assert read_machine(goldens.golden_of(path)) == machine
    assert parse_machine_json(json.loads(json.dumps(machine.to_json()))) == machine


def test_every_golden_file_has_its_machine() -> None:
    assert sorted(goldens.GOLDEN.iterdir()) == sorted({goldens.golden_of(path) for path in RECORDED})
    assert len({goldens.golden_of(path) for path in RECORDED}) == len(RECORDED) >= 8


def recorded(name: str) -> Machine:
    return read_machine(goldens.MACHINES / name)


def kinds(machine: Machine, device: str) -> list[str]:
    """From a device to all GPUs, then all NICs."""
    return [machine.distance(device, other) for other in machine.device_ids]


def test_dgx_a100_is_as_its_owners_matrix() -> None:
    machine = recorded("dgx-a100.nccl.xml")
    assert kinds(machine, "GPU0") == ["X"] + ["NV12"] * 7 + ["PXB"] * 2 + ["SYS"] * 10
    assert kinds(machine, "GPU3") == ["NV12"] * 3 + ["X"] + ["NV12"] * 4 + ["SYS"] * 2 + ["PXB"] * 2 + ["SYS"] * 8
    assert kinds(machine, "GPU5")[8:] == ["SYS"] * 6 + ["PXB"] * 2 + ["SYS"] * 4
    assert machine.distance("NIC4", "NIC5") == "PIX"
    assert [gpu.numa_node for gpu in machine.gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert machine.link("GPU0", "GPU7").speed_gbit_s == 300 * 8  # GB/s in one direction
    assert machine.link("GPU0", "NIC0").speed_gbit_s == pytest.approx(16 * 16 * 128 / 130, abs=0.001)
    assert [nic.kind for nic in machine.nics] == [
        NicKind.ROCE if nic.index in (4, 5, 10, 11) else NicKind.INFINIBAND for nic in machine.nics
    ]
    assert {nic.speed_gbit_s for nic in machine.nics} == {200.0}


def test_dgx_h100_pairs_gpus_with_the_nics_of_the_user_guide() -> None:
    machine = recorded("dgx-h100.topo.txt")
    nearest = {
        gpu.id: [nic.name for nic in machine.nics if machine.distance(gpu, nic) == "PXB"] for gpu in machine.gpus
    }
    assert [names for names in nearest.values()] == [[f"mlx5_{i}"] for i in (0, 3, 4, 5, 6, 9, 10, 11)]
    assert all(machine.distance("GPU2", gpu) == "NV18" for gpu in machine.gpus if gpu.index != 2)
    assert [nic.numa_node for nic in machine.nics] == [0] * 6 + [1] * 6
    assert machine.numa_nodes[1].cpus == "56-111,168-223"


def test_a_cloud_node_without_speeds() -> None:
    machine = recorded("aws-g5-12xlarge.nccl.xml")
    assert kinds(machine, "GPU3") == ["PHB", "PHB", "PHB", "X", "PHB"]
    assert (machine.nics[0].kind, machine.nics[0].speed_gbit_s) == (NicKind.ETHERNET, 40.0)
    assert machine.link("GPU0", "NIC0").speed_gbit_s is None


def test_azure_numbers_gpus_by_bus_id() -> None:
    machine = recorded("azure-ndv4.nccl.xml")
    assert [gpu.numa_node for gpu in machine.gpus] == [1, 1, 0, 0, 3, 3, 2, 2]
    assert kinds(machine, "GPU2")[8:] == ["SYS", "SYS", "PIX", "PIX", "SYS", "SYS", "SYS", "SYS"]
    assert any("no NVLinks" in note for note in machine.notes)


def test_efa_nics_behind_switches() -> None:
    machine = recorded("aws-p4de.nccl.xml")
    assert {nic.kind for nic in machine.nics} == {NicKind.EFA}
    assert kinds(machine, "GPU0") == ["X", "PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS", "PIX", "PHB", "SYS", "SYS"]
    assert machine.link("GPU0", "GPU1").speed_gbit_s == pytest.approx(8 * 16 * 128 / 130, abs=0.001)


def test_columns_that_ran_together_tell_no_numa_nodes() -> None:
    machine = recorded("8gpu-pcie-vm.topo.txt")
    assert machine.numa_nodes == ()
    assert machine.distance("GPU6", "NIC6") == "PIX"
    assert machine.nics[9].name == "mlx5_9"


def test_a_tray_of_a_rack_knows_its_nvlink_domain() -> None:
    machine = recorded("gb200-nvl72-tray.json")
    assert {gpu.fabric for gpu in machine.gpus} == {Fabric("0f0e0d0c-0b0a-0908-0706-050403020100", 32766)}
    assert machine.link("GPU0", "GPU3").speed_gbit_s == 900 * 8
    assert kinds(recorded("gb200-tray.topo.txt"), "GPU0") == ["X", "NV18", "NV18", "NV18"]
