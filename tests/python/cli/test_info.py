"""`isthmus info`: what it finds, what it keeps to itself, and that nothing stops it."""

import io
import json
import os
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import isthmus
from isthmus.base import native as _native
from isthmus.base.variables import unknown_variables, variables_set
from isthmus.cli.main import app
from isthmus.report.info import collect, print_info


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("ISTHMUS_", "NCCL_", "GLOO_")):
            monkeypatch.delenv(name)


def text_of(info) -> str:
    out = io.StringIO()
    print_info(info, Console(file=out, width=200))
    return out.getvalue()


def by_name(records) -> dict:
    return {record["name"]: record for record in records}


def test_options_have_the_source_of_each(monkeypatch):
    monkeypatch.setenv("ISTHMUS_RATIO", "4")
    monkeypatch.setenv("ISTHMUS_CODEC", "")  # empty: as if it were not set
    options = by_name(collect()["options"])
    assert (options["ratio"]["value"], options["ratio"]["source"]) == ("4.0", "ISTHMUS_RATIO")
    assert (options["codec"]["value"], options["codec"]["source"]) == ("quant", "default")
    assert len(options) == len(_native.load().option_fields())


def test_a_bad_option_is_reported_and_stops_nothing(monkeypatch):
    monkeypatch.setenv("ISTHMUS_RATIO", "soon")
    info = collect()
    assert info["options"] == []
    assert 'ISTHMUS_RATIO="soon": expected 1 to 64' in info["options_error"]
    assert info["versions"]["torch"]
    assert "ISTHMUS_RATIO" in text_of(info)


def test_mistyped_variables_are_named_without_their_value(monkeypatch):
    monkeypatch.setenv("ISTHMUS_CODECS", "hunter2")
    monkeypatch.setenv("ISTHMUS_PASSWORD", "hunter2")
    monkeypatch.setenv("SLURM_JWT", "hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    info = collect()
    assert info["unknown_variables"] == {"ISTHMUS_CODECS": "ISTHMUS_CODEC", "ISTHMUS_PASSWORD": None}
    for report in (text_of(info), json.dumps(info)):
        assert "hunter2" not in report
        assert "AWS_SECRET_ACCESS_KEY" not in report
    assert "did you mean ISTHMUS_CODEC?" in text_of(info)


def test_variables_in_force_have_their_group():
    environment = {
        "RANK": "3",
        "NCCL_DEBUG": "INFO",
        "GLOO_SOCKET_IFNAME": "eth1",
        "ISTHMUS_LOG": "debug",
        "HOME": "/x",
    }
    found = {one["name"]: (one["value"], one["group"]) for one in variables_set(environment, ["ISTHMUS_LOG"])}
    assert found == {
        "RANK": ("3", "launcher"),
        "NCCL_DEBUG": ("INFO", "nccl"),
        "GLOO_SOCKET_IFNAME": ("eth1", "gloo"),
        "ISTHMUS_LOG": ("debug", "isthmus"),
    }
    assert [one["value"] for one in variables_set({"NCCL_DEBUG": ""}, [])] == [""]  # set, and empty
    assert unknown_variables(environment, ["ISTHMUS_LOG"]) == {}
    assert unknown_variables(environment, []) == {"ISTHMUS_LOG": None}


def test_a_native_module_that_does_not_load_is_reported(monkeypatch):
    def fail():
        raise ImportError("isthmus was built for torch 2.99.0,\nbut torch 2.11.0 is running")

    monkeypatch.setattr(_native, "load", fail)
    monkeypatch.setenv("ISTHMUS_CODEC", "hunter2")
    info = collect()
    module = by_name(info["features"])["native module"]
    assert not module["is_available"]
    assert module["detail"] == "isthmus was built for torch 2.99.0, but torch 2.11.0 is running"
    assert "set in the environment: ISTHMUS_CODEC" in info["options_error"]
    assert info["unknown_variables"] == {}
    assert "hunter2" not in text_of(info)
    assert info["versions"]["Python"]


def test_a_torch_that_does_not_load_is_reported(monkeypatch):
    def fail(name=""):
        if name.startswith("isthmus."):
            return import_module(name)
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr("isthmus.report.info.import_module", fail)
    monkeypatch.setattr(_native, "load", fail)
    features = by_name(collect()["features"])
    assert features["torch"]["detail"] == "libcudart.so.13: cannot open shared object file"
    assert "NVML" in features


def test_values_cannot_control_a_terminal(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG_FILE", "a\x1b[31m\nb")
    assert "a?[31m?b" in text_of(collect())
    assert "\x1b" not in text_of(collect())


def test_mpi_is_named_where_it_is_built_in(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "isthmus._mpi", SimpleNamespace(library=lambda: "Open MPI v4.1.4, package\0\nmore")
    )
    feature = by_name(collect()["features"])["MPI"]
    assert (feature["is_available"], feature["detail"]) == (True, "Open MPI v4.1.4, package")
    monkeypatch.setitem(sys.modules, "isthmus._mpi", None)
    feature = by_name(collect()["features"])["MPI"]
    assert not feature["is_available"]
    assert feature["detail"].startswith("not built in, or its library is missing")


def test_the_command_prints_text_and_json(monkeypatch):
    monkeypatch.setenv("ISTHMUS_LOG", "info")
    text = CliRunner().invoke(app, ["info"])
    assert text.exit_code == 0
    for title in ("Versions", "Features", "Options", "Variables in force"):
        assert f"\n{title}\n" in "\n" + text.stdout
    values = json.loads(CliRunner().invoke(app, ["info", "--json"]).stdout)
    assert values["schema"] == 2
    assert {"name": "log", "value": "info", "source": "ISTHMUS_LOG"} in values["options"]
    assert {"name": "ISTHMUS_LOG", "value": "info", "group": "isthmus"} in values["variables"]
    assert values["unknown_variables"] == {}


def test_the_version():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"isthmus {isthmus.__version__}\n")
