"""`isthmus topo` on recorded machines: text, JSON, pictures, node maps, and what it says of bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from isthmus.cli.main import app
from isthmus.topology.machine import Fabric, Gpu, Link, Machine, Nic, NicKind, PcieKind, PcieNode
from isthmus.topology.render.overview import overview
from isthmus.topology.render.svg import draw_overview
from isthmus.topology.render.svg_canvas import fit
from isthmus.topology.render.svg_layout import lay_out
from support.limits import HANG_S
from support.places import ROOT

MACHINES = ROOT / "topology/machines"
RECORDED = sorted(path for path in MACHINES.iterdir() if path.suffix == ".xml")
DGX = MACHINES / "dgx-a100.nccl.xml"
SVG = "{http://www.w3.org/2000/svg}"


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


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_every_recorded_machine_as_text(path):
    text = topo("--from", path)
    values = json.loads(topo("--from", path, "--json"))
    assert values["schema"] == 2
    assert text.startswith(values["name"])
    for device in values["gpus"]:
        assert f"GPU{device['index']}" in text
    for nic in values["nics"]:
        assert f"NIC{nic['index']}" in text
    for note in values["notes"]:
        assert f"- {note}\n" in text


def test_the_matrix_is_that_of_the_machine():
    lines = topo("--from", DGX).splitlines()
    start = next(number for number, line in enumerate(lines) if line.split()[:2] == ["GPU0", "GPU1"])
    header = lines[start].split()
    values = json.loads(topo("--from", DGX, "--json"))
    kind_of = {(link["a"], link["b"]): link["kind"] for link in values["links"]}
    for row, line in zip(header[:-1], lines[start + 1 :], strict=False):
        name, *kinds = line.split()
        assert name == row
        for column, kind in zip(header[:-1], kinds, strict=False):
            expected = "X" if row == column else kind_of.get((row, column)) or kind_of[column, row]
            assert kind == expected


def test_rails_of_a_dgx_a100():
    """Storage NICs stand between the others: who counts from GPU 4 on gets one of another NUMA node."""
    values = json.loads(topo("--from", DGX, "--json"))
    assert [rail["nic"] for rail in values["rails"]] == [f"NIC{n}" for n in (0, 1, 2, 3, 6, 7, 8, 9)]
    text = topo("--from", DGX)
    assert "A rank's way out of its node: 200 Gbit/s" in text


# --- nodes


def test_nodes_by_option():
    text = topo("--from", DGX, "--nodes", "2x8")
    assert "2 nodes, 8 ranks each" in text
    assert "node 1: ranks 8, 9, 10, 11, 12, 13, 14, 15" in text
    assert json.loads(topo("--from", DGX, "--nodes", "0,2|1,3", "--json"))["nodes"] == [[0, 2], [1, 3]]


def test_rails_are_those_of_the_ranks():
    assert len(json.loads(topo("--from", DGX, "--nodes", "2x3", "--json"))["rails"]) == 3


def test_without_a_node_map_there_is_none():
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
    gpus = tuple(Gpu(index, fabric=Fabric("c0ffee", 3)) for index in range(2))
    links = (Link("GPU0", "GPU1", "NV18"),)
    view = overview(Machine("tray", "test", gpus=gpus, links=links), None)
    assert sum("NVLink domain c0ffee, clique 3" in note for note in view.notes) == 1


# --- bad input


@pytest.mark.parametrize("nodes", ["2y8", "0x8", "", "2x9", "0,0|1", "9999999x9999999"])
def test_an_invalid_node_map(nodes):
    if nodes:
        assert refused("--from", DGX, "--nodes", nodes)
    else:
        assert topo("--from", DGX, "--nodes", nodes)  # an empty text is no option


def test_a_picture_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path would be broken into lines
    assert "--svg 'x.png': expected a name that ends in .svg" in refused("--from", DGX, "--svg", "x.png")
    assert not (tmp_path / "x.png").exists()


def test_a_file_that_is_missing(tmp_path):
    path = tmp_path / "none.xml"
    assert refused("--from", path) == f"isthmus: {path}: cannot be read: No such file or directory"


def test_a_file_that_is_cut_names_its_line(tmp_path):
    path = tmp_path / "cut.xml"
    path.write_bytes(DGX.read_bytes()[:2000])
    message = refused("--from", path)
    assert message.startswith(f"isthmus: {path}, line ")
    assert "Traceback" not in message


def test_a_picture_that_cannot_be_written(tmp_path):
    path = tmp_path / "none" / "picture.svg"
    assert refused("--from", DGX, "--svg", path) == f"isthmus: {path}: No such file or directory"


# --- pictures


def picture(machine: Machine, nodes: str | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(draw_overview(overview(machine, nodes)).encode())


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text for element in root.iter(f"{SVG}text")]


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of the boxes of devices: those of one size."""
    found = []
    for rect in root.iter(f"{SVG}rect"):
        if (rect.get("width"), rect.get("height")) == ("82.0", "44.0"):
            x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def rails_in(text: str) -> list[int]:
    """[0, 1, 2] for "0-2", [0, 4] for "0, 4"."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if last else [int(one) for one in text.split(", ")]


@pytest.mark.parametrize("nodes", [None, "4x2"])
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_pictures_show_every_device_once_a_node_and_apart(path, nodes, tmp_path):
    drawn = tmp_path / "picture.svg"
    arguments = ["--nodes", nodes] if nodes else []
    values = json.loads(topo("--from", path, "--json", "--svg", drawn, *arguments))
    root = ElementTree.fromstring(drawn.read_bytes())
    times = 2 if nodes else 1
    assert len(boxes(root)) == times * (len(values["gpus"]) + len(values["nics"]))
    width, height = float(root.get("width")), float(root.get("height"))
    for number, (left, top, right, bottom) in enumerate(boxes(root)):
        assert left >= 0 and right <= width and top >= 0 and bottom <= height
        for other in boxes(root)[:number]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    named = [text.split(" ", 1)[1] for text in texts(root) if text.startswith("rail")]
    drawn_rails = sorted(rail for text in named for rail in rails_in(text))
    assert drawn_rails == [rail["local_index"] for rail in values["rails"]]


def test_a_picture_says_how_fast_rails_are():
    nics = tuple(Nic(n, f"mlx5_{n}", kind=NicKind.ROCE, speed_gbit_s=100.0) for n in range(1))
    gpus = (Gpu(0), Gpu(1))
    links = (Link("GPU0", "GPU1", "NV4", 800.0), Link("GPU0", "NIC0", "PIX"), Link("GPU1", "NIC0", "SYS"))
    shown = texts(picture(Machine("two", "test", gpus=gpus, nics=nics, links=links), "2x2"))
    assert "two: 2 nodes x 2 ranks" in shown
    assert shown.count("rails 0, 1") == 1 and shown.count("2 x 50 Gbit/s") == 1
    assert any(text.startswith("NV4 between all GPUs") for text in shown)
    assert shown.count("PIX") == 2 and shown.count("SYS") == 2  # once a node
    assert any(text.startswith("dashed") for text in shown)


def test_host_bridges_stand_in_the_order_of_their_gpus():
    trees = tuple(
        PcieNode(PcieKind.HOST_BRIDGE, numa_node=0, children=(PcieNode(PcieKind.GPU, devices=(f"GPU{gpu}",)),))
        for gpu in (2, 0, 1)
    )
    gpus = tuple(Gpu(index, numa_node=0) for index in range(3))
    machine = Machine("three", "test", gpus=gpus, pcie=trees)
    assert lay_out(machine, 3).tops == {"GPU0": 0.5, "GPU1": 1.5, "GPU2": 2.5}


def test_a_picture_of_a_machine_without_gpu():
    shown = texts(picture(Machine("cpus", "test", nics=(Nic(0, "eth0", speed_gbit_s=25.0),)), "3x2"))
    assert shown.count("rank 1") == 2 and shown.count("rails 0, 1") == 1
    assert "nodes 1 to 2, each like this" in shown
    assert any("2 x 12.5 Gbit/s" in text for text in shown)


def test_names_are_escaped():
    name = '<b>&"node"'
    assert name in texts(picture(Machine(name, "test", nics=(Nic(0, name[:8]),))))


@pytest.mark.parametrize(("room", "expected"), [(1000, "mlx5_bond_0"), (30, "ml…"), (0, "…")])
def test_text_is_cut_to_its_width(room, expected):
    assert fit("mlx5_bond_0", 16, room) == expected


# --- documents


def test_the_picture_in_the_documents_is_real(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    topo("--from", "topology/machines/dgx-a100.nccl.xml", "--nodes", "2x8", "--svg", tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_text() == Path("docs/figures/topo_dgx_a100.svg").read_text()


# --- this machine


def test_this_machine():
    assert json.loads(topo("--json"))["source"] == "discovery"


@pytest.mark.processes
def test_the_commands_import_nothing_heavy_until_they_run():
    script = "import isthmus.cli, sys; print([m for m in ('torch', 'pynvml', 'matplotlib') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S)
    assert result.stdout.strip() == "[]", result.stderr
