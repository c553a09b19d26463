"""All logs in one file, since only a few files come back from where the steps run."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

#: The beginning and the end of each log are kept, this much of each.
KEPT_BYTES = 1 << 20


def write(logs: Path, archive: Path) -> None:
    """Write the archive anew. A reader never sees half of one."""
    draft = archive.with_name(archive.name + ".new")
    draft.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(draft, "w:gz") as tar:
        for path in sorted(logs.glob("*.log")):
            data = shortened(path.read_bytes())
            entry = tarfile.TarInfo(path.name)
            entry.size = len(data)
            entry.mtime = int(path.stat().st_mtime)
            tar.addfile(entry, io.BytesIO(data))
    draft.replace(archive)


def shortened(data: bytes) -> bytes:
    """Leave out the middle of what is too long."""
    left_out = len(data) - 2 * KEPT_BYTES
    if left_out <= 0:
        return data
    return data[:KEPT_BYTES] + b"\n... %d bytes are left out ...\n" % left_out + data[-KEPT_BYTES:]
