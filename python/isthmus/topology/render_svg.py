"""A picture of nodes, rails and link speeds, as SVG."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations

from isthmus.topology.machine import Machine
from isthmus.topology.overview import Overview, count_models
from isthmus.topology.rails import Rail
from isthmus.topology.render_text import NIC_KINDS, gbit_s, nic_summary, nvlink_summary
from isthmus.topology.svg import Canvas, text_width
from isthmus.topology.svg_layout import Area, Bar, Layout, lay_out

# Okabe and Ito's colours, which people with any kind of colour blindness tell apart; yellow is too light for lines.
_RAIL_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a63d2", "#5b6770")
_INK, _FAINT, _WIRE = "#1f2933", "#6b7885", "#a9b4bf"
_GPU_FILL, _GPU_EDGE = "#e3f3e1", "#4d9a45"
_RANK_FILL, _RANK_EDGE = "#eceff3", "#8492a0"
_NIC_FILL = "#ffffff"
_NODE_FILL, _NODE_EDGE = "#fbfcfd", "#c3ccd5"
_AREA_FILL = "#eef2f7"
_BAR_FILL = "#d6dee7"
_NVLINK_FILL, _NVLINK_INK = "#4d9a45", "#ffffff"

_COLUMN = 96.0
_BOX_WIDTH = 82.0
_BOX_HEIGHT = 44.0
_MARGIN = 28.0
_PADDING = 18.0
_TITLE_HEIGHT = 64.0
_HEADING = 24.0  # of a node, and of an area in it
_NVLINK_HEIGHT = 44.0
_BAND = 92.0  # between GPUs and NICs
_BAR_HEIGHT = 18.0
_GAP = 120.0  # between nodes
_LEAST_WIDTH = 680.0
_NOTE_HEIGHT = 18.0
_MOST_NOTES = 4
_FAR = ("PHB", "NODE", "SYS")


def draw_overview(view: Overview) -> str:
    """Return the picture: the first node, the rails that leave it, and a second node where there are several."""
    return _Picture(view).text()


class _Picture:
    def __init__(self, view: Overview) -> None:
        self._view = view
        self._layout = lay_out(view.machine, view.rails)
        self._num_nodes = view.shape.num_nodes if view.shape else None
        self._rails_of: dict[str, list[Rail]] = defaultdict(list)
        for rail in view.rails.rails:
            self._rails_of[rail.nearest.nic].append(rail)
        self._colour_of = {
            nic: _RAIL_COLOURS[position % len(_RAIL_COLOURS)]
            for position, nic in enumerate(sorted(self._rails_of, key=lambda nic: int(nic[3:])))
        }
        num_ranks = len(view.rails.rails) or len(view.machine.gpus)
        self.rank_of = {gpu.id: rank for rank, gpu in enumerate(view.machine.gpus[:num_ranks])}
        self._has_nvlinks = bool(nvlink_summary(view.machine))
        below_gpus = _BAND + _BOX_HEIGHT if view.machine.nics else _BAND / 2 + 14
        self._node_height = 2 * _HEADING + 2 * _PADDING + self._has_nvlinks * _NVLINK_HEIGHT + _BOX_HEIGHT + below_gpus
        node_width = max(self._layout.num_columns, 1) * _COLUMN + 2 * _PADDING
        self._width = max(node_width + 2 * _MARGIN, _LEAST_WIDTH)
        self._left = (self._width - node_width) / 2
        self._node_width = node_width
        self._notes = _footnotes(view)
        nodes_height = self._node_height * (2 if self._several else 1) + (_GAP if self._rails_of else 0)
        self._canvas = Canvas(
            self._width, _TITLE_HEIGHT + nodes_height + _MARGIN + len(self._notes) * _NOTE_HEIGHT + _MARGIN
        )

    @property
    def _several(self) -> bool:
        return (self._num_nodes or 1) > 1

    def text(self) -> str:
        """Draw from the background to the front."""
        self._draw_title()
        top = _TITLE_HEIGHT
        bottom = top + self._node_height
        first = "node 0" if self._num_nodes is not None else self._view.machine.name
        _Node(self, top, flipped=False).draw(first)
        rails_top = bottom
        if self._several:
            last = "node 1" if self._num_nodes == 2 else f"nodes 1 to {(self._num_nodes or 1) - 1}, each like this"
            bottom += _GAP if self._rails_of else 0
            _Node(self, bottom, flipped=True).draw(last)
            bottom += self._node_height
        elif self._rails_of:
            bottom += _GAP
        self._draw_rails(rails_top)
        for number, note in enumerate(self._notes):
            y = bottom + _MARGIN + number * _NOTE_HEIGHT
            self._canvas.write(_MARGIN, y, note, 11.5, _FAINT, "start", room=self._width - 2 * _MARGIN)
        return self._canvas.text()

    def _draw_title(self) -> None:
        machine, shape = self._view.machine, self._view.shape
        title = machine.name
        if shape is not None:
            each = f" x {shape.ranks_per_node} ranks" if shape.ranks_per_node else " of unequal size"
            title += f": {shape.num_nodes} node{'s' if shape.num_nodes > 1 else ''}{each}"
        self._canvas.write(_MARGIN, 26, title, 19, _INK, "start", bold=True, room=self._width - 2 * _MARGIN)
        self._canvas.write(_MARGIN, 49, self._subtitle(), 12, _FAINT, "start", room=self._width - 2 * _MARGIN)

    def _subtitle(self) -> str:
        machine = self._view.machine
        gpus = count_models(tuple(gpu.model or "GPU" for gpu in machine.gpus)) or "no GPU"
        speed = self._view.rails.speed_gbit_s
        rail = f"each rank leaves its node at {gbit_s(speed)}" if speed is not None else "speed of rails unknown"
        return "  ·  ".join(part for part in (gpus, nic_summary(machine), rail) if part)

    def x(self, column: float) -> float:
        """The middle of a column that counts from 0, or an edge between two."""
        return self._left + _PADDING + column * _COLUMN

    def _draw_rails(self, top: float) -> None:
        """Draw lines from the NICs of the first node to those of the next, or into the open."""
        bottom = top + _GAP
        for nic, rails in self._rails_of.items():
            x, colour = self.x(self._layout.nics[nic]), self._colour_of[nic]
            end = bottom + _PADDING if self._several else bottom - 26
            self._canvas.line(x, top - _PADDING, x, end, colour, _stroke(rails))
            self._draw_rail_label(x, (top + bottom) / 2 - (0 if self._several else 13), rails, colour)
            if not self._several:
                self._canvas.box(x - 2.5, end + 5, 5, 5, colour, radius=2.5)
                self._canvas.box(x - 2.5, end + 14, 5, 5, colour, radius=2.5)

    def _draw_rail_label(self, x: float, y: float, rails: list[Rail], colour: str) -> None:
        name = f"rail{'s' if len(rails) > 1 else ''} " + _ranges([rail.local_index for rail in rails])
        speed = rails[0].nearest.speed_gbit_s
        text = "? Gbit/s" if speed is None else gbit_s(speed)
        if len(rails) > 1 and speed is not None:
            text = f"{len(rails)} x {text}"
        width = min(max(text_width(name, 12), text_width(text, 11)) + 14, _COLUMN * max(len(rails), 1) - 4)
        self._canvas.box(x - width / 2, y - 19, width, 38, "#ffffff", colour)
        self._canvas.write(x, y - 8, name, 12, colour, bold=True, room=width - 6)
        self._canvas.write(x, y + 8, text, 11, _INK, room=width - 6)


class _Node:
    """Draws one node; flipped: its NICs are on top, towards the node above."""

    def __init__(self, picture: _Picture, top: float, flipped: bool) -> None:
        self._picture = picture
        self._canvas = picture._canvas
        self._layout: Layout = picture._layout
        self._machine: Machine = picture._view.machine
        self._top = top
        self._height = picture._node_height
        self._flipped = flipped
        self._gpu_top = _HEADING + _PADDING + _HEADING + picture._has_nvlinks * _NVLINK_HEIGHT
        self._gpu_bottom = self._gpu_top + _BOX_HEIGHT
        self._nic_top = self._gpu_bottom + _BAND
        self._bar_down = self._gpu_bottom + (_BAND - _BAR_HEIGHT) / 2 + 6

    def _y(self, down: float) -> float:
        """Where something stands that is so far below the outer edge: the edge away from the other node."""
        return self._top + (self._height - down if self._flipped else down)

    def _box_y(self, down: float, height: float) -> float:
        return self._y(down + height) if self._flipped else self._y(down)

    def draw(self, heading: str) -> None:
        """Draw from the background to the front."""
        picture = self._picture
        self._canvas.box(picture._left, self._top, picture._node_width, self._height, _NODE_FILL, _NODE_EDGE, 10)
        self._canvas.write(picture._left + _PADDING, self._y(_HEADING - 6), heading, 13, _INK, "start", bold=True)
        for area in self._layout.areas:
            self._draw_area(area)
        for device, column in (self._layout.tops | self._layout.nics).items():
            self._draw_wire(device, column)
        for rail in picture._view.rails.rails:
            self._draw_way(rail)
        for bar in self._layout.bars:
            self._draw_bar(bar)
        for rail in picture._view.rails.rails:
            self._draw_distance(rail)
        if picture._has_nvlinks:
            self._draw_nvlinks()
        self._draw_devices()

    def _draw_area(self, area: Area) -> None:
        x, end = self._picture.x(area.first) + 2, self._picture.x(area.last) - 2
        down = _HEADING + 6
        height = self._height - _PADDING + 8 - down
        self._canvas.box(x, self._box_y(down, height), end - x, height, _AREA_FILL, radius=8)
        node = next((node for node in self._machine.numa_nodes if node.index == area.numa_node), None)
        socket = f"socket {node.socket}, " if node is not None and node.socket is not None else ""
        label = "NUMA ?" if area.numa_node is None else f"{socket}NUMA {area.numa_node}"
        self._canvas.write(x + 10, self._y(down + 12), label, 11, _FAINT, "start", room=end - x - 12)

    def _draw_wire(self, device: str, column: float) -> None:
        if device in self._layout.bar_of:
            x = self._picture.x(column)
            edge = self._nic_top if device in self._layout.nics else self._gpu_bottom
            self._canvas.line(x, self._y(edge), x, self._y(self._bar_down + _BAR_HEIGHT / 2), _WIRE)

    def _draw_bar(self, bar: Bar) -> None:
        x, end = self._picture.x(bar.first) + 8, self._picture.x(bar.last) - 8
        self._canvas.box(x, self._box_y(self._bar_down, _BAR_HEIGHT), end - x, _BAR_HEIGHT, _BAR_FILL, radius=4)
        label = f"{bar.label}, {gbit_s(bar.speed_gbit_s)} up"
        if bar.speed_gbit_s is None or text_width(label, 10.5) > end - x:
            label = bar.label
        self._canvas.write((x + end) / 2, self._y(self._bar_down + _BAR_HEIGHT / 2), label, 10.5, _INK, room=end - x)

    def _draw_way(self, rail: Rail) -> None:
        """Draw a rank's way to its NIC: dashed where it leaves the switch."""
        top = self._layout.tops.get(rail.gpu or f"rank {rail.local_index}")
        if top is None:
            return
        x1, x2 = self._picture.x(top), self._picture.x(self._layout.nics[rail.nearest.nic])
        y1, y2 = self._y(self._gpu_bottom), self._y(self._nic_top)
        is_far = rail.nearest.distance in _FAR
        colour = self._picture._colour_of[rail.nearest.nic]
        self._canvas.curve(x1, y1, x2, y2, self._y(self._bar_down), colour, 2.2, is_far)

    def _draw_distance(self, rail: Rail) -> None:
        """Write how far a GPU's NIC is, next to the GPU."""
        if rail.gpu is not None and rail.nearest.distance is not None:
            x, y = self._picture.x(self._layout.tops[rail.gpu]), self._y(self._gpu_bottom + 17)
            width = text_width(rail.nearest.distance, 10.5) + 6
            self._canvas.box(x - width / 2, y - 8, width, 16, _AREA_FILL, radius=3)
            colour = self._picture._colour_of[rail.nearest.nic]
            self._canvas.write(x, y, rail.nearest.distance, 10.5, colour, bold=True)

    def _draw_nvlinks(self) -> None:
        machine, tops = self._machine, self._layout.tops
        pairs = [machine.link(a, b) for a, b in combinations(machine.gpus, 2)]
        down = self._gpu_top - _NVLINK_HEIGHT + 4
        if len({(link.kind, link.speed_gbit_s) for link in pairs}) > 1:
            self._draw_single_nvlinks()
            return
        first, last = min(tops.values()), max(tops.values())
        x, end = self._picture.x(first) - _BOX_WIDTH / 2, self._picture.x(last) + _BOX_WIDTH / 2
        for column in tops.values():
            at = self._picture.x(column)
            self._canvas.line(at, self._y(down + 20), at, self._y(self._gpu_top), _NVLINK_FILL, 3)
        self._canvas.box(x, self._box_y(down, 22), end - x, 22, _NVLINK_FILL, radius=5)
        switches = f"{machine.num_nvswitches} NVSwitches: " if machine.num_nvswitches else "NVLink: "
        label = switches + nvlink_summary(machine)
        self._canvas.write((x + end) / 2, self._y(down + 11), label, 11.5, _NVLINK_INK, bold=True, room=end - x - 8)

    def _draw_single_nvlinks(self) -> None:
        """Draw an arch for each pair that NVLinks join, with their number."""
        machine, tops = self._machine, self._layout.tops
        edge = self._y(self._gpu_top)
        for a, b in combinations(machine.gpus, 2):
            link = machine.link(a, b)
            if link.num_nvlinks:
                x1, x2 = self._picture.x(tops[a.id]), self._picture.x(tops[b.id])
                rise = min(14 + abs(x2 - x1) / 14, _NVLINK_HEIGHT - 6) / 0.75
                bend = edge + rise if self._flipped else edge - rise
                self._canvas.curve(x1, edge, x2, edge, bend, _NVLINK_FILL, 1 + min(link.num_nvlinks, 6) * 0.5)
                if abs(x2 - x1) < 1.5 * _COLUMN:
                    top = (edge + 3 * bend) / 4 + (9 if self._flipped else -9)
                    self._canvas.write((x1 + x2) / 2, top, link.kind, 10.5, _GPU_EDGE, bold=True)

    def _draw_devices(self) -> None:
        gpus = {gpu.id: gpu for gpu in self._machine.gpus}
        rank_of = self._picture.rank_of
        y = self._box_y(self._gpu_top, _BOX_HEIGHT)
        for device, column in self._layout.tops.items():
            x = self._picture.x(column) - _BOX_WIDTH / 2
            gpu = gpus.get(device)
            fill, edge = (_GPU_FILL, _GPU_EDGE) if gpu else (_RANK_FILL, _RANK_EDGE)
            title = " ".join(part for part in (gpu.id, gpu.model, gpu.bus_id) if part) if gpu else device
            self._canvas.box(x, y, _BOX_WIDTH, _BOX_HEIGHT, fill, edge, title=title)
            rank = f"local rank {rank_of[device]}" if device in rank_of else "no rank" if gpu else "CPU"
            self._two_lines(x, y, device, rank, edge)
        y = self._box_y(self._nic_top, _BOX_HEIGHT)
        for nic in self._machine.nics:
            colour = self._picture._colour_of.get(nic.id, _WIRE)
            x = self._picture.x(self._layout.nics[nic.id]) - _BOX_WIDTH / 2
            title = " ".join(part for part in (nic.id, nic.name, NIC_KINDS[nic.kind], nic.bus_id) if part)
            self._canvas.box(x, y, _BOX_WIDTH, _BOX_HEIGHT, _NIC_FILL, colour, title=title)
            below = gbit_s(nic.speed_gbit_s) or NIC_KINDS[nic.kind] or "? Gbit/s"
            self._two_lines(x, y, nic.name or nic.id, below, _INK if nic.id in self._picture._colour_of else _FAINT)

    def _two_lines(self, x: float, y: float, upper: str, lower: str, colour: str) -> None:
        middle = x + _BOX_WIDTH / 2
        self._canvas.write(middle, y + 15, upper, 12.5, colour, bold=True, room=_BOX_WIDTH - 4)
        self._canvas.write(middle, y + 32, lower, 10.5, _FAINT, room=_BOX_WIDTH - 4)


def _footnotes(view: Overview) -> list[str]:
    notes = list(view.rails.notes)
    if len(notes) > _MOST_NOTES:
        notes[_MOST_NOTES - 1 :] = [f"... and {len(notes) - _MOST_NOTES + 1} more"]
    if any(rail.nearest.distance in _FAR for rail in view.rails.rails):
        notes.append("dashed: the way from a GPU to its NIC leaves the PCIe switches")
    return notes


def _stroke(rails: list[Rail]) -> float:
    """Return how thick to draw a NIC's rails: by their speed together, from 2 to 9 pixels."""
    speeds = [rail.nearest.speed_gbit_s for rail in rails]
    known = sum(speed for speed in speeds if speed is not None)
    return 2 + 7 * math.sqrt(min(known / 800, 1))


def _ranges(numbers: list[int]) -> str:
    """Return "0-3" for [0, 1, 2, 3], "0, 4" for [0, 4]."""
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ", ".join(map(str, ordered))
