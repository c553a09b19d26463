"""The file of measured links: there and back, and what is wrong with a bad one."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.topology.discovery.link_cache import (
    FORMAT,
    VERSION,
    LinkFileError,
    LinkSample,
    MeasuredLink,
    MeasuredLinks,
    cached_links,
    default_path,
    load_links,
    save_links,
)

LINKS = MeasuredLinks(
    intra=MeasuredLink(12.5, 40.0, (LinkSample(1024, 13.0, 15.0), LinkSample(1 << 20, 222.0, 222.0))),
    inter=MeasuredLink(50.0, 10.0, (LinkSample(1024, 51.0, 52.0),)),
    num_nodes=2,
    ranks_per_node=4,
    node_map="2 nodes x 4 ranks, in blocks",
    hosts=("a", "b"),
    backend="gloo",
    date="2026-11-21T18:50:00+00:00",
    versions={"isthmus": "0.1.0"},
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "isthmus" / "links.json"


def test_saved_links_are_read_back(cache: Path) -> None:
    assert cached_links() is None
    assert save_links(LINKS) == cache
    assert cached_links() == load_links() == load_links(cache) == LINKS
    assert [path.name for path in cache.parent.iterdir()] == ["links.json"]
    least = replace(LINKS, intra=None, inter=None, hosts=(), versions={})
    save_links(least)
    assert load_links() == least  # the newest is kept


def test_default_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert default_path() == Path("/home/u/.cache/isthmus/links.json")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert default_path() == Path("/c/isthmus/links.json")


GOOD = {"format": FORMAT, "version": VERSION, **asdict(LINKS)}


def inter(**changes: Any) -> dict[str, Any]:
    return GOOD | {"inter": {"latency_us": 0, "bandwidth_gbit_s": 40, "samples": []} | changes}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", r": Expecting value: line 1"),
        ("\xff", r": 'utf-8' codec"),
        ("[" * 100_000, r": maximum recursion"),
        ("[]", r'"format" is not "isthmus links"'),
        (GOOD | {"version": 2}, r"version 2, but this isthmus reads version 3"),
        ({"format": FORMAT, "version": VERSION}, r"links: 'intra' is missing"),
        (GOOD | {"num_nodes": 0}, r"links.num_nodes: expected a whole number of 1 or more, got 0"),
        (GOOD | {"hosts": [1]}, r"links.hosts\[0\]: expected text"),
        (GOOD | {"versions": {"torch": 2}}, r"links.versions.torch: expected text"),
        (inter(latency_us=-1), r"inter.latency_us: expected a number of 0 or more, got -1"),
        (inter(latency_us=10**400), r"inter.latency_us: .*got 10{59}\.\.\."),
        (inter(bandwidth_gbit_s=0), r"inter.bandwidth_gbit_s: expected a number above 0, got 0"),
        (inter(bandwidth_gbit_s=float("inf")), r"inter.bandwidth_gbit_s: .*got Infinity"),
        (inter(samples=[{"num_bytes": 0}]), r"inter.samples\[0\].num_bytes: expected a whole number of 1 or more"),
    ],
)
def test_a_bad_file_is_named_with_the_place(
    cache: Path, content: Any, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir()
    cache.write_text(content if isinstance(content, str) else json.dumps(content), encoding="latin-1")
    with pytest.raises(LinkFileError, match=complaint) as error:
        load_links(cache)
    assert str(error.value).startswith(str(cache))
    with caplog.at_level(logging.WARNING, "isthmus"):
        assert cached_links() is None
    assert [record.getMessage() for record in caplog.records] == [f"{error.value}: ignored"]
    save_links(LINKS)
    assert load_links() == LINKS


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(LinkFileError, match=r"missing: No such file"):
        load_links(tmp_path / "missing")
    with pytest.raises(LinkFileError, match=r"Is a directory"):
        load_links(tmp_path)


def test_a_directory_is_named_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as error:
        save_links(LINKS, tmp_path)
    assert error.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_links(LINKS)

    def fail(source: str, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_links(replace(LINKS, date="later"))
    assert load_links() == LINKS
    assert [path.name for path in cache.parent.iterdir()] == ["links.json"]


@pytest.mark.parametrize(
    ("hosts", "end"),
    [
        (("a",), "on a, which is no network between nodes"),
        (("a", "b", "c"), "on a, b, c"),
        (tuple("abcde"), "on a, b, c and 2 more"),
    ],
)
def test_describe(hosts: tuple[str, ...], end: str) -> None:
    text = replace(LINKS, hosts=hosts).describe()
    assert text.startswith("measured 2026-11-21T18:50:00+00:00 over gloo: 2 nodes x 4 ranks")
    assert text.endswith(end)
