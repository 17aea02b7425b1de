"""The behavior policy: right chances, from other patients alone."""

import dataclasses

import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.behavior import (
    Behavior,
    BehaviorConfig,
    check_calibration,
    current_levels,
    deal_patients,
    fit_behavior,
)
from stepdown.evaluation.decisions import make_decisions
from stepdown.signals import LOWEST
from tests.evaluation.stays import POCKET, make_cohort, wander

CHANCE = np.array([0.25, 0.6, 0.15])


@pytest.fixture(scope="module")
def decisions():
    return make_decisions(make_cohort(wander(60, 30, CHANCE, seed=0)))


@pytest.fixture(scope="module")
def behavior(decisions):
    return fit_behavior(decisions, POCKET, key=jr.key(0))


def test_chances_are_those_of_the_teams(decisions, behavior):
    now = np.round(decisions.state[:, -1, -1]).astype(int)
    middle = (now > 3) & (now < 8)
    for change, truth in zip((-1, 0, 1), CHANCE, strict=True):
        found = np.exp(behavior.level)[middle, now[middle] + change - LOWEST]
        assert found.mean() == pytest.approx(truth, abs=0.03)
        assert np.abs(found - truth).mean() < 0.08
    assert np.exp(behavior.level).sum(1) == pytest.approx(np.ones(len(now)))
    assert behavior.level.min() > np.log(1e-6)  # nothing is called impossible
    down, hold, up = (np.minimum(np.maximum(now + d, 2), 9) == decisions.level for d in (-1, 0, 1))
    true_loss = -np.log(np.stack([down, hold, up], 1) @ CHANCE).mean()
    check = check_calibration(behavior, decisions)
    assert check.log_loss == pytest.approx(true_loss, abs=0.04)
    assert check.ece < 0.02


def test_calibration_by_hand(decisions):
    """Hold has a chance of 0.8 in every decision, all others share 0.2, and 0.6 really hold."""
    now = current_levels(decisions)
    hold = np.arange(len(now)) % 5 < 3
    up = np.where(now < 9, now + 1, now - 1)
    turned = dataclasses.replace(decisions, level=np.where(hold, now, up).astype(np.int32))
    chance = np.where(np.arange(8)[None] == (now - LOWEST)[:, None], 0.8, 0.2 / 7)
    held, share = np.ones(len(now)), hold.mean()
    known = Behavior(np.log(chance), held, held, np.zeros(len(now), np.int32))
    check = check_calibration(known, turned)
    wanted = -share * np.log(0.8) - (1 - share) * np.log(0.2 / 7)
    assert check.log_loss == pytest.approx(wanted)
    assert check.brier == pytest.approx(share * 0.2**2 + (1 - share) * 0.8**2)
    # one level of eight is called likely and seven are called rare: both are off by 0.2 in all
    assert check.ece == pytest.approx(2 * (0.8 - share) / 8)


def test_all_rows_of_a_patient_share_a_fold_and_folds_are_even(decisions):
    fold = deal_patients(decisions.patient, 5, key=jr.key(1))
    for patient in np.unique(decisions.patient):
        assert len(set(fold[decisions.patient == patient])) == 1
    patients = np.unique(decisions.patient, return_index=True)[1]
    assert np.bincount(fold[patients]).tolist() == [12] * 5
    with pytest.raises(ValueError, match="in each of 5 folds, got 3 patients"):
        deal_patients(np.array([0, 1, 2, 2]), 5, key=jr.key(0))


def test_a_folds_own_decisions_never_reach_its_chances(decisions, behavior):
    own = behavior.fold == 2
    turned = dataclasses.replace(
        decisions,
        level=np.where(own, 11 - decisions.level, decisions.level).astype(np.int32),
        moved=decisions.moved | own[:, None],
        follows=decisions.follows & ~own,
    )
    again = fit_behavior(turned, POCKET, key=jr.key(0))
    assert np.array_equal(again.fold, behavior.fold)
    assert np.array_equal(again.level[own], behavior.level[own])
    assert again.goes_on[own] == pytest.approx(behavior.goes_on[own])
    assert again.held[own] == pytest.approx(behavior.held[own])
    assert again.goes_on[~own].mean() < behavior.goes_on[~own].mean() - 0.1
    assert again.held[~own].mean() < behavior.held[~own].mean() - 0.1
    assert not np.allclose(again.level[~own], behavior.level[~own], atol=0.05)


def test_records_that_end_by_chance_end_as_often_as_the_chances_say(decisions, behavior):
    ends = int((~decisions.follows).sum())
    assert ends == 60
    assert (1 - behavior.goes_on).sum() == pytest.approx(ends, rel=0.2)
    assert behavior.held.min() > 0.99  # nobody changes a level inside an hour here
    assert behavior.goes_on.min() > 0.1


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="expected at least 1 repeat, got 0"):
        BehaviorConfig(repeats=0)
