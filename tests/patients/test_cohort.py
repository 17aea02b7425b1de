"""Cohorts: reproducible, independent of their company, replayable, shaped like the records."""

import jax
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.judging import score_episodes
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import Mode, OwnTeam, draw_starts, play
from stepdown.policies.rules import RULES
from stepdown.signals import FLOW, LEVELS, MAP

CONFIG = CohortConfig(patients=40)
WORLD = world_of(CONFIG)


@pytest.fixture(scope="module")
def ward():
    return simulate_cohort(CONFIG, key=jr.key(1))


@pytest.fixture(scope="module")
def starts(ward):
    cohort, latents = ward
    return draw_starts(cohort, latents, 64, key=jr.key(2))


def test_the_same_seed_gives_the_same_bytes(ward):
    again, _ = simulate_cohort(CONFIG, key=jr.key(1))
    assert np.asarray(again.signals).tobytes() == np.asarray(ward[0].signals).tobytes()
    assert np.asarray(again.level).tobytes() == np.asarray(ward[0].level).tobytes()


def test_a_patient_does_not_depend_on_the_others(ward):
    few, _ = simulate_cohort(CohortConfig(patients=3), key=jr.key(1))
    steps = few.signals.shape[1]
    assert np.array_equal(few.signals, ward[0].signals[:3, :steps], equal_nan=True)


def test_stays_have_no_holes_and_only_known_levels(ward):
    cohort, latents = ward
    ends = np.asarray(cohort.seen).sum(1)
    assert np.array_equal(cohort.seen, np.arange(cohort.seen.shape[1]) < ends[:, None])
    assert np.isfinite(cohort.signals[cohort.seen]).all()
    assert np.isnan(cohort.signals[~cohort.seen]).all()
    assert set(np.unique(cohort.level[cohort.seen])) <= set(LEVELS)
    assert set(np.unique(latents.outcome)) <= {0, 1, 2}


def test_the_own_team_replays_the_record(ward, starts):
    cohort, _ = ward
    episodes = play(OwnTeam(), starts, WORLD)
    for i, (row, first) in enumerate(zip(starts.row, starts.tick, strict=True)):
        recorded = cohort.signals[row, first : first + 36]
        recorded = recorded[~np.isnan(recorded[:, MAP])]
        replayed = np.asarray(episodes.state[i, 1:, :, :12]).reshape(36, 12)[: len(recorded)]
        assert np.allclose(replayed, recorded, rtol=1e-5, atol=1e-3)


def test_all_deciders_meet_the_same_fate(starts):
    """Two ways to say the same level give the same episode; another level a different one."""
    six = play(Mode(RULES["always P6"]), starts, WORLD)
    always = jax.numpy.log(jax.nn.one_hot(4, 8) * 0.93 + 0.01)
    same = play(Mode(lambda state: always), starts, WORLD)
    two = play(Mode(RULES["always P2"]), starts, WORLD)
    assert np.array_equal(six.state, same.state)
    assert np.all(np.asarray(six.level[:, 1:]) == 6)
    flows = np.asarray(six.state[:, -1, :, FLOW]) - np.asarray(two.state[:, -1, :, FLOW])
    assert (flows > 0).mean() > 0.97


def test_hours_after_death_score_the_minimum(starts):
    episodes = play(Mode(RULES["always P2"]), starts, WORLD)
    dead = jax.tree.map(np.asarray, episodes)
    dead.alive[:] = False
    scores = score_episodes(dead)
    assert np.allclose(scores.reward, -12.0)
    assert np.allclose(scores.unsafe_hours, 1.0)


def test_the_length_asked_for_is_the_length_recorded():
    cohort, latents = simulate_cohort(CohortConfig(patients=40, hours=6.0), key=jr.key(3))
    lengths = np.asarray(cohort.seen).sum(1)
    assert np.all((lengths == 36) | (np.asarray(latents.outcome) == 2))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [({"patients": 0}, "patient"), ({"hours": -1.0}, "hours"), ({"minutes": 7.0}, "interval")],
)
def test_wrong_configs_are_refused_in_words(wrong, word):
    with pytest.raises(ValueError, match=word):
        CohortConfig(**wrong)


def test_an_unknown_profile_is_refused_in_words():
    with pytest.raises(ValueError, match="cp"):
        world_of(CohortConfig(profile="x9"))
