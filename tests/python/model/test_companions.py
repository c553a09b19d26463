"""What ranks must agree on before groups are made beside others, and torch's other communication layer below them."""

import importlib.util
import re
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

import isthmus
from isthmus.model import companions
from isthmus.model.companions import Ranks, Wish, disagreement, numbered, wanted_groups
from support import ranks
from support.documents import programs

OPTIONS = {"bits": "4", "weights": "plain"}
LOW: Ranks = (0, 1)
HIGH: Ranks = (2, 3)
ALL: Ranks = (0, 1, 2, 3)


def wish(*groups: Ranks, is_attached: bool = False, **options: str) -> Wish:
    return Wish({**OPTIONS, **options}, is_attached, groups)


def test_wishes_that_can_be_met() -> None:
    assert disagreement([wish(ALL)] * 4) == ""
    assert disagreement([wish(is_attached=True)] * 4) == ""
    assert disagreement([wish()] * 4) == ""
    assert disagreement([wish(LOW, ALL), wish(LOW, ALL), wish(HIGH, ALL), wish(HIGH, ALL)]) == ""
    assert disagreement([wish(ALL, ALL)] * 4) == ""


def test_options_are_compared() -> None:
    wishes = [wish(ALL), wish(ALL, bits="2"), wish(ALL), wish(ALL, bits="2")]
    assert disagreement(wishes) == "ranks have different options: bits is '4' on ranks 0, 2, '2' on ranks 1, 3"
    # Over groups that have no rank in common, too: torch makes a group on all ranks of the job.
    wishes = [wish(LOW), wish(LOW), wish(HIGH, weights="delta"), wish(HIGH, weights="delta")]
    assert "weights is 'plain' on ranks 0, 1, 'delta' on ranks 2, 3" in disagreement(wishes)


def test_a_model_is_attached_on_all_ranks_or_on_none() -> None:
    wishes = [wish(is_attached=True), wish(ALL), wish(ALL), wish(ALL)]
    assert disagreement(wishes) == "the model is attached already on rank 0, not on ranks 1, 2, 3"


@pytest.mark.parametrize("others", [(), (LOW,), (ALL,)])
def test_all_ranks_of_a_group_must_ask_for_it(others: tuple[Ranks, ...]) -> None:
    wishes = [wish(ALL, ALL), wish(ALL, ALL), wish(ALL, ALL), wish(*others)]
    text = "the model of rank 3 is not over the group of ranks 0, 1, 2, 3, as others' are"
    assert disagreement(wishes).startswith(text)


def test_groups_are_made_in_one_order_on_all_ranks() -> None:
    assert numbered([ALL, LOW, ALL]) == [(ALL, 0), (LOW, 0), (ALL, 1)]
    wishes = [wish(LOW, ALL), wish(LOW, ALL), wish(HIGH, ALL), wish(HIGH, ALL)]
    assert wanted_groups(wishes) == [(LOW, 0), (ALL, 0), (HIGH, 0)]


@pytest.mark.parametrize(
    ("splits", "bound", "group", "would_hang"),
    [(True, True, LOW, True), (True, True, ALL, False), (True, False, LOW, False), (False, True, LOW, False)],
)
def test_older_torch_hangs_where_ranks_outside_split_a_bound_default_group(
    monkeypatch: pytest.MonkeyPatch, splits: bool, bound: bool, group: Ranks, would_hang: bool
) -> None:
    world = SimpleNamespace(
        bound_device_id=torch.device("cuda", 0) if bound else None,
        size=lambda: len(ALL),
    )
    monkeypatch.setattr(companions, "backends_by_device", lambda _: {"cuda": SimpleNamespace(supports_splitting=True)})
    monkeypatch.setattr(companions, "dist", SimpleNamespace(group=SimpleNamespace(WORLD=world)))
    monkeypatch.setattr(companions, "_SPLITS_FOR_OTHER_BACKENDS", splits)
    text = companions.why_companions_would_hang([ALL, group])
    assert ("ranks outside of the group of ranks 0, 1 would split" in text) == would_hang
    assert bool(text) == would_hang


def test_a_process_group_comes_first() -> None:
    with pytest.raises(ValueError, match=r"call torch\.distributed\.init_process_group first"):
        isthmus.attach(nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"isthmus\.detach: this model is not attached"):
        isthmus.detach(nn.Linear(1, 1))


ATTACH = programs("docs/recipes.md")["attach.py"]
BY_NAME = re.sub(r"^isthmus\.attach.*$", "", ATTACH.replace('"gloo"', '"isthmus"'), flags=re.MULTILINE)


def train(rank: int, world_size: int, program: str) -> None:
    assert dist.config.use_torchcomms
    exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})


@pytest.mark.processes
@pytest.mark.skipif(
    importlib.util.find_spec("torch.distributed.config") is None, reason="this torch has one communication layer"
)
def test_the_other_communication_layer_of_torch_changes_nothing() -> None:
    with ranks.server_with(TORCH_DISTRIBUTED_USE_TORCHCOMMS="1"):
        for program in (ATTACH, BY_NAME):
            ranks.run(train, 2, program, env={"ISTHMUS_NODES": "2x1"})


def attach_over_a_group_that_shrinks(rank: int, world_size: int) -> str:
    dist.init_process_group("gloo", enable_reconfigure=True)
    group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    assert group is not None
    store.set(f"handle {rank}", group.get_reconfigure_handle())
    options = torch._C._distributed_c10d.ReconfigureOptions()
    options.uuid, options.handles = 1, [store.get(f"handle {other}").decode() for other in range(world_size)]
    group.reconfigure(options).wait()
    with pytest.raises(ValueError) as error:
        isthmus.attach(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), nodes="2x1")
    dist.destroy_process_group()
    return str(error.value)


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(dist.ProcessGroup, "reconfigure"), reason="this torch reconfigures no group")
def test_groups_whose_members_may_change_are_refused() -> None:
    for text in ranks.run(attach_over_a_group_that_shrinks, 2):
        assert "the members of a group of this model may change (enable_reconfigure=True)" in text
