"""Figures at the bedside and of the records: what they pick, what they draw."""

import jax.numpy as jnp
import numpy as np
import pytest

from stepdown.handover import Cohort, Episodes
from stepdown.report.patient_figures import (
    agreement,
    draw_agreement,
    draw_records,
    draw_rollouts,
    draw_weaning,
    pick_weaning,
)
from stepdown.signals import HR, LEVEL, MAP, NAMES, PULSATILITY
from tests.report.pixels import inches, pixels


def test_agreement_counts_changes_by_hand():
    before = np.array([6, 6, 6, 6, 9])
    recorded = np.array([6, 6, 5, 5, 2])  # 0, 0, -1, -1, -7
    chosen = np.array([6, 7, 5, 9, 9])  # 0, +1, -1, +3, 0
    table = agreement(chosen, recorded, before)
    assert table[3].tolist() == [0, 0, 0, 50, 50, 0, 0]
    assert table[2].tolist() == [0, 0, 50, 0, 0, 0, 50]
    assert table[0].tolist() == [0, 0, 0, 100, 0, 0, 0]
    assert np.isnan(table[[1, 4, 5, 6]]).all()
    methods = ("bc", "mbpo", "mopo", "svr", "cormpo_kde")
    png = draw_agreement(dict.fromkeys(methods, chosen), recorded, before)
    assert inches(png) == pytest.approx((1.8 + 3.1 * 3, 0.9 + 3.1 * 2), abs=0.02)


def episode(level: int, alive: bool = True) -> Episodes:
    """Seven steady hours; MAP is 70 and low in the last one."""
    state = np.full((7, 6, len(NAMES) + 1), 30.0, np.float32)
    state[..., MAP], state[..., HR], state[..., PULSATILITY] = 70, 80, 40
    state[-1, :, MAP] = 50
    state[..., LEVEL] = level
    living = jnp.full(6, True).at[-1].set(alive)
    return Episodes(jnp.asarray(state), jnp.full(7, level), living)


def test_rollouts_mark_unsafe_hours():
    safe = episode(6)
    safe = Episodes(safe.state.at[-1, :, MAP].set(70), safe.level, safe.alive)
    first = draw_rollouts({"one": {"mbpo": safe}})
    second = draw_rollouts({"one": {"mbpo": episode(6), "bc": safe}})
    assert inches(first) == pytest.approx((1.0 + 2.55, 0.5 + 4.3), abs=0.02)
    assert inches(second) == pytest.approx((1.0 + 2.55 * 2, 0.5 + 4.3), abs=0.02)
    red = [np.sum(pixels(png)[..., 0] - pixels(png)[..., 1] > 0.5) for png in (first, second)]
    assert red[1] > 2 * red[0]  # twice the lines of MAP, and a bar


@pytest.fixture
def cohort() -> Cohort:
    """Three stays of two days: steady, weaned from P9 to P3 within a day, up and down."""
    samples = 288
    signals = np.full((3, samples, len(NAMES)), 60.0, np.float32)
    level = np.full((3, samples), 8, np.int32)
    level[1] = np.clip(9 - np.maximum(np.arange(samples) - 60, 0) // 20, 3, 9)
    level[2] = np.where(np.arange(samples) // 40 % 2 == 0, 8, 5)
    arrays = jnp.asarray(signals), jnp.asarray(level), jnp.asarray(np.ones((3, samples), bool))
    return Cohort(arrays[0], arrays[1], arrays[2], ("a", "b", "c"), 10.0)


def test_weaning_examples_fall_steadily(cohort):
    # the fall takes from sample 80 to 180; the first day that holds it whole is taken
    assert pick_weaning(cohort) == [(1, 180 - 143)]  # who is not weaned on balance is no example
    assert inches(draw_weaning(cohort)) == pytest.approx((1.0 + 5.6, 5.6), abs=0.02)
    rows = np.array([1, 0, 1, 2])
    twice = Cohort(cohort.signals[rows], cohort.level[rows], cohort.seen[rows], tuple("abcd"))
    assert inches(draw_weaning(twice)) == pytest.approx((1.0 + 5.6 * 2, 5.6), abs=0.02)


def test_the_records_are_drawn(cohort):
    assert inches(draw_records(cohort)) == pytest.approx((15.0, 4.6), abs=0.02)
