"""Where nodes come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.topology import node_map


def test_equal_identities_are_one_node_whatever_the_order() -> None:
    assert node_map.node_labels([]) == []
    assert node_map.node_labels(["a"]) == [0]
    assert node_map.node_labels(["b", "a", "b", "c", "a"]) == [0, 1, 0, 2, 1]


def test_this_machine_has_one_identity() -> None:
    assert node_map.machine_identity() == node_map.machine_identity() != ""


def test_the_host_name_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(node_map.socket, "gethostname", lambda: "host")
    assert node_map.machine_identity() == "host"
