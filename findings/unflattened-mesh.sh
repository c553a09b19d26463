#!/bin/sh
# A mesh that was cut by `_unflatten`, as torchtitan cuts its meshes, has the ranks, groups and names of one that
# `init_device_mesh` made, and equals it. But what is cut out of it does not know what it was cut out of: the root of
# mesh["dp"] is the flat mesh that was there before, in which neither "dp" nor "tp" occurs. Whoever is handed mesh["dp"]
# (fully_shard, replicate, a checkpoint) and looks into its root for the other dimensions, as torch itself does with
# `_get_root_mesh`, finds none, without an error: copies under tensor parallelism are then taken for ranks of their own.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-28, printed:
#   init_device_mesh: dp over [0, 2, 4, 6], tp over [0, 1]; the root of mesh["dp"] has ('dp', 'tp')
#   _unflatten: dp over [0, 2, 4, 6], tp over [0, 1]; the root of mesh["dp"] has ('world',)
#   equal: True, dp alone: True
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/mesh.py" <<'END'
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)  # torch's own: one process, nothing is sent
made = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
flat = init_device_mesh("cpu", (8,), mesh_dim_names=("world",))
cut = flat._unflatten(0, (4, 2), ("dp", "tp"))
roots = []
for how, mesh in (("init_device_mesh", made), ("_unflatten", cut)):
    dp, tp = (dist.get_process_group_ranks(mesh.get_group(name)) for name in ("dp", "tp"))
    roots.append(mesh["dp"]._get_root_mesh().mesh_dim_names)
    print(f'{how}: dp over {dp}, tp over {tp}; the root of mesh["dp"] has {roots[-1]}')
print(f"equal: {made == cut}, dp alone: {made['dp'] == cut['dp']}")
assert roots == [("dp", "tp"), ("world",)], "this has changed"
END
"$folder/bin/python" -W ignore "$folder/mesh.py"
