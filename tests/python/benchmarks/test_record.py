"""benchmarks/record/check.py: what it fails for, on any machine. Made-up ratios, from a program that prints them."""

import importlib.util
import json

import pytest

from support.places import ROOT


@pytest.fixture
def check(monkeypatch):
    spec = importlib.util.spec_from_file_location("check", ROOT / "benchmarks/record/check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "machine", lambda: {"processor": "this"})
    return module


def measured(monkeypatch, check, of_memcpy, of_baseline, instruction_set="AVX2"):
    def measure(program, rows, asked):
        return instruction_set, {row: {"of_memcpy": of_memcpy, "of_baseline": of_baseline} for row in rows}

    monkeypatch.setattr(check, "measure", measure)


def recorded(check, of_memcpy=0.6, of_baseline=2.0, processor="this"):
    rows = {row: {"of_memcpy": of_memcpy, "of_baseline": of_baseline} for row in check.ROWS}
    return {"AVX2": {"machine": {"processor": processor}, "commit": "0", "rows": rows}}


@pytest.mark.parametrize(
    ("of_memcpy", "of_baseline", "processor", "well"),
    [
        (0.6, 2.0, "this", True),
        (0.31, 1.5, "this", True),
        (0.29, 2.0, "this", False),  # half as fast
        (0.29, 2.0, "another", True),  # whose memcpy may be faster
        (0.6, 1.0, "this", False),  # the baseline's loops run
        (0.6, 1.0, "another", False),
    ],
)
def test_ratios_beside_the_record(check, monkeypatch, capsys, of_memcpy, of_baseline, processor, well):
    measured(monkeypatch, check, of_memcpy, of_baseline)
    assert check.check("", "", recorded(check, processor=processor)) == ("AVX2", well)
    assert ("TOO SLOW" in capsys.readouterr().out) is not well


def test_what_a_set_brings_little_to_is_not_judged_by_it(check, monkeypatch):
    measured(monkeypatch, check, 0.6, 1.0)
    assert check.check("", "", recorded(check, of_baseline=1.2)) == ("AVX2", True)


@pytest.mark.parametrize(
    ("instruction_set", "of_baseline", "well"), [("AVX10", 1.5, True), ("AVX10", 1.0, False), ("baseline", 1.0, True)]
)
def test_a_set_without_a_record(check, monkeypatch, capsys, instruction_set, of_baseline, well):
    measured(monkeypatch, check, 0.1, of_baseline, instruction_set)
    assert check.check("", "", recorded(check)) == (instruction_set, well)
    assert f"nothing is recorded for {instruction_set}" in capsys.readouterr().out


def test_the_record_has_all_rows(check):
    for name, record in json.loads(check.RECORD.read_text()).items():
        assert set(record["rows"]) == set(check.ROWS) and record["machine"]["instruction_set"] == name
