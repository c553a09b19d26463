"""The matrix of `nvidia-smi topo -m`, also in the states in which people paste it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.topology.formats.machine_json import parse_machine_json
from isthmus.topology.formats.read import parse_machine
from isthmus.topology.machine import Machine, NicKind, TopologyError

PLAIN = """\
        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV4     PXB     SYS     0-23,48-71      0               N/A
GPU1    NV4      X      NODE    SYS     0-23,48-71      0               N/A
NIC0    PXB     NODE     X      SYS
NIC1    SYS     SYS     SYS      X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: rocep177s0f0
"""
MATRIX = "".join(PLAIN.splitlines(keepends=True)[:5])


def parse(text: str) -> Machine:
    return parse_machine(text.encode(), "test")


def links(machine: Machine) -> list[str]:
    return [link.kind for link in machine.links]


def test_a_plain_matrix() -> None:
    machine = parse(PLAIN)
    assert links(machine) == ["NV4", "PXB", "SYS", "NODE", "SYS", "SYS"]
    assert [(nic.name, nic.kind, nic.numa_node) for nic in machine.nics] == [
        ("mlx5_0", NicKind.UNKNOWN, 0),
        ("rocep177s0f0", NicKind.ROCE, None),
    ]
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 0]
    assert machine.numa_nodes[0].cpus == "0-23,48-71"


def underlined(text: str) -> str:
    return re.sub(r"(GPU\d|NIC\d|CPU Affinity)(?=.*Affinity)", "\x1b[4m\\1\x1b[0m", text)


PASTED: dict[str, Callable[[str], str]] = {
    "tabs": lambda text: re.sub(r" {2,}| (?=X)|(?<=X) ", "\t", text),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "blank lines between rows": lambda text: text.replace("\n", "\n\n"),
    "underlined": underlined,
    "escape character lost": lambda text: underlined(text).replace("\x1b", ""),
    "prompt and fences": lambda text: f"Our nodes:\n```\nroot@n1:~# nvidia-smi topo -m\n{text}```\nThanks!",
    "comment": lambda text: textwrap.indent(text, " * ", lambda line: True),
    "quoted": lambda text: textwrap.indent(text, "> > ", lambda line: True),
    "table": lambda text: "\n".join(f"| {re.sub(' {2,}', ' | ', line)} |" for line in text.splitlines()),
    "before another matrix": lambda text: text + "\n" + text.replace("NV4", "NV2"),
}


@pytest.mark.parametrize("form", PASTED)
def test_a_pasted_matrix_is_the_same_machine(form: str) -> None:
    assert parse(PASTED[form](PLAIN)) == parse(PLAIN)


@pytest.mark.parametrize(
    ("columns", "behind", "numa_node", "cpus"),
    [
        ("CPU Affinity NUMA Affinity GPU NUMA ID", "0-55,112-167 1 N/A", 1, "0-55,112-167"),
        ("CPU Affinity NUMA Affinity GPU NUMA ID", "0-55 N/A N/A", None, None),
        ("CPU Affinity NUMA Affinity GPU NUMA ID", "112-127,240-255 6-7 N/A", None, None),  # next to two of them
        ("CPU Affinity NUMA Affinity", "", None, None),
        ("CPU AffinityNUMA AffinityGPU NUMA ID", "56-111,168-2231 N/A", None, None),  # run together
        ("CPU Affinity", "0-51", None, None),
        ("", "", None, None),
    ],
)
def test_affinity_columns(columns: str, behind: str, numa_node: int | None, cpus: str | None) -> None:
    machine = parse(f"     GPU0 {columns}\nGPU0  X   {behind}\n")
    assert machine.gpus[0].numa_node == numa_node
    assert [node.cpus for node in machine.numa_nodes] == ([] if numa_node is None else [cpus])
    assert any("does not tell NUMA nodes" in note for note in machine.notes) == (numa_node is None)


def test_names_of_nics() -> None:
    machine = parse("GPU0 mlx5_0 re\0 CPU Affinity\nGPU0  X PIX NODE\nmlx5_0 PIX X NODE\nre\0 NODE NODE X\n")
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "re?"]
    numbered = parse("GPU0 NIC3 NIC10\nGPU0  X PIX SOC\nNIC3 PIX X NODE\nNIC10 SOC NODE X\n")
    assert [(nic.id, nic.name) for nic in numbered.nics] == [("NIC3", None), ("NIC10", None)]
    assert numbered.distance("GPU0", "NIC10") == "SYS"  # SOC is its name in drivers before 2017


def test_the_numa_node_of_a_nic_that_is_near_gpus_of_two() -> None:
    rows = "GPU0 X SYS PHB 0-7 0\nGPU1 SYS X PHB 8-15 1\nNIC0 PHB PHB X\n"
    machine = parse("GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity\n" + rows)
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 1]
    assert machine.nics[0].numa_node is None


def square(number: int) -> str:
    names = [f"GPU{index}" for index in range(number)]
    rows = (f"{name} " + " ".join("X" if name == other else "SYS" for other in names) for name in names)
    return " ".join(names) + "\n" + "\n".join(rows) + "\n"


def without(row: str) -> str:
    return "".join(line for line in MATRIX.splitlines(keepends=True) if not line.startswith(row))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("What does GPU0 do?", None, "holds no matrix"),
        (MATRIX.partition("\n")[2], 1, "does not name its columns"),
        ("$ nvidia-smi topo -m\n" + MATRIX.partition("\n")[2], 1, "does not name its columns"),
        (without("NIC1"), 4, "the matrix is cut off: row NIC1 is missing"),
        (MATRIX[: MATRIX.index("SYS      X")], 5, "row NIC1 has 2 of 4 distances"),
        (MATRIX[: MATRIX.index("YS      X")], 5, "row NIC1 has 'S' in column NIC0: no distance"),
        (MATRIX.replace("PXB", "OK", 1), 2, "row GPU0 has 'OK' in column NIC0: no distance"),
        (MATRIX.replace("NIC1    CPU", "CPU", 1), 2, "row GPU0 has more than 3 distances"),
        (MATRIX.replace("PXB", "PIX", 1), None, "from GPU0 to NIC0 it is PIX, back it is PXB"),
        (MATRIX.replace("NV4", "NV0"), 2, "row GPU0 has 'NV0' in column GPU1"),
        (MATRIX.replace("NV4", "X  "), 2, "row GPU0 has 'X' in column GPU1"),
        (MATRIX.replace("GPU1    NV4      X", "GPU1    NV4    SYS", 1), 3, "row GPU1 has 'SYS' in column GPU1"),
        (MATRIX.replace("\nGPU1 ", "\nGPU0 "), 3, "row GPU0 is given twice"),
        (MATRIX.replace("GPU0    GPU1", "GPU0    GPU0", 1), 1, "does not name its columns"),
        (square(257), 1, "has 257 GPUs, more than the 256"),
    ],
)  # fmt: skip
def test_errors_name_their_line(text: str, line: int | None, what: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse(text)
    assert what in caught.value.what
    assert caught.value.line == line


def test_the_limit_of_gpus_is_read() -> None:
    assert len(parse(square(256)).gpus) == 256


def test_every_cut_is_an_error_or_the_whole_machine() -> None:
    read = 0
    for length in range(len(PLAIN)):
        try:
            assert links(parse(PLAIN[:length])) == links(parse(PLAIN))
            read += 1
        except TopologyError as error:
            assert error.what
    assert read == len(PLAIN) - len(MATRIX.rstrip())


KINDS = st.sampled_from(["NV1", "NV2", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])


@st.composite
def machines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A matrix as nvidia-smi would print it, and its upper triangle."""
    num_gpus, num_nics = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    names = [f"GPU{index}" for index in range(num_gpus)] + [f"NIC{index}" for index in range(num_nics)]
    pairs = {(a, b): draw(KINDS) for place, a in enumerate(names) for b in names[place + 1 :]}
    gap = draw(st.sampled_from(["\t", " ", "    "]))
    rows = [gap.join([a, *(pairs.get((a, b)) or pairs.get((b, a)) or " X " for b in names)]) for a in names]
    return gap + gap.join(names) + "\n" + "\n".join(rows) + "\n", list(pairs.values())


@given(machines())
def test_a_matrix_that_is_written_reads_back(matrix: tuple[str, list[str]]) -> None:
    text, kinds = matrix
    machine = parse(text)
    assert links(machine) == kinds
    assert parse_machine_json(machine.to_json()) == machine
