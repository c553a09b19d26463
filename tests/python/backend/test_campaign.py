"""Random faults, always the same ones: `python tests/faults/campaign.py NUMBER` draws others."""

from multiprocessing import resource_tracker

import pytest

from faults.campaign import campaign, children

pytestmark = pytest.mark.processes

SEED, NUM_CASES = 1, 20


def test_random_faults_end_in_errors_that_name_them_or_change_nothing() -> None:
    resource_tracker.ensure_running()
    before = children()
    with campaign(SEED) as cases:
        ended = [cases.run(number) for number in range(NUM_CASES)]
        own = set(cases.nodes)
    wrong = [f"{SEED}:{number} {case}: {text}" for number, (case, _, text) in enumerate(ended) if text]
    assert not wrong, "\n".join(wrong)
    assert {result for _, result, _ in ended} >= {"errors", "as undisturbed"}
    assert not (children() - before) & own, "processes of the simulated nodes are left"
