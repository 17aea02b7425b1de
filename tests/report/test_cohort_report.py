"""The table of published moments computes what it says, against textbook formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig
from stepdown.report.cohort_report import (
    MOMENTS,
    Row,
    dataset_card,
    describe_cohort,
    moment_rows,
    moments_grid,
    moments_text,
    summarize,
)
from stepdown.report.grids import to_csv, to_html
from stepdown.signals import HR, MAP, NAMES, PULSATILITY, columns_with


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    """Three wandering stays of 30, 25 and 12 samples; the second misses a sample."""
    draw = np.random.default_rng(0)
    seen = np.arange(30) < np.array([30, 25, 12])[:, None]
    seen[1, 8] = False
    signals = 60 + draw.normal(0, 4, (3, 30, len(NAMES))).cumsum(1).astype(np.float32)
    level = np.where(seen, draw.integers(2, 10, (3, 30)), 0).astype(np.int32)
    signals[~seen] = np.nan
    return Cohort(jnp.asarray(signals), jnp.asarray(level), jnp.asarray(seen), ("a", "b", "c"))


@pytest.fixture(scope="module")
def rows(cohort) -> dict[tuple[str, str], Row]:
    return {(row.group, row.what): row for row in describe_cohort(cohort)}


def full_hours(cohort: Cohort):
    """(signals, level) of every full hour, stay by stay, None where an hour is not full."""
    for row in range(3):
        for start in range(0, 30, 6):
            whole = bool(cohort.seen[row, start : start + 6].all())
            part = (row, slice(start, start + 6))
            yield (
                (np.asarray(cohort.signals[part]), np.asarray(cohort.level[part]))
                if whole
                else None
            )
        yield None  # hours of two stays never meet


def test_moments_are_those_of_the_seen_samples(cohort, rows):
    seen = np.asarray(cohort.seen)
    for name in set(MOMENTS) - {"level", "reward"}:
        values = np.asarray(cohort.signals, float)[seen][:, NAMES.index(name)]
        mean, sd = MOMENTS[name]
        row = rows["mean", name]
        assert row.ours == pytest.approx(values.mean())
        assert row.difference == pytest.approx((values.mean() - mean) / sd)
        spread = rows["standard deviation", name]
        assert spread.ours == pytest.approx(values.std())
        assert spread.difference == pytest.approx(100 * (values.std() / sd - 1))
    assert rows["mean", "level"].ours == pytest.approx(np.asarray(cohort.level)[seen].mean())


def test_reward_and_stability_are_those_of_full_hours(cohort, rows):
    hours = [hour for hour in full_hours(cohort) if hour]
    assert len(hours) == 5 + 3 + 2
    reward, strict, limits, steady = [], [], [], []
    for signals, _ in hours:
        pressure, rate, pulse = (signals[:, column] for column in (MAP, HR, PULSATILITY))
        charges = (
            7 * (60 - pressure.min()) / 20, (pressure.mean() - 106) / 18,
            (rate.min() - 75) ** 2 / 250 - 1, 7 * (20 - pulse.min()) / 20, (pulse.min() - 50) / 20,
        )  # fmt: skip
        reward.append(-sum(max(charge, 0) for charge in charges))
        safe = pressure.min() > 60 and rate.min() > 50
        strict.append(safe and pulse.min() > 20)
        limits.append(safe and pulse.min() > 10)
        slopes = [abs(np.polyfit(range(6), x, 1)[0]) for x in (pressure, rate, pulse)]
        steady.append(all(np.array(slopes) < (1.36, 2.16, 1.95)))
    assert rows["mean", "reward"].ours == pytest.approx(np.mean(reward), rel=1e-4)
    assert rows["standard deviation", "reward"].ours == pytest.approx(np.std(reward), rel=1e-4)
    shares = {"limits, pulsatility 20": strict, "limits, pulsatility 10": limits}
    for name, flags in (shares | {"gradient": steady}).items():
        assert rows["stable hours", name].ours == pytest.approx(100 * np.mean(flags))


def test_changes_of_level_compare_neighboring_full_hours(cohort, rows):
    levels = [
        None if hour is None else np.floor(hour[1].mean() + 0.5) for hour in full_hours(cohort)
    ]
    pairs = [(a, b) for a, b in zip(levels[:-1], levels[1:], strict=True) if None not in (a, b)]
    ours = rows["decisions", "level unchanged over the hour"].ours
    assert ours == pytest.approx(100 * np.mean([a == b for a, b in pairs]))


def test_correlations_pair_what_belongs_together(cohort, rows):
    values, seen = np.asarray(cohort.signals, float), np.asarray(cohort.seen)
    pairs = [
        (values[row, step], values[row, step + 1])
        for row in range(3)
        for step in range(29)
        if seen[row, step] and seen[row, step + 1]
    ]
    before, after = np.array(pairs).transpose(1, 2, 0)
    expected = np.corrcoef(before[MAP], after[MAP])[0, 1]
    assert rows["lag-1 correlation", "map"].ours == pytest.approx(expected)
    level = np.asarray(cohort.level)[seen]
    expected = np.corrcoef(level, values[seen][:, MAP])[0, 1]
    assert rows["correlation", "level – map"].ours == pytest.approx(expected)


def test_levels_and_stays_are_counted_by_samples(cohort, rows):
    level, seen = np.asarray(cohort.level), np.asarray(cohort.seen)
    flow = np.asarray(cohort.signals, float)[..., NAMES.index("flow")]
    assert rows["flow by level", "P5"].ours == pytest.approx(flow[level == 5].mean())
    assert rows["share of levels", "P5"].ours == pytest.approx(100 * (level[seen] == 5).mean())
    assert rows["record", "mean length"].ours == pytest.approx(66 / 6 / 3)


def test_a_finer_cohort_is_thinned_to_ten_minutes(cohort, rows):
    fine = Cohort(
        jnp.repeat(cohort.signals, 2, 1),
        jnp.repeat(cohort.level, 2, 1),
        jnp.repeat(cohort.seen, 2, 1),
        cohort.patient,
        minutes=5.0,
    )
    for row in describe_cohort(fine):
        assert row.ours == pytest.approx(rows[row.group, row.what].ours, nan_ok=True)


def test_missing_values_are_left_out(cohort, rows):
    signals = cohort.signals.at[0, 3, MAP].set(jnp.nan)
    holed = Cohort(signals, cohort.level, cohort.seen, cohort.patient)
    values = np.asarray(signals, float)[np.asarray(cohort.seen)][:, MAP]
    row = describe_cohort(holed)[0]
    assert (row.group, row.what) == ("mean", "map")
    assert row.ours == pytest.approx(np.nanmean(values))


def test_further_columns_are_on_the_card_and_change_no_published_number(cohort, rows):
    columns = columns_with(["lactate"])
    wide = Cohort(
        jnp.concatenate([cohort.signals, jnp.full((3, 30, 1), 2.0)], -1),
        cohort.level,
        cohort.seen,
        cohort.patient,
        columns=columns,
    )
    for row in describe_cohort(wide):
        assert row.ours == pytest.approx(rows[row.group, row.what].ours, nan_ok=True)
    cards = [
        dataset_card(x, CohortConfig(), np.array([0, 1, 2]), seed=7, extras=(), hashes={})
        for x in (cohort, wide)
    ]
    line = "| `lactate` | mmol/L | Blood lactate |"
    assert [line in card.splitlines() for card in cards] == [False, True]
    assert cards[0].splitlines() == [x for x in cards[1].splitlines() if x != line]


def make_row(ours: float, bar: float | None = 0.15) -> Row:
    return Row("mean", "map", "mmHg", ours, 73.87, (ours - 73.87) / 12.01, "sd", bar)


@pytest.mark.parametrize(
    ("row", "word", "line"),
    [
        (make_row(75.6), "within", "mean,map,mmHg,75.6,73.87,0.144047,sd,0.15,within"),
        (make_row(60.0), "outside", "mean,map,mmHg,60,73.87,-1.15487,sd,0.15,outside"),
        (make_row(60.0, None), "shown", "mean,map,mmHg,60,73.87,-1.15487,sd,,shown"),
        (make_row(float("nan")), "no data", "mean,map,mmHg,,73.87,,sd,0.15,no data"),
    ],
)
def test_the_verdict_follows_the_bar(row, word, line):
    assert row.verdict == word
    assert moments_grid([row]).rows[0][-1].text == word
    assert to_csv(moment_rows([row])).decode().splitlines()[1] == line


def test_what_cannot_be_computed_does_not_count_as_kept():
    rows = [make_row(75.6), make_row(60.0), make_row(60.0, None), make_row(float("nan"))]
    assert summarize(rows) == "1 of 3 published numbers within their bar"
    assert moments_text(rows).isascii()


def test_the_table_is_the_same_on_the_page_and_in_the_terminal():
    rows = [make_row(75.6), make_row(float("nan"))]
    head, rule, first, second, blank, said = moments_text(rows).splitlines()
    assert head == "number             ours  published  difference         bar  verdict"
    assert rule == "-" * len(head)
    assert first == "mean, map [mmHg]  75.60      73.87    +0.14 sd  +- 0.15 sd  within"
    assert second == "mean, map [mmHg]      -      73.87           -  +- 0.15 sd  no data"
    assert (blank, said) == ("", "1 of 2 published numbers within their bar.")
    page = to_html(moments_grid(rows))
    assert '<tr class="group"><th colspan="6">Mean</th></tr>' in page
    assert '<tr><td>map [mmHg]</td><td class="number">75.60</td>' in page
    assert '<td class="within">within</td>' in page
    assert '<td class="none">no data</td>' in page
