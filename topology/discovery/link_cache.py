"""The file that keeps measured links: `isthmus topo --measure` writes it, `isthmus plan` reads it.

{"format": "isthmus links", "version": 3, "date": "2026-11-21T18:50:00+00:00", "hosts": ["a", "b"],
 "node_map": "2 nodes x 4 ranks, in blocks", "num_nodes": 2, "ranks_per_node": 4, "backend": "gloo",
 "versions": {"isthmus": "0.1.0", "torch": "2.11.0"},
 "intra": {"latency_us": 15.0, "bandwidth_gbit_s": 40.0, "samples": [
   {"num_bytes": 1024, "time_us": 16.0, "slowest_us": 21.0}]},
 "inter": null}
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from isthmus.topology.records import AtLeast, read_record

logger = logging.getLogger("isthmus")

FORMAT = "isthmus links"
VERSION = 3
#: What `isthmus plan --links` takes beside a path: the measurement in the cache.
CACHE = "cache"

_Count = Annotated[int, AtLeast(1)]


class LinkFileError(ValueError):
    """A file of measured links that cannot be read; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class LinkSample:
    """One size of message, and how long all ranks of a tier took to send it to their neighbour at once.

    time_us: in the fastest round of the measurement. slowest_us: in the slowest.
    """

    num_bytes: _Count
    time_us: float
    slowest_us: float

    @property
    def spread(self) -> float:
        """The slowest round over the fastest one."""
        return self.slowest_us / self.time_us


@dataclass(frozen=True)
class MeasuredLink:
    """One tier's link: time_us = latency_us + bits / bandwidth. Both directions are busy at once.

    Intra: what one rank sends to its neighbour while every rank of the node does. Inter: what one *node* sends to the
    next while all its rails do.
    """

    latency_us: Annotated[float, AtLeast(0)]
    bandwidth_gbit_s: float
    samples: tuple[LinkSample, ...]


@dataclass(frozen=True)
class MeasuredLinks:
    """Both tiers of one cluster. A tier of one rank has no link: None."""

    intra: MeasuredLink | None
    inter: MeasuredLink | None
    num_nodes: _Count
    ranks_per_node: _Count
    #: As `isthmus.stats()["node_map"]` prints it.
    node_map: str
    #: Names of the hosts that took part, sorted.
    hosts: tuple[str, ...]
    #: What moved the bytes: "gloo".
    backend: str
    #: When, in ISO 8601 with the offset from UTC.
    date: str
    versions: Mapping[str, str]

    def describe(self) -> str:
        """Where the figures come from, in one line."""
        hosts = ", ".join(self.hosts[:3]) + (f" and {len(self.hosts) - 3} more" if len(self.hosts) > 3 else "")
        # Nodes that ISTHMUS_NODES makes of one machine talk over its memory.
        simulated = ", which is no network between nodes" if len(self.hosts) < min(self.num_nodes, 2) else ""
        return f"measured {self.date} over {self.backend}: {self.node_map}, on {hosts}{simulated}"


def default_path() -> Path:
    """Return `isthmus/links.json` in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "isthmus" / "links.json"


def load_links(path: Path | None = None) -> MeasuredLinks:
    """Return the measurement in a file (default: the cache). Raises LinkFileError if it has none."""
    path = path or default_path()
    try:
        values = json.loads(path.read_bytes())
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ValueError(f'no file of measured links: "format" is not "{FORMAT}"')
        if values.get("version") != VERSION:
            raise ValueError(f"version {values.get('version')!r}, but this isthmus reads version {VERSION}")
        return read_record(MeasuredLinks, values, "links")
    except OSError as error:
        raise LinkFileError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LinkFileError(f"{path}: {error}") from None


def cached_links() -> MeasuredLinks | None:
    """Return the measurement of the cache. None where nothing was measured yet.

    A damaged or foreign file is named in a warning, and ignored.
    """
    path = default_path()
    try:
        return load_links(path) if os.path.exists(path) else None  # which, unlike Path.exists, never raises
    except LinkFileError as error:
        logger.warning("%s: ignored", error)
        return None


def save_links(links: MeasuredLinks, path: Path | None = None) -> Path:
    """Write a measurement to a file (default: the cache), in place of what it holds.

    Readers see the old file or the new one, never a part. Raises OSError where it cannot be written.
    """
    path = path or default_path()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(document(links), indent=1) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def document(links: MeasuredLinks) -> dict[str, Any]:
    """The content of a file, as plain values."""
    return {"format": FORMAT, "version": VERSION, **asdict(links)}
