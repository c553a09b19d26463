"""Draws one node: its GPUs, their switches, its NICs, and the path of each rank to its NIC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from isthmus.topology.machine import Machine
from isthmus.topology.rails import Rail, Rails
from isthmus.topology.render.svg_canvas import Canvas, text_width
from isthmus.topology.render.svg_layout import Area, Bar, Layout
from isthmus.topology.render.text import NIC_KINDS, gbit_s, nvlink_summary

INK, FAINT = "#1f2933", "#6b7885"
COLUMN = 96.0
PADDING = 18.0
#: Distances beyond the PCIe switches of a GPU.
FAR = ("PHB", "NODE", "SYS")

_WIRE = "#a9b4bf"
_GPU_FILL, _GPU_EDGE = "#e3f3e1", "#4d9a45"
_RANK_FILL, _RANK_EDGE = "#eceff3", "#8492a0"
_NIC_FILL = "#ffffff"
_NODE_FILL, _NODE_EDGE = "#fbfcfd", "#c3ccd5"
_AREA_FILL = "#eef2f7"
_BAR_FILL = "#d6dee7"
_NVLINK_FILL, _NVLINK_INK = "#4d9a45", "#ffffff"

_BOX_WIDTH = 82.0
_BOX_HEIGHT = 44.0
_HEADING = 24.0  # of the node, and of an area in it
_NVLINK_HEIGHT = 44.0
_BAND = 92.0  # between GPUs and NICs
_BAR_HEIGHT = 18.0


@dataclass(frozen=True)
class Scene:
    """The common properties of a picture's nodes. left: its edge. colour_of: of the NICs that carry rails."""

    machine: Machine
    rails: Rails
    layout: Layout
    left: float
    colour_of: Mapping[str, str]
    rank_of: Mapping[str, int]

    @property
    def has_nvlinks(self) -> bool:
        """Whether any GPUs are joined by NVLinks."""
        return bool(nvlink_summary(self.machine))

    @property
    def node_width(self) -> float:
        """The width of the box around a node."""
        return width_of(self.layout)

    @property
    def node_height(self) -> float:
        """The height of the box around a node."""
        below_gpus = _BAND + _BOX_HEIGHT if self.machine.nics else _BAND / 2 + 14
        return 2 * _HEADING + 2 * PADDING + self.has_nvlinks * _NVLINK_HEIGHT + _BOX_HEIGHT + below_gpus

    def x(self, column: float) -> float:
        """Where a place that counts in columns stands."""
        return self.left + PADDING + column * COLUMN


def width_of(layout: Layout) -> float:
    """How wide a node is."""
    return max(layout.num_columns, 1) * COLUMN + 2 * PADDING


class NodeDrawing:
    """Draws one node of a scene; flipped: its NICs are on top, towards the node above."""

    def __init__(self, scene: Scene, canvas: Canvas, top: float, flipped: bool) -> None:
        self._scene = scene
        self._canvas = canvas
        self._layout = scene.layout
        self._machine = scene.machine
        self._top = top
        self._height = scene.node_height
        self._flipped = flipped
        self._gpu_top = _HEADING + PADDING + _HEADING + scene.has_nvlinks * _NVLINK_HEIGHT
        self._gpu_bottom = self._gpu_top + _BOX_HEIGHT
        self._nic_top = self._gpu_bottom + _BAND
        self._bar_down = self._gpu_bottom + (_BAND - _BAR_HEIGHT) / 2 + 6

    def _y(self, down: float) -> float:
        """The height of something so far below the outer edge: the edge away from the other node."""
        return self._top + (self._height - down if self._flipped else down)

    def _box_y(self, down: float, height: float) -> float:
        return self._y(down + height) if self._flipped else self._y(down)

    def draw(self, heading: str) -> None:
        """Draw from the background to the front."""
        scene = self._scene
        self._canvas.box(scene.left, self._top, scene.node_width, self._height, _NODE_FILL, _NODE_EDGE, 10)
        self._canvas.write(scene.left + PADDING, self._y(_HEADING - 6), heading, 13, INK, "start", bold=True)
        for area in self._layout.areas:
            self._draw_area(area)
        for device, column in (self._layout.tops | self._layout.nics).items():
            self._draw_wire(device, column)
        for rail in scene.rails.rails:
            self._draw_way(rail)
        for bar in self._layout.bars:
            self._draw_bar(bar)
        for rail in scene.rails.rails:
            self._draw_distance(rail)
        if scene.has_nvlinks:
            self._draw_nvlinks()
        self._draw_tops()
        self._draw_nics()

    def _draw_area(self, area: Area) -> None:
        x, end = self._scene.x(area.first) + 2, self._scene.x(area.last) - 2
        down = _HEADING + 6
        height = self._height - PADDING + 8 - down
        self._canvas.box(x, self._box_y(down, height), end - x, height, _AREA_FILL, radius=8)
        node = next((node for node in self._machine.numa_nodes if node.index == area.numa_node), None)
        socket = f"socket {node.socket}, " if node is not None and node.socket is not None else ""
        label = "NUMA ?" if area.numa_node is None else f"{socket}NUMA {area.numa_node}"
        self._canvas.write(x + 10, self._y(down + 12), label, 11, FAINT, "start", room=end - x - 12)

    def _draw_wire(self, device: str, column: float) -> None:
        if device in self._layout.bar_of:
            x = self._scene.x(column)
            edge = self._nic_top if device in self._layout.nics else self._gpu_bottom
            self._canvas.line(x, self._y(edge), x, self._y(self._bar_down + _BAR_HEIGHT / 2), _WIRE)

    def _draw_bar(self, bar: Bar) -> None:
        x, end = self._scene.x(bar.first) + 8, self._scene.x(bar.last) - 8
        self._canvas.box(x, self._box_y(self._bar_down, _BAR_HEIGHT), end - x, _BAR_HEIGHT, _BAR_FILL, radius=4)
        label = f"{bar.label}, {gbit_s(bar.speed_gbit_s)} up"
        if bar.speed_gbit_s is None or text_width(label, 10.5) > end - x:
            label = bar.label
        self._canvas.write((x + end) / 2, self._y(self._bar_down + _BAR_HEIGHT / 2), label, 10.5, INK, room=end - x)

    def _draw_way(self, rail: Rail) -> None:
        """Draw a rank's way to its NIC: dashed where it leaves the switch."""
        top = self._layout.tops[rail.gpu or f"rank {rail.local_index}"]
        x1, x2 = self._scene.x(top), self._scene.x(self._layout.nics[rail.nearest.nic])
        y1, y2 = self._y(self._gpu_bottom), self._y(self._nic_top)
        is_far = rail.nearest.distance in FAR
        colour = self._scene.colour_of[rail.nearest.nic]
        self._canvas.curve(x1, y1, x2, y2, self._y(self._bar_down), colour, 2.2, is_far)

    def _draw_distance(self, rail: Rail) -> None:
        """Write how far a GPU's NIC is, next to the GPU."""
        if rail.gpu is not None and rail.nearest.distance is not None:
            x, y = self._scene.x(self._layout.tops[rail.gpu]), self._y(self._gpu_bottom + 17)
            width = text_width(rail.nearest.distance, 10.5) + 6
            self._canvas.box(x - width / 2, y - 8, width, 16, _AREA_FILL, radius=3)
            colour = self._scene.colour_of[rail.nearest.nic]
            self._canvas.write(x, y, rail.nearest.distance, 10.5, colour, bold=True)

    def _draw_nvlinks(self) -> None:
        machine, tops = self._machine, self._layout.tops
        pairs = [machine.link(a, b) for a, b in combinations(machine.gpus, 2)]
        down = self._gpu_top - _NVLINK_HEIGHT + 4
        if len({(link.kind, link.speed_gbit_s) for link in pairs}) > 1:
            self._draw_single_nvlinks()
            return
        first, last = min(tops.values()), max(tops.values())
        x, end = self._scene.x(first) - _BOX_WIDTH / 2, self._scene.x(last) + _BOX_WIDTH / 2
        for column in tops.values():
            at = self._scene.x(column)
            self._canvas.line(at, self._y(down + 20), at, self._y(self._gpu_top), _NVLINK_FILL, 3)
        self._canvas.box(x, self._box_y(down, 22), end - x, 22, _NVLINK_FILL, radius=5)
        switches = f"{machine.num_nvswitches} NVSwitches: " if machine.num_nvswitches else "NVLink: "
        label = switches + nvlink_summary(machine)
        self._canvas.write((x + end) / 2, self._y(down + 11), label, 11.5, _NVLINK_INK, bold=True, room=end - x - 8)

    def _draw_single_nvlinks(self) -> None:
        """Draw an arch for each pair that NVLinks join, thicker for more; with their number, if there is room."""
        links = [self._machine.link(a, b) for a, b in combinations(self._machine.gpus, 2)]
        joined = [link for link in links if link.num_nvlinks]
        x_of = {device: self._scene.x(column) for device, column in self._layout.tops.items()}
        widest = max(abs(x_of[link.a] - x_of[link.b]) for link in joined)
        edge, away = self._y(self._gpu_top), 1 if self._flipped else -1
        for link in joined:
            start, end = x_of[link.a], x_of[link.b]
            rise = away * (10 + 24 * abs(end - start) / widest)
            bend = edge + rise / 0.75  # the curve itself rises to three quarters of that
            self._canvas.curve(start, edge, end, edge, bend, _NVLINK_FILL, 1 + min(link.num_nvlinks, 6) * 0.5)
            if widest < 1.5 * COLUMN:
                self._canvas.write((start + end) / 2, edge + rise + 9 * away, link.kind, 10.5, _GPU_EDGE, bold=True)

    def _draw_tops(self) -> None:
        """Draw GPUs, or the ranks of a machine without any."""
        gpus = {gpu.id: gpu for gpu in self._machine.gpus}
        rank_of = self._scene.rank_of
        y = self._box_y(self._gpu_top, _BOX_HEIGHT)
        for device, column in self._layout.tops.items():
            x = self._scene.x(column) - _BOX_WIDTH / 2
            gpu = gpus.get(device)
            if gpu is None:
                self._canvas.box(x, y, _BOX_WIDTH, _BOX_HEIGHT, _RANK_FILL, _RANK_EDGE)
                self._two_lines(x, y, device, "CPU", _RANK_EDGE)
            else:
                title = " ".join(part for part in (gpu.id, gpu.model, gpu.bus_id) if part)
                self._canvas.box(x, y, _BOX_WIDTH, _BOX_HEIGHT, _GPU_FILL, _GPU_EDGE, title=title)
                rank = f"local rank {rank_of[gpu.id]}" if gpu.id in rank_of else "no rank"
                self._two_lines(x, y, gpu.id, rank, _GPU_EDGE)

    def _draw_nics(self) -> None:
        y = self._box_y(self._nic_top, _BOX_HEIGHT)
        for nic in self._machine.nics:
            x = self._scene.x(self._layout.nics[nic.id]) - _BOX_WIDTH / 2
            title = " ".join(part for part in (nic.id, nic.name, NIC_KINDS[nic.kind], nic.bus_id) if part)
            edge = self._scene.colour_of.get(nic.id, _WIRE)
            self._canvas.box(x, y, _BOX_WIDTH, _BOX_HEIGHT, _NIC_FILL, edge, title=title)
            below = gbit_s(nic.speed_gbit_s) or NIC_KINDS[nic.kind] or "? Gbit/s"
            self._two_lines(x, y, nic.name or nic.id, below, INK if nic.id in self._scene.colour_of else FAINT)

    def _two_lines(self, x: float, y: float, upper: str, lower: str, colour: str) -> None:
        middle = x + _BOX_WIDTH / 2
        self._canvas.write(middle, y + 15, upper, 12.5, colour, bold=True, room=_BOX_WIDTH - 4)
        self._canvas.write(middle, y + 32, lower, 10.5, FAINT, room=_BOX_WIDTH - 4)
