#!/bin/sh
# Torch's flight recorder also records Gloo's collectives, and says of each that it is "scheduled", and that its end was
# never found: also long after the collective has ended and its caller has had its result. Only `retired`, and the group's
# last_completed_collective in the same dump, know it. Who reads a dump of a job that hangs for what is not "completed", as
# dumps of NCCL are read, finds every collective of the job.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed:
#   3 of gloo:all_reduce: scheduled, time_discovered_completed_ns 0, retired True; last_completed_collective 3
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/record.py" <<'END'
import json

import torch
import torch.distributed as dist
import torch.multiprocessing

RANKS = 2


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    values = torch.ones(3)
    for _ in range(3):
        dist.all_reduce(values)
    assert values.tolist() == [8.0] * 3
    record = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    entries = [entry for entry in record["entries"] if entry["profiling_name"] == "gloo:all_reduce"]
    states = {(e["state"], e["time_discovered_completed_ns"], e["retired"]) for e in entries}
    completed_last = record["pg_status"]["0"]["last_completed_collective"]
    if rank == 0:
        for state, completed, retired in states:
            print(f"{len(entries)} of {entries[0]['profiling_name']}: {state}, time_discovered_completed_ns {completed}, "
                  f"retired {retired}; last_completed_collective {completed_last}", flush=True)
    assert states == {("scheduled", 0, True)} and completed_last == "3", "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/record.py"
