"""Random faults at random moments of small jobs: every rank ends in time and says who and what, or nothing is changed.

Usage: python tests/faults/campaign.py NUMBER [SEED]: run so many cases, and print what came of each. A case is drawn
from the seed and its own number: SEED:CASE in place of the seed runs that one. Exit code 1 if one was wrong.
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
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import members
from faults.harness import built_interposer, injected_at
from faults.jobs import GRACE_S, JOBS, NUM_RANKS, ON_LINKS, RANKS_PER_NODE, STOP_S, TIMEOUT_S, Case, draw, run_rank
from isthmus.benchmarks.simulate.network import Network, open_network
from support import fake_gpu, ranks
from support.limits import longest, scaled

AT_A_TIME = 5  # most of it is waiting
NUM_NODES = NUM_RANKS // RANKS_PER_NODE
ENV = {"ISTHMUS_NODES": f"{NUM_NODES}x{RANKS_PER_NODE}", "ISTHMUS_MIN_ELEMENTS": "0", "ISTHMUS_LOG": "error"}
STORE = "The store that ranks report to did not answer"
GPU = "an illegal memory access was encountered"
WHAT = re.compile(r"[\w-]+ #\d+ .*failed on rank \d|rank \d did not come within", re.DOTALL)


@dataclass(frozen=True)
class Result:
    """What came of a case, and what is wrong with that."""

    number: int
    case: Case
    came: str
    complaint: str
    seconds: float

    def __str__(self) -> str:
        what = f"WRONG: {self.complaint}" if self.complaint else self.came
        return f"{self.number} {self.case}: {what}, {self.seconds:.0f} s"


@dataclass
class Campaign:
    """Runs cases. networks: of nodes, which one case takes at a time."""

    folder: Path
    networks: SimpleQueue[Network] = field(default_factory=SimpleQueue)
    _undisturbed: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _locks: defaultdict[tuple[str, str], Lock] = field(default_factory=lambda: defaultdict(Lock))

    def undisturbed(self, case: Case) -> list[str]:
        """Return what the ranks of its kind end with, which only a case that ends without an error asks for."""
        kind = case.job, case.codec
        with self._locks[kind]:
            if kind not in self._undisturbed:
                values = ranks.values_of(self._outcomes(case, False, ".".join(kind)))
                assert not any(value.error for value in values), values
                self._undisturbed[kind] = [value.digest for value in values]
        return self._undisturbed[kind]

    def run(self, number: int, case: Case) -> Result:
        start = time.monotonic()
        judge = self._run_members if case.job == "torchft" else self._run_ranks
        try:
            came, complaint = judge(case, str(number))
        except AssertionError as error:  # some rank did not end
            came, complaint = "hang", str(error)
        return Result(number, case, came, complaint, time.monotonic() - start)

    def _run_ranks(self, case: Case, name: str) -> tuple[str, str]:
        outcomes = self._outcomes(case, True, name)
        complaints = [text for outcome in outcomes if (text := self._complaint(case, outcome))]
        failed = any(outcome.value is None or outcome.value.error for outcome in outcomes)
        return "errors" if failed else self._unharmed(name), "; ".join(complaints)

    def _unharmed(self, name: str) -> str:
        return "as undisturbed" if injected_at(self.folder / name).value else "not reached"

    def _complaint(self, case: Case, outcome: ranks.Outcome) -> str:
        is_faulty, end = outcome.rank == case.rank, outcome.value
        if is_faulty and "is killed" in case.fault and outcome.exit_code == -signal.SIGKILL:
            return ""
        if "GPU" in case.job and "call" in case.fault and outcome.exit_code == -signal.SIGABRT:
            return ""  # the fake NCCL says which calls differ, and ends the process
        if end is None:
            return f"rank {outcome.rank} ended with {outcome.exit_code}: {outcome.error}"
        if end.error and end.seconds > longest(TIMEOUT_S + GRACE_S) + scaled(STOP_S) * (case.fault == "is stopped"):
            return f"rank {outcome.rank} ended after {end.seconds:.0f} s: {end.error}"
        if is_faulty and (end.error_type == "Planned" or (case.fault == "has a GPU that fails" and GPU in end.error)):
            return ""
        if not end.error:
            is_other = end.digest != self.undisturbed(case)[outcome.rank]
            is_planned = is_faulty and case.fault == "skips a call"  # its last one: the others' errors are enough
            return f"rank {outcome.rank} has other numbers, and no error" if is_other and not is_planned else ""
        # Ranks of HSDP have no group with each other one, a lost link parts all of one node from all of the other, and
        # a damaged packet is found by whom it reaches.
        is_one = not is_faulty and case.job != "HSDP" and case.fault not in ON_LINKS and "damaged" not in case.fault
        rank = case.rank if is_one else "."
        who = re.search(f"ranks? ([0-9,-]+,)?{rank}|{STORE}", end.error.partition("failed on rank")[2][2:])
        says = who and WHAT.search(end.error)
        return "" if says else f"rank {outcome.rank} does not say who or what: {end.error_type}: {end.error}"

    def _run_members(self, case: Case, name: str) -> tuple[str, str]:
        """Lose a member; do the same with members that leave in peace, in the steps in which they were lost."""
        disturbed = self._outcomes(case, True, name)
        found = {outcome.value.quorums for outcome in disturbed if outcome.value and outcome.value.quorums}
        longest_one = max(found, key=len, default=())
        if any(one != longest_one[: len(one)] for one in found) or len(longest_one) < members.STEPS:
            return "other quorums", f"members went through other quorums: {disturbed}"
        repeated = self._outcomes(case, False, f"{name}.repeated", longest_one)
        left = set(range(members.NUM_MEMBERS)) - set(longest_one[-1].members)
        complaints = []
        for outcome, again in zip(disturbed, ranks.values_of(repeated), strict=True):
            if outcome.rank in left:
                is_killed = "is killed" in case.fault and outcome.exit_code == -signal.SIGKILL
                is_planned = outcome.value is not None and outcome.value.error_type == "Planned"
                complaints += [] if is_killed or is_planned else [f"member {outcome.rank}: {outcome}"]
            elif outcome.value is None or outcome.value.error_type or outcome.value.digest != again.digest:
                complaints.append(f"member {outcome.rank} has other numbers than in peace: {outcome}")
            elif outcome.value.error and not WHAT.search(outcome.value.error):
                complaints.append(f"member {outcome.rank} does not say what: {outcome.value.error}")
        return "without it" if left else self._unharmed(name), "; ".join(complaints)

    def _outcomes(
        self, case: Case, disturbs: bool, name: str, plan: Sequence[members.Quorum] = ()
    ) -> list[ranks.Outcome]:
        shared = self.folder / name
        env = ENV | JOBS[case.job] | {"ISTHMUS_CODEC": case.codec}
        if "GPU" in case.job:
            env |= {"FAKE_NCCL_TIMEOUT_S": f"{scaled(TIMEOUT_S):.0f}"}
            return fake_gpu.run_any(run_rank, NUM_RANKS, case, disturbs, shared, (), plan, env=env)
        size = members.NUM_MEMBERS if case.job == "torchft" else NUM_RANKS
        network = self.networks.get()
        try:
            env |= {"MASTER_ADDR": network.address(0), "GLOO_SOCKET_IFNAME": network.interface}
            prefixes = [network.command_prefix(node) for node in range(NUM_NODES)]
            return ranks.run_any(run_rank, size, case, disturbs, shared, prefixes, plan, env=env)
        finally:
            if case.fault in ON_LINKS:
                for node in range(NUM_NODES):
                    mend = "tc qdisc del dev eth0 root; ip link set eth0 up"
                    subprocess.run([*network.command_prefix(node), "sh", "-c", mend], capture_output=True)
            self.networks.put(network)


ranks.preload("faults.campaign")  # which ranks import as the main module


def processes_with(name: str) -> list[int]:
    """Return the other processes whose environment had this name when they began: whatever we started, and theirs."""

    def has_it(pid: int) -> bool:
        try:
            return pid != os.getpid() and name in Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            return False

    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and has_it(int(entry))]


def run(seed: int, numbers: Sequence[int]) -> Iterator[Result]:
    """Yield what came of each case, as they end. Raises AssertionError if processes are left: namespaces are theirs."""
    cases = {number: draw(seed, number) for number in numbers}
    resource_tracker.ensure_running()  # multiprocessing's, which ends with this process
    with tempfile.TemporaryDirectory(prefix="campaign") as folder:
        preload = {"LD_PRELOAD": str(built_interposer(Path(folder))), "TORCH_CPP_LOG_LEVEL": "FATAL"}
        with ranks.server_with(**preload, CAMPAIGN=folder), ExitStack() as stack:
            campaign = Campaign(Path(folder))
            stack.callback(fake_gpu.stop)
            for _ in range(AT_A_TIME):
                campaign.networks.put(stack.enter_context(open_network(NUM_NODES, ("root",))))
            on_cpu, on_gpu = (stack.enter_context(ThreadPoolExecutor(at_a_time)) for at_a_time in (AT_A_TIME, 1))
            pools = {number: on_gpu if "GPU" in case.job else on_cpu for number, case in cases.items()}
            for future in as_completed([pools[number].submit(campaign.run, number, cases[number]) for number in cases]):
                yield future.result()
        deadline = time.monotonic() + scaled(10)
        while (left := processes_with(folder)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, f"processes are left: {left}"


def main() -> int:
    seed, _, only = (sys.argv[2] if len(sys.argv) > 2 else str(secrets.randbelow(1 << 20))).partition(":")
    print(f"seed {seed}")
    came, wrong = Counter[str](), 0
    for result in run(int(seed), [int(only)] if only else range(int(sys.argv[1]))):
        came[f"{result.case.job}: {result.came}"] += 1
        wrong += bool(result.complaint)
        print(f"{seed}:{result}", flush=True)
    for what, count in sorted(came.items()):
        print(f"{count:5d}  {what}")
    print(f"{wrong} wrong; no process and no namespace is left")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
