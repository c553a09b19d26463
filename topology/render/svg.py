"""A picture of nodes, rails and link speeds, as SVG."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import cycle

from isthmus.topology.rails import Rail
from isthmus.topology.render.overview import Overview, count_models
from isthmus.topology.render.svg_canvas import FAINT, INK, Canvas, fit
from isthmus.topology.render.svg_layout import lay_out
from isthmus.topology.render.text import NIC_KINDS, gbit_s, nic_summary, nvlink_summary

#: Okabe and Ito's colours, which people with any kind of colour blindness tell apart; yellow is too light for lines.
_RAIL_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a63d2", "#5b6770")
_WIRE, _NODE, _NODE_EDGE, _AREA, _BAR = "#a9b4bf", "#fbfcfd", "#c3ccd5", "#eef2f7", "#d6dee7"
_GPU, _GPU_EDGE, _RANK, _RANK_EDGE = "#e3f3e1", "#4d9a45", "#eceff3", "#8492a0"
#: Distances beyond the PCIe switches of a GPU.
_FAR = ("PHB", "NODE", "SYS")

_MARGIN, _PADDING, _COLUMN, _LEAST_WIDTH = 28.0, 18.0, 96.0, 680.0
_BOX_WIDTH, _BOX_HEIGHT, _BAR_HEIGHT = 82.0, 44.0, 18.0
#: Heights in a node, from its outer edge down to its NICs, with which it faces the other node.
_AREA_TOP, _NVLINK_TOP, _GPU_TOP = 30.0, 70.0, 110.0
_GPU_BOTTOM = _GPU_TOP + _BOX_HEIGHT
_BAR_TOP, _NIC_TOP = _GPU_BOTTOM + 43, _GPU_BOTTOM + 92
_NODE_HEIGHT = _NIC_TOP + _BOX_HEIGHT + _PADDING
_TITLE_HEIGHT, _GAP, _NOTE_HEIGHT = 64.0, 120.0, 18.0


def draw_overview(view: Overview) -> str:
    """Return the picture: the first node, the rails that leave it, and a second node where there are several."""
    return _Picture(view).text()


class _Picture:
    def __init__(self, view: Overview) -> None:
        self._machine, self._rails, self._view = view.machine, view.rails, view
        self._rails_of: dict[str, list[Rail]] = defaultdict(list)
        for rail in view.rails.rails:
            self._rails_of[rail.nic].append(rail)
        nics = sorted(self._rails_of, key=lambda nic: int(nic[3:]))
        self._colour_of = dict(zip(nics, cycle(_RAIL_COLOURS), strict=False))
        self._layout = lay_out(view.machine, len(view.rails.rails) or 1)
        self._node_width = max(self._layout.num_columns, 1) * _COLUMN + 2 * _PADDING
        self._width = max(self._node_width + 2 * _MARGIN, _LEAST_WIDTH)
        self._left = (self._width - self._node_width) / 2
        self._canvas = Canvas()

    def _x(self, column: float) -> float:
        return self._left + _PADDING + column * _COLUMN

    def text(self) -> str:
        """Draw from the background to the front."""
        num_nodes = len(self._view.nodes) or 1
        self._draw_title()
        self._canvas.down = _TITLE_HEIGHT
        self._draw_node("node 0" if self._view.nodes else self._machine.name)
        bottom = _TITLE_HEIGHT + _NODE_HEIGHT + _GAP
        if num_nodes > 1:
            bottom += _NODE_HEIGHT
            self._canvas.down, self._canvas.flipped = bottom, True
            self._draw_node("node 1" if num_nodes == 2 else f"nodes 1 to {num_nodes - 1}, each like this")
        self._canvas.down, self._canvas.flipped = _TITLE_HEIGHT + _NODE_HEIGHT, False
        for nic, rails in self._rails_of.items():
            self._draw_rail(nic, rails, leads_on=num_nodes > 1)
        self._canvas.down = bottom + _MARGIN
        notes = self._footnotes()
        for number, note in enumerate(notes):
            self._write_line(number * _NOTE_HEIGHT, note, 11.5)
        return self._canvas.text(self._width, bottom + 2 * _MARGIN + len(notes) * _NOTE_HEIGHT)

    def _write_line(self, down: float, text: str, size: float) -> None:
        colour = INK if size > 12 else FAINT
        self._canvas.write(_MARGIN, down, text, size, colour, self._width - 2 * _MARGIN, centred=False)

    def _draw_title(self) -> None:
        machine, view, speed = self._machine, self._view, self._rails.speed_gbit_s
        title = machine.name
        if view.nodes:
            each = f" x {view.ranks_per_node} ranks" if view.ranks_per_node else " of unequal size"
            title += f": {len(view.nodes)} node{'s' if len(view.nodes) > 1 else ''}{each}"
        gpus = count_models(tuple(gpu.model or "GPU" for gpu in machine.gpus)) or "no GPU"
        rail = f"each rank leaves its node at {gbit_s(speed)}" if speed is not None else "speed of rails unknown"
        self._write_line(26, title, 19)
        self._write_line(49, "  ·  ".join((gpus, nic_summary(machine), rail)), 12)

    def _draw_node(self, heading: str) -> None:
        canvas, layout = self._canvas, self._layout
        canvas.box(self._left, 0, self._node_width, _NODE_HEIGHT, _NODE, _NODE_EDGE)
        canvas.write(self._left + _PADDING, 18, heading, 13, INK, self._node_width, centred=False)
        for area in layout.areas:
            x, end = self._x(area.first) + 2, self._x(area.last) - 2
            canvas.box(x, _AREA_TOP, end - x, _NODE_HEIGHT - _AREA_TOP - 10, _AREA)
            canvas.write(x + 10, _AREA_TOP + 12, area.label, 11, FAINT, end - x - 12, centred=False)
        for column in layout.nics.values():
            canvas.curve(self._x(column), _BAR_TOP, self._x(column), _NIC_TOP, _WIRE, 1.5)
        for column in layout.tops.values() if self._machine.gpus else ():
            canvas.curve(self._x(column), _GPU_BOTTOM, self._x(column), _BAR_TOP, _WIRE, 1.5)
        for rail in self._rails.rails:
            self._draw_way(rail)
        for bar in layout.bars:
            x, end = self._x(bar.first) + 8, self._x(bar.last) - 8
            canvas.box(x, _BAR_TOP, end - x, _BAR_HEIGHT, _BAR)
            label = f"{bar.label}, {gbit_s(bar.speed_gbit_s)} up"
            label = bar.label if bar.speed_gbit_s is None or fit(label, 10.5, end - x) != label else label
            canvas.write((x + end) / 2, _BAR_TOP + _BAR_HEIGHT / 2, label, 10.5, INK, end - x)
        for rail in self._rails.rails:
            if rail.gpu is not None:
                colour, x = self._colour_of[rail.nic], self._x(layout.tops[rail.gpu])
                canvas.box(x - 16, _GPU_BOTTOM + 9, 32, 16, _AREA)
                canvas.write(x, _GPU_BOTTOM + 17, rail.distance or "", 10.5, colour, _BOX_WIDTH)
        self._draw_nvlinks()
        self._draw_devices()

    def _draw_way(self, rail: Rail) -> None:
        """Draw a rank's way to its NIC: dashed where it leaves the switch."""
        x1 = self._x(self._layout.tops[rail.gpu or f"rank {rail.local_index}"])
        x2, colour = self._x(self._layout.nics[rail.nic]), self._colour_of[rail.nic]
        self._canvas.curve(x1, _GPU_BOTTOM, x2, _NIC_TOP, colour, 2.2, rail.distance in _FAR)

    def _draw_nvlinks(self) -> None:
        label, columns = nvlink_summary(self._machine), self._layout.tops.values()
        if not label:
            return
        x, end = self._x(min(columns)) - _BOX_WIDTH / 2, self._x(max(columns)) + _BOX_WIDTH / 2
        for column in columns:
            self._canvas.curve(self._x(column), _NVLINK_TOP, self._x(column), _GPU_TOP, _GPU_EDGE, 3)
        self._canvas.box(x, _NVLINK_TOP, end - x, 22, _GPU_EDGE)
        self._canvas.write((x + end) / 2, _NVLINK_TOP + 11, label, 11.5, "#ffffff", end - x - 8)

    def _draw_devices(self) -> None:
        """Draw GPUs, or the ranks of a machine without any, and NICs."""
        num_ranks = len(self._rails.rails) or len(self._machine.gpus)
        for rank, gpu in enumerate(self._machine.gpus):
            below = f"local rank {rank}" if rank < num_ranks else "no rank"
            self._draw_device(self._layout.tops[gpu.id], _GPU_TOP, _GPU, _GPU_EDGE, (gpu.id, below))
        for name, column in self._layout.tops.items() if not self._machine.gpus else ():
            self._draw_device(column, _GPU_TOP, _RANK, _RANK_EDGE, (name, "CPU"))
        for nic in self._machine.nics:
            below = gbit_s(nic.speed_gbit_s) or NIC_KINDS[nic.kind] or "? Gbit/s"
            edge = self._colour_of.get(nic.id, _WIRE)
            self._draw_device(self._layout.nics[nic.id], _NIC_TOP, "#ffffff", edge, (nic.name or nic.id, below))

    def _draw_device(self, column: float, down: float, fill: str, edge: str, lines: tuple[str, str]) -> None:
        x, upper, lower = self._x(column), *((29, 15) if self._canvas.flipped else (15, 29))
        self._canvas.box(x - _BOX_WIDTH / 2, down, _BOX_WIDTH, _BOX_HEIGHT, fill, edge)
        self._canvas.write(x, down + upper, lines[0], 12.5, INK, _BOX_WIDTH - 4)
        self._canvas.write(x, down + lower, lines[1], 10.5, FAINT, _BOX_WIDTH - 4)

    def _draw_rail(self, nic: str, rails: list[Rail], leads_on: bool) -> None:
        """Draw a line from a NIC of the first node to that of the next, or into the open, as thick as it is fast."""
        x, colour = self._x(self._layout.nics[nic]), self._colour_of[nic]
        speeds = [rail.speed_gbit_s for rail in rails]
        known = [speed for speed in speeds if speed is not None]
        width = 2 + 7 * math.sqrt(min(sum(known) / 800, 1))
        self._canvas.curve(x, -_PADDING, x, _GAP + _PADDING if leads_on else _GAP - 10, colour, width)
        each = gbit_s(min(known)) if len(known) == len(rails) else "? Gbit/s"
        indices = _ranges([rail.local_index for rail in rails])
        room = min(_COLUMN * len(rails) - 8, 132)
        self._canvas.box(x - room / 2, _GAP / 2 - 19, room, 38, "#ffffff", colour)
        self._canvas.write(x, _GAP / 2 - 8, f"rail{'s' if len(rails) > 1 else ''} {indices}", 12, colour, room)
        self._canvas.write(x, _GAP / 2 + 8, f"{len(rails)} x {each}" if len(rails) > 1 else each, 11, INK, room)

    def _footnotes(self) -> list[str]:
        notes = list(self._rails.notes)
        if any(rail.distance in _FAR for rail in self._rails.rails):
            notes.append("dashed: the way from a GPU to its NIC leaves the PCIe switches")
        return notes


def _ranges(numbers: list[int]) -> str:
    """Return "0-3" for [0, 1, 2, 3], "0, 4" for [0, 4]. numbers: rising."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))
