"""Writes SVG: boxes, lines and text, nothing else."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

_FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
#: Width of a letter in this family, as a share of the font's size: on average, rather more than less.
_LETTER = 0.6


class Canvas:
    """Collects shapes, the first at the bottom; `text` of the whole at the end. Lengths are pixels."""

    def __init__(self, width: float, height: float) -> None:
        self._width = width
        self._height = height
        self._shapes: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        stroke: str = "none",
        radius: float = 6,
        title: str = "",
    ) -> None:
        """A rectangle with round corners; `title` is shown where the pointer rests on it."""
        inner = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" '
            f'fill="{fill}" stroke="{stroke}"{inner}'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1.5) -> None:
        """A straight line."""
        self._shapes.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="{stroke}" stroke-width="{width:.1f}"/>'
        )

    def curve(
        self, x1: float, y1: float, x2: float, y2: float, bend: float, stroke: str, width: float, dashed: bool = False
    ) -> None:
        """A curve that leaves and arrives upright; `bend` is the height at which it turns."""
        dash = ' stroke-dasharray="6 5"' if dashed else ""
        self._shapes.append(
            f'<path d="M{x1:.1f} {y1:.1f} C{x1:.1f} {bend:.1f} {x2:.1f} {bend:.1f} {x2:.1f} {y2:.1f}" '
            f'fill="none" stroke="{stroke}" stroke-width="{width:.1f}" stroke-linecap="round"{dash}/>'
        )

    def write(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        fill: str = "#1f2933",
        anchor: str = "middle",
        bold: bool = False,
        room: float | None = None,
    ) -> None:
        """Text whose middle is at height y; cut to `room`, if given."""
        if room is not None:
            text = fit(text, size, room)
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y + size * 0.36:.1f}" font-size="{size}" fill="{fill}" '
            f"text-anchor={quoteattr(anchor)}{weight}>{escape(text)}</text>"
        )

    def text(self) -> str:
        """The document."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{self._width:.0f}" height="{self._height:.0f}" '
                f'viewBox="0 0 {self._width:.0f} {self._height:.0f}" font-family="{_FONT}">',
                '<rect width="100%" height="100%" fill="#ffffff"/>',
                *self._shapes,
                "</svg>",
                "",
            ]
        )


def text_width(text: str, size: float) -> float:
    """About how wide a text is."""
    return len(text) * size * _LETTER


def fit(text: str, size: float, room: float) -> str:
    """Return the text, or as much of its beginning as has room, with dots."""
    letters = int(room / (size * _LETTER))
    return text if len(text) <= letters else text[: max(letters - 1, 0)].rstrip() + "…"
