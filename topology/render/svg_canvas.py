"""Writes SVG: boxes, curves and text, nothing else."""

from __future__ import annotations

from xml.sax.saxutils import escape

INK, FAINT = "#1f2933", "#6b7885"
_FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
#: Width of a letter in this family, as a share of the font's size: on average, rather more than less.
_LETTER = 0.6


class Canvas:
    """Collects shapes, the first at the bottom; `text` of the whole at the end. Lengths are pixels.

    down: where shapes stand counts from here, or with `flipped` upwards from here.
    """

    def __init__(self) -> None:
        self.down = 0.0
        self.flipped = False
        self._shapes: list[str] = []

    def y(self, down: float) -> float:
        """Where something stands on the page."""
        return self.down - down if self.flipped else self.down + down

    def box(self, x: float, down: float, width: float, height: float, fill: str, edge: str = "none") -> None:
        """A rectangle with round corners."""
        y = self.y(down + height if self.flipped else down)
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" '
            f'fill="{fill}" stroke="{edge}"/>'
        )

    def curve(
        self, x1: float, down1: float, x2: float, down2: float, stroke: str, width: float, dashed: bool = False
    ) -> None:
        """A curve that leaves and arrives upright: from above to below it is a straight line."""
        y1, y2, middle = self.y(down1), self.y(down2), self.y((down1 + down2) / 2)
        dash = ' stroke-dasharray="6 5"' if dashed else ""
        self._shapes.append(
            f'<path d="M{x1:.1f} {y1:.1f} C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}" '
            f'fill="none" stroke="{stroke}" stroke-width="{width:.1f}"{dash}/>'
        )

    def write(
        self, x: float, down: float, text: str, size: float, colour: str, room: float, centred: bool = True
    ) -> None:
        """Text whose middle is there, cut to `room`. Larger than 12 is bold."""
        anchor = ' text-anchor="middle"' if centred else ""
        weight = ' font-weight="600"' if size > 12 else ""
        baseline = self.y(down) + size * 0.36
        self._shapes.append(
            f'<text x="{x:.1f}" y="{baseline:.1f}" font-size="{size}" fill="{colour}"{anchor}{weight}>'
            f"{escape(fit(text, size, room))}</text>"
        )

    def text(self, width: float, height: float) -> str:
        """The document."""
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}">',
                '<rect width="100%" height="100%" fill="#ffffff"/>',
                *self._shapes,
                "</svg>",
                "",
            ]
        )


def fit(text: str, size: float, room: float) -> str:
    """Return the text, or as much of its beginning as has room, with dots."""
    letters = int(room / (size * _LETTER))
    return text if len(text) <= letters else text[: max(letters - 1, 0)].rstrip() + "…"
