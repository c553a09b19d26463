"""Statistics of several groups as one, what explain says of them, and groups that cannot be asked."""

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import isthmus
from isthmus.base.backends import backend_of
from isthmus.group import process
from isthmus.report import explain as explain_module
from isthmus.report.explain import explain, why_exact
from isthmus.report.statistics import added, group_name
from isthmus.report.summary import crossing
from python.report import made_up_stats as made_up
from support import ranks
from support.checks import finish
from support.logs import logged


def fsdp2() -> torch.nn.Module:
    return fully_shard(torch.nn.Linear(64, 64))


def ddp() -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))


def prepared_ddp() -> torch.nn.Module:
    return isthmus.prepare(ddp())


UNLABELLED = (
    "no gradient was compressed in the first two steps: exact reductions: 2 in backward passes, because nothing"
)
TOO_SMALL = (
    "no gradient was compressed in the first two steps: "
    "exact reductions: 2 of fewer elements than min_elements=9999: set a smaller one"
)
NO_WEIGHTS = (
    "option weights=delta changed nothing in the first two steps: it is for parameters that FSDP gathers, "
    "min_elements or more at once (DDP gathers none)"
)
# A model, options, and what rank 0 is told at which of four steps.
TOLD: dict[str, tuple[Callable[[], torch.nn.Module], dict[str, Any], list[tuple[int, str]]]] = {
    "DDP by name": (ddp, {}, [(2, UNLABELLED)]),
    "DDP whose gradients are recognised": (ddp, {"gradients": "backward"}, []),
    "prepared DDP": (prepared_ddp, {}, []),
    "DDP, of which nothing is asked": (ddp, {"codec": "none"}, []),
    "small FSDP": (fsdp2, {"min_elements": 9999}, [(2, TOO_SMALL)]),
    "weights of DDP": (prepared_ddp, {"weights": "delta"}, [(2, NO_WEIGHTS)]),
    "weights of DDP alone": (ddp, {"weights": "delta", "codec": "none"}, [(2, NO_WEIGHTS)]),
    "FSDP": (fsdp2, {"weights": "delta"}, []),
    "exact first steps": (fsdp2, {"dense_steps": 100}, []),
    "what is excluded": (fsdp2, {"units": "!root"}, []),
}


def told_in_four_steps(rank: int, world_size: int) -> dict[str, list[tuple[int, str]]]:
    store = ranks.store()
    found = {}
    for name, (make, options, _) in TOLD.items():
        settings = isthmus.Options(nodes="2x1", **{"min_elements": 0, **options})
        told: list[tuple[int, str]] = []
        with logged() as messages:
            ranks.init(store=dist.PrefixStore(name, store), pg_options=settings)
            model = make()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for step in range(1, 5):
                model(torch.ones(2, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                told += [(step, text) for text in messages[len(told) :]]
        finish()
        found[name] = told
    return found


@pytest.fixture(scope="module")
def told_by_rank() -> list[dict[str, list[tuple[int, str]]]]:
    return ranks.run(told_in_four_steps, 2)


@pytest.mark.processes
@pytest.mark.parametrize("name", TOLD)
def test_what_was_asked_for_and_does_not_come_is_told_once(
    told_by_rank: list[dict[str, list[tuple[int, str]]]], name: str
) -> None:
    expected = TOLD[name][2]
    told, of_rank_1 = (of_rank[name] for of_rank in told_by_rank)
    assert [(step, text[: len(wanted)]) for (step, text), (_, wanted) in zip(told, expected, strict=True)] == expected
    assert of_rank_1 == []
    if name == "DDP by name":
        assert 'call isthmus.prepare(model), or set gradients="backward"' in told[0][1]


def test_groups_are_added_up_and_their_units_and_notes_say_whose_they_are() -> None:
    other = made_up.group(
        node_map="2 nodes x 1 rank, in blocks",
        exact_calls={"below min_elements": 2},
        weights={"gathers": 0, "whole": {"first": 1}},
        one_tier="one node",
        notes=["a note"],
        devices={"cpu": {"compressed_calls": 2, "skipped_steps": 1, "units": [made_up.unit("1")]}, "cuda:0": {}},
    )
    total = added({"default": made_up.group(exact_calls={"below min_elements": 1}), "mesh_dp": other})
    assert total["node_map"] == "2 nodes x 2 ranks, in blocks"
    assert (total["compressed_calls"], total["scratch_bytes"], total["ran_s"]) == (2, 128, 20.0)
    assert total["exact_calls"] == {"below min_elements": 3}
    assert total["calls"] == {"_reduce_scatter_base": 2}
    assert total["collectives"]["all_gather"]["inter"]["sent_bytes"] == 19000
    assert total["weights"] == {"gathers": 0, "whole": {"first": 1}}
    assert [(unit["name"], unit["group"]) for unit in total["units"]] == [("0", "default"), ("0", "mesh_dp")]
    assert total["notes"] == ["mesh_dp: a note"]
    assert [added({"a": other, "b": each})["one_tier"] for each in (other, made_up.group())] == ["one node", ""]
    assert total["skipped_steps"] == 1  # the step is one, in all groups
    cpu = total["devices"]["cpu"]
    assert (cpu["compressed_calls"], cpu["skipped_steps"], len(cpu["units"])) == (3, 1, 2)
    assert total["devices"]["cuda:0"] == {}


@pytest.mark.parametrize(
    ("description", "taken", "name"),
    [
        ("default_pg", [], "default"),
        ("mesh_dp", [], "mesh_dp"),
        ("mesh_dp", ["mesh_dp"], "mesh_dp (7)"),
        ("undefined", [], "group 7"),
        ("", [], "group 7"),
    ],
)
def test_names_of_groups(description: str, taken: list[str], name: str) -> None:
    assert group_name(description, "7", taken) == name


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"one_tier": "no two-tier path: it needs several nodes, and this group has 1 node"}, "no two-tier path: it"),
        ({}, "nothing was reduced yet, or nothing that is taken for a gradient"),
        (
            {
                "exact_calls": {"below min_elements": 1, "not labelled, in a backward pass": 4},
                "notes": ["call prepare"],
            },
            "4 calls: not labelled, in a backward pass; 1 calls: below min_elements; call prepare",
        ),
    ],
)
def test_why_nothing_was_compressed(changes: dict[str, Any], why: str) -> None:
    assert why_exact(made_up.empty(**changes)).startswith(why)


def test_explain_speaks_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"default": made_up.empty(), "mesh_replicate": made_up.group()}
    monkeypatch.setattr(explain_module, "stats", lambda group=None: added(groups) | {"groups": groups})
    assert explain().splitlines() == [
        "default (2 nodes x 2 ranks, in blocks):",
        "  no gradient was compressed: nothing was reduced yet, or nothing that is taken for a gradient",
        "mesh_replicate (2 nodes x 2 ranks, in blocks):",
        "  0 (reduce_scatter, 2,000 elements): quant bits=4; 4 bits an element sent, "
        "relative squared error 0.01 measured",
    ]
    groups.pop("default")
    assert len(explain().splitlines()) == 1  # one group needs no name


def test_what_is_no_group_of_this_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    with pytest.raises(ValueError, match="rank 3 is not in this group"):
        isthmus.stats(dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(TypeError, match="expected a process group, got str"):
        backend_of("dp")  # type: ignore[arg-type]
    for function in (isthmus.stats, isthmus.reset_stats, isthmus.explain, isthmus.summary):
        with pytest.raises(ValueError, match="there is no process group"):
            function()


def hsdp_in_two_meshes(rank: int, world_size: int) -> dict[str, Any]:
    begin_s = time.monotonic()
    with logged() as messages:
        ranks.init(pg_options=isthmus.Options(nodes="2x2", min_elements=0, units="0,nosuch*", log="info", ratio=4))
        dist.new_group([0])
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        told: dict[str, Any] = {"before": isthmus.explain()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        written: list[dict[str, float]] = []
        handle = isthmus.log_to(SimpleNamespace(log=written.append), every=2)  # as wandb has it
        for step in range(4):
            if step == 3:
                handle.remove()
            model(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        told["warned"] = [message for message in messages if "no unit matches" in message]
    replicas = isthmus.stats(mesh.get_group("replicate"))
    told |= {"all": isthmus.stats(), "replicas": replicas, "explained": isthmus.explain(), "written": written}
    told["summary"] = isthmus.summary()
    told["exact_bytes"] = crossing(isthmus.stats()).exact_bytes
    told["seconds"] = time.monotonic() - begin_s
    finish()
    with logged(logging.INFO) as told["logged"]:
        process._log_summary()
    return told


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return ranks.run(hsdp_in_two_meshes, 4)


@pytest.mark.processes
def test_hsdp_does_not_look_switched_off(told: list[dict[str, Any]]) -> None:
    for of_rank in told:
        assert of_rank["all"]["compressed_calls"] == of_rank["replicas"]["compressed_calls"] == 4
        assert {"default", "mesh_replicate", "mesh_shard"} <= of_rank["all"]["groups"].keys()
        assert of_rank["all"]["groups"]["default"]["compressed_calls"] == 0
        assert {(unit["group"], unit["dtype"]) for unit in of_rank["all"]["units"]} == {("mesh_replicate", "float32")}
        assert 0 < of_rank["all"]["ran_s"] < of_rank["seconds"]
        assert 0 < of_rank["all"]["waited_s"] < of_rank["seconds"]
        assert "no gradient was compressed: nothing was reduced yet" in of_rank["before"]
        assert "no gradient was compressed: no two-tier path" in of_rank["before"]  # the shards, within a node
        assert "  0 (all_reduce, " in of_rank["explained"]
        assert "1 (all_reduce, 2,080 elements): none (excluded by policy (units))" in of_rank["explained"]


@pytest.mark.processes
def test_globs_that_match_nothing_are_warned_of_once_on_one_rank(told: list[dict[str, Any]]) -> None:
    text = "option units=0,nosuch*: no unit matches nosuch*; there are 2: 0, 1"
    assert [of_rank["warned"] for of_rank in told] == [[text], [], [], []]


@pytest.mark.processes
def test_a_run_is_summed_up_and_logged(told: list[dict[str, Any]]) -> None:
    for of_rank in told:
        lines = of_rank["summary"]
        assert "exact it would have been" in lines
        assert "1 x all_reduce (0; 2,080 elements): quant bits=4 error_feedback=codec" in lines
        assert "1 x all_reduce (1; 2,080 elements): exact (excluded by policy (units))" in lines
        assert "option ratio=4 has no effect with codec=quant: it is for tagc" in lines
        (values,) = of_rank["written"]
        assert values["isthmus/step"] == 2
        assert values["isthmus/compression"] > 1
        assert values["isthmus/sent_bytes"] > 0
        # Two units of 2080 float32 elements, a half of which goes to the other node, and comes back summed; 4 steps.
        header_bytes = 2 * 64 * 4
        assert 4 * 2 * 2080 * 4 <= of_rank["exact_bytes"] <= 4 * 2 * 2080 * 4 + header_bytes
    assert [len(of_rank["logged"]) for of_rank in told] == [1, 0, 0, 0]
    assert told[0]["logged"][0].startswith("summary: 2 nodes x 2 ranks, in blocks, by option nodes")
    assert "1 x all_reduce (0; 2,080 elements): quant bits=4 error_feedback=codec" in told[0]["logged"][0]
