"""Tab completes commands, options and values in bash, once `isthmus --install-completion` was run there."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.limits import HANG_S

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash"),
]
READY = "ready> "


class Bash:
    """An interactive bash of a user with an empty home."""

    def __init__(self, home: Path) -> None:
        self._terminal, other_end = pty.openpty()
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self._process = subprocess.Popen(
            ["bash", "-i"],
            env={"HOME": str(home), "PATH": path, "TERM": "dumb", "PS1": READY},
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            start_new_session=True,
        )
        os.close(other_end)

    def until(self, text: str) -> str:
        """Return what is shown until `text` is."""
        shown = ""
        deadline_s = time.monotonic() + HANG_S
        while text not in shown:
            assert select.select([self._terminal], [], [], max(0, deadline_s - time.monotonic()))[0], shown
            shown += os.read(self._terminal, 4096).decode()
        return shown

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("home")
    (home / ".bashrc").write_text(f"PS1='{READY}'\n")
    installing = Bash(home)
    installing.until(READY)
    installing.type("isthmus --install-completion\n")
    installing.until("completion installed in")
    installing.until(READY)
    installing.close()
    restarted = Bash(home)
    restarted.until(READY)
    yield restarted
    restarted.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("isthmus pl", "isthmus plan"),
        ("isthmus bench tr", "isthmus bench training"),
        ("isthmus bench training --he", "isthmus bench training --he"),  # --here or --help
        ("isthmus plan --strategies fsdp,hsdp-quant3,hsdp-ta", "isthmus plan --strategies fsdp,hsdp-quant3,hsdp-tagc"),
        ("isthmus plan --reshard no --reduce-dtype bf", "isthmus plan --reshard no --reduce-dtype bf16"),
    ],
)
def test_tab(bash: Bash, typed: str, completed: str) -> None:
    # After Tab the line becomes one that prints it, between brackets: Ctrl-A goes to its beginning, Ctrl-E to its end.
    bash.type(f"{typed}\t\x01printf '[%s]' \"\x05\"\n")
    shown = bash.until(f"]{READY}")
    assert shown.rpartition("[")[2].removesuffix(f"]{READY}").rstrip() == completed
