"""Random faults at random moments of small jobs: every rank ends in time and says who and what, or nothing is changed.

Usage: python tests/faults/campaign.py NUMBER [SEED]: run so many cases, and print what came of each. A case is drawn
from the seed and its own number: "SEED:CASE" in place of the seed runs that one. Exit code 1 if one was wrong.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import members
from faults.harness import built_interposer, injected_at, new_shared
from faults.jobs import (
    GRACE_S,
    JOBS,
    NUM_RANKS,
    RANKS_PER_NODE,
    STOP_S,
    TIMEOUT_S,
    Case,
    draw,
    run_rank,
)
from isthmus._build_info import CUDA
from isthmus.benchmarks.simulate.network import Network, open_network
from support import fake_gpu, ranks
from support.limits import longest, scaled

ENV = {"ISTHMUS_NODES": f"{NUM_RANKS // RANKS_PER_NODE}x{RANKS_PER_NODE}", "ISTHMUS_MIN_ELEMENTS": "0"}
ENV |= {"ISTHMUS_LOG": "error"}
WHO = re.compile(r"No word from rank|rank \d was in|rank \d of this node|The store that ranks report to|from rank \d")
WHAT = re.compile(r"(all-gather|reduce-scatter|all-reduce|ALL\w+|REDUCE_SCATTER) .*failed on rank \d", re.DOTALL)


@dataclass
class Campaign:
    """Runs cases. seed: of all of them."""

    seed: int
    network: Network
    folder: Path
    has_gpu: bool
    undisturbed: dict[str, list[str]] = field(default_factory=dict)

    @property
    def nodes(self) -> list[int]:
        """Processes in the namespaces of the nodes."""
        return [holder.pid for holder in getattr(self.network, "_holders", [])[: NUM_RANKS // RANKS_PER_NODE]]

    def run(self, number: int) -> tuple[Case, str, str]:
        """Run a case; return it, what came of it, and what is wrong with that."""
        case = draw(self.seed, number, self.network.has_links, self.has_gpu)
        if case.job == "torchft":
            return case, *self._run_members(case, str(number))
        if case.job not in self.undisturbed:
            values = ranks.values_of(self._outcomes(case, False, f"{case.job}.undisturbed"))
            assert not any(value.error for value in values), values
            self.undisturbed[case.job] = [value.digest for value in values]
        try:
            outcomes = self._outcomes(case, True, str(number))
        except AssertionError as error:  # some rank did not end
            return case, "hang", str(error)
        finally:
            self._mend_links()
        complaints = list(self._complaints(case, outcomes, injected_at(self.folder / str(number)).value))
        failed = sum(bool(outcome.value and outcome.value.error) for outcome in outcomes)
        return case, "errors" if failed else "as undisturbed", "; ".join(complaints)

    def _run_members(self, case: Case, name: str) -> tuple[str, str]:
        """Lose a member; do the same with members that leave in peace, in the steps in which they were lost."""
        try:
            disturbed = self._outcomes(case, True, name)
            found = {outcome.value.quorums for outcome in disturbed if outcome.value and outcome.value.quorums}
            if len(found) != 1:
                return "other quorums", f"members went through other quorums: {disturbed}"
            (plan,) = found
            repeated = self._outcomes(case, False, f"{name}.repeated", plan)
        except AssertionError as error:
            return "hang", str(error)
        complaints = []
        left = set(plan[0].members) - set(plan[-1].members)
        for outcome, again in zip(disturbed, repeated, strict=True):
            if outcome.rank in left:
                is_killed = "is killed" in case.fault and outcome.exit_code == -signal.SIGKILL
                is_planned = outcome.value is not None and outcome.value.error_type == "Planned"
                complaints += [] if is_killed or is_planned else [f"member {outcome.rank}: {outcome}"]
            elif outcome.value is None or outcome.value.digest != again.value.digest:
                complaints.append(f"member {outcome.rank} has other numbers than in peace: {outcome}")
        return "without it" if left else "as undisturbed", "; ".join(complaints)

    def _outcomes(
        self, case: Case, is_disturbed: bool, name: str, plan: Sequence[members.Quorum] = ()
    ) -> list[ranks.Outcome]:
        shared = new_shared(self.folder / name)
        env = ENV | JOBS[case.job]
        if "GPU" in case.job:
            env |= {"FAKE_NCCL_TIMEOUT_S": f"{scaled(TIMEOUT_S):.0f}"}
            return fake_gpu.run_any(run_rank, NUM_RANKS, case, is_disturbed, shared, (), env=env)
        if self.nodes:
            env |= {"MASTER_ADDR": self.network.address(0), "GLOO_SOCKET_IFNAME": self.network.interface}
        size = members.NUM_MEMBERS if case.job == "torchft" else NUM_RANKS
        return ranks.run_any(run_rank, size, case, is_disturbed, shared, self.nodes, plan, env=env)

    def _mend_links(self) -> None:
        for node in range(len(self.nodes)):
            for words in (("tc", "qdisc", "del", "dev", "eth0", "root"), ("ip", "link", "set", "eth0", "up")):
                subprocess.run([*self.network.command_prefix(node), *words], capture_output=True)

    def _complaints(self, case: Case, outcomes: list[ranks.Outcome], injected: float) -> Iterator[str]:
        limit_s = longest(TIMEOUT_S + GRACE_S) + (scaled(STOP_S) if case.fault == "is stopped" else 0)
        for outcome, digest in zip(outcomes, self.undisturbed[case.job], strict=True):
            is_faulty = outcome.rank == case.rank
            if is_faulty and "is killed" in case.fault and outcome.exit_code == -signal.SIGKILL:
                continue
            if outcome.exit_code != 0 or outcome.value is None:
                yield f"rank {outcome.rank} ended with {outcome.exit_code}: {outcome.error}"
                continue
            end = outcome.value
            if injected and end.at_s - injected > limit_s:
                yield f"rank {outcome.rank} ended after {end.at_s - injected:.0f} s"
            if end.error:
                planned = is_faulty and end.error_type == "Planned"
                if not planned and not (WHO.search(end.error) and WHAT.search(end.error)):
                    yield f"rank {outcome.rank} does not say who or what: {end.error_type}: {end.error}"
            elif is_faulty and case.fault == "repeats a pass":
                yield f"rank {outcome.rank} has no error from a pass that nobody else made"
            elif end.digest != digest and not (is_faulty and case.fault == "skips a pass"):
                yield f"rank {outcome.rank} has other numbers, and no error"


ranks.preload("faults.jobs")


def children() -> set[int]:
    """Return the processes that this one started."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@contextmanager
def campaign(seed: int) -> Iterator[Campaign]:
    """Yield what runs cases; nothing that it made is left afterwards."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_network(NUM_RANKS // RANKS_PER_NODE, ("root",)) as network,
        ranks.server_with(LD_PRELOAD=str(built_interposer(Path(folder))), TORCH_CPP_LOG_LEVEL="ERROR"),
    ):
        yield Campaign(seed, network, Path(folder), has_gpu=bool(CUDA) and not fake_gpu.why_not())


def main() -> int:
    number = int(sys.argv[1])
    seed, _, only = (sys.argv[2] if len(sys.argv) > 2 else str(secrets.randbelow(1 << 20))).partition(":")
    print(f"seed {seed}")
    resource_tracker.ensure_running()  # multiprocessing's, which ends with this process
    came, wrong, before = Counter[str](), 0, children()
    with campaign(int(seed)) as cases:
        for index in [int(only)] if only else range(number):
            start = time.monotonic()
            case, result, complaint = cases.run(index)
            came[f"{case.job}: {result}"] += 1
            wrong += bool(complaint)
            took = f"{time.monotonic() - start:.0f} s"
            print(f"{seed}:{index} {case}: {'WRONG: ' + complaint if complaint else result}, {took}", flush=True)
    for what, count in sorted(came.items()):
        print(f"{count:5d}  {what}")
    left = children() - before
    print(f"{wrong} wrong; left: {sorted(left) if left else 'nothing'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
