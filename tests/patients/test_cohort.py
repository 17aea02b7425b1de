"""Cohorts: reproducible, independent of their company, replayable, shaped like the records."""

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.judging import score_episodes
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import Mode, OwnTeam, draw_starts, play
from stepdown.policies.rules import RULES
from stepdown.signals import FLOW, LEVEL, LEVELS, MAP

CONFIG = CohortConfig(patients=40)
EXPLANTED, DEAD = 1, 2  # outcomes of a stay
WORLD = world_of(CONFIG)


@pytest.fixture(scope="module")
def ward():
    return simulate_cohort(CONFIG, key=jr.key(1))


@pytest.fixture(scope="module")
def starts(ward):
    cohort, latents = ward
    return draw_starts(cohort, latents, 64, key=jr.key(2))


def test_the_same_seed_gives_the_same_bytes():
    config = CohortConfig(patients=40, hours=12.0)
    one, two = (simulate_cohort(config, key=jr.key(1))[0] for _ in range(2))
    assert np.asarray(one.signals).tobytes() == np.asarray(two.signals).tobytes()
    assert np.asarray(one.level).tobytes() == np.asarray(two.level).tobytes()
    other, _ = simulate_cohort(config, key=jr.key(2))
    assert not np.array_equal(one.signals[:, :36], other.signals[:, :36], equal_nan=True)


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


def test_an_episode_starts_with_the_hour_before_it(ward):
    cohort, latents = ward
    many = draw_starts(cohort, latents, 1024, key=jr.key(3))
    before = np.asarray(many.tick)[:, None] + np.arange(-6, 0)
    rows = np.asarray(many.row)[:, None]
    assert np.array_equal(many.state[..., :LEVEL], np.asarray(cohort.signals)[rows, before])
    levels = np.asarray(cohort.level)[rows, before]
    assert (levels != levels[:, :1]).any()  # somewhere the level changed inside the hour
    mean = np.floor(levels.mean(1, keepdims=True) + 0.5).repeat(6, 1)
    assert np.array_equal(many.state[..., LEVEL], mean)
    assert np.array_equal(many.tick % 6, np.zeros(1024))


def test_the_own_team_replays_the_record(ward, starts):
    cohort, _ = ward
    episodes = play(OwnTeam(), starts, WORLD)
    inside = 0
    for i, (row, first) in enumerate(zip(starts.row, starts.tick, strict=True)):
        recorded = cohort.signals[row, first : first + 36]
        recorded = recorded[~np.isnan(recorded[:, MAP])]
        replayed = np.asarray(episodes.state[i, 1:, :, :12]).reshape(36, 12)[: len(recorded)]
        assert np.allclose(replayed, recorded, rtol=1e-5, atol=1e-3)
        hours = len(recorded) // 6
        levels = np.asarray(cohort.level[row, first : first + 6 * hours]).reshape(hours, 6)
        mean = np.floor(levels.mean(1) + 0.5)
        assert np.array_equal(episodes.level[i, 1 : 1 + hours], mean)
        inside += (mean != levels[:, -1]).sum()
    assert inside > 0  # hours whose level is not that of their last sample
    assert np.array_equal(episodes.level[:, 0], starts.state[:, -1, LEVEL])


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


def test_the_dead_are_not_alive_in_an_episode(starts):
    gone = eqx.tree_at(lambda s: s.patient.course.alive, starts, np.zeros(64, np.float32))
    assert not play(Mode(RULES["always P2"]), gone, WORLD).alive.any()
    assert play(Mode(RULES["always P2"]), starts, WORLD).alive.mean() > 0.9


def test_hours_after_death_score_the_minimum(starts):
    episodes = play(Mode(RULES["always P2"]), starts, WORLD)
    dead = jax.tree.map(np.asarray, episodes)
    dead.alive[:] = False
    scores = score_episodes(dead)
    assert np.allclose(scores.reward, -12.0)
    assert np.allclose(scores.unsafe_hours, 1.0)


def test_only_death_cuts_a_stay_whose_length_was_asked_for():
    cohort, latents = simulate_cohort(CohortConfig(patients=256, hours=48.0), key=jr.key(3))
    lengths, outcome = np.asarray(cohort.seen).sum(1), np.asarray(latents.outcome)
    assert np.asarray(latents.memory.explanted).any()  # teams would have ended some
    assert (outcome == DEAD).any()
    assert np.array_equal(outcome, np.where(lengths < 48 * 6, DEAD, 0))
    last = np.asarray(cohort.signals)[np.arange(256), lengths - 1, MAP]
    assert last[outcome == DEAD].mean() < last[outcome != DEAD].mean() - 10


def test_stays_end_with_explant_at_a_low_level(ward):
    cohort, latents = ward
    lengths, outcome = np.asarray(cohort.seen).sum(1), np.asarray(latents.outcome)
    last = np.asarray(cohort.level)[np.arange(40), lengths - 1]
    assert (outcome == EXPLANTED).sum() > 3
    assert np.all(last[outcome == EXPLANTED] <= 4)  # no team's floor is higher
    assert last[outcome == 0].max() > 4


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
