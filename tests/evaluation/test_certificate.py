"""The theorems in problems where everything is exact, and the estimates behind a certificate."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from jaxtyping import Array, Float
from scipy import optimize, stats

from stepdown.evaluation.certificate import (
    CertificateConfig,
    HeldOut,
    certify,
    cover,
    fit_values,
    lower_bound,
    mean_line,
    optimality_gap,
    reaches,
    recorded_hours,
    redraw_hours,
    tell_apart,
    tightest_cover,
    value_gaps,
    worth,
)
from stepdown.guardian.density import Pairs
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Episodes
from stepdown.patients.cohort import world_of
from stepdown.patients.episodes import Mode, draw_starts, play
from stepdown.policies.rules import RULES, Hold
from stepdown.problem.metrics import score_episodes
from stepdown.problem.scaling import Scaler
from stepdown.signals import FLOW, HR, LEVEL, LEVELS, MAP, PULSATILITY, SPEED
from tests.evaluation.conftest import WARD
from tests.evaluation.random_mdps import all_policies, draw_policy, draw_problem, leak
from tests.policies.toys import make_hours

SEEDS = integers(0, 10**6)
SLOPES = floats(0.0, 2.0)
HOURS = 6
CERTAIN = 1e-9  # rounding


def split(u):
    return np.maximum(u, 0.0), np.maximum(-u, 0.0)


def rest_of(problem, slope: float) -> float:
    """Epsilon: the least with which Assumption 2 holds everywhere."""
    return float(np.maximum(problem.metric - slope * split(problem.u)[0], 0.0).max())


# ── discounted, forever ──────────────────────────────────────────────────────────────────────────


@given(SEEDS, SEEDS)
def test_the_error_of_a_value_is_the_sum_of_gaps(seed, other):
    problem = draw_problem(seed)
    policy = draw_policy(problem, other)
    error = problem.value(problem.model, policy) - problem.value(problem.truth, policy)
    assert error == pytest.approx((problem.occupancy(policy) * problem.gap(policy)).sum())
    assert (np.abs(problem.gap(policy)) <= problem.reach * problem.metric + CERTAIN).all()


@settings(max_examples=300)
@given(SEEDS, SEEDS, SLOPES, floats(0.0, 30.0))
def test_theorem_1_is_never_violated(seed, other, slope, weight):
    problem = draw_problem(seed)
    policy = draw_policy(problem, other)
    visits, (plus, minus) = problem.occupancy(policy), split(problem.u)
    rest = rest_of(problem, slope)
    bound = (
        problem.value(problem.model, policy, weight)  # in the penalized model, bonus and all
        + (weight - problem.reach * slope) * (visits * plus).sum()
        - weight * (visits * minus).sum()
        - problem.reach * rest / (1 - problem.discount)
    )
    assert problem.value(problem.truth, policy) >= bound - CERTAIN


@given(SEEDS, SLOPES, floats(0.0, 5.0))
def test_theorem_2_is_never_violated(seed, slope, extra):
    problem = draw_problem(seed)
    needed = problem.reach * slope
    weight = needed + extra
    rest = problem.reach * rest_of(problem, slope) / (1 - problem.discount)
    plus, minus = split(problem.u)
    chosen = problem.value(problem.truth, problem.best(weight))
    bonus = weight * minus.max() / (1 - problem.discount)
    for policy in all_policies(problem):
        budget = (problem.occupancy(policy) * plus).sum()
        gap = (weight + needed) * budget + 2 * rest + bonus
        assert chosen >= problem.value(problem.truth, policy) - gap - CERTAIN


# ── six hours, not discounted: as the certificate computes it ────────────────────────────────────


@settings(max_examples=300)
@given(SEEDS, SEEDS, SLOPES)
def test_the_bound_of_an_episode_is_never_violated(seed, other, slope):
    problem = draw_problem(seed)
    policy = draw_policy(problem, other)
    model, truth = (problem.short_values(t, policy, HOURS) for t in (problem.model, problem.truth))
    visits = problem.short_visits(policy, HOURS)
    gaps = [(problem.model - problem.truth) @ (problem.arriving + later) for later in truth[:-1]]
    error = sum((now * gap).sum() for now, gap in zip(visits, gaps[::-1], strict=True))
    assert problem.start @ (model[-1] - truth[-1]) == pytest.approx(error)
    spread = np.ptp(problem.choosing) + np.ptp(problem.arriving)
    reach = 0.5 * spread * np.arange(HOURS, 0, -1)
    plus = (visits * split(problem.u)[0]).sum((1, 2))
    bound = lower_bound(problem.start @ model[-1], reach, plus, slope, rest_of(problem, slope))
    assert problem.start @ truth[-1] >= bound - CERTAIN


@given(SEEDS, SLOPES)
def test_the_gap_of_an_episode_is_never_violated(seed, slope):
    problem = draw_problem(seed)
    plus, minus = split(problem.u)
    reach = 0.5 * (np.ptp(problem.choosing) + np.ptp(problem.arriving)) * np.arange(HOURS, 0, -1)
    weight, policies = slope * reach[0], all_policies(problem)
    visits = [problem.short_visits(policy, HOURS) for policy in policies]
    model, truth = (
        np.array([problem.start @ problem.short_values(t, p, HOURS)[-1] for p in policies])
        for t in (problem.model, problem.truth)
    )
    best = np.argmax(model - weight * np.array([(now * problem.u).sum() for now in visits]))
    for value, now in zip(truth, visits, strict=True):
        budget, rest = float((now * plus).sum()), rest_of(problem, slope)
        gap = optimality_gap(reach, budget, rest, weight, float(minus.max()))
        assert truth[best] >= value - gap - CERTAIN


@pytest.mark.parametrize("hours", [1, HOURS])
def test_the_bound_of_an_episode_has_no_room_left_where_every_hour_leaks(hours):
    """Ill stays ill: truth loses twice what the model thinks, in every hour, from all the well."""
    problem = leak(0.9, on_arrival=True)
    policy = np.eye(2)[[0, 0]]
    model, truth = (
        problem.start @ problem.short_values(t, policy, hours)[-1]
        for t in (problem.model, problem.truth)
    )
    reach = np.arange(hours, 0, -1.0)  # rewards run from −1 to 1
    rest = problem.metric.max()
    bound = lower_bound(model, reach, np.zeros(hours), 3.0, rest)
    assert bound <= truth + CERTAIN
    assert model - truth == pytest.approx(model - bound, rel=1e-3)
    # where the same error is what u₊ = 1 stands for, the slope carries it alone
    assert lower_bound(model, reach, np.ones(hours), rest, 0.0) == pytest.approx(bound)


@pytest.mark.parametrize("hours", [1, HOURS])
def test_the_gap_needs_both_epsilons(hours):
    """The model's optimum loses what it hides and what it invents about the other treatment."""
    problem = leak(0.9, on_arrival=True)  # u = 0: all that remains is epsilon
    first, second = (
        problem.start @ problem.short_values(problem.truth, np.eye(2)[[i, i]], hours)[-1]
        for i in (0, 1)
    )
    reach = np.arange(hours, 0, -1.0)
    gap = optimality_gap(reach, 0.0, problem.metric.max(), 0.5, 0.0)
    assert second - first <= gap + CERTAIN
    assert second - first == pytest.approx(gap, rel=1e-3)


def test_the_gap_needs_twice_the_budget():
    """As above for one hour; u₊ = 1 at every decision stands for all that the model gets wrong."""
    problem = leak(0.9, on_arrival=True, u=1.0)
    first, second = (
        problem.start @ problem.short_values(problem.truth, np.eye(2)[[i, i]], 1)[-1]
        for i in (0, 1)
    )
    gap = optimality_gap(np.ones(1), 1.0, 0.0, problem.metric.max(), 0.0)
    assert second - first == pytest.approx(gap, rel=1e-3)


def test_the_gap_needs_the_bonus_of_every_hour():
    """The model is right; the dense treatment earns nothing but a bonus of 0.5 nats at weight 2."""
    weight, bonus, hours = 2.0, 0.5, HOURS
    earned = weight * bonus - 1e-9  # by the other treatment, in every hour
    paid = weight * bonus  # for the dense one
    assert paid > earned  # so the penalized optimum takes the dense treatment all the time
    gap = optimality_gap(np.arange(hours, 0, -1.0), 0.0, 0.0, weight, bonus)
    assert hours * earned <= gap
    assert hours * earned == pytest.approx(gap)


# ── what the paper prints ────────────────────────────────────────────────────────────────────────


def leaking(discount, **how):
    """The problem, the model's optimum, what it loses in truth, and the largest metric."""
    problem = leak(discount, **how)
    first, second = (np.eye(2)[[i, i]] for i in (0, 1))
    assert np.array_equal(problem.best(0.0)[0], first[0])
    worse, better = (problem.value(problem.truth, policy) for policy in (first, second))
    return problem, first, better - worse, problem.metric.max()


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_printed_theorem_2_lacks_an_epsilon(discount):
    problem, _, lost, rest = leaking(discount)  # u = 0: all that remains is epsilon
    printed = discount * problem.reach * rest / (1 - discount)
    assert lost > 1.9 * printed
    assert lost <= 2 * printed


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_printed_theorem_2_needs_visits_that_do_not_sum_to_one(discount):
    problem, _, lost, slope = leaking(discount, u=1.0)  # epsilon = 0
    weight = discount * problem.reach * slope
    assert lost > 1.9 * weight / (1 - discount)
    assert 2 * weight < lost <= 2 * weight / (1 - discount)  # E[u₊] = 1, or 1 / (1 − discount)


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_the_sign_that_changes_midway_matters_for_small_weights(discount):
    problem, policy, _, slope = leaking(discount, u=1.0)
    value = problem.value(problem.truth, policy)
    in_model, needed = problem.value(problem.model, policy), discount * problem.reach * slope
    weight = 0.5 * needed
    penalized = in_model - weight / (1 - discount)
    printed = penalized - (weight - needed) / (1 - discount)
    ours = penalized + (weight - needed) / (1 - discount)
    assert ours <= value < penalized < printed


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_printed_theorem_1_fails_when_rewards_are_paid_on_arrival(discount):
    problem, policy, _, slope = leaking(discount, u=1.0, on_arrival=True)
    value, in_model = (problem.value(t, policy) for t in (problem.truth, problem.model))
    charge = problem.reach * slope / (1 - discount)
    assert in_model - charge <= value < in_model - discount * charge


def test_the_inequality_of_the_main_text_does_not_follow():
    problem, policy, _, rest = leaking(0.9)
    slope = 0.5  # any below 1; u₊ = 0, so Assumption 2 is metric ≤ epsilon
    gap = np.abs((problem.model - problem.truth) @ problem.values(problem.truth, policy)).max()
    assert gap > problem.reach * slope * (0.0 + rest)
    assert gap <= problem.reach * (slope * 0.0 + rest)


# ── what nobody records ──────────────────────────────────────────────────────────────────────────


@given(SEEDS, SEEDS)
def test_the_mirrored_identity_holds_with_a_hidden_trait(seed, other):
    """The model's values and visits in truth, where two kinds of patients look alike."""
    problem, kinds = draw_problem(seed), (draw_problem(seed).truth, draw_problem(seed + 1).truth)
    policy = draw_policy(problem, other)
    later = problem.short_values(problem.model, policy, HOURS)
    errors, values = [], []
    for truth in kinds:
        visits = problem._replace(model=truth).short_visits(policy, HOURS)
        gaps = [(truth - problem.model) @ (problem.arriving + value) for value in later[:-1]]
        errors.append(sum((now * gap).sum() for now, gap in zip(visits, gaps[::-1], strict=True)))
        values.append(problem.start @ problem.short_values(truth, policy, HOURS)[-1])
    mixed = 0.4 * values[0] + 0.6 * values[1]
    assert mixed - problem.start @ later[-1] == pytest.approx(0.4 * errors[0] + 0.6 * errors[1])


# ── estimates ─────────────────────────────────────────────────────────────────────────────────────

BEST = 1.7018 / 2.6621  # reward of an hour without a charge
LOW = (1.7018 - 7 * 5 / 20) / 2.6621  # ... whose least pressure is 55 mmHg


# ── constants ────────────────────────────────────────────────────────────────────────────────────


@given(integers(0, 10**6), floats(0.0, 5.0))
def test_the_tightest_cover_is_that_of_a_linear_program(seed, where):
    draw = np.random.default_rng(seed)
    plus = np.maximum(draw.normal(size=30), 0.0)
    error = draw.exponential(size=30) + 0.5 * plus
    wanted = optimize.linprog([where, 1.0], A_ub=-np.stack([plus, np.ones(30)], 1), b_ub=-error)
    slope = tightest_cover(error, plus, where)
    assert slope * where + cover(error, plus, slope) == pytest.approx(wanted.fun, abs=1e-6)
    assert (error <= slope * plus + cover(error, plus, slope) + 1e-12).all()


@given(integers(0, 10**6), floats(-2.0, 2.0))
def test_the_mean_line_is_the_least_squares_line_with_no_negative_part(seed, tilt):
    draw = np.random.default_rng(seed)
    plus = np.maximum(draw.normal(size=40), 0.0)
    error = np.maximum(tilt * plus + draw.normal(size=40) * 0.3, 0.0)
    wanted, _ = optimize.nnls(np.stack([plus, np.ones(40)], 1), error)
    assert mean_line(error, plus) == pytest.approx(tuple(wanted), abs=1e-8)


def test_the_reach_of_an_episode_is_half_the_range_of_its_values():
    assert reaches()[0] == pytest.approx((6 * BEST + 12) / 2)
    assert reaches()[-1] == pytest.approx((BEST + 2) / 2)
    assert lower_bound(1.0, reaches(), np.full(6, 2.0), 0.1, 0.05) == pytest.approx(
        1.0 - 0.25 * 21 * (BEST + 2) / 2
    )


# ── what the model gets wrong ────────────────────────────────────────────────────────────────────


def hour(level: int, pressure: float = 80.0) -> np.ndarray:
    """A calm hour; only what the reward needs is of interest."""
    state = np.full((6, 13), 5.0, np.float32)
    state[:, [MAP, HR, PULSATILITY, LEVEL]] = [pressure, 75.0, 30.0, level]
    return state


class Model(eqx.Module):
    """The pressure stays what it is, but for what the model gets wrong about high pressures.

    `falls`: it foresees a fall to 55 mmHg. `fades`: it foresees that flow ceases, and wherever flow
    has ceased a fall an hour later.
    """

    falls: Float[Array, ""]  # 1 or 0
    fades: Float[Array, ""]

    def __call__(self, state, level, /, *, key):
        high, dry = state[:, MAP] > 90.0, state[:, FLOW] < 1.0
        falls = dry | (high & (self.falls > 0))
        flow = jnp.where(high & (self.fades > 0), 0.0, state[:, FLOW])
        later = state.at[:, MAP].set(jnp.where(falls, 55.0, state[:, MAP]))
        return later.at[:, FLOW].set(flow).at[:, LEVEL].set(level.astype(float))


def model(falls: float = 0.0, fades: float = 0.0) -> Model:
    return Model(jnp.asarray(falls), jnp.asarray(fades))


COMES_TRUE, COMES_LOW, COMES_LATE = model(), model(falls=1.0), model(fades=1.0)


class ByPressure(eqx.Module):
    """The higher the pressure, the stranger: log p = (90 − MAP) / 4."""

    pairs: Pairs

    @property
    def shape(self) -> tuple[int, int]:
        return 0, 3

    def floor(self) -> None:
        return None

    def log_density(self, state, level, /):
        return (90.0 - state[0, MAP]) / 4.0

    def log_densities(self, states, levels, /):
        return (90.0 - states[:, 0, MAP]) / 4.0


def guardian() -> Guardian:
    """u is 2.5 at 100 mmHg and −2.5 at 80; at least −3."""
    zero, signals = jnp.zeros(()), jnp.zeros(12)
    pairs = Pairs(Scaler(signals, signals, (MAP,)), zero)  # not used
    return Guardian(ByPressure(pairs), zero, zero - 3.0, zero + 20.0, jnp.zeros(1))


def recorded(states, later=None, *, patients: int = 4) -> HeldOut:
    """Held levels, and what really came: by default more of the same."""
    levels = states[:, 0, LEVEL].astype(int)
    patient = np.arange(len(levels)) // 8 % patients
    hours = make_hours(states, levels, states if later is None else later, patient=patient)
    return recorded_hours(dataclasses.replace(hours, role="test"), episodes=1024, key=jr.key(0))


def calm_and_high() -> np.ndarray:
    """Hours at 80 and at 100 mmHg, at every level."""
    return np.stack([hour(level, x) for _ in range(4) for level in LEVELS for x in (80.0, 100.0)])


def test_a_mistake_outside_known_territory_is_found_and_charged():
    held_out = recorded(calm_and_high())
    found = certify(Hold(), COMES_LOW, guardian(), held_out, CertificateConfig(0.2), key=jr.key(1))
    high = (held_out.start[:, 0, MAP] == 100).mean()
    assert found.value_in_model == pytest.approx(6 * (BEST - high * (BEST - LOW)), rel=1e-4)
    assert found.error_known == pytest.approx(0.0, abs=0.05)
    # the model takes the high for lost, so its mistake costs one hour's charge whatever is ahead
    assert found.error_strange == pytest.approx(6 * (BEST - LOW), rel=0.05)
    assert found.rank_correlation > 0.8
    assert (found.tv_known, found.tv_all > 0) == (0.0, True)
    assert found.metric_ceiling == pytest.approx(found.value_in_model)
    assert found.charged == pytest.approx(2.5 * high / 6)  # in the first hour alone
    assert found.bonus == pytest.approx(2.5 * (1 - high) + 3.0 * high * 5 / 6)
    assert found.largest_bonus == 3.0
    worst = (BEST - LOW) / reaches()[-1]  # of the last hour, in units of its reach
    trained = 0.2 / reaches()[0]
    assert found.as_trained.slope == pytest.approx(trained)
    assert found.as_trained.rest == pytest.approx(worst - 2.5 * trained, rel=1e-3)
    assert found.everywhere.slope == pytest.approx(worst / 2.5, rel=0.02)
    truth, reach, met = 6 * BEST, reaches(), [2.5 * high, 0, 0, 0, 0, 0]
    for one in (found.in_mean, found.everywhere):
        deficit = sum(c * (one.slope * u + one.rest) for c, u in zip(reach, met, strict=True))
        assert one.bound == pytest.approx(found.value_in_model - deficit)
    rest = found.as_trained.rest  # of every hour, not of one
    assert found.as_trained.bound == pytest.approx(
        found.value_in_model - 0.2 * 2.5 * high - rest * 21 * (BEST + 2) / 2
    )
    assert found.gap == pytest.approx(
        2 * 0.2 * 2.5 * high + 2 * rest * 21 * (BEST + 2) / 2 + 0.2 * 3.0 * 6
    )
    assert max(found.everywhere.bound, found.as_trained.bound) <= found.in_mean.bound <= truth
    assert not found.is_vacuous


def test_a_mistake_that_shows_an_hour_later_counts_by_the_hours_to_go():
    """The next hour is right, the one after it is not: nothing is lost with no hours to go."""
    held_out = recorded(calm_and_high())
    config = CertificateConfig(0.2)
    found = certify(Hold(), COMES_LATE, guardian(), held_out, config, key=jr.key(1))
    worst = (BEST - LOW) / reaches()[-2]  # with one hour to go, in units of its reach
    assert found.as_trained.rest == pytest.approx(worst - 2.5 * found.as_trained.slope, rel=0.05)
    assert found.error_strange == pytest.approx(5 * (BEST - LOW), rel=0.05)


def test_limits_are_over_patients_not_over_decisions():
    """Two of four patients have no flow, of which the model alone expects a fall within the hour.

    One draw of patients in sixteen has those alone, and one has none of them: more than the 2.5 %
    and the 5 % at which the limits are read.
    """
    states = np.stack([hour(level) for _ in range(8) for level in LEVELS])
    patient = np.arange(len(states)) // 8 % 4
    states[patient >= 2, :, FLOW] = 0.0
    config, held_out = CertificateConfig(0.2), recorded(states)
    found = certify(Hold(), COMES_TRUE, guardian(), held_out, config, key=jr.key(1))
    lost = 6 * (BEST - LOW)  # one hour's charge, whatever is ahead
    assert found.in_mean.bound == pytest.approx(found.value_in_model - lost / 2, abs=0.1)
    assert found.in_mean_low == pytest.approx(found.value_in_model - lost, abs=0.1)
    assert found.error_known == pytest.approx(lost / 2, abs=0.1)
    assert found.bias_known == pytest.approx(-lost / 2, abs=0.1)  # the model is the gloomier one
    assert (found.tv_known, found.tv_all) == (0.0, 0.0)


def test_a_model_without_mistakes_is_certified_in_full():
    held_out = recorded(calm_and_high())
    found = certify(Hold(), COMES_TRUE, guardian(), held_out, CertificateConfig(0.0), key=jr.key(1))
    for constants in (found.in_mean, found.everywhere, found.as_trained):
        assert constants.bound == pytest.approx(6 * BEST, abs=1e-3)
    assert (found.tv_all, found.redrawn) == (0.0, False)
    assert found.gap == pytest.approx(0.0, abs=0.05)


def test_the_classifier_stays_below_the_total_variation_and_near_it():
    draw, shift = np.random.default_rng(3), 0.6
    later = np.stack([hour(5)] * 800)
    real = later.copy()
    real[..., MAP] += draw.normal(size=(800, 6))
    imagined = np.repeat(later[:, None], 4, axis=1)
    imagined[..., MAP] += draw.normal(size=(800, 4, 6)) + shift
    held_out = recorded(later, real, patients=10)
    exact = 2 * stats.norm.cdf(shift * np.sqrt(6) / 2) - 1  # of two normals in six dimensions
    found = 2 * tell_apart(held_out, imagined).mean() - 1
    assert 0.75 * exact < found < exact + 0.03


def steady(pressure: np.ndarray) -> Episodes:
    """Six hours at P5 that all look like the hour before."""
    state = np.stack([np.stack([hour(5, x)] * 7) for x in pressure])
    level, alive = np.full((len(pressure), 7), 5, np.int32), np.ones((len(pressure), 6), bool)
    return Episodes(*(jnp.asarray(x) for x in (state, level, alive)))


PRESSURES = np.random.default_rng(0).choice([55.0, 80.0], 200)


def test_values_of_hours_are_recovered_from_episodes():
    values = fit_values(steady(PRESSURES), np.arange(200) % 8)
    rows = np.stack([hour(5, 55.0), hour(5, 80.0)])
    found = worth(values, rows, np.array([0, 3]))
    wanted = np.arange(1, 7) * np.array([[LOW], [BEST]])
    assert found == pytest.approx(wanted, abs=0.02)
    assert values.fit[1:] == pytest.approx(np.ones(5), abs=1e-3)


def test_nobody_is_judged_by_values_that_were_fitted_to_them():
    row = np.arange(200) % 8  # eight patients: the first and the sixth are of the first fold
    own = np.isin(row, (0, 5))
    values, turned = (
        fit_values(steady(np.where(own, x, PRESSURES)), row) for x in (PRESSURES, 60.0)
    )
    assert np.array_equal(values.weight[0], turned.weight[0])
    assert np.abs(values.weight[1:] - turned.weight[1:]).max() > 1e-3


def test_whoever_dies_in_truth_scores_the_least_from_then_on():
    """Two hours drawn anew for every decision, one of which is not survived."""
    values = fit_values(steady(np.full(200, 80.0)), np.arange(200) % 8)
    calm = np.stack([hour(5)] * 8)
    held_out = HeldOut(
        state=calm,
        level=np.full(8, 5),
        later=np.stack([calm, calm], axis=1),
        alive=np.tile([True, False], (8, 1)),
        row=np.arange(8),
        start=calm,
        start_row=np.arange(8),
    )
    gaps, _ = value_gaps(values, held_out, calm[:, None])
    assert gaps == pytest.approx(np.tile((BEST + 2) / 2 * np.arange(1, 7), (8, 1)), abs=0.02)


def test_one_patient_is_refused():
    hours = recorded(calm_and_high(), patients=1)
    with pytest.raises(ValueError, match="expected at least 2 held-out patients, got 1"):
        certify(Hold(), COMES_TRUE, guardian(), hours, key=jr.key(0))


# ── in simulated patients ────────────────────────────────────────────────────────────────────────


def test_redrawn_hours_and_the_truth_beside_the_bound(ward):
    cohort, latents = ward
    starts, world = draw_starts(cohort, latents, 64, key=jr.key(2)), world_of(WARD)
    held_out = redraw_hours(starts, world, 4, 16, key=jr.key(3))
    assert held_out.later.shape == (32, 16, 6, 13)
    assert (held_out.later[..., LEVEL] == held_out.level[:, None, None]).all()
    speed = held_out.later[..., SPEED].mean((1, 2)).reshape(len(LEVELS), 4)
    assert (np.diff(speed, axis=0) > 500).all()  # rpm from level to level
    assert (held_out.later[..., MAP].std(1).max(1) > 0.1).all()  # luck differs from draw to draw
    six = RULES["always P6"]
    found = certify(six, COMES_TRUE, guardian(), held_out, key=jr.key(0))
    played = score_episodes(play(Mode(six), starts, world))
    assert found.value_in_truth == pytest.approx(float(played["reward"].mean()), abs=1e-4)
    assert found.everywhere.bound <= found.in_mean.bound <= found.value_in_truth
    assert found.in_mean_low <= found.in_mean.bound
    assert (found.redrawn, found.noise > 0, found.decisions) == (True, True, 32)
