"""Made-up trees like /sys and /proc, with the NICs of a machine."""

from __future__ import annotations

from pathlib import Path

from isthmus.benchmarks.here.sysfs import Roots


class MadeUpSys:
    """Writes the files that Linux would show. Attributes given as None are left out."""

    def __init__(self, folder: Path) -> None:
        self.roots = Roots(folder / "sys", folder / "proc")
        self._sys = self.roots.sys

    def interface(
        self, name: str, on: str | None = None, kind: int = 1, state: str = "up", **attributes: object
    ) -> None:
        """An interface of a PCI function, or a virtual one."""
        parent = self._sys / "devices/virtual" if on is None else self._sys / "devices/pci0000:00" / on
        folder = parent / "net" / name
        for attribute, value in {"type": kind, "operstate": state, **attributes}.items():
            self.write(folder / attribute, value)
        self._link(self._sys / "class/net" / name, folder)

    def verbs(
        self, name: str, on: str | None, layer: str = "InfiniBand", state: str = "4: ACTIVE", ports: int = 1
    ) -> None:
        """A verbs device of a PCI function, or one made by software."""
        parent = self._sys / "devices/virtual" if on is None else self._sys / "devices/pci0000:00" / on
        folder = parent / "infiniband" / name
        for port in range(1, ports + 1):
            self.write(folder / f"ports/{port}/link_layer", layer)
            self.write(folder / f"ports/{port}/state", state)
        self._link(self._sys / "class/infiniband" / name, folder)

    def write(self, path: Path, value: object) -> None:
        """Write one attribute."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def _link(self, link: Path, target: Path) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
