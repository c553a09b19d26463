"""How ranks of `isthmus bench ... --here` come together, and part: the missing are named, and nobody leaves early."""

import os
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from isthmus.benchmarks.here import stage
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.group import meeting
from python.benchmarks.launched import as_ranks, two_hosts  # noqa: F401
from support import ranks

pytestmark = pytest.mark.processes


def test_ranks_that_never_come_are_named_by_all_others(two_hosts):  # noqa: F811
    timeout_s = round(meeting.NOTICE_S) + 4
    told = as_ranks(two_hosts, [2, 2], "training", "--here", "--timeout", timeout_s, missing=(1, 2))
    for (code, out, err), rank in zip(told, (0, 3), strict=True):
        assert code == 1, (out, err)
        assert f"--here: rank {rank} of 4 did not meet the others at " in err
        assert f"ranks 1, 2 did not come within {timeout_s} s" in err
        assert "Traceback" not in err
    early = [f"waiting for ranks 1, 2, up to {timeout_s} s" in err for _, _, err in told]
    assert early == [True, False]  # one of them says it while all still wait


def leave_after_the_slowest(rank: int, world_size: int, folder: str) -> None:
    """Rank 1 is late when the others have made the group of `_find_nodes`: they must not be gone when it is done."""
    ranks.init("gloo")
    made = Path(folder) / "made"
    find, destroy = stage.backend_of, dist.destroy_process_group
    left = []

    def late(group):
        if rank == 1:
            time.sleep(1)
            made.write_text("")
        return find(group)

    def watched(group=None):
        left.append(made.exists())
        destroy(group)

    stage.backend_of, dist.destroy_process_group = late, watched
    stage.check_nodes = lambda nodes, source, members: (len(set(nodes)), 1)
    os.environ["ISTHMUS_NODES"] = "2x1"
    assert stage._find_nodes(TrainingConfig(here=True), [])[:2] == (2, 1)
    assert left == [True]
    destroy()


def test_no_rank_leaves_before_all_have_come(tmp_path):
    ranks.run(leave_after_the_slowest, 2, str(tmp_path))
