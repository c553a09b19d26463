"""A picture of nodes, rails and link speeds, as SVG."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import cycle

from isthmus.topology.rails import Rail
from isthmus.topology.render.overview import Overview, count_models
from isthmus.topology.render.svg_canvas import Canvas, text_width
from isthmus.topology.render.svg_layout import lay_out
from isthmus.topology.render.svg_node import COLUMN, FAINT, FAR, INK, PADDING, NodeDrawing, Scene, width_of
from isthmus.topology.render.text import gbit_s, nic_summary

# Okabe and Ito's colours, which people with any kind of colour blindness tell apart; yellow is too light for lines.
_RAIL_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a63d2", "#5b6770")
_MARGIN = 28.0
_TITLE_HEIGHT = 64.0
_GAP = 120.0  # between nodes
_LEAST_WIDTH = 680.0
_NOTE_HEIGHT = 18.0
_MOST_NOTES = 4


def draw_overview(view: Overview) -> str:
    """Return the picture: the first node, the rails that leave it, and a second node where there are several."""
    return _Picture(view).text()


class _Picture:
    def __init__(self, view: Overview) -> None:
        self._view = view
        self._num_nodes = view.shape.num_nodes if view.shape else 1
        self._rails_of: dict[str, list[Rail]] = defaultdict(list)
        for rail in view.rails.rails:
            self._rails_of[rail.nearest.nic].append(rail)
        layout = lay_out(view.machine, view.rails)
        self._width = max(width_of(layout) + 2 * _MARGIN, _LEAST_WIDTH)
        num_ranks = len(view.rails.rails) or len(view.machine.gpus)
        self._scene = Scene(
            view.machine,
            view.rails,
            layout,
            left=(self._width - width_of(layout)) / 2,
            colour_of=_colours(self._rails_of),
            rank_of={gpu.id: rank for rank, gpu in enumerate(view.machine.gpus[:num_ranks])},
        )
        self._gap = _GAP if self._rails_of else 0.0
        self._notes = _footnotes(view)
        self._nodes_height = self._scene.node_height * min(self._num_nodes, 2) + self._gap
        notes_height = len(self._notes) * _NOTE_HEIGHT
        self._canvas = Canvas(self._width, _TITLE_HEIGHT + self._nodes_height + 2 * _MARGIN + notes_height)

    def text(self) -> str:
        """Draw from the background to the front."""
        self._draw_title()
        first_bottom = _TITLE_HEIGHT + self._scene.node_height
        first = "node 0" if self._view.shape else self._view.machine.name
        NodeDrawing(self._scene, self._canvas, _TITLE_HEIGHT, flipped=False).draw(first)
        if self._num_nodes > 1:
            last = "node 1" if self._num_nodes == 2 else f"nodes 1 to {self._num_nodes - 1}, each like this"
            NodeDrawing(self._scene, self._canvas, first_bottom + self._gap, flipped=True).draw(last)
        self._draw_rails(first_bottom)
        for number, note in enumerate(self._notes):
            y = _TITLE_HEIGHT + self._nodes_height + _MARGIN + number * _NOTE_HEIGHT
            self._canvas.write(_MARGIN, y, note, 11.5, FAINT, "start", room=self._width - 2 * _MARGIN)
        return self._canvas.text()

    def _draw_title(self) -> None:
        machine, shape = self._view.machine, self._view.shape
        title = machine.name
        if shape is not None:
            each = f" x {shape.ranks_per_node} ranks" if shape.ranks_per_node else " of unequal size"
            title += f": {shape.num_nodes} node{'s' if shape.num_nodes > 1 else ''}{each}"
        self._canvas.write(_MARGIN, 26, title, 19, INK, "start", bold=True, room=self._width - 2 * _MARGIN)
        self._canvas.write(_MARGIN, 49, self._subtitle(), 12, FAINT, "start", room=self._width - 2 * _MARGIN)

    def _subtitle(self) -> str:
        machine = self._view.machine
        gpus = count_models(tuple(gpu.model or "GPU" for gpu in machine.gpus)) or "no GPU"
        speed = self._view.rails.speed_gbit_s
        rail = f"each rank leaves its node at {gbit_s(speed)}" if speed is not None else "speed of rails unknown"
        return "  ·  ".join((gpus, nic_summary(machine), rail))

    def _draw_rails(self, top: float) -> None:
        """Draw lines from the NICs of the first node to those of the next, or into the open."""
        bottom = top + self._gap
        leads_on = self._num_nodes > 1
        for nic, rails in self._rails_of.items():
            x, colour = self._scene.x(self._scene.layout.nics[nic]), self._scene.colour_of[nic]
            end = bottom + PADDING if leads_on else bottom - 26
            self._canvas.line(x, top - PADDING, x, end, colour, _stroke(rails))
            self._draw_rail_label(x, (top + bottom) / 2 - (0 if leads_on else 13), rails, colour)
            if not leads_on:
                self._canvas.box(x - 2.5, end + 5, 5, 5, colour, radius=2.5)
                self._canvas.box(x - 2.5, end + 14, 5, 5, colour, radius=2.5)

    def _draw_rail_label(self, x: float, y: float, rails: list[Rail], colour: str) -> None:
        name = f"rail{'s' if len(rails) > 1 else ''} " + _ranges([rail.local_index for rail in rails])
        speed = _slowest(rails)
        each = "? Gbit/s" if speed is None else gbit_s(speed)
        if len(rails) > 1 and speed is not None:
            each = f"{len(rails)} x {each}"
        width = min(max(text_width(name, 12), text_width(each, 11)) + 14, COLUMN * len(rails) - 4)
        self._canvas.box(x - width / 2, y - 19, width, 38, "#ffffff", colour)
        self._canvas.write(x, y - 8, name, 12, colour, bold=True, room=width - 6)
        self._canvas.write(x, y + 8, each, 11, INK, room=width - 6)


def _colours(nics: Iterable[str]) -> dict[str, str]:
    """Return a colour for each NIC, in their order, from the first again where there are more NICs than colours."""
    return dict(zip(sorted(nics, key=lambda nic: int(nic[3:])), cycle(_RAIL_COLOURS), strict=False))


def _slowest(rails: list[Rail]) -> float | None:
    speeds = [rail.nearest.speed_gbit_s for rail in rails]
    known = [speed for speed in speeds if speed is not None]
    return min(known) if len(known) == len(speeds) else None


def _footnotes(view: Overview) -> list[str]:
    notes = list(view.rails.notes)
    if len(notes) > _MOST_NOTES:
        notes[_MOST_NOTES - 1 :] = [f"... and {len(notes) - _MOST_NOTES + 1} more"]
    if any(rail.nearest.distance in FAR for rail in view.rails.rails):
        notes.append("dashed: the way from a GPU to its NIC leaves the PCIe switches")
    return notes


def _stroke(rails: list[Rail]) -> float:
    """Return how thick to draw a NIC's rails: by their speed together, from 2 to 9 pixels."""
    known_gbit_s = sum(rail.nearest.speed_gbit_s or 0 for rail in rails)
    return 2 + 7 * math.sqrt(min(known_gbit_s / 800, 1))


def _ranges(numbers: list[int]) -> str:
    """Return "0-3" for [0, 1, 2, 3], "0, 4" for [0, 4]."""
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ", ".join(map(str, ordered))
