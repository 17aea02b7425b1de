"""Statistics: by hand, against SciPy, against slow loops, and how often intervals hold."""

import math

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.stats

from stepdown.evaluation.compare import (
    COLUMNS,
    against_best,
    between_cohorts,
    detectable,
    difference,
    draw_counts,
    estimate,
    holm,
    interval,
    middle,
    noise_drop,
    over_cohorts,
    paired_difference,
    ranking_agreement,
    resample,
    room_share,
    spearman,
    student,
    summarize,
)
from stepdown.handover import Judged
from stepdown.problem.metrics import METRICS

OTHERS = {name: x.said for name, x in METRICS.items() if x.table and name != "reward"}
ROW = np.repeat(np.arange(12), 5)  # twelve patients, five episodes each


def judged(reward, row=ROW, **others) -> Judged:
    """Episodes with given rewards (seeds, episodes); other metrics are 0 unless given."""
    reward = np.atleast_2d(np.asarray(reward, np.float32))
    zero = np.zeros_like(reward)
    scores = {name: np.broadcast_to(others.get(name, zero), reward.shape) for name in METRICS}
    scores["reward"] = reward
    level = np.full((*reward.shape, 7), 5, np.int8)
    made = {name: jnp.asarray(np.asarray(x, np.float32)) for name, x in scores.items()}
    return Judged(made, level, np.asarray(row))


def found(rows, method: str, metric: str) -> dict:
    (row,) = [row for row in rows if (row["method"], row["metric"]) == (method, metric)]
    return row


def luck(seed: int, patients: int = 12, each: int = 5) -> np.ndarray:
    """Rewards that differ more between patients than within."""
    draw = np.random.default_rng(seed)
    return np.repeat(2 * draw.normal(size=patients), each) + draw.normal(size=patients * each)


def test_a_table_by_hand():
    """Two seeds, four episodes of two patients; seed means 2 and 4, so 3 and sd sqrt(2)."""
    row = np.array([0, 0, 1, 1])
    ours = judged([[1, 1, 3, 3], [3, 3, 5, 5]], row)
    theirs = judged([[1, 1, 2, 2], [1, 1, 2, 2]], row)
    rows = summarize({"ours": ours, "theirs": theirs}, "twin", against="theirs")
    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == 3 * len(METRICS)
    one = found(rows, "ours", "reward")
    assert (one["judge"], one["mean"]) == ("twin", 3.0)
    assert one["sd"] == pytest.approx(2**0.5)
    # four equally likely draws of two patients with means 2 and 4: 2, 3, 3, 4
    assert (one["low"], one["high"]) == (2.0, 4.0)
    apart = found(rows, "ours", "reward_minus_theirs")
    # starts differ by 1 and 2 over seeds; seeds by 0.5 and 2.5
    assert (apart["mean"], apart["low"], apart["high"]) == (1.5, 1.0, 2.0)
    assert apart["sd"] == pytest.approx(2**0.5)
    assert found(rows, "theirs", "reward")["sd"] == 0.0


def test_patients_of_many_episodes_weigh_more():
    row = np.array([0, 1, 1, 1])
    weights = resample(row)
    assert set(np.round(weights @ np.array([4.0, 0, 0, 0]), 6)) == {4.0, 1.0, 0.0}
    assert weights.sum(1) == pytest.approx(np.ones(len(weights)))


def test_the_interval_is_scipys_where_patients_have_one_episode():
    values = np.random.default_rng(1).normal(size=40)
    ours = estimate(values[None], resample(np.arange(40), draws=20_000))
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(5)
    ).confidence_interval
    # both are random: quantiles of 20,000 draws have an sd of 0.003
    assert (ours["low"], ours["high"]) == pytest.approx((theirs.low, theirs.high), abs=0.015)


def test_the_interval_is_that_of_a_slow_loop_over_patients():
    values, draws = luck(2), []
    generator = np.random.default_rng(0)
    for chosen in generator.integers(12, size=(2000, 12)):
        draws.append(np.mean(np.concatenate([values[patient == ROW] for patient in chosen])))
    ours = estimate(values[None], resample(ROW))
    wanted = np.percentile(draws, [2.5, 97.5])
    assert (ours["low"], ours["high"]) == pytest.approx(tuple(wanted))


def test_a_paired_difference_is_ours_minus_theirs_over_whole_patients():
    """Two patients, with three episodes and one: ours is ahead by 1, 1, 1 and by 5."""
    theirs = np.array([10.0, -3.0, 2.0, 0.0])
    found = paired_difference(theirs + [1.0, 1.0, 1.0, 5.0], theirs, np.array([7, 7, 7, 2]))
    # equally likely draws: the first twice (1), the second twice (5), both (2): 1 and 5 are the
    # lowest and the highest quarter
    assert found == pytest.approx((2.0, 1.0, 5.0))
    ours, theirs = luck(3), luck(4)
    apart = estimate(difference(ours[None], theirs[None]), resample(ROW))
    assert paired_difference(ours, theirs, ROW) == (apart["mean"], apart["low"], apart["high"])


def test_one_patient_alone_has_both_limits_at_the_mean():
    found = paired_difference(np.array([1.0, 2.0, 6.0]), np.zeros(3), np.full(3, 4))
    assert found == pytest.approx((3.0, 3.0, 3.0))


def test_a_draw_that_knows_nothing_leaves_no_limit():
    draws = np.arange(1001.0)
    assert interval(draws) == middle(draws) == (25.0, 975.0)
    assert interval(np.append(draws, np.nan)) == (-np.inf, np.inf)


def test_counts_are_draws_of_patients_with_replacement():
    counts = draw_counts(40, 500, key=jr.key(0))
    assert (counts.sum(1) == 40).all()
    assert counts.var() == pytest.approx(1 - 1 / 40, rel=0.05)
    assert np.array_equal(counts, draw_counts(40, 500, key=jr.key(0)))
    assert not np.array_equal(counts, draw_counts(40, 500, key=jr.key(1)))


def test_seeds_are_averaged_before_patients_are_drawn():
    several = np.stack([luck(5), luck(6), luck(7)])
    together, averaged = (estimate(x, resample(ROW)) for x in (several, several.mean(0)[None]))
    for name in ("mean", "low", "high"):
        assert together[name] == pytest.approx(averaged[name])
    assert together["sd"] == pytest.approx(several.mean(1).std(ddof=1))
    assert averaged["sd"] == 0.0


def test_intervals_hold_the_truth_as_often_as_they_say():
    """300 cohorts of 60 patients, whose true mean is 0; percentiles are a little too narrow."""
    row = np.repeat(np.arange(60), 4)
    weights = resample(row, draws=1000)
    inside = 0
    for seed in range(300):
        one = estimate(luck(seed, 60, 4)[None], weights)
        inside += one["low"] <= 0 <= one["high"]
    assert 0.90 <= inside / 300 <= 0.98


def test_episodes_do_not_stand_in_for_patients():
    """The same episodes as 60 patients look surer than as 12."""
    values = luck(8)[None]
    few, many = (estimate(values, resample(row)) for row in (ROW, np.arange(60)))
    assert few["high"] - few["low"] > 1.5 * (many["high"] - many["low"])


def test_pairing_narrows_the_interval():
    shared = luck(9)
    ours, theirs = shared + 0.3, shared + 0.1 * np.random.default_rng(0).normal(size=60)
    rows = summarize({"a": judged(ours), "b": judged(theirs)}, "patients", against="b")
    apart, alone = found(rows, "a", "reward_minus_b"), found(rows, "a", "reward")
    assert apart["high"] - apart["low"] < 0.1 * (alone["high"] - alone["low"])
    assert 0.2 < apart["low"] < apart["mean"] < apart["high"] < 0.4


def test_one_patient_gives_no_interval():
    rows = summarize({"a": judged([1.0, 2.0], np.array([3, 3]))}, "twin")
    one = found(rows, "a", "reward")
    assert one["mean"] == 1.5
    assert np.isnan([one["low"], one["high"]]).all()


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(ValueError, match="expected the same starts"):
        summarize({"a": judged(luck(1)), "b": judged(luck(1), ROW[::-1])}, "twin")
    with pytest.raises(ValueError, match="as many seeds of both methods, got 2 and 3"):
        difference(np.zeros((2, 4)), np.zeros((3, 4)))
    with pytest.raises(ValueError, match="trained on both data sets"):
        noise_drop({"a": judged(luck(1))}, {"b": judged(luck(1))}, "twin")


def test_the_room_lies_between_clinicians_and_look_ahead():
    team = luck(10)
    methods = {
        "clinicians": judged(team),
        "look-ahead": judged(team + 2.0),
        "half": judged(np.stack([team + 0.8, team + 1.2])),
        "worse": judged(team - 0.5),
    }
    rows = room_share(methods, "patients", "clinicians", "look-ahead")
    assert [(row["method"], row["metric"]) for row in rows] == [
        ("half", "room_percent"),
        ("worse", "room_percent"),
    ]
    assert rows[0]["mean"] == pytest.approx(50.0, abs=1e-3)
    assert rows[0]["sd"] == pytest.approx(np.std([40, 60], ddof=1), abs=1e-3)
    assert rows[1]["mean"] == pytest.approx(-25.0, abs=1e-3)
    assert (rows[1]["low"], rows[1]["high"]) == pytest.approx((-25.0, -25.0), abs=1e-3)
    turned = room_share(methods, "patients", "look-ahead", "clinicians")
    assert np.isnan([row["mean"] for row in turned]).all()


def test_the_drop_by_hand_and_as_the_paper_counts_it():
    """1.108 to 1.064 is 3.97 % in the paper's table."""
    one = np.ones((1, 60))
    rows = noise_drop({"MBPO": judged(1.108 * one)}, {"MBPO": judged(1.064 * one)}, "twin")
    assert found(rows, "MBPO", "reward_drop")["mean"] == pytest.approx(0.044, abs=1e-6)
    assert found(rows, "MBPO", "reward_drop_percent")["mean"] == pytest.approx(3.97, abs=0.005)


def test_a_drop_of_a_negative_reward_is_still_a_drop():
    shared = 0.1 * luck(11) - 2.0
    clean, noisy = {"a": judged(shared)}, {"a": judged(shared - 0.2)}
    percent = found(noise_drop(clean, noisy, "twin"), "a", "reward_drop_percent")
    assert percent["mean"] == pytest.approx(100 * 0.2 / -shared.mean(), rel=1e-4)
    assert 0 < percent["low"] < percent["mean"] < percent["high"]


def test_a_share_of_nothing_is_not_given():
    centered = luck(12) - luck(12).mean()
    rows = noise_drop({"a": judged(centered)}, {"a": judged(centered - 0.2)}, "twin")
    assert found(rows, "a", "reward_drop")["mean"] == pytest.approx(0.2, abs=1e-6)
    assert np.isnan(found(rows, "a", "reward_drop_percent")["mean"])


@pytest.mark.parametrize("other", [(4, 1, 3, 2, 5), (1, 1, 2, 2, 0), (5, 4, 3, 2, 1)])
def test_spearman_is_scipys(other):
    ours, theirs = [1.0, 2.0, 3.0, 3.0, 9.0], [float(x) for x in other]
    wanted, _ = scipy.stats.spearmanr(ours, theirs)
    assert spearman(ours, theirs) == pytest.approx(wanted)
    assert np.isnan(spearman(ours, [1.0] * 5))


def test_verdicts_name_the_best_baseline_and_say_what_is_not_clear():
    shared = luck(13) + 10.0
    noise = np.random.default_rng(3).normal(size=(2, 60))
    patients = {
        "CORMPO": judged(np.stack([shared + 1.0, shared + 1.2]), unsafe_hours=0.1),
        "MBPO": judged(shared, unsafe_hours=0.3),
        "MOPO": judged(shared - 1.0),
    }
    twin = {
        "CORMPO": judged(shared + 0.01 * noise),
        "MBPO": judged(shared + 0.5),
        "MOPO": judged(shared - 0.01 * noise[0]),
    }
    names, both = ["MBPO", "MOPO"], {"twin": twin, "patients": patients}
    told = [
        x for judge, own in both.items() for x in against_best(own, judge, "CORMPO", names, OTHERS)
    ]
    told.append(ranking_agreement(both, ["CORMPO", *names]))
    assert len(told) == 5
    assert told[0].startswith("CORMPO against MBPO, the best of 2 baselines here")
    assert "in the twin: −0.50 reward [−0.50, −0.50]" in told[0]
    assert told[0].endswith("above it with 0 of 2 seeds.")
    percent = round(100 * 1.1 / shared.mean())
    assert f"in the patients: +1.10 reward [+1.10, +1.10] (+{percent} %)" in told[2]
    assert told[2].endswith("above it with 2 of 2 seeds.")
    assert "Against the same MBPO, in the patients: no clear difference, 0.000 ACP" in told[3]
    assert "−0.200 share of unsafe hours [−0.200, −0.200]; " in told[3]
    assert told[3].endswith("no clear difference, 0.000 staircase score [0.000, 0.000].")
    # twin ranks MBPO, CORMPO/MOPO; patients CORMPO, MBPO, MOPO
    assert "would choose MBPO, the patients CORMPO" in told[4]
    assert told[4].endswith("judged in the patients: −1.10 reward [−1.10, −1.10].")


def test_a_difference_that_may_be_none_is_called_so():
    shared, noise = luck(14), np.random.default_rng(4).normal(size=60)
    methods = {"ours": judged(shared + noise - noise.mean()), "one": judged(shared)}
    (first, _) = against_best(methods, "twin", "ours", ["one"], OTHERS)
    assert first.startswith("ours against one, in the twin: no clear difference, 0.00 reward")
    assert against_best({"one": methods["one"]}, "twin", "ours", ["one"], OTHERS) == []


def test_judges_that_agree_are_said_to():
    methods = {name: judged(luck(15) + i) for i, name in enumerate("abc")}
    told = ranking_agreement({"twin": methods, "patients": methods}, ["c", "a", "b"])
    assert told == (
        "Ranked by reward, the twin and the patients have a Spearman correlation of +1.00 over 3 "
        "methods; both would choose c."
    )


# ── over cohorts ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("freedom", [1, 2, 8, 40])
def test_the_quantile_is_students(freedom):
    assert student(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-4)


def test_the_interval_is_that_of_a_t_test():
    values = [0.1, -0.2, 0.4, 0.3, math.nan]
    found = over_cohorts(values)
    theirs = scipy.stats.ttest_1samp(values[:4], 0.0).confidence_interval(0.95)
    assert found["cohorts"] == 4
    assert found["mean"] == pytest.approx(0.15)
    assert (found["low"], found["high"]) == pytest.approx((theirs.low, theirs.high), rel=1e-4)


def test_one_cohort_has_no_interval_and_none_has_no_mean():
    one = over_cohorts([2.0])
    assert one["mean"] == 2.0
    assert math.isnan(one["low"])
    assert over_cohorts([])["cohorts"] == 0


def test_the_p_value_is_that_of_a_t_test():
    values = [0.1, -0.2, 0.4, 0.3, 0.5]
    found, theirs = (
        over_cohorts(values),
        scipy.stats.t.sf(0.22 / np.std(values, ddof=1) * 5**0.5, 4),
    )
    assert found["p"] == pytest.approx(2 * theirs, rel=1e-4)
    assert found["sd"] == pytest.approx(np.std(values, ddof=1))
    assert [over_cohorts([x, x])["p"] for x in (0.0, 0.3)] == [1.0, 0.0]
    assert math.isnan(over_cohorts([2.0])["p"])


def test_means_over_different_cohorts_are_compared_by_welchs_test():
    ours, theirs = [0.4, 0.3, 0.45, 0.2, 0.33], [0.1, -0.1, 0.25]
    found = between_cohorts(ours, theirs)
    welch = scipy.stats.ttest_ind(ours, theirs, equal_var=False)
    sure, chance = welch.confidence_interval(0.95), tuple(welch)[1]
    assert found["mean"] == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert (found["low"], found["high"]) == pytest.approx((sure.low, sure.high), rel=1e-4)
    assert found["p"] == pytest.approx(chance, rel=1e-4)
    assert math.isnan(between_cohorts(ours, [0.1])["p"])
    assert math.isnan(between_cohorts(ours, [])["low"])


def slow_holm(values: list[float]) -> list[float]:
    """The textbook: the least level at which the step-down procedure rejects each, by trying."""

    def rejected(level: float) -> set[int]:
        out: set[int] = set()
        for number, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
            if values[place] > level / (len(values) - number):
                break
            out.add(place)
        return out

    tried = np.linspace(0.0, 1.0, 4001)
    return [min([x for x in tried if place in rejected(x)], default=1.0)
            for place in range(len(values))]  # fmt: skip


def test_holms_p_values_are_the_least_levels_at_which_each_is_rejected():
    draw = np.random.default_rng(1)
    for count in (1, 3, 8):
        values = (draw.uniform(size=count) ** 3).tolist()
        assert holm(values) == pytest.approx(slow_holm(values), abs=2.6e-4)
    # by hand: 3 x 0.01, then 2 x 0.02, then 0.03, which may not fall below the one before
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.01, math.nan, 0.04])[::2] == pytest.approx([0.02, 0.04])
    assert math.isnan(holm([0.01, math.nan, 0.04])[1])


def test_a_family_without_differences_is_wrong_in_one_of_twenty():
    """Eight methods minus a common one, nothing true: uncorrected, far more families are wrong."""
    draw = np.random.default_rng(2)
    plain, corrected = 0, 0
    for _ in range(400):
        luck = draw.normal(size=(9, 8))  # methods and the one beside them, cohorts
        values = [over_cohorts(x.tolist())["p"] for x in luck[1:] - luck[0]]
        plain, corrected = plain + (min(values) <= 0.05), corrected + (min(holm(values)) <= 0.05)
    assert corrected / 400 <= 0.07  # 0.05 and two standard errors
    assert plain / 400 > 0.12


@pytest.mark.parametrize("cohorts", [4, 8, 24])
@pytest.mark.parametrize("sure", [0.95, 0.995])
def test_a_detectable_difference_is_found_in_four_of_five_designs(cohorts, sure):
    gap = detectable(0.3, cohorts, sure=sure)
    edge = scipy.stats.t.ppf((1 + sure) / 2, cohorts - 1)
    power = scipy.stats.nct.sf(edge, cohorts - 1, gap * math.sqrt(cohorts) / 0.3)
    assert power == pytest.approx(0.8, abs=2e-3)


def test_one_cohort_detects_nothing():
    assert math.isnan(detectable(0.3, 1))
    assert math.isnan(detectable(math.nan, 8))


def test_the_interval_covers_as_often_as_it_says():
    draw = np.random.default_rng(0).normal(1.0, 2.0, size=(2000, 5))
    found = [over_cohorts(row.tolist()) for row in draw]
    assert np.mean([x["low"] < 1.0 < x["high"] for x in found]) == pytest.approx(0.95, abs=0.015)
