"""Every row of the table of metrics keeps what the rest relies on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepdown.handover import Cohort, Episodes
from stepdown.problem.clinical import PAPER
from stepdown.problem.metrics import METRICS, score_episode, score_episodes
from stepdown.problem.stays import score_stays
from stepdown.signals import HORIZON, HR, LEVEL, MAP, NAMES, PULSATILITY, STEPS
from tests.documented import documented

EXAMPLE = documented("A metric")
TABLE = METRICS | {EXAMPLE.name: EXAMPLE}
COUNT = 40


@pytest.fixture(scope="module")
def played() -> Episodes:
    """Episodes of random hours, some safe and steady, and random small and large changes."""
    random = np.random.default_rng(0)
    shape = (COUNT, HORIZON + 1, STEPS)
    level = np.clip(6 + random.integers(-4, 5, shape[:2]).cumsum(1), 2, 9)
    state = np.full((*shape, len(NAMES) + 1), np.nan, np.float32)
    for column, middle, spread in ((MAP, 72, 8), (HR, 75, 14), (PULSATILITY, 28, 9)):
        hourly = random.normal(middle, spread, (*shape[:2], 1))
        state[..., column] = np.maximum(hourly + random.normal(0, 1, shape), 1)
    state[..., LEVEL] = level[..., None]
    alive = jnp.ones((COUNT, HORIZON), bool)
    return Episodes(jnp.asarray(state), jnp.asarray(level, jnp.int32), alive)


@pytest.fixture(scope="module")
def scores(played) -> dict[str, np.ndarray]:
    """All metrics of all episodes."""
    return jax.tree.map(np.asarray, score_episodes(played, PAPER, TABLE))


def test_these_are_the_metrics_of_the_definitions_in_their_order():
    weaning = ("ws_gradient", "ws_limits", "ws_both")
    befell = ("unsafe_hours", "staircase")
    assert tuple(METRICS) == ("reward", "acp", "total_change", *weaning, *befell)


@pytest.mark.parametrize("name", TABLE)
def test_a_metric_tells_episodes_apart(name, scores):
    assert scores[name].shape == (COUNT,)
    assert np.isfinite(scores[name]).all()
    assert len(np.unique(scores[name].round(4))) > 2


def test_an_episode_alone_scores_as_among_others(played, scores):
    for number in range(3):
        one = jax.tree.map(lambda x, i=number: x[i], played)
        alone = score_episode(one, PAPER, TABLE)
        for name in TABLE:
            assert float(alone[name]) == pytest.approx(scores[name][number], abs=1e-5)


def test_a_recorded_stay_scores_as_the_same_episode(played, scores):
    samples = played.state.reshape(COUNT, -1, len(NAMES) + 1)
    level = samples[..., LEVEL].astype(jnp.int32)
    names = tuple(f"p{i}" for i in range(COUNT))
    cohort = Cohort(samples[..., :LEVEL], level, jnp.ones(level.shape, bool), names)
    found = score_stays(cohort, metrics=TABLE)
    for name in TABLE:
        assert np.asarray(found[name]) == pytest.approx(scores[name], abs=1e-4)


@pytest.mark.parametrize("name", TABLE)
def test_a_metric_of_the_dead_is_known(name, played, scores):
    dead = Episodes(
        played.state.at[:, 3:].set(jnp.nan), played.level, played.alive.at[:, 2:].set(False)
    )
    after = np.asarray(score_episodes(dead, PAPER, TABLE)[name])
    assert np.isfinite(after).all()
    if TABLE[name].table == "safety":  # what befell the patient, not what was decided
        assert (TABLE[name].sign * (scores[name] - after) > -1e-5).all()


@pytest.mark.parametrize("name", TABLE)
def test_a_metric_is_told_in_words(name, scores):
    metric = TABLE[name]
    assert metric.name == name
    assert metric.sign in (1.0, -1.0)
    if not metric.table:
        return
    assert all((metric.words, metric.short, metric.brief, metric.said, *metric.definition))
    assert metric.definition[1].endswith(".")
    assert metric.edges[0] <= metric.scale * np.median(scores[name]) <= metric.edges[-1]
    assert all(other in TABLE for other in metric.beside)


def test_the_example_counts_minutes():
    calm = jnp.full((2, STEPS, len(NAMES) + 1), 70.0).at[..., LEVEL].set(5.0)
    low = calm.at[0, :, MAP].set(50.0).at[1, 2:5, MAP].set(64.0)  # half of the hour that followed
    episode = Episodes(low, jnp.array([5, 5]), jnp.array([True]))
    assert score_episode(episode, PAPER, TABLE)[EXAMPLE.name] == pytest.approx(30.0)


def test_the_staircase_of_an_episode_is_the_mean_of_its_hours():
    """By hand: an hour without points, one at 55 mmHg (1 + 1 + 7), one after death (43)."""
    calm = jnp.full((4, STEPS, len(NAMES) + 1), jnp.nan).at[..., LEVEL].set(5.0)
    calm = calm.at[..., MAP].set(80.0).at[..., HR].set(70.0).at[..., PULSATILITY].set(30.0)
    low = calm.at[0, :, MAP].set(30.0).at[2, :, MAP].set(55.0)  # the first hour is no outcome
    alive = jnp.array([True, True, False])
    episode = Episodes(low, jnp.array([5, 5, 5, 5]), alive)
    assert score_episode(episode)["staircase"] == pytest.approx((0 + 9 + 43) / 3)


def test_a_score_over_no_decision_is_zero():
    falling = jnp.full((2, STEPS, len(NAMES) + 1), 70.0).at[..., LEVEL].set(5.0)
    falling = falling.at[..., MAP].set(jnp.linspace(90.0, 50.0, STEPS))
    episode = Episodes(falling, jnp.array([5, 4]), jnp.array([True]))
    assert score_episode(episode)["ws_both"] == 0.0
