"""Runs `isthmus bench ...` as a user would, and looks for what it leaves behind."""

import os
import signal
import subprocess
import sys

import psutil
from typer.testing import CliRunner

from isthmus.cli.main import app
from support.limits import HANG_S

# Messages and tables are not broken into lines, wherever pytest's folders lie.
WIDE = {"COLUMNS": "400"}


def start(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "isthmus", "bench", *map(str, arguments)],
        env=os.environ | WIDE | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background job ignores SIGINT, and so would everything it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(*arguments, **environment):
    process = start(*arguments, **environment)
    try:
        out, err = process.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def refused(*arguments):
    """What `isthmus bench` says, in this process, of arguments that it does not take."""
    result = CliRunner(env=WIDE).invoke(app, ["bench", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return result.output


def children(process):
    return psutil.Process(process.pid).children(recursive=True)


def wait_for_line(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"'{text}' was not printed; stderr: {process.stderr.read()}")


def assert_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=HANG_S)
    assert not alive, f"left behind: {alive}"
