"""A charted cohort, one row an hour, is a decision problem: from hours to twins to a report."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.app.gates import Bedside, state_refusals
from stepdown.evaluation.forecast import score_forecasts, summarize
from stepdown.experiment.patients import ImportPatients
from stepdown.experiment.plan import make_plan
from stepdown.experiment.presets import PRESETS, CohortChoice
from stepdown.handover import Cohort, Hours, Transitions
from stepdown.patients.charting import drug_scores, record_drugs
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.policies.planner import Planner, PlannerConfig
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.metrics import score_episodes
from stepdown.problem.scaling import fit_scaler
from stepdown.problem.stays import score_stays
from stepdown.records.split import split_patients
from stepdown.report.cohort_report import describe_cohort, hourly
from stepdown.report.recorded import missing_section
from stepdown.signals import MAP, NAMES, REQUIRED, columns_with
from stepdown.training import FitConfig
from stepdown.twin.calibrated import CalibratedConfig
from stepdown.twin.fit import TwinConfig, fit_twin
from stepdown.twin.ridge import RidgeConfig
from stepdown.twin.rollout import roll_out
from stepdown.twin.twins import TWINS

CHARTED = ("map", "sbp", "dbp", "pulsatility", "hr", "flow", "lvedp")
STAYS, HOURS = 24, 30
COLUMNS = columns_with(("lactate", "nee", "vis"))


def charted(stays: int = STAYS, hours: int = HOURS) -> Cohort:
    """Stays that wander from hour to hour, with seven signals, two drugs and no lactate."""
    draw = np.random.default_rng(3)
    level = np.clip(6 + draw.choice([0, 0, 0, -1, 1], (stays, hours)).cumsum(1), 2, 9)
    wander = draw.normal(0, 3, (stays, hours, 3)).cumsum(1) / 3
    pressure, pulse = 75 + wander[..., 0] * 3, np.abs(28 + wander[..., 1] * 3) + 5
    given = {
        "map": pressure,
        "sbp": pressure + 0.6 * pulse,
        "dbp": pressure - 0.4 * pulse,
        "pulsatility": pulse,
        "hr": 85 + wander[..., 2] * 2,
        "flow": 0.4 * level,
        "lvedp": 10 + draw.normal(0, 2, (stays, hours)),
        "nee": np.abs(draw.normal(0.1, 0.05, (stays, hours))),
        "vis": np.abs(draw.normal(12, 4, (stays, hours))),
    }
    empty = np.full((stays, hours), np.nan)
    signals = np.stack([given.get(name, empty) for name in COLUMNS], -1).astype(np.float32)
    return Cohort(
        jnp.asarray(signals),
        jnp.asarray(level, jnp.int32),
        jnp.ones((stays, hours), bool),
        tuple(f"p{i}" for i in range(stays)),
        minutes=60.0,
        columns=COLUMNS,
    )


def put(cohort: Cohort, row: int, hours, name: str, value: float) -> Cohort:
    where = (row, np.asarray(hours), COLUMNS.index(name))
    return dataclasses.replace(cohort, signals=cohort.signals.at[where].set(value))


def starts_of(hours: Transitions, row: int = 0) -> list[float]:
    """LVEDP of each state of a stay: it tells hours apart."""
    own = np.asarray(hours.patient) == row
    return np.asarray(hours.state)[own, 0, NAMES.index("lvedp")].round(4).tolist()


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return charted()


@pytest.fixture(scope="module")
def hours(cohort) -> Hours:
    train, select, test = map(make_transitions, split_patients(cohort, key=jr.key(1)))
    return Hours(train, select, test, train)


# ── hours ────────────────────────────────────────────────────────────────────────────────────────


def test_a_state_is_one_row_and_the_next_one_follows_an_hour_later(cohort):
    made = make_transitions(cohort)
    assert made.state.shape == (STAYS * (HOURS - 1), 1, len(COLUMNS) + 1)
    assert np.array_equal(
        np.asarray(made.state)[1:][~np.asarray(made.last)[:-1]],
        np.asarray(made.next_state)[:-1][~np.asarray(made.last)[:-1]],
        equal_nan=True,
    )
    assert np.array_equal(made.level, np.asarray(cohort.level)[:, 1:].ravel())
    assert np.isfinite(np.asarray(made.unshaped)).all()


def test_windows_closer_than_the_rows_are_the_rows(cohort):
    every = make_transitions(cohort, HoursConfig(stride=10.0))
    assert np.array_equal(every.state, make_transitions(cohort).state, equal_nan=True)


@pytest.mark.parametrize("name", ["map", "hr", "pulsatility"])
def test_a_required_signal_must_be_charted_in_the_hour_itself(name, cohort):
    whole, gone = (make_transitions(x) for x in (cohort, put(cohort, 0, [7], name, np.nan)))
    kept = [x for i, x in enumerate(starts_of(whole)) if i not in (6, 7)]
    assert starts_of(gone) == kept


def test_any_other_signal_holds_for_four_hours_and_no_longer(cohort):
    whole = make_transitions(cohort)
    four = make_transitions(put(cohort, 0, range(7, 11), "flow", np.nan))
    own = np.asarray(four.patient) == 0
    flow = np.asarray(four.state)[own, 0, NAMES.index("flow")]
    assert starts_of(four) == starts_of(whole)
    assert flow[7:11].tolist() == [flow[6]] * 4
    assert np.asarray(four.filled)[own].tolist() == [6 <= i <= 10 for i in range(HOURS - 1)]
    five = make_transitions(put(cohort, 0, range(7, 12), "flow", np.nan))
    assert starts_of(five) == [x for i, x in enumerate(starts_of(whole)) if i not in (10, 11)]


def test_nothing_is_carried_over_a_missing_hour(cohort):
    hole = put(cohort, 0, [8], "flow", np.nan)
    hole = dataclasses.replace(hole, seen=hole.seen.at[0, 7].set(False))
    whole = starts_of(make_transitions(cohort))
    assert starts_of(make_transitions(hole)) == [
        x for i, x in enumerate(whole) if i not in (6, 7, 8)
    ]


def test_lactate_holds_for_eight_hours_at_any_step(cohort):
    rare = put(cohort, 0, [0, 9], "lactate", 2.0)
    whole, made = starts_of(make_transitions(cohort)), starts_of(make_transitions(rare))
    assert made == [x for i, x in enumerate(whole) if i < 17]  # until hour 17
    fine = fine_stay(lactate_every=8)
    assert len(make_transitions(fine).level) == 11
    assert len(make_transitions(fine_stay(lactate_every=10)).level) < 11


def fine_stay(lactate_every: int) -> Cohort:
    """Twelve hours of six samples, lactate once in so many hours, at the top of the hour."""
    signals = np.full((1, 72, len(COLUMNS)), np.nan, np.float32)
    for name, value in {"map": 80.0, "hr": 75.0, "pulsatility": 30.0}.items():
        signals[..., COLUMNS.index(name)] = value
    signals[0, :: 6 * lactate_every, COLUMNS.index("lactate")] = 2.0
    level, seen = jnp.full((1, 72), 6), jnp.ones((1, 72), bool)
    return Cohort(jnp.asarray(signals), level, seen, ("a",), columns=COLUMNS)


# ── what is defined ──────────────────────────────────────────────────────────────────────────────


def test_steadiness_is_not_defined_for_a_single_row(cohort):
    scores = score_stays(cohort)
    assert np.isnan(np.asarray(scores["ws_gradient"])).all()
    assert np.isnan(np.asarray(scores["ws_both"])).all()
    for name in ("reward", "ws_limits", "unsafe_hours", "acp"):
        assert np.isfinite(np.asarray(scores[name])).all()


def test_the_published_numbers_beside_a_chart_need_no_minutes(cohort):
    rows = describe_cohort(cohort)
    told = {row.group for row in rows}
    assert "mean" in told
    assert not any("inside the hour" in group or "lag-1" in group for group in told)
    assert not any(row.what == "gradient" for row in rows)
    gone = dataclasses.replace(cohort, signals=cohort.signals.at[0, 3, MAP].set(np.nan))
    assert len(hourly(gone)["reward"]) == STAYS * HOURS - 1  # an hour without MAP is not judged


# ── models ───────────────────────────────────────────────────────────────────────────────────────

TINY = CalibratedConfig(members=1, width=8, depth=1, errors=32, fit=FitConfig(epochs=1, batch=64))
SIZES = {"ridge": RidgeConfig(folds=2, members=2, errors=32), "best": TINY}


@pytest.mark.parametrize("name", SIZES)
def test_twins_forecast_the_charted_hour_of_the_signals_that_are_there(name, hours):
    config = TwinConfig(TWINS[name], SIZES[name])
    twin, _ = fit_twin(hours.train, hours.select, config, key=jr.key(0))
    used = [*CHARTED, "nee", "vis"]
    assert set(twin.scaler.names) == set(used)
    found = summarize(score_forecasts(twin, hours.test, fit_scaler(hours.train), 4, key=jr.key(1)))
    assert np.isfinite([found["mae_z"], found["crps_z"], found["coverage90"]]).all()
    assert found["trend"] is None
    assert found["trend_base"] is None  # no slope, no trend
    if name == "ridge":
        planner = Planner(twin, jnp.asarray(0), config=PlannerConfig(hours=2, draws=2))
        states, keys = hours.test.state[:8], jr.split(jr.key(2), 8)
        played = roll_out(lambda _, state, key: jnp.argmax(planner(state)) + 2, twin, states,
                          keys=keys)  # fmt: skip
        assert played.state.shape == (8, 7, 1, len(COLUMNS) + 1)
        assert np.isfinite(np.asarray(score_episodes(played)["reward"])).all()
        drug = np.asarray(played.state)[..., COLUMNS.index("nee")]
        assert np.isfinite(drug).all()
        assert (drug >= 0).all()


def test_the_pump_of_an_imported_cohort_reaches_every_twin():
    imported = ImportPatients(Path("somewhere"), "digest", "2.5")
    plan = make_plan(PRESETS["pocket"], CohortChoice(), imported)
    fits = [job.work for job in plan.twins.values()]
    assert {work.config.profile for work in fits} == {"2.5"}  # pyright: ignore[reportAttributeAccessIssue]


# ── what is said, and what simulated cohorts can record ──────────────────────────────────────────


def test_a_report_on_recordings_says_what_is_missing(cohort, hours):
    some = put(cohort, 0, [0], "lactate", 2.0)
    present = [*CHARTED, "nee", "vis"]
    said = missing_section(some, hours, present, {"second"}).body
    assert "There is no truth behind recordings" in said
    assert "estimates from records alone" in said  # not asked for
    assert "the second twin," not in said
    assert "Never recorded: Pump speed, Motor current" in said
    assert "in no model: Blood lactate." in said
    assert "A single row has no slope" in said
    assert "Nobody told who died" in said
    dead = dataclasses.replace(some, died=jnp.arange(STAYS) < 3)
    said = missing_section(dead, hours, present, {"second"}).body
    assert f"Of {STAYS} stays 3 ended by death on support" in said


def test_recorded_drugs_are_the_rates_at_the_start_of_each_hour():
    cohort, latents = simulate_cohort(CohortConfig(patients=24, hours=20.0), key=jr.key(5))
    recorded = record_drugs(cohort, latents)
    assert recorded.columns == columns_with(("nee", "vis"))
    assert np.array_equal(recorded.signals[..., :12], cohort.signals, equal_nan=True)
    given, steps = drug_scores(latents.course), np.arange(cohort.level.shape[1])
    seen = np.asarray(cohort.seen)
    for column, name in ((12, "nee"), (13, "vis")):
        own = np.asarray(recorded.signals)[..., column]
        np.testing.assert_allclose(own[seen], given[name][:, steps // 6][seen], rtol=1e-6)
        assert np.isnan(own[~seen]).all()
    assert (given["vis"] >= 100 * given["nee"]).all()
    only = record_drugs(cohort, latents, ("vis",))
    assert only.columns == columns_with(("vis",))
    assert np.array_equal(only.signals[..., 12], recorded.signals[..., 13], equal_nan=True)


# ── at the bedside ───────────────────────────────────────────────────────────────────────────────


def test_a_single_row_is_not_taken_for_a_signal_that_stands_still():
    signals = np.full((1, len(NAMES)), np.nan)
    for name, value in {"map": 80, "sbp": 98, "dbp": 68, "pulsatility": 30, "hr": 75}.items():
        signals[0, NAMES.index(name)] = value
    yes, no, level = np.asarray(True), np.asarray(False), np.asarray(6)
    age, likeness = np.asarray(0.0), np.asarray(0.6)
    bed = Bedside(signals, level, np.asarray(9), age, yes, no, no, np.asarray(-1), likeness,
                  minutes=60.0)  # fmt: skip
    assert not state_refusals(bed, REQUIRED).any()
