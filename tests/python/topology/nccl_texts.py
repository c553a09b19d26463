"""NCCL's topology XML, written piece by piece."""

from __future__ import annotations

import pytest

from isthmus.topology.formats.read import parse_machine
from isthmus.topology.machine import Machine, TopologyError

GPU = '<pci busid="0000:0{n}:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>'


def parse(body: str, attributes: str = 'version="1"') -> Machine:
    return parse_machine(f"<system {attributes}>\n{body}\n</system>\n".encode(), "test")


def in_cpu(body: str, numaid: str = "0") -> str:
    return f'<cpu numaid="{numaid}">\n{body}\n</cpu>'


def gpu(bus: str, dev: int, *nvlinks: str, sm: int = 90) -> str:
    links = "".join(f"<nvlink {nvlink}/>" for nvlink in nvlinks)
    return f'<pci busid="{bus}" class="0x030200"><gpu dev="{dev}" sm="{sm}">{links}</gpu></pci>'


def refused(body: str, attributes: str = 'version="1"') -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        parse(body, attributes)
    return caught.value


def noted(machine: Machine, words: str) -> bool:
    return any(words in note for note in machine.notes)
