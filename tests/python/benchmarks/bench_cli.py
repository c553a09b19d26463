"""Runs `isthmus bench ...` as a user would.

The benchmarks that stay in the repository run as `python -m isthmus.benchmarks.NAME`.
"""

import os
import signal
import subprocess
import sys

import psutil
from typer.testing import CliRunner

from isthmus.benchmarks.convergence import __main__ as convergence
from isthmus.cli.main import app
from support.limits import HANG_S

# Messages and tables are not broken into lines, wherever pytest's folders lie.
WIDE = {"COLUMNS": "400"}


def start(name, *arguments, **environment):
    words = [f"isthmus.benchmarks.{name}"] if name == "convergence" else ["isthmus", "bench", name]
    return subprocess.Popen(
        [sys.executable, "-m", *words, *map(str, arguments)],
        env=os.environ | WIDE | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background job ignores SIGINT, and so would everything it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(name, *arguments, **environment):
    """Exit code, stdout and stderr; in this process, which has imported torch, unless another environment is given."""
    if not environment:
        command, words = (convergence.app, []) if name == "convergence" else (app, ["bench", name])
        result = CliRunner(env=WIDE).invoke(command, [*words, *map(str, arguments)])
        return result.exit_code, result.stdout, result.stderr
    process = start(name, *arguments, **environment)
    try:
        out, err = process.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def refused(*arguments):
    """What `isthmus bench` says of arguments that it does not take."""
    code, out, err = run(*arguments)
    assert code == 2, out + err
    return out + err


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
