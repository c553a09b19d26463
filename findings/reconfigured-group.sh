#!/bin/sh
# torch 2.15 shrinks a group in place (`init_process_group("gloo", enable_reconfigure=True)`, then reconfigure() with the
# handles of those who stay). Size, this process's rank and results are then the new ones, in the order of the handles,
# also for objects that hold the group. But dist.get_process_group_ranks() goes on to list the members it was made with:
# who translates ranks by it, or makes a group "over the same ranks", has the old members, without an error.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-28, printed:
#   [0, 1, 2] meet: as 0, 1, 2 of 3; sum 6.0; get_process_group_ranks() says [0, 1, 2]
#   [2, 0] meet: as 0, 1 of 2; sum 4.0; get_process_group_ranks() says [0, 1, 2]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/shrink.py" <<'END'
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing

MINUTE = timedelta(minutes=1)
QUORUMS = ([0, 1, 2], [2, 0])


def member(number, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=MINUTE)
    dist.init_process_group("gloo", store=store, rank=number, world_size=3, timeout=MINUTE, enable_reconfigure=True)
    group = dist.group.WORLD
    for uuid, members in enumerate(QUORUMS):
        if number in members:
            store.set(f"handle {uuid} {number}", group.get_reconfigure_handle())
            options = torch._C._distributed_c10d.ReconfigureOptions()
            options.uuid, options.timeout = uuid, MINUTE
            options.handles = [store.get(f"handle {uuid} {other}").decode() for other in members]
            group.reconfigure(options).wait()
            summed = torch.tensor([float(number + 1)])
            dist.all_reduce(summed)
            places = [None] * group.size()
            dist.all_gather_object(places, dist.get_rank())
            said = dist.get_process_group_ranks(group)
            if dist.get_rank() == 0:
                places = ", ".join(map(str, places))
                print(f"{members} meet: as {places} of {group.size()}; sum {summed.item()}; "
                      f"get_process_group_ranks() says {said}", flush=True)
            assert said == [0, 1, 2] and group.size() == len(members), "this has changed"
        store.set(f"done {uuid} {number}", "")
        store.wait([f"done {uuid} {other}" for other in range(3)])
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=3)
END
"$folder/bin/python" -W ignore "$folder/shrink.py"
