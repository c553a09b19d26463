"""`isthmus topo` on recorded machines: text, JSON, node maps, and what it says of bad input."""

import json
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from isthmus.cli.main import app
from isthmus.cli.overview import overview
from support.limits import HANG_S
from support.places import ROOT

MACHINES = ROOT / "topology/machines"
DGX, G5 = MACHINES / "dgx-a100.nccl.xml", MACHINES / "aws-g5-12xlarge.nccl.xml"


def topo(*arguments) -> str:
    result = CliRunner().invoke(app, ["topo", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments) -> str:
    """What it prints of arguments that it does not take, on one line."""
    result = CliRunner().invoke(app, ["topo", *map(str, arguments)])
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("golden", sorted((ROOT / "tests/machines/golden").iterdir()), ids=lambda path: path.stem)
def test_the_text_is_the_golden_output(golden):
    (path,) = MACHINES.glob(f"{golden.stem}.*")
    assert topo("--from", path) == golden.read_text(), f"isthmus topo --from {path} > {golden}, and look at it"


# Sockets, NUMA nodes, GPUs and NICs; how many pairs of devices are joined how; the NIC of each rail, and how far it is.
FACTS = {
    "8gpu-a100-pcie.hwloc.xml": ((2, 2, 8, 2), {"SYS": 24, "PIX": 21}, [0, 1] * 4, "SYS PIX"),
    "8gpu-pcie-vm.topo.txt": ((2, 2, 8, 10), {"SYS": 145, "PIX": 8}, range(8), "PIX"),
    "aws-g5-12xlarge.nccl.xml": ((1, 1, 4, 1), {"PHB": 10}, [0] * 4, "PHB"),
    "aws-p4de.nccl.xml": ((2, 2, 8, 4), {"NV12": 28, "SYS": 20, "PHB": 10, "PIX": 8}, [0, 0, 1, 1, 2, 2, 3, 3], "PIX"),
    "azure-ndv4.nccl.xml": ((4, 4, 8, 8), {"SYS": 72, "NV12": 28, "PIX": 20}, range(8), "PIX"),
    "dgx-a100.nccl.xml": (
        (6, 6, 8, 12),
        {"SYS": 140, "NV12": 28, "PXB": 20, "PIX": 2},
        [0, 1, 2, 3, 6, 7, 8, 9],
        "PXB",
    ),
    "dgx-h100.topo.txt": (
        (2, 2, 8, 12),
        {"SYS": 84, "NODE": 68, "NV18": 28, "PXB": 8, "PIX": 2},
        [0, 3, 4, 5, 6, 9, 10, 11],
        "PXB",
    ),
    "power8-p100.hwloc.xml": ((2, 2, 4, 0), {"SYS": 4, "NV2": 2}, [], ""),
}


@pytest.mark.parametrize("name", sorted(path.name for path in MACHINES.glob("*.*.*")))
def test_recorded_machines_are_read(name):
    counts, pairs, nics, distances = FACTS[name]
    found = json.loads(topo("--from", MACHINES / name, "--json"))
    assert tuple(len(found[kind]) for kind in ("sockets", "numa_nodes", "gpus", "nics")) == counts
    assert Counter(link["kind"] for link in found["links"]) == pairs
    assert [rail["nics"] for rail in found["rails"]] == [[f"NIC{number}"] for number in nics]
    assert {rail["distance"] for rail in found["rails"]} == set(distances.split())


def test_json():
    values = json.loads(topo("--from", G5, "--json"))
    kinds = ["sockets", "numa_nodes", "gpus", "nics", "links", "pcie"]
    assert list(values) == ["schema", "name", "source", *kinds, "notes", "rails", "nodes", "islands"]
    assert (values["schema"], values["name"], values["source"]) == (3, "aws-g5-12xlarge", "nccl xml")
    nic = {"kind": "nic", "bus_id": "0000:00:05.0", "devices": ["NIC0"], "link_speed_gbit_s": None}
    assert values["pcie"][0]["children"][0] == nic | {"numa_node": None, "children": []}
    gpu = {"index": 3, "bus_id": "0000:00:1e.0", "model": "NVIDIA A10G", "numa_node": 0, "fabric": None}
    gpu["c2c_gbit_s"] = None
    assert values["gpus"][3] == gpu
    nic = {"index": 0, "name": "ens5", "bus_id": "0000:00:05.0", "kind": "ethernet", "speed_gbit_s": 40.0}
    assert values["nics"] == [nic | {"numa_node": 0}]
    assert values["links"][0] == {"a": "GPU0", "b": "GPU1", "kind": "PHB", "speed_gbit_s": None}
    assert values["sockets"] == [{"index": 0, "numa_nodes": [0], "model": "AuthenticAMD family 23 model 49"}]
    assert values["numa_nodes"] == [{"index": 0, "socket": 0, "cpus": "0-47"}]
    rail = {
        "local_index": 1,
        "gpu": "GPU1",
        "nics": ["NIC0"],
        "distance": "PHB",
        "num_sharing": 4,
        "speed_gbit_s": 10.0,
    }
    assert values["rails"][1] == rail


# --- nodes


def test_nodes_by_option():
    text = topo("--from", DGX, "--nodes", "2x8")
    assert "2 nodes, 8 ranks each" in text
    assert "node 1: ranks 8, 9, 10, 11, 12, 13, 14, 15" in text
    assert json.loads(topo("--from", DGX, "--nodes", "0,2|1,3", "--json"))["nodes"] == [[0, 2], [1, 3]]
    assert len(json.loads(topo("--from", DGX, "--nodes", "2x3", "--json"))["rails"]) == 3
    assert json.loads(topo("--from", DGX, "--json"))["nodes"] == []


def test_nodes_of_unequal_size_have_no_rails():
    values = json.loads(topo("--from", DGX, "--nodes", "0,1|2", "--json"))
    assert values["rails"] == []
    assert any("unequal" in note for note in values["notes"])
    assert "nodes of unequal size" in topo("--from", DGX, "--nodes", "0,1|2")


def test_many_nodes_are_not_all_named():
    text = topo("--from", DGX, "--nodes", "100x8")
    assert "100 nodes, 8 ranks each" in text
    assert "and 84 more" in text


def test_a_multi_node_nvlink_domain_is_noted():
    gpu = {"index": 0, "fabric": {"cluster": "c0ffee", "clique": 3}}
    machine = SimpleNamespace(facts={"gpus": [gpu, gpu], "notes": []}, rails=lambda: ([], []), islands={})
    assert overview(machine, None)["notes"] == [
        "NVLink domain c0ffee, clique 3: where it spans several machines, they are one node"
    ]


# --- bad input


@pytest.mark.parametrize("nodes", ["2y8", "0x8", "", "2x9", "0,0|1", "9999999x9999999"])
def test_an_invalid_node_map(nodes):
    if nodes:
        assert refused("--from", DGX, "--nodes", nodes)
    else:
        assert topo("--from", DGX, "--nodes", nodes)  # an empty text is no option


def test_numbers_too_long_for_a_node_map_are_refused_as_one():
    assert "digits" not in refused("--from", DGX, "--nodes", f"{'9' * 5000}x2")


def test_a_file_that_is_missing(tmp_path):
    path = tmp_path / "none.xml"
    assert refused("--from", path) == f"isthmus: {path}: cannot be read: No such file or directory"


def test_a_file_that_is_cut_names_its_line(tmp_path):
    path = tmp_path / "cut.xml"
    path.write_bytes(DGX.read_bytes()[:2000])
    message = refused("--from", path)
    assert message.startswith(f"isthmus: {path}, line ")
    assert "Traceback" not in message


# --- this machine


def test_this_machine():
    assert json.loads(topo("--json"))["source"] == "discovery"


@pytest.mark.processes
def test_the_commands_import_nothing_heavy_until_they_run():
    script = (
        "import isthmus.cli, sys; print([m for m in ('torch', 'isthmus._topology', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S)
    assert result.stdout.strip() == "[]", result.stderr
