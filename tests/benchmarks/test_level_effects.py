"""What a level does: slopes by hand, a twin whose answer is known, the simulator's own answer."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from benchmarks.studies.level_effects import forecast_effects, slopes, true_effects
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import draw_starts
from stepdown.signals import FLOW, LEVEL, LEVELS, MAP

COHORT = CohortConfig(patients=8, hours=24.0)


@pytest.fixture(scope="module")
def starts():
    cohort, latents = simulate_cohort(COHORT, key=jr.key(3))
    return draw_starts(cohort, latents, 16, key=jr.key(1))


def test_slopes_are_least_squares():
    draw = np.random.default_rng(0)
    effect = draw.normal(size=(3, 8))
    wanted = [np.polyfit(LEVELS, row, 1)[0] for row in effect]
    assert slopes(effect) == pytest.approx(wanted)


def test_a_twin_with_a_known_answer(starts):
    def answer(state, level, *, key):
        change = level - state[:, LEVEL]
        later = state.at[:, MAP].add(2.0 * change).at[:, FLOW].add(0.3 * change)
        return later.at[:, LEVEL].set(level.astype(float))

    effects = forecast_effects(answer, starts, 3, keys=jr.split(jr.key(0), 2))
    assert slopes(effects.map) == pytest.approx(np.full(16, 2.0), rel=1e-3)
    assert slopes(effects.late_map) == pytest.approx(np.full(16, 2.0), rel=1e-3)
    assert slopes(effects.flow) == pytest.approx(np.full(16, 0.3), rel=1e-3)
    held = effects.map[np.arange(16), effects.before - 2]
    assert held == pytest.approx(np.asarray(starts.state)[..., MAP].mean(1), rel=1e-4)


def test_in_truth_a_higher_level_pumps_more(starts):
    effects = true_effects(starts, world_of(COHORT), 2)
    assert slopes(effects.flow).mean() == pytest.approx(0.25, abs=0.08)  # 1.9 L/min over P2..P9
    assert slopes(effects.map).mean() > 0
    assert np.array_equal(effects.before, np.rint(np.asarray(starts.state)[:, -1, LEVEL]))
    assert np.array_equal(effects.row, starts.row)
    assert jnp.isfinite(jnp.asarray(effects.value)).all()
