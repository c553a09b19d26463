"""Random faults, always the same ones: `python tests/faults/campaign.py NUMBER` draws others."""

from faults import campaign
from python.cuda.worlds import on_fake_gpu

SEED, NUM_CASES = 135, 20  # each job, and most faults


@on_fake_gpu
def test_random_faults_end_in_errors_that_name_them_or_change_nothing() -> None:
    results = list(campaign.run(SEED, range(NUM_CASES)))  # fails where processes are left, too
    assert not any(result.complaint for result in results), "\n".join(map(str, results))
    assert {result.came for result in results} >= {"errors", "as undisturbed"}
