"""What the fuzzer of checkpoints starts from."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory


def write(folder: Path, target: str) -> None:
    """A checkpoint of one unit with a residual, as torch writes it."""
    import torch
    import torch.distributed.checkpoint as dcp

    unit = {"name": "a", "num_elements": 6, "dtype": "float32", "collective": "reduce_scatter", "layout": 0, "step": 2}
    unit |= {"scale": 0.5, "sections": [[0, 3]], "parked": [], "residual_elements": 3, "result_residual_elements": 0}
    unit |= {"parked_values_elements": 0, "is_owned": False}
    group = {"ranks": [0], "node_of_rank": [0], "options": {}, "units": [unit]}
    text = json.dumps({"version": 2, "groups": [group]})
    with TemporaryDirectory() as name:
        state = {"rank0": text, "rank0/0/0/residual": torch.ones(3)}
        dcp.save({"isthmus": state}, checkpoint_id=name, no_dist=True)
        metadata = (Path(name) / ".metadata").read_bytes()
        data = (Path(name) / "__0_0.distcp").read_bytes()
    (folder / "saved").write_bytes(len(metadata).to_bytes(2, "little") + metadata + data)
