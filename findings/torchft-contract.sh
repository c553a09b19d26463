#!/bin/sh
# Whoever writes a process group for torchft overrides configure(), which torchft 0.2.0, the newest release, calls at each
# change of the quorum. Nightlies from 2026.10.1 on never call it, and say nothing: ProcessGroupWrapper, which such groups
# derive from, goes from reconfigure() straight to _create_pg(). What a group's configure() did (end what belonged to the
# quorum before, forget an error) is left out. What it was given is elsewhere: the quorum's number is `_uuid`, which is
# random where no Manager reconfigures; ranks are in the handles. Members now meet at a store that the first member's
# group opens at socket.gethostname(), whatever Manager(hostname=...) says. Both packages are `import torchft`.
#
# Linux, Python 3.11, torch 2.15.0, 2026-11-28, printed:
#   torchft 0.2.0: configure, _create_pg; committed; quorum 1 as _quorum_id
#   torchft-nightly 2026.10.26: set_rank_info, get_reconfigure_handle, reconfigure, _create_pg; committed; quorum 1 as _uuid
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
install() { "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" "$@"; }
cat > "$folder/group.py" <<'END'
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupGloo, ProcessGroupWrapper

package, *expected = sys.argv[1:]
calls = []


class Group(ProcessGroupGloo):
    """One process's group, as somebody writes it for 0.2.0."""

    def configure(self, *arguments, **keywords):
        calls.append("configure")
        super().configure(*arguments, **keywords)

    def _create_pg(self, *arguments):
        calls.append("_create_pg")
        return super()._create_pg(*arguments)


def noted(name):
    method = getattr(ProcessGroupWrapper, name)
    return lambda self, *arguments: (calls.append(name), method(self, *arguments))[1]


for name in ("set_rank_info", "get_reconfigure_handle", "reconfigure"):
    if name in vars(ProcessGroupWrapper):  # torch's own class has methods of these names as well
        setattr(Group, name, noted(name))
lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100)
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
group = Group(timedelta(seconds=30))
manager = Manager(
    pg=group, state_dict=dict, load_state_dict=print, min_replica_size=1, use_async_quorum=False, rank=0, world_size=1,
    store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=lighthouse.address(), replica_id="member_0",
    hostname="127.0.0.1",
)
manager.start_quorum()
manager.allreduce(torch.ones(3)).wait()
committed = "committed" if manager.should_commit() else "not committed"
(number,) = (f"{vars(group)[name]} as {name}" for name in ("_quorum_id", "_uuid") if name in vars(group))
print(f"{package}: {', '.join(calls)}; {committed}; quorum {number}")
manager.shutdown()
lighthouse.shutdown()
assert calls == expected, "this has changed"
END
install torch==2.15.0 numpy torchft==0.2.0
RUST_LOG=error "$folder/bin/python" -W ignore "$folder/group.py" "torchft 0.2.0" configure _create_pg
"$folder/bin/uv" pip uninstall --quiet --python "$folder/bin/python" torchft
install torchft-nightly==2026.10.26
RUST_LOG=error "$folder/bin/python" -W ignore "$folder/group.py" "torchft-nightly 2026.10.26" \
  set_rank_info get_reconfigure_handle reconfigure _create_pg
