"""Re-sharding keeps what residuals will add to the gradient of every parameter."""

import types
from dataclasses import dataclass, field

import pytest
import torch

from isthmus.residuals import reshard as _reshard
from isthmus.residuals import saved as _saved
from isthmus.residuals.known import KnownModel
from isthmus.units.layout import Parameter
from isthmus.units.models import Unit

PARAMETERS = (Parameter("weight", (7, 3)), Parameter("across", (2, 24), dim=1), Parameter("bias", (5,)))


@dataclass(eq=False)
class Group:
    """A process group as one rank sees it."""

    ranks: tuple[int, ...]
    own: int

    def size(self):
        return len(self.ranks)

    def rank(self):
        return self.ranks.index(self.own)


@dataclass
class Backend:
    """Takes what is loaded."""

    global_ranks: tuple[int, ...]
    node_of_rank: tuple[int, ...]
    options: object
    loaded: list = field(default_factory=list)

    def load_unit(self, state):
        self.loaded.append(state)


def options(tiers="two"):
    fields = dict.fromkeys(("ratio", "sparsity", "index_bits", "block_elements", "peel_rounds"), 1)
    return types.SimpleNamespace(codec="tagc", own_piece="exact", tiers=tiers, **fields)


@dataclass
class World:
    """Ranks on nodes: "fsdp" reduce-scatters over all, "hsdp" within nodes and all-reduces along rails, "ddp" all."""

    kind: str
    nodes: list
    tiers: str = "two"

    @property
    def num_ranks(self):
        return sum(map(len, self.nodes))

    def unit(self, rank, divisor=1.0):
        node = next(ranks for ranks in self.nodes if rank in ranks)
        everyone = Group(tuple(range(self.num_ranks)), rank)
        rail = Group(tuple(ranks[node.index(rank)] for ranks in self.nodes), rank)
        groups = {"fsdp": (everyone, None), "hsdp": (Group(tuple(node), rank), rail), "ddp": (None, everyone)}
        shards, replicas = groups[self.kind]
        in_rows = self.kind != "ddp"
        parameters = PARAMETERS if in_rows else (PARAMETERS[0], Parameter("", (2,)), *PARAMETERS[1:])
        return Unit("blocks.0", "blocks.0", parameters, parameters, in_rows, shards, replicas, divisor, divisor)

    def backend(self, group):
        node_of = {rank: node for node, ranks in enumerate(self.nodes) for rank in ranks}
        return Backend(group.ranks, tuple(node_of[r] for r in group.ranks), options(self.tiers))


def owned(state, nodes, rank, tiers):
    """Yield what each stretch of a rank's residuals adds to: first element, values."""
    num_ranks = sum(map(len, nodes))
    chunk = -(-state["num_elements"] // num_ranks)
    scaled = state["residual"] * state["scale"]
    if tiers == "flat":
        yield 0, scaled
    else:
        local = next(ranks.index(rank) for ranks in nodes if rank in ranks)
        others = [ranks[local] for ranks in nodes if rank not in ranks]
        yield from ((owner * chunk, scaled[i * chunk : (i + 1) * chunk]) for i, owner in enumerate(others))
    if state["result_residual"].numel():
        yield rank * chunk, state["result_residual"]


def totals_of(world, states):
    """Sum what the residuals of all ranks add to each parameter, by the contract's own words."""
    totals = {}
    for rank, state in states.items():
        unit = world.unit(rank)
        layout = unit.layout()
        reduction = unit.reductions(layout)[-1]
        backend = world.backend(reduction.process_group)
        mine = layout.zeros()
        for begin, values in owned(
            state, _saved.ranks_by_node(backend.node_of_rank), reduction.process_group.rank(), world.tiers
        ):
            length = max(0, min(values.numel(), reduction.num_elements - begin))
            layout.add(values[:length], reduction.first_element + begin, mine)
        for parameter, values in mine.items():
            totals[parameter] = totals.get(parameter, 0) + values
    return totals


def random_states(world):
    torch.manual_seed(1)
    states = {}
    for rank in range(world.num_ranks):
        unit = world.unit(rank)
        reduction = unit.reductions(unit.layout())[-1]
        size = reduction.process_group.size()
        chunk = -(-reduction.num_elements // size)
        num_nodes = len(world.nodes)
        flat = world.tiers == "flat"
        states[rank] = {
            "num_elements": reduction.num_elements,
            "collective": reduction.collective,
            "first_element": reduction.first_element,
            "ranks": reduction.process_group.ranks,
            "scale": 0.25,
            "residual": torch.randn(reduction.num_elements if flat else (num_nodes - 1) * chunk),
            "result_residual": torch.randn(chunk if reduction.collective == "all_reduce" and not flat else 0),
            "layout": unit.layout(),
        }
    return states


def source_of(world, states, divisor=1.0, rename=lambda rank: "blocks.0"):
    state = {}
    for rank, saved in states.items():
        unit = _saved.SavedUnit(
            rename(rank),
            saved["num_elements"],
            "float32",
            saved["collective"],
            0,
            5,
            saved["scale"],
            saved["residual"].numel(),
            saved["result_residual"].numel(),
            saved["layout"].to_json(),
            saved["first_element"],
            divisor,
        )
        backend = world.backend(Group(saved["ranks"], rank))
        group = _saved.SavedGroup(saved["ranks"], backend.node_of_rank, _saved.option_texts(backend), (unit,))
        state[f"rank{rank}"] = _saved.to_text([group])
        for kind in _saved.RESIDUALS:
            if saved[kind].numel():
                state[_saved.tensor_key(rank, 0, 0, kind)] = saved[kind]
    return _saved.source_of_state(state)


def reshard(source, world, divisor=1.0, **arguments):
    states, reports = {}, []
    for rank in range(world.num_ranks):
        unit = world.unit(rank, divisor)
        groups = [(group, world.backend(group)) for group in unit.process_groups]
        report = _reshard.reshard_residuals(
            source, groups, groups, [KnownModel([unit], None)], only_drop=False, **arguments
        )
        reports.append(report)
        loaded = [state for _, backend in groups for state in backend.loaded]
        if loaded:
            (states[rank],) = loaded
    assert all(report == reports[0] for report in reports)
    return states, reports[0]


BLOCKS = {n: [[node * 2, node * 2 + 1] for node in range(n)] for n in (1, 2, 3, 4)}
INTERLEAVED = [[0, 2], [1, 3]]
SINGLE = [[0], [1]]


@pytest.mark.processes
@pytest.mark.parametrize("after", [SINGLE, BLOCKS[2], BLOCKS[3], BLOCKS[4], INTERLEAVED], ids=str)
@pytest.mark.parametrize(
    ("kind", "tiers"), [("fsdp", "two"), ("fsdp", "flat"), ("hsdp", "two"), ("ddp", "two")], ids=str
)
def test_resharding_keeps_what_residuals_add(kind, tiers, after):
    for before in [BLOCKS[2], BLOCKS[3], INTERLEAVED]:
        saved = World(kind, before, tiers)
        states = random_states(saved)
        world = World(kind, after, tiers)
        loaded, report = reshard(source_of(saved, states), world)
        assert report.resharded == ("blocks.0",) and not report.dropped
        assert len(loaded) == world.num_ranks
        expected, found = totals_of(saved, states), totals_of(world, loaded)
        assert expected.keys() == found.keys()
        for parameter in expected:
            assert expected[parameter].abs().min() > 0
            torch.testing.assert_close(found[parameter], expected[parameter])
        assert all(state["step"] == 5 and state["scale"] == 1 for state in loaded.values())


@pytest.mark.processes
def test_fsdp_loads_what_hsdp_saved():
    saved = World("hsdp", BLOCKS[2])
    states = random_states(saved)
    world = World("fsdp", BLOCKS[3])
    loaded, _ = reshard(source_of(saved, states), world)
    expected, found = totals_of(saved, states), totals_of(world, loaded)
    for parameter in expected:
        torch.testing.assert_close(found[parameter], expected[parameter])


@pytest.mark.processes
def test_later_divisions_of_torch_are_compensated():
    saved, world = World("fsdp", BLOCKS[2]), World("fsdp", BLOCKS[3])
    states = random_states(saved)
    loaded, _ = reshard(source_of(saved, states, divisor=2.0), world, divisor=3.0)
    expected, found = totals_of(saved, states), totals_of(world, loaded)
    for parameter in expected:
        torch.testing.assert_close(found[parameter], expected[parameter] * 1.5)


@pytest.mark.processes
def test_one_node_drops_residuals_and_says_so():
    saved = World("fsdp", BLOCKS[2])
    loaded, report = reshard(source_of(saved, random_states(saved)), World("fsdp", BLOCKS[1]))
    assert not loaded
    ((name, reason),) = report.dropped
    assert name == "blocks.0" and "within one node" in reason


@pytest.mark.processes
def test_missing_ranks_and_damaged_tensors_are_named():
    saved = World("fsdp", BLOCKS[2])
    states = random_states(saved)
    some = {rank: state for rank, state in states.items() if rank != 2}
    with pytest.raises(ValueError, match=r"saved by ranks \[0, 1, 2, 3\], and of these \[2\] are missing"):
        reshard(source_of(saved, some), World("fsdp", BLOCKS[3]))
    source = source_of(saved, states)
    source._sizes["rank1/0/0/residual"] = 3
    with pytest.raises(ValueError, match=r"residual of unit 'blocks.0' of rank 1 has 3 elements where \d+ were saved"):
        source.check(1, 0)
    del source._sizes["rank1/0/0/residual"]
    with pytest.raises(ValueError, match=r"of rank 1 is missing.*load_checkpoint"):
        source.check(1, 0)


@pytest.mark.processes
def test_other_tiers_are_refused():
    saved = World("fsdp", BLOCKS[2])
    source = source_of(saved, random_states(saved))
    with pytest.raises(ValueError, match="saved with tiers=two, and this group has flat"):
        reshard(source, World("fsdp", BLOCKS[3], "flat"))


def test_foreign_states_are_refused():
    with pytest.raises(ValueError, match=r"no isthmus\.state_dict"):
        _saved.source_of_state({"model": 1})
    with pytest.raises(ValueError, match="has version 2"):
        _ = _saved.source_of_state({"rank0": '{"version": 2, "groups": []}'}).ranks


@pytest.mark.processes
def test_checkpoints_of_dcp_are_read_piece_by_piece(tmp_path):
    import torch.distributed.checkpoint as dcp

    saved = World("fsdp", BLOCKS[2])
    states = random_states(saved)
    entries = source_of(saved, states)
    state = {f"rank{rank}": text for rank, text in entries._texts.items()}
    state |= {f"rank{rank}/0/0/residual": states[rank]["residual"] for rank in states}
    dcp.save({"isthmus": state, "model": {"w": torch.ones(2)}}, checkpoint_id=tmp_path, no_dist=True)

    source = _saved.source_of_checkpoint(tmp_path, "isthmus")
    assert source.ranks == entries.ranks
    for rank in states:
        source.check(rank, 0)
        assert torch.equal(source.residuals(rank, 0, 0)["residual"], states[rank]["residual"])
    loaded, report = reshard(source, World("fsdp", BLOCKS[3]))
    assert len(loaded) == 6 and report.resharded == ("blocks.0",)
    with pytest.raises(ValueError, match="has no 'other'"):
        _saved.source_of_checkpoint(tmp_path, "other")
