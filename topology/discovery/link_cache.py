"""The file that keeps measured links: `isthmus topo --measure` writes it, `isthmus plan` reads it.

    {"format": "isthmus links", "version": 2, "measurements": [
      {"date": "2026-11-21T18:50:00+00:00", "hosts": ["a", "b"], "node_map": "2 nodes x 4 ranks, in blocks",
       "num_nodes": 2, "ranks_per_node": 4, "backend": "gloo", "versions": {"isthmus": "0.1.0", "torch": "2.11.0"},
       "intra": {"latency_us": 15.0, "bandwidth_gbit_s": 40.0, "samples": [
         {"num_bytes": 1024, "time_us": 16.0, "slowest_us": 21.0}]},
       "inter": null}]}

The newest measurement stands last, one for each cluster: hosts, node map and backend.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger("isthmus")

FORMAT = "isthmus links"
VERSION = 2
#: What `isthmus plan --links` takes beside a path: the newest measurement of the cache.
CACHE = "cache"
#: Clusters that one file remembers; the oldest goes first.
MAX_MEASUREMENTS = 16
#: A file of as many measurements of thousands of hosts each is smaller than this.
MAX_FILE_BYTES = 16 << 20


class LinkFileError(ValueError):
    """A file of measured links that cannot be read; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class LinkSample:
    """One size of message, and how long all ranks of a tier took to send it to their neighbour at once.

    time_us: in the fastest round of the measurement. slowest_us: in the slowest.
    """

    num_bytes: int
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

    latency_us: float
    bandwidth_gbit_s: float
    samples: tuple[LinkSample, ...]


@dataclass(frozen=True)
class MeasuredLinks:
    """Both tiers of one cluster. A tier of one rank has no link: None."""

    intra: MeasuredLink | None
    inter: MeasuredLink | None
    num_nodes: int
    ranks_per_node: int
    #: As `isthmus.stats()["node_map"]` prints it.
    node_map: str
    #: Names of the hosts that took part, sorted.
    hosts: tuple[str, ...]
    #: What moved the bytes: "gloo".
    backend: str
    #: When, in ISO 8601 with the offset from UTC.
    date: str
    versions: Mapping[str, str]

    @property
    def cluster(self) -> tuple[tuple[str, ...], str, str]:
        """What a later measurement must share to replace this one."""
        return self.hosts, self.node_map, self.backend

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
    """Return the newest measurement in a file (default: the cache). Raises LinkFileError if it has none."""
    path = path or default_path()
    return _read(path)[-1]


def cached_links() -> MeasuredLinks | None:
    """Return the newest measurement of the cache. None where nothing was measured yet.

    A damaged or foreign file is named in a warning, and ignored.
    """
    path = default_path()
    try:
        return load_links(path) if os.path.exists(path) else None  # which, unlike Path.exists, never raises
    except LinkFileError as error:
        logger.warning("%s: ignored", error)
        return None


def save_links(links: MeasuredLinks, path: Path | None = None) -> Path:
    """Add a measurement to a file (default: the cache), in place of an older one of the same cluster.

    A file that cannot be read is named in a warning, and replaced. Readers see the old file or the new one, never a
    part. Raises OSError where it cannot be written.
    """
    path = path or default_path()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kept = [other for other in _read_or_nothing(path) if other.cluster != links.cluster]
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, json.dumps(document([*kept, links][-MAX_MEASUREMENTS:]), indent=1) + "\n")
    return path


def document(measurements: Sequence[MeasuredLinks]) -> dict[str, Any]:
    """The content of a file, as plain values."""
    return {"format": FORMAT, "version": VERSION, "measurements": [asdict(each) for each in measurements]}


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _read_or_nothing(path: Path) -> list[MeasuredLinks]:
    if not os.path.exists(path):
        return []
    try:
        return _read(path)
    except LinkFileError as error:
        logger.warning("%s: replaced", error)
        return []


def _read(path: Path) -> list[MeasuredLinks]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise LinkFileError(f"{path}: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise LinkFileError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        document = json.loads(content)
    except json.JSONDecodeError as error:
        raise LinkFileError(f"{path}:{error.lineno}: no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits
        raise LinkFileError(f"{path}: no JSON: {error}") from None
    try:
        return _measurements(document)
    except ValueError as error:
        raise LinkFileError(f"{path}: {error}") from None


def _measurements(document: Any) -> list[MeasuredLinks]:
    """Check everything that a hand or another program may have written. Raises ValueError naming the place."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f'no file of measured links: "format" is not "{FORMAT}"')
    if document.get("version") != VERSION:
        raise ValueError(f"version {document.get('version')!r}, but this isthmus reads version {VERSION}")
    measurements = _list(document, "measurements", "")
    if not measurements:
        raise ValueError("measurements: expected one or more, got none")
    return [_links(entry, f"measurements[{index}].") for index, entry in enumerate(measurements)]


def _links(entry: Any, place: str) -> MeasuredLinks:
    _require(isinstance(entry, dict), place.rstrip("."), "an object", entry)
    versions = entry.get("versions")
    _require(
        isinstance(versions, dict) and all(isinstance(value, str) for value in versions.values()),
        f"{place}versions",
        "an object of texts",
        versions,
    )
    hosts = _list(entry, "hosts", place)
    _require(all(isinstance(host, str) for host in hosts), f"{place}hosts", "texts", hosts)
    return MeasuredLinks(
        intra=_link(entry.get("intra"), f"{place}intra"),
        inter=_link(entry.get("inter"), f"{place}inter"),
        num_nodes=_count(entry, "num_nodes", place),
        ranks_per_node=_count(entry, "ranks_per_node", place),
        node_map=_text(entry, "node_map", place),
        hosts=tuple(hosts),
        backend=_text(entry, "backend", place),
        date=_text(entry, "date", place),
        versions=versions,
    )


def _link(entry: Any, place: str) -> MeasuredLink | None:
    if entry is None:
        return None
    _require(isinstance(entry, dict), place, "an object or null", entry)
    entries = _list(entry, "samples", f"{place}.")
    samples = tuple(_sample(sample, f"{place}.samples[{index}]") for index, sample in enumerate(entries))
    return MeasuredLink(
        latency_us=_number(entry, "latency_us", f"{place}.", zero=True),
        bandwidth_gbit_s=_number(entry, "bandwidth_gbit_s", f"{place}."),
        samples=samples,
    )


def _sample(entry: Any, place: str) -> LinkSample:
    _require(isinstance(entry, dict), place, "an object", entry)
    return LinkSample(
        num_bytes=_count(entry, "num_bytes", f"{place}."),
        time_us=_number(entry, "time_us", f"{place}."),
        slowest_us=_number(entry, "slowest_us", f"{place}."),
    )


def _list(entry: Any, name: str, place: str) -> list[Any]:
    value: list[Any] = entry.get(name)
    _require(isinstance(value, list), place + name, "a list", value)
    return value


def _text(entry: Any, name: str, place: str) -> str:
    value: str = entry.get(name)
    _require(isinstance(value, str), place + name, "a text", value)
    return value


def _count(entry: Any, name: str, place: str) -> int:
    value: int = entry.get(name)
    _require(type(value) is int and value > 0, place + name, "a whole number above 0", value)
    return value


def _number(entry: Any, name: str, place: str, zero: bool = False) -> float:
    """Return a finite number above 0; with `zero`, or 0."""
    value: Any = entry.get(name)
    number = float(value) if isinstance(value, float) or (type(value) is int and abs(value) < 1 << 63) else math.nan
    fits = math.isfinite(number) and (number > 0 or (zero and number == 0))
    _require(fits, place + name, "0 or more" if zero else "a number above 0", value)
    return number


def _require(condition: bool, place: str, expected: str, value: Any) -> None:
    if not condition:
        text = json.dumps(value)
        raise ValueError(f"{place}: expected {expected}, got {text if len(text) <= 60 else text[:60] + '...'}")
