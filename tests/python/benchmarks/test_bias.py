"""`isthmus bench bias`: how much of what crosses arrives."""

import pytest

from isthmus.benchmarks.bias.config import BiasConfig
from isthmus.benchmarks.bias.run import measure_biases

#: What a uniform quantiser of a normal distribution loses of the squares (Max 1960, table II).
LOST = {4: 0.0115, 3: 0.0374, 2: 0.1188, 1: 0.363}


@pytest.mark.processes
def test_least_error_scales_shrink_and_unbiased_ones_do_not(tmp_path):
    rows = {(row.collective, row.scale, row.bits): row for row in measure_biases(BiasConfig(32_768, 2), tmp_path)}
    for bits, lost in LOST.items():
        scattered = rows["reduce-scatter", "least_error", bits]
        reduced = rows["all-reduce", "least_error", bits]
        assert scattered.foreign_slope == pytest.approx(1 - lost, abs=0.01)
        assert scattered.own_slope == pytest.approx(1, abs=0.01)
        assert reduced.foreign_slope == pytest.approx((1 - lost) ** 2, abs=0.015)
        assert reduced.own_slope == pytest.approx(1 - lost, abs=0.015)
        assert scattered.error == pytest.approx(lost / 2, rel=0.05)
        for collective in ("reduce-scatter", "all-reduce"):
            unbiased = rows[collective, "unbiased", bits]
            assert (unbiased.own_slope, unbiased.foreign_slope) == pytest.approx((1, 1), abs=0.02)
