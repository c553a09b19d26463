"""NVIDIA's Multi-Process Service: the kernels of several processes run on one GPU side by side, not in turns."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

_CONTROL = "nvidia-cuda-mps-control"
#: Where container runtimes may put what the driver brings.
_MORE_PATH = "/usr/local/nvidia/bin"
_COMMAND_TIMEOUT_S = 20
# Starts a daemon, tells its exit status, and ends it when nobody holds this process's input any more: the launcher has
# left, or was killed. $1: the command; $2: the daemon's folder, which goes, too.
_HOLDER = """
"$1" -d < /dev/null > "$2/start" 2>&1; echo $?
read _
pid=$(cat "$2/nvidia-cuda-mps-control.pid"); echo quit | "$1"
for wait in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" && sleep 0.5; done
kill -9 "$pid"; rm -rf "$2"
"""


@dataclass(frozen=True)
class Mps:
    """A daemon that ranks can use. environment: what leads them to it."""

    environment: Mapping[str, str] = field(default_factory=dict)
    #: Why there is none; "" if there is one.
    missing: str = ""
    #: Whether it was started here, and ends with us.
    is_own: bool = False


@contextmanager
def open_mps() -> Iterator[Mps]:
    """Yield the daemon that runs already, or else one that ends with the context, if this machine allows it."""
    control = shutil.which(_CONTROL, path=f"{os.environ.get('PATH', '')}:{_MORE_PATH}")
    if control is None:
        yield Mps(missing=f"{_CONTROL} is not installed")
    elif _answers(control):
        yield Mps()
    else:
        with _started(control) as mps:
            yield mps


def _answers(control: str) -> bool:
    try:
        asked = subprocess.run(
            [control],
            input="get_server_list\n",
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0 and "Cannot find" not in asked.stdout + asked.stderr


@contextmanager
def _started(control: str) -> Iterator[Mps]:
    folder = tempfile.mkdtemp(prefix="mps-")
    own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    # A daemon that sees some GPUs numbers them anew, and its clients' CUDA_VISIBLE_DEVICES would mean others.
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    holder = subprocess.Popen(
        ["sh", "-c", _HOLDER, "sh", control, folder],
        env=env | own,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        if holder.stdout.readline().strip() == b"0":
            yield Mps(own, is_own=True)
        else:
            with open(f"{folder}/start") as said:
                yield Mps(missing=" ".join(said.read().split()) or f"{control} did not start")
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()
