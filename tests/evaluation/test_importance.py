"""On an infinite cohort of a tabular patient the estimators give the enumerated value exactly."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

from stepdown.evaluation.importance import (
    Chances,
    Paths,
    Ratios,
    WeightRange,
    confounding_bounds,
    magic,
    measure_overlap,
    path_weights,
    patient_sums,
    simplex_minimum,
    wdr,
    weight_range,
    wis,
    worst_weights,
)
from tests.evaluation.tabular import (
    HOURS,
    LEAVES,
    POLICY,
    START,
    Episodes,
    exact_decisions,
    exact_values,
)

TRUTH = float(START @ exact_values()[-1])


def everyone(episodes: Episodes) -> np.ndarray:
    return episodes.chance[None]


def weights(episodes: Episodes, wrong: float = 0.0) -> np.ndarray:
    ratio = episodes.ratio() * (1 + wrong * np.tile([1.0, -0.5, 0.3], len(episodes.length)))
    return path_weights(episodes.paths(), ratio, episodes.goes_on())


@pytest.fixture(scope="module", params=[False, True], ids=["full", "ragged"])
def episodes(request):
    return Episodes(ragged=request.param)


def test_the_enumeration_is_a_distribution_and_its_value_is_the_sum_over_paths(episodes):
    assert episodes.chance.sum() == pytest.approx(1.0)
    full = Episodes(ragged=False)
    by_path = full.ratio().reshape(-1, HOURS).prod(1) * full.chance * full.rewards().sum(1)
    assert by_path.sum() == pytest.approx(TRUTH)


def test_wis_is_exact_with_true_chances_also_where_records_end_for_a_reason(episodes):
    weight = weights(episodes)
    ratios = wis(episodes.paths(), weight, episodes.rewards())
    assert ratios.values(everyone(episodes))[0] == pytest.approx(TRUTH, abs=1e-12)
    # the mean weight of each hour is 1: all that the policy does was recorded
    assert episodes.chance @ weight == pytest.approx(np.ones(HOURS))


def test_wis_of_a_constant_reward_is_that_reward_whatever_the_weights():
    """Weights are normalized: their sum says nothing about the value."""
    full = Episodes(ragged=False)
    few = np.random.default_rng(6).multinomial(5, full.chance)[None].astype(float)
    for scale in (1.0, 0.01, 7.0):
        one = wis(full.paths(), scale * weights(full), np.full((len(full.length), HOURS), -1.5))
        assert one.values(few)[0] == pytest.approx(-1.5 * HOURS)


def test_wis_goes_wrong_where_the_ends_of_records_are_ignored():
    ragged = Episodes(ragged=True)
    assert LEAVES[0] != LEAVES[1]
    weight = path_weights(ragged.paths(), ragged.ratio(), np.ones(len(ragged.ratio())))
    value = wis(ragged.paths(), weight, ragged.rewards()).values(everyone(ragged))[0]
    assert abs(value - TRUTH) > 0.05


def corrected(episodes: Episodes, weight, decision, value) -> Ratios:
    start = value[-1][episodes.s[:, 0]]
    return wdr(episodes.paths(), weight, start, episodes.errors(decision, value[:-1]))


def test_wdr_is_exact_if_either_the_weights_or_the_model_are_right(episodes):
    weight = weights(episodes)
    right = exact_decisions(), exact_values()
    draw = np.random.default_rng(0)
    decision = draw.normal(size=(HOURS, 2, 2))
    wrong_value = np.concatenate([np.zeros((1, 2)), (POLICY[None] * decision).sum(2)])
    # values that belong together: the control variate has mean zero
    by_weights = corrected(episodes, weight, decision, wrong_value)
    assert by_weights.values(everyone(episodes))[0] == pytest.approx(TRUTH, abs=1e-12)
    by_model = corrected(episodes, weights(episodes, wrong=0.4), *right)
    assert by_model.values(everyone(episodes))[0] == pytest.approx(TRUTH, abs=1e-12)


def test_wdr_equals_the_printed_form_where_all_episodes_have_full_length():
    """Thomas & Brunskill (2016): sum of w r minus (w q - w_before v), with normalized weights."""
    full = Episodes(ragged=False)
    weight = weights(full)
    count = np.random.default_rng(1).multinomial(50, full.chance).astype(float)
    draw = np.random.default_rng(2)
    decision, value = draw.normal(size=(HOURS, 2, 2)), draw.normal(size=(HOURS + 1, 2))
    value[0] = 0.0
    ours = corrected(full, weight, decision, value).values(count[None])[0]
    shares = count[:, None] * weight / (count @ weight)[None]
    before = np.concatenate([count[:, None] / 50, shares[:, :-1]], axis=1)
    printed = 0.0
    for t in range(HOURS):
        left, s, a = HOURS - 1 - t, full.s[:, t], full.a[:, t]
        printed += shares[:, t] @ (full.rewards()[:, t] - decision[left, s, a])
        printed += before[:, t] @ value[left + 1, s]
    assert ours == pytest.approx(printed)


def test_magic_trusts_a_right_model_and_corrects_a_wrong_one():
    full = Episodes(ragged=False)
    weight = weights(full)
    counts = np.random.default_rng(0).multinomial(4000, full.chance, size=300).astype(float)
    # counts of a cohort, drawn again and again; its center is the first draw of them
    right = corrected(full, weight, exact_decisions(), exact_values())
    scaled = Ratios(right.above * counts[:1].T, right.below * counts[:1].T)
    again = counts / np.maximum(counts[:1], 1)
    draws, value, shares = magic(scaled, again)
    assert shares.sum() == pytest.approx(1.0)
    assert shares.min() >= 0
    assert value == pytest.approx(TRUTH, abs=0.05)
    wrong = exact_decisions() + 5.0
    rosy = corrected(full, weight, wrong, exact_values() + 5.0 * (np.arange(4) > 0)[:, None])
    scaled = Ratios(rosy.above * counts[:1].T, rosy.below * counts[:1].T)
    draws, value, shares = magic(scaled, again)
    assert shares[0] < 0.05  # the model alone is 5 too high
    assert value == pytest.approx(TRUTH, abs=0.3)
    assert draws.std() < 1.0


def test_magic_is_the_model_alone_where_nobody_was_followed():
    full = Episodes(ragged=False)
    nobody = np.zeros((len(full.length), HOURS))
    right = corrected(full, nobody, exact_decisions(), exact_values())
    draws, value, shares = magic(right, np.ones((4, len(full.length))))
    assert shares.tolist() == [1.0, 0.0, 0.0, 0.0]
    alone = exact_values()[-1][full.s[:, 0]].mean()
    assert (value, *draws) == pytest.approx((alone,) * 5)


def test_shares_minimize_the_error_as_a_general_solver_finds():
    draw = np.random.default_rng(3)
    for _ in range(5):
        root = draw.normal(size=(5, 5))
        matrix = root @ root.T
        ours = simplex_minimum(matrix)
        theirs = minimize(
            lambda x, m=matrix: x @ m @ x,
            np.full(5, 0.2),
            bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            options={"ftol": 1e-12},
        )
        assert ours @ matrix @ ours == pytest.approx(theirs.fun, abs=1e-6)
        assert ours == pytest.approx(theirs.x, abs=1e-3)


def test_variance_falls_as_one_over_the_number_of_patients(episodes):
    weight = weights(episodes)
    draw = np.random.default_rng(4)
    for ratios in (
        wis(episodes.paths(), weight, episodes.rewards()),
        corrected(episodes, weight, exact_decisions() * 0.5, exact_values() * 0.5),
    ):
        sds = []
        for patients in (250, 1000, 4000):
            counts = draw.multinomial(patients, episodes.chance, size=3000).astype(float)
            sds.append(ratios.values(counts).std() * patients**0.5)
        # the sd of 3,000 draws is known to 1.3 %; two of them differ by chance by 4 % at most
        assert sds == pytest.approx([sds[-1]] * 3, rel=0.08)


def test_bootstrap_intervals_cover_the_enumerated_value(episodes):
    weight = weights(episodes)
    ratios = wis(episodes.paths(), weight, episodes.rewards())
    draw = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        cohort = draw.multinomial(1000, episodes.chance)
        counts = draw.multinomial(1000, cohort / 1000, size=200).astype(float)
        low, high = np.quantile(ratios.values(counts), [0.025, 0.975])
        covered += low <= TRUTH <= high
    assert 0.912 <= covered / 300 <= 0.988  # 95 % within three standard errors


def test_nobody_followed_is_not_a_number():
    full = Episodes(ragged=False)
    nobody = wis(full.paths(), np.zeros((len(full.length), HOURS)), full.rewards())
    assert np.isnan(nobody.values(everyone(full))[0])


def test_sums_keep_the_episodes_of_a_patient_together():
    nothing = np.zeros((3, 2), bool)
    paths = Paths(np.zeros((3, 2), int), nothing, nothing, np.array([1, 0, 1]), 2)
    sums = patient_sums(paths, np.array([[1.0, 2.0], [10.0, 20.0], [4.0, 8.0]]))
    assert sums.tolist() == [[10.0, 20.0], [5.0, 10.0]]


def test_overlap_by_hand():
    """Two episodes of one patient weigh 1 and 2 in the first hour, one of another weighs 3."""
    known = np.array([[True, True], [True, False], [True, True]])
    paths = Paths(np.zeros((3, 2), int), known, ~known & False, np.array([0, 0, 1]), 2)
    weight = np.array([[1.0, 6.0], [2.0, 0.0], [3.0, 2.0]])
    found = measure_overlap(paths, weight, 0.25)
    # sums of the patients: 3 and 3, then 6 and 2
    assert found.effective == pytest.approx([2.0, 64 / 40])
    assert found.largest == pytest.approx([0.5, 0.75])
    assert found.seen == pytest.approx([2.0, 8 / 3])
    assert found.tail == pytest.approx([0.5, 0.75])  # of the heaviest episode
    assert found.recorded == pytest.approx([1.0, 2 / 3])
    assert found.unsupported == 0.25
    assert found.patients() == pytest.approx(2 / (1 / 2 + 40 / 64))


# ── hidden confounding ───────────────────────────────────────────────────────────────────────────

OWN = np.ones((1, 4))


def short_paths(hours: int = 1) -> Paths:
    row = np.arange(4 * hours).reshape(4, hours)
    known = np.ones((4, hours), bool)
    return Paths(row, known, ~known, np.arange(4), 4)


def test_one_hour_by_hand():
    """Weights of 2 each, odds of 1: with gamma 2 between 1.5 and 3; rewards 0, 0, 0, 1.

    The largest mean gives the 1 a weight of 3 and the others 1.5: 3 / 7.5 = 0.4; the least gives
    1.5 against 3: 1.5 / 10.5.
    """
    paths, reward = short_paths(), np.array([[0.0], [0.0], [0.0], [1.0]])
    ones = np.ones(4)
    weights = weight_range(paths, Chances(ones, 0.5 * ones, ones, ones), 2.0)
    found = confounding_bounds(paths, weights, reward, 2.0, OWN)
    assert found.upper == pytest.approx(0.4)
    assert found.lower == pytest.approx(1.5 / 10.5)
    assert (found.low, found.high) == pytest.approx((found.lower, found.upper))


def test_no_corner_is_better_than_the_split():
    draw = np.random.default_rng(0)
    for _ in range(20):
        reward = draw.normal(size=(4, 1))
        low, high = np.sort(draw.random((2, 4, 1)), axis=0)
        corners = []
        for choice in itertools.product((0, 1), repeat=4):
            weight = np.where(np.array(choice)[:, None] == 1, high, low)
            corners.append((weight * reward).sum() / weight.sum())
        ours = worst_weights(WeightRange(low, high), reward)
        assert (ours * reward).sum() / ours.sum() == pytest.approx(max(corners))


def test_bounds_widen_with_gamma_and_start_at_wis():
    draw = np.random.default_rng(1)
    paths, reward = short_paths(3), draw.normal(size=(4, 3))
    policy, chance = draw.random((2, 12)) * 0.8 + 0.1
    ones = np.ones(12)
    chances = Chances(policy, chance, ones, ones)
    plain = path_weights(paths, chances.ratio, ones)
    value = wis(paths, plain, reward).values(OWN)[0]
    widths = []
    for gamma in (1.0, 1.3, 2.0, 5.0):
        weights = weight_range(paths, chances, gamma)
        found = confounding_bounds(paths, weights, reward, gamma, OWN)
        assert found.lower <= value + 1e-9
        assert found.upper >= value - 1e-9
        widths.append(found.upper - found.lower)
    assert widths[0] == pytest.approx(0.0, abs=1e-9)
    assert (np.diff(widths) > 0.01).all()


def test_gamma_below_one_and_nobody_followed():
    paths, ones = short_paths(), np.ones(4)
    with pytest.raises(ValueError, match="gamma: expected at least 1"):
        weight_range(paths, Chances(ones, ones, ones, ones), 0.5)
    nothing = np.zeros((4, 1))
    found = confounding_bounds(paths, WeightRange(nothing, nothing), nothing, 2.0, OWN)
    assert np.isnan(found.upper)
    assert found.low == -np.inf
