"""The saved form of residuals: what is read of it, and what is refused."""

import dataclasses

import pytest
import torch

from isthmus.residuals import saved as _saved

UNIT = _saved.SavedUnit("blocks.0", 48, "float32", "reduce_scatter", 7, 5, 0.25, [], [], 12, 0, 0, True)


def entries(num_ranks=4):
    torch.manual_seed(1)
    state = {}
    for rank in range(num_ranks):
        options = dict.fromkeys(("codec", "tiers"), "x")
        group = _saved.SavedGroup((0, 1, 2, 3), (0, 0, 1, 1), options, (UNIT,))
        state[f"rank{rank}"] = _saved.to_text([group])
        state[f"rank{rank}/0/0/residual"] = torch.randn(12)
    return state


def test_damaged_tensors_are_named():
    source = _saved.source_of_state(entries())
    source._sizes["rank1/0/0/residual"] = 3
    with pytest.raises(ValueError, match=r"residual of unit 'blocks.0' of rank 1 has 3 elements where 12 were saved"):
        source.check(1, 0)
    del source._sizes["rank1/0/0/residual"]
    with pytest.raises(ValueError, match=r"of rank 1 is missing.*load_checkpoint"):
        source.check(1, 0)


def test_foreign_states_are_refused():
    with pytest.raises(ValueError, match=r"no isthmus\.state_dict"):
        _saved.source_of_state({"model": 1})
    with pytest.raises(ValueError, match="has version 1"):
        _ = _saved.source_of_state({"rank0": '{"version": 1, "groups": []}'}).ranks


def test_a_unit_comes_back_as_it_was():
    parked = dataclasses.replace(UNIT, sections=[[0, 3]], parked=[[False, 0, 1, 2, 4]], parked_values_elements=4)
    group = _saved.SavedGroup((0,), (0,), {}, (parked,))
    assert _saved.source_of_state({"rank0": _saved.to_text([group])}).ranks[0][0].units == (parked,)


@pytest.mark.processes
def test_checkpoints_of_dcp_are_read_piece_by_piece(tmp_path):
    import torch.distributed.checkpoint as dcp

    state = entries()
    dcp.save({"isthmus": state, "model": {"w": torch.ones(2)}}, checkpoint_id=tmp_path, no_dist=True)
    source = _saved.source_of_checkpoint(tmp_path, "isthmus")
    assert source.ranks == _saved.source_of_state(state).ranks
    for rank in range(4):
        source.check(rank, 0)
        assert torch.equal(source.residuals(rank, 0, 0)["residual"], state[f"rank{rank}/0/0/residual"])
    with pytest.raises(ValueError, match="has no 'other'"):
        _saved.source_of_checkpoint(tmp_path, "other")
