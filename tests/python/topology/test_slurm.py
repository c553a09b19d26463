"""A cluster of Slurm on this machine, of two slurmd: what srun tells its tasks is what the node map is made from."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support import ranks
from support.limits import HANG_S

DAEMONS = ("munged", "slurmctld", "slurmd")
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
missing = [name for name in (*DAEMONS, "srun") if shutil.which(name, path=SEARCH_PATH) is None]
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}: Debian has them in slurm-wlm and munge"),
]
PROGRAM = Path(__file__).with_name("slurm_rank.py")
NODES = ("node0", "node1")
MACHINE = "though by boot id and network namespace it is 1 node x 4 ranks, in blocks"


class Cluster:
    """Daemons of this user's own, whose files are all in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"PATH": SEARCH_PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        self.processes: list[subprocess.Popen[bytes]] = []
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        (folder / "slurm.conf").write_text(self._configuration())

    def _configuration(self) -> str:
        host, user = os.uname().nodename.split(".")[0], getpass.getuser()
        settings = {
            "ClusterName": "isthmus",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": ranks.free_port(),
            "SlurmUser": user,
            "SlurmdUser": user,
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/munge.socket",
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool-%n",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": self.folder / "%n.pid",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "SlurmdParameters": "config_overrides",  # as many CPUs as are said below, not as there are
            "ReturnToService": 2,
            "MessageTimeout": 100,  # of seconds: on a busy machine the default of 10 is too short
            "TCPTimeout": 60,
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        for node in NODES:
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={ranks.free_port()} CPUs=4")
        lines.append(f"PartitionName=all Nodes={','.join(NODES)} Default=YES State=UP")
        return "\n".join(lines) + "\n"

    def start(self) -> None:
        """Return when both nodes are idle."""
        munge = {name: self.folder / f"munge.{name}" for name in ("socket", "log", "pid", "seed")}
        own = ["--foreground", "--force", f"--key-file={self.folder / 'munge.key'}", f"--socket={munge['socket']}"]
        files = [f"--{name}-file={munge[name]}" for name in ("log", "pid", "seed")]
        self._start("munged", *own, *files)
        self._until("munged listens", munge["socket"].exists)
        self._start("slurmctld", "-D")
        for node in NODES:
            self._start("slurmd", "-D", "-N", node)
        self._until("both nodes are idle", self._is_idle)

    def _start(self, name: str, *arguments: str) -> None:
        log = (self.folder / f"daemon-{len(self.processes)}-{name}.log").open("wb")
        with log:
            self.processes.append(
                subprocess.Popen([name, *arguments], env=self.environment, stdout=log, stderr=subprocess.STDOUT)
            )

    def _until(self, what: str, is_so: Any) -> None:
        deadline = time.monotonic() + HANG_S
        while not is_so():
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                raise AssertionError(f"a daemon ended, or not within {HANG_S} s: {what}\n{self._logs()}")
            time.sleep(0.1)

    def _logs(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log")))

    def _is_idle(self) -> bool:
        states = self.call("sinfo", "--noheader", "--Node", "--format=%T", check=False).stdout.split()
        return states == ["idle"] * len(NODES)

    def call(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's."""
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=HANG_S)
        assert not check or result.returncode == 0, f"{result.stderr}\n{self._logs()}"
        return result

    def srun(self, *arguments: str, **variables: str) -> list[dict[str, Any]]:
        """Return what the ranks of a step report, in the order of their ranks."""
        exported = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(ranks.free_port()),
            "ISTHMUS_CODEC": "none",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        export = "--export=ALL," + ",".join(f"{name}={value}" for name, value in exported.items())
        result = self.call("srun", f"--time={HANG_S / 60:.0f}", "--kill-on-bad-exit=1", export, *arguments)
        reports: list[dict[str, Any]] = json.loads(result.stdout)
        return reports

    def stop(self) -> None:
        """End what was started, the last first."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        # Not pytest's folder: the name of a socket may have 107 characters.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True))
        cluster = Cluster(Path(folder))
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def assert_reduced(reports: list[dict[str, Any]], node_map: str, source: str) -> None:
    assert [report["rank"] for report in reports] == list(range(4))
    assert {report["node_map"] for report in reports} == {node_map}
    assert {report["source"] for report in reports} == {f"{source}, {MACHINE}"}
    assert all(report["is_right"] for report in reports)
    # Of what a rank holds of its node's sum, the half that the other node owns goes there: a header, and float32.
    assert {report["between_nodes_bytes"] for report in reports} == {48 + 4 * 50_000}


@pytest.mark.parametrize(
    ("distribution", "node_map"), [("block", "2 nodes x 2 ranks, in blocks"), ("cyclic", "0,2|1,3")]
)
def test_tasks_of_srun_are_placed_as_slurm_says(cluster: Cluster, distribution: str, node_map: str) -> None:
    tasks = ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2", f"--distribution={distribution}")
    assert_reduced(cluster.srun(*tasks, sys.executable, str(PROGRAM)), node_map, "Slurm")


def test_torchrun_in_tasks_of_srun_counts_before_slurm(cluster: Cluster) -> None:
    port = ranks.free_port()
    launcher = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
    )
    tasks = ("--nodes=2", "--ntasks-per-node=1", *launcher, f"--rdzv-endpoint=localhost:{port}", str(PROGRAM))
    assert_reduced(cluster.srun(*tasks), "2 nodes x 2 ranks, in blocks", "torchrun")


def test_uneven_steps_are_exact_and_noted(cluster: Cluster) -> None:
    reports = cluster.srun("--nodes=2", "--ntasks=3", "--distribution=cyclic", sys.executable, str(PROGRAM))
    assert {report["node_map"] for report in reports} == {"0,2|1"}
    assert all(report["is_right"] and report["between_nodes_bytes"] == 0 for report in reports)
    assert {report["source"].split(",")[0] for report in reports} == {"Slurm"}
