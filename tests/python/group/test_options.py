"""isthmus.Options: where values come from, types, ranges, copies."""

import ast
import copy
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.base import native


def test_keywords_over_environment_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_RATIO", "4")
    monkeypatch.setenv("ISTHMUS_CODEC", "none")
    options = isthmus.Options(codec="tagc", timeout=timedelta(seconds=7))
    assert (options.codec, options.ratio, options.sparsity) == ("tagc", 4.0, 0.9875)
    assert options._timeout == timedelta(seconds=7)
    assert options.backend == "isthmus"


def test_the_stub_lists_every_option_with_its_type() -> None:
    stub = ast.parse((Path(isthmus.__file__).parent / "_C.pyi").read_text())
    (listed,) = (node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "OptionValues")
    types = {ast.unparse(row.target): ast.unparse(row.annotation) for row in listed.body[1:]}  # type: ignore
    defaults = isthmus.Options()
    names = [name for name, *_ in native.load().option_fields()]
    assert list(types.items()) == [
        *((name, type(getattr(defaults, name)).__name__) for name in names),
        ("timeout", "timedelta"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "range_text"),
    [
        ("codec", "zip", "none, tagc or quant"),
        ("ratio", 0.5, "1 to 64"),
        ("min_elements", 1.5, "0 or more"),
        ("device_timings", "maybe", "true"),
        ("weights", True, "plain or delta"),
    ],
)
def test_bad_values_are_named(name: str, value: Any, range_text: str) -> None:
    for error in (isthmus.OptionError, ValueError, isthmus.Error):
        with pytest.raises(error, match=f"{name}.*{range_text}"):
            isthmus.Options(**{name: value})
    options = isthmus.Options()
    with pytest.raises(isthmus.OptionError, match=f"{name}.*{range_text}"):
        setattr(options, name, value)


@pytest.mark.parametrize(("name", "value"), [("units", ["*"]), ("units", None), ("nodes", None), ("timeout", 5)])
def test_values_of_another_type_are_named(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name}=.*expected") as error:
        isthmus.Options(**{name: value})
    assert isinstance(error.value, isthmus.OptionError)


def test_an_unknown_keyword_and_the_nearest_one() -> None:
    for name, nearest in {"sparcity": "sparsity", "bit": "bits", "time_out": "timeout"}.items():
        with pytest.raises(isthmus.OptionError, match=f"^there is no option {name}: did you mean {nearest}\\?$"):
            isthmus.Options(**{name: 1})
    with pytest.raises(isthmus.OptionError, match=r"no option xyz: there are nodes, codec, .*log, timeout"):
        isthmus.Options(xyz=1)
    with pytest.raises(isthmus.OptionError, match=r"^option cell_type has left: cells of tagc hold float32"):
        isthmus.Options(cell_type="int8")


def test_options_without_effect_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_SPARSITY", "0.9")
    options = isthmus.Options(codec="quant", ratio=10, bits=2, nodes="2x2")
    expected = [
        ("sparsity", "0.9", "tagc"),
        ("ratio", "10", "tagc"),  # its default, and yet asked for
    ]
    assert options._without_effect() == expected
    options.codec = "tagc"
    assert [name for name, *_ in options._without_effect()] == ["bits"]
    monkeypatch.delenv("ISTHMUS_SPARSITY")
    assert isthmus.Options()._without_effect() == []


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies(duplicate: Any) -> None:
    options = isthmus.Options(codec="none", ratio=3, timeout=timedelta(seconds=9))
    other = duplicate(options)
    assert type(other) is type(options)
    assert other == options and other._without_effect() == options._without_effect() != []
    assert other._timeout == options._timeout
    other.ratio = 5
    assert options.ratio == 3
    assert other != options


def test_repr_shows_every_field() -> None:
    text = repr(isthmus.Options(codec="none", timeout=timedelta(seconds=9)))
    assert text.startswith("isthmus.Options(nodes=")
    assert "codec=none" in text
    assert "timeout=9" in text
