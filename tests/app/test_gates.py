"""Gates and refusals: worked cases, and a hundred thousand that try to break them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepdown.app.gates import (
    FORBIDDING,
    GATES,
    NOISE,
    STATE_CODES,
    UNKNOWN,
    forbidding_gates,
    gate_wish,
    has_gap,
    inside_limits,
    odd_values,
    outside_limits,
    place_levels,
    reversed_levels,
    state_refusals,
    suggest,
)
from stepdown.app.limits import PRESETS, GateConfig, Limits
from stepdown.app.recordings import Stay, quality
from stepdown.policies import constraint
from stepdown.signals import HR, LEVELS, LVEDP, MAP, NAMES, PULSATILITY, SBP, SIGNALS
from tests.app.bedsides import USED, allowed_levels, calm, crowd, one, put

PAPER = PRESETS["paper"]
MANY = 100_000


def codes(bed, used=USED, **changes) -> set[str]:
    found = state_refusals(bed, used, GateConfig(**changes))
    return {code for code, held in zip(STATE_CODES, found, strict=True) if held}


def levels(bed, limits: Limits = PAPER) -> list[int]:
    found = allowed_levels(bed, state_refusals(bed, USED), limits)
    return [p for p, held in zip(LEVELS, found, strict=True) if held]


def test_a_calm_patient_is_not_refused_and_may_move_by_two():
    assert codes(calm()) == set()
    assert levels(calm()) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"age": np.asarray(15.0 + 1 / 60)}, "R01"),
        ({"age": np.asarray(np.nan)}, "R01"),
        ({"clock": np.asarray(False)}, "R06"),
        ({"age": np.asarray(-0.1)}, "R06"),
        ({"highest": np.asarray(0)}, "R07"),
        ({"level": np.asarray(1)}, "R07"),
        ({"level": np.asarray(UNKNOWN)}, "R07"),
        ({"level": np.asarray(9), "highest": np.asarray(8)}, "R07"),
        ({"speed_level": np.asarray(5)}, "R07"),
        ({"alarm": np.asarray(True)}, "R08"),
        ({"undeclared": np.asarray(True)}, "R05"),
        ({"likeness": np.asarray(0.049)}, "R09"),
        ({"likeness": np.asarray(np.nan)}, "R09"),
    ],
)
def test_one_thing_wrong_is_one_code(changes, code):
    assert codes(calm(**changes)) == {code}


def test_fifteen_minutes_are_not_too_old():
    assert codes(calm(age=np.asarray(15.0))) == set()


@pytest.mark.parametrize("signal", ["map", "hr", "pulsatility"])
def test_one_missing_sample_of_six_works_and_two_are_too_many(signal):
    column = calm().signals[:, [s.name for s in SIGNALS].index(signal)].copy()
    for missing, expected in ((1, set()), (2, {"R02"}), (6, {"R02"})):
        values = column.copy()
        values[:missing] = np.nan
        assert codes(put(calm(), signal, values)) == expected


@pytest.mark.parametrize("index", range(12))
def test_hard_ranges_include_their_ends_and_nothing_beyond(index):
    low, high = SIGNALS[index].hard
    for value, outside in (
        (low, False),
        (high, False),
        (np.nextafter(low, -np.inf), True),
        (np.nextafter(high, np.inf), True),
        (np.inf, True),
        (-np.inf, True),
        (1e308, True),
    ):
        column = calm().signals[:, index].copy()
        column[3] = value
        bed = put(calm(), SIGNALS[index].name, column)
        assert ("R04" in codes(bed)) == outside, value


def test_a_flat_line_is_refused_but_a_steady_small_pulse_is_not():
    stuck = np.array([70.1, 71.2, 72.3, 72.3, 72.3, 72.3])
    assert codes(put(calm(), "map", stuck)) == {"R03"}
    shorter = np.array([70.1, 71.2, 71.9, 72.3, 72.3, 72.3])
    assert codes(put(calm(), "map", shorter)) == set()
    pulse = 3.0 + 0.01 * np.array([0, 1, -1, 2, 0, 1])
    bed = put(put(calm(), "pulsatility", pulse), "sbp", calm().signals[:, 8] + pulse)
    assert codes(bed) == set()


def test_whole_numbers_may_repeat_for_a_while():
    assert codes(put(calm(), "map", np.array([70.0, 71, 72, 72, 72, 72]))) == set()
    assert codes(put(calm(), "map", np.full(6, 72.0))) == {"R03"}


def test_a_pressure_in_kilopascals_is_suspected():
    assert codes(put(calm(), "map", 9.6 + 0.01 * np.arange(6))) == {"R05"}
    assert codes(put(calm(), "pulsatility", 33 / 7.5 + 0.01 * np.arange(6))) == {"R05"}
    assert codes(put(calm(), "speed", 39.0 + 0.01 * np.arange(6))) == {"R05"}


@pytest.mark.parametrize(
    ("signal", "shift", "code"),
    [
        ("map", 25.0, "R15"),  # above the systolic pressure of 95
        ("dbp", 20.0, "R15"),  # above the mean of 75
        ("flow", 5.0, "R15"),  # more than the pump can give at this level
        ("map", 15.0, None),
        ("dbp", 10.0, None),
    ],
)
def test_what_cannot_be_true_at_once_is_refused(signal, shift, code):
    bed = calm(most_flow=np.asarray(5.5))
    column = bed.signals[:, [s.name for s in SIGNALS].index(signal)] + shift
    signals = bed.signals.copy()
    signals[:, [s.name for s in SIGNALS].index(signal)] = column
    assert codes(dataclasses.replace(bed, signals=signals)) == ({code} if code else set())


def test_pressures_that_are_averaged_apart_may_cross_by_the_noise():
    signals = calm().signals.copy()
    signals[:, MAP] = signals[:, SBP] + NOISE - 0.1
    assert codes(dataclasses.replace(calm(), signals=signals)) == set()
    signals[3, MAP] += 0.2  # one sample is enough
    assert codes(dataclasses.replace(calm(), signals=signals)) == {"R15"}


def test_more_support_that_is_forecast_to_give_less_pressure_is_doubted():
    """P-9 below P-8 once was shown as it came; the farther one of the two is in doubt."""
    rising = np.array([60, 64, 68, 72, 76, 80, 84, 88], float)
    assert not reversed_levels(rising, 6).any()
    turned = rising.copy()
    turned[7] = turned[6] - 0.6
    assert list(np.flatnonzero(reversed_levels(turned, 6)) + 2) == [9]
    turned[5] = turned[4] - 0.6  # P-7 below P-6, the level in force: all above are in doubt
    assert list(np.flatnonzero(reversed_levels(turned, 6)) + 2) == [7, 8, 9]
    assert not reversed_levels(rising - [0, 0, 0, 0, 0, 4.4, 8, 12], 6)[:5].any()
    below = rising.copy()
    below[2] = below[3] + 0.6  # P-4 above P-5
    assert list(np.flatnonzero(reversed_levels(below, 6)) + 2) == [2, 3, 4]


def test_an_odd_filling_pressure_is_told_and_not_called_good():
    signals = calm().signals.copy()
    signals[-1, LVEDP] = -16.0
    (told,) = odd_values(signals).values()
    assert "-16 mmHg" in told
    assert "compare it at the console" in told
    assert odd_values(calm().signals) == {}
    low = np.tile(signals, (12, 1))  # two days of a stay in which it is the newest
    stay = Stay("a", low, np.full(len(low), 6), 10.0, "cp-smartassist", NAMES)
    assert quality(stay, stay.last, GateConfig())["chip"] == "check"


def test_a_rate_of_116_is_outside_where_an_upper_limit_is_set():
    signals = calm().signals.copy()
    signals[:, HR] = 116 + np.arange(6) / 10
    bed = dataclasses.replace(calm(), signals=signals)
    assert bool(outside_limits(bed.signals, PAPER)) is False  # the paper has none
    assert bool(outside_limits(bed.signals, PRESETS["upper"])) is True
    assert levels(bed, PRESETS["upper"]) == [6, 7, 8]  # no step down


def test_a_signal_that_the_models_need_cannot_be_left_out():
    bed = put(calm(), "current", np.nan)
    assert codes(bed) == {"R09"}
    assert codes(bed, used=(0, 6, 9)) == set()  # nobody reads it


@pytest.mark.parametrize(
    ("signal", "crossed", "open_"),
    [
        ("map", 60.0, False),  # stable means strictly above
        ("map", 60.1, True),
        ("hr", 50.0, False),
        ("hr", 50.1, True),
        ("hr", 101.0, False),  # a site's upper limit counts as one
        ("pulsatility", 10.0, True),  # alone: less support is the remedy
        ("pulsatility", 51.0, True),
    ],
)
def test_a_broken_limit_of_pressure_or_rate_forbids_a_step_down(signal, crossed, open_):
    site = Limits(hr_high=100.0, pulsatility_high=50.0)
    column = calm().signals[:, [s.name for s in SIGNALS].index(signal)].copy()
    column[2] = crossed
    found = levels(put(calm(), signal, column), site)
    assert found == ([4, 5, 6, 7, 8] if open_ else [6, 7, 8])


def test_the_limit_of_65_is_stricter():
    column = calm().signals[:, MAP].copy()
    column[5] = 64.0
    bed = put(calm(), "map", column)
    assert levels(bed, PRESETS["paper"]) == [4, 5, 6, 7, 8]
    assert levels(bed, PRESETS["map65"]) == [6, 7, 8]


def test_a_gap_in_the_hour_allows_no_change():
    column = calm().signals[:, MAP].copy()
    column[2] = np.nan
    bed = put(calm(), "map", column)
    assert codes(bed) == set()
    assert levels(bed) == [6]


def test_a_refused_state_allows_no_change():
    assert levels(calm(alarm=np.asarray(True))) == [6]


def test_the_older_pump_ends_at_eight():
    assert levels(calm(level=np.asarray(7), highest=np.asarray(8))) == [5, 6, 7, 8]


@pytest.fixture(scope="module")
def judged():
    """A crowd, its verdicts, and what policies and forecasts may claim about it."""
    bed, draw = crowd(MANY, seed=1), np.random.default_rng(2)
    refused = state_refusals(bed, USED)
    allowed = allowed_levels(bed, refused, PAPER)
    able = draw.random((MANY, 8)) > draw.choice([0.0, 0.3, 0.9], (MANY, 1))
    risk = draw.choice([0.0, 0.05, 0.1, 0.11, 0.5, 1.0], (MANY, 8))
    acceptable = place_levels(bed, allowed, able, (risk, risk)) == 0
    acceptable &= ~refused.any(-1, keepdims=True)
    return bed, refused, allowed, able, risk, acceptable


POLICIES = {
    "always P-2": lambda bed, draw: np.full(MANY, 2),
    "always P-9": lambda bed, draw: np.full(MANY, 9),
    "blind stepping down": lambda bed, draw: bed.level - 1,
    "down by three": lambda bed, draw: bed.level - 3,
    "up by three": lambda bed, draw: bed.level + 3,
    "random": lambda bed, draw: draw.integers(2, 10, MANY),
    "nonsense": lambda bed, draw: draw.integers(-1000, 1000, MANY),
    "against the limits": lambda bed, draw: np.where(
        inside_limits(bed.signals, PAPER), bed.level + 1, bed.level - 2
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_breaks_a_gate_in_a_hundred_thousand_states(name, judged):
    bed, refused, _, able, _, acceptable = judged
    wish = POLICIES[name](bed, np.random.default_rng(3))
    level = gate_wish(wish, acceptable)
    made = level != UNKNOWN
    assert np.array_equal(level[made], wish[made])
    assert_no_violation(bed, refused, able, level, made)
    assert made.any() or name in ("down by three", "up by three")


def test_no_suggestion_breaks_a_gate_in_a_hundred_thousand_states(judged):
    bed, refused, _, able, risk, acceptable = judged
    level = suggest(acceptable, has_gap(bed.signals, USED))
    made = level != UNKNOWN
    assert made.sum() > 5000
    assert_no_violation(bed, refused, able, level, made)
    assert (risk[made, level[made] - 2] <= 0.1).all()
    assert not np.isnan(bed.signals[made]).any()


def assert_no_violation(bed, refused, able, level, made):
    """The five gates in plain words, one state after the other in NumPy."""
    signals, now, new = bed.signals[made], bed.level[made], level[made]
    assert ((new >= 2) & (new <= np.minimum(bed.highest[made], 9))).all()
    assert (np.abs(new - now) <= 2).all()
    lowest = [np.min(signals[:, :, column], axis=1) for column in (MAP, HR)]
    with np.errstate(invalid="ignore"):
        safe = (lowest[0] > 60) & (lowest[1] > 50)  # a NaN is not safe
    assert (safe | (new >= now)).all()
    assert not refused[made].any()
    assert (~np.isnan(signals).any((1, 2)) | (new == now)).all()
    assert able[made, new - 2].all()


def test_removing_data_never_turns_a_refusal_into_advice(judged):
    """D3: whatever samples or signals are taken away, no refused state is told to change."""
    bed, refused, _, able, risk, _ = judged
    draw = np.random.default_rng(4)
    gone = draw.random(bed.signals.shape) < draw.choice([0.02, 0.1, 0.5], (MANY, 1, 1))
    gone |= draw.random((MANY, 1, 12)) < 0.05
    signals = np.where(gone, np.nan, bed.signals)
    poorer = dataclasses.replace(bed, signals=signals)
    later = state_refusals(poorer, USED)
    allowed = allowed_levels(poorer, later, PAPER)
    acceptable = place_levels(poorer, allowed, able, (risk, risk)) == 0
    acceptable &= ~later.any(-1, keepdims=True)
    told = suggest(acceptable, has_gap(signals, USED))
    changed = gone.any((1, 2)) & (~np.isnan(bed.signals) & gone).any((1, 2))
    was = refused.any(-1) & changed
    assert was.sum() > 10_000
    assert (told[was] == UNKNOWN).all()
    change = acceptable & (np.array(LEVELS) != poorer.level[:, None])
    assert not change[was].any()
    # and a level that was forbidden before is not allowed afterwards
    before = allowed_levels(bed, refused, PAPER)
    moved = np.array(LEVELS) != bed.level[:, None]
    assert not (allowed & ~before & moved)[changed].any()


@given(row=st.integers(0, MANY - 1), gone=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 11))))
def test_fewer_samples_never_allow_more_changes(judged, row, gone):
    bed = one(judged[0], row)
    signals = bed.signals.copy()
    for sample, column in gone:
        signals[sample, column] = np.nan
    poorer = dataclasses.replace(bed, signals=signals)
    assert set(levels(poorer)) - {int(bed.level)} <= set(levels(bed))


@given(row=st.integers(0, MANY - 1))
def test_one_bedside_is_judged_as_among_many(judged, row):
    bed, refused, allowed, *_ = judged
    np.testing.assert_array_equal(state_refusals(one(bed, row), USED), refused[row])
    np.testing.assert_array_equal(allowed_levels(one(bed, row), refused[row], PAPER), allowed[row])


def test_the_constraint_is_the_same_for_one_state_in_jax_and_for_many_in_numpy(judged):
    bed = judged[0]
    low = outside_limits(bed.signals, PAPER, FORBIDDING)
    many = constraint.forbidden_levels(bed.level, low)
    one = jax.vmap(constraint.forbidden_levels)(jnp.asarray(bed.level), jnp.asarray(low))
    np.testing.assert_array_equal(many.far, one.far)
    np.testing.assert_array_equal(many.down, one.down)
    for level, down, forbidden in ((6, True, [2, 3, 4, 5, 9]), (6, False, [2, 3, 9])):
        found = constraint.forbidden_levels(np.asarray(level), np.asarray(down))
        assert [p for p, x in zip(LEVELS, found.far | found.down, strict=True) if x] == forbidden


def test_the_gates_agree_with_the_constraint_that_policies_are_trained_under(judged):
    """Those of policies/constraint.py, where both speak: whole hours, no refusal."""
    bed, refused, allowed, *_ = judged
    rows = np.flatnonzero(~refused.any(-1) & ~has_gap(bed.signals, USED) & (bed.highest == 9))[:512]
    column = np.broadcast_to(bed.level[rows, None, None], (len(rows), 6, 1))
    states = np.concatenate([bed.signals[rows], column], -1).astype(np.float32)
    other = jax.vmap(lambda state: constraint.allowed_levels(state))(jnp.asarray(states))
    np.testing.assert_array_equal(np.asarray(other), allowed[rows])
    alone = outside_limits(bed.signals[rows], PAPER, (PULSATILITY,))
    alone &= ~outside_limits(bed.signals[rows], PAPER, FORBIDDING)
    assert alone.sum() > 5  # and there a step down is open
    down = np.array(LEVELS) < bed.level[rows, None]
    assert ((allowed[rows] & down).any(-1) | ~down.any(-1))[alone].all()


def test_every_forbidden_level_has_a_gate_that_says_why(judged):
    bed, refused, allowed, *_ = judged
    gates = forbidding_gates(bed, refused, PAPER, USED)
    assert set(gates) == set(GATES)
    np.testing.assert_array_equal(np.any(list(gates.values()), axis=0), ~allowed)
