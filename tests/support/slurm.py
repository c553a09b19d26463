"""A cluster of Slurm on this machine, of two slurmd, that tests start themselves."""

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support import ranks
from support.limits import HANG_S
from support.places import ROOT

DAEMONS = ("munged", "slurmctld", "slurmd")
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
NODES = ("node0", "node1")


def why_none() -> str:
    """Return what is missing for a cluster; "" where nothing is."""
    missing = [name for name in (*DAEMONS, "srun") if shutil.which(name, path=SEARCH_PATH) is None]
    return f"no {', '.join(missing)}: Debian has them in slurm-wlm and munge" if missing else ""


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
        self.until("munged listens", munge["socket"].exists)
        self._start("slurmctld", "-D")
        for node in NODES:
            self._start("slurmd", "-D", "-N", node)
        self.until("both nodes are idle", self._is_idle)

    def _start(self, name: str, *arguments: str) -> None:
        log = (self.folder / f"daemon-{len(self.processes)}-{name}.log").open("wb")
        with log:
            self.processes.append(
                subprocess.Popen([name, *arguments], env=self.environment, stdout=log, stderr=subprocess.STDOUT)
            )

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
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

    def call(self, *command: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = self.environment | variables
        result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
        assert not check or result.returncode == 0, f"{result.stderr}\n{self._logs()}"
        return result

    def stop(self) -> None:
        """End what was started, the last first."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        # Not pytest's folder: the name of a socket may have 107 characters.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True))
        cluster = Cluster(Path(folder))
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster
