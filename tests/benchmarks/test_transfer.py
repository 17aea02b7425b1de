"""A wrong pressure line shows what it says, and the later studies draw patients of their own."""

import numpy as np

from benchmarks.studies import independent, parts, transfer
from stepdown.signals import DBP, HR, MAP, PULSATILITY, SBP


def test_a_wrong_line_changes_pressures_alone_and_keeps_pulsatility_the_difference():
    state = np.full((2, 6, 13), 5.0, np.float32)
    state[..., [MAP, SBP, DBP, PULSATILITY]] = 80.0, 120.0, 60.0, 60.0
    damped, high = (np.asarray(transfer.misread(state, x)) for x in transfer.FAULTS)
    shown = [MAP, SBP, DBP, PULSATILITY]
    np.testing.assert_array_equal(damped[1, 3, shown], [80.0, 100.0, 70.0, 30.0])
    np.testing.assert_array_equal(high[1, 3, shown], [100.0, 140.0, 80.0, 60.0])
    np.testing.assert_array_equal(damped[..., HR], state[..., HR])
    np.testing.assert_array_equal(high[..., HR], state[..., HR])


def test_no_two_studies_share_a_cohort():
    named = [
        x["seed"]
        for design in map(lambda study: study.read_design(), (independent, transfer, parts))
        for part in ("development", "test")
        if part in design
        for x in independent.cohorts_of(design, part)
    ]
    assert len(named) == len(set(named)) == 10 + 48 + 2 + 12 + 6
