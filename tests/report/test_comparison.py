"""Tables of a comparison: every number by hand, nothing called best that may not be."""

import csv
import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from stepdown.evaluation.compare import Row, detectable, student
from stepdown.report.comparison import (
    PRESET,
    SEARCHED,
    Comparison,
    across_grid,
    across_rows,
    changes_grid,
    claim_rows,
    claims_grid,
    cohorts_grid,
    detectable_grid,
    drop_grid,
    drop_rows,
    find,
    penalty_grid,
    penalty_rows,
    safety_grid,
    same_question,
    search_grid,
    short_grid,
    time_grid,
    time_rows,
)
from stepdown.report.grids import DASH, Cell, Grid, signed, to_csv, to_markdown, to_text
from stepdown.report.labels import (
    BASELINES,
    GROUPS,
    LEARNED,
    METHODS,
    METRICS,
    PARTS,
    name_of,
)
from stepdown.report.paper_numbers import CLAIMS, DROP_PERCENT, NOISELESS, NOISY, RECORDED
from stepdown.report.results_page import (
    lead_of,
    say_across,
    say_against,
    say_agreement,
    say_comparisons,
    say_ranking,
)
from tests.report.comparisons import KNOWN, TWIN, comparison, judged, noisy, together


def line(grid: Grid, name: str) -> list[Cell]:
    return next(list(row) for row in grid.rows if row[0].text == name)


def test_rows_are_those_computed_by_hand():
    rows = comparison().rows
    ours = find(rows, "cormpo_kde", "patients", "reward")
    assert ours is not None
    # seeds' means 2.5 and 3.5; patients' means 2 and 4
    assert [ours[x] for x in ("mean", "low", "high")] == [3.0, 2.0, 4.0]
    assert ours["sd"] == pytest.approx(math.sqrt(0.5))
    apart = find(rows, "mbpo", "patients", "reward_minus_cormpo_kde")
    assert apart is not None
    # by patient: 0.5 - 2 and 0.5 - 4
    assert [apart[x] for x in ("mean", "low", "high")] == [-2.5, -3.5, -1.5]
    # clinicians 0, look-ahead 4 on average, so 3 is three quarters; by patient 3/4 and 3/4
    room = find(rows, "cormpo_kde", "patients", "room_percent")
    assert room is not None
    assert [room[x] for x in ("mean", "low", "high")] == pytest.approx([75.0, 75.0, 75.0])
    assert find(rows, "cormpo_kde", "twin", "room_percent") is None  # nobody looks ahead there
    assert find(rows, "cormpo_kde", "fresh", "reward") is None


def test_csv_has_exactly_the_columns_that_were_promised():
    table = list(csv.reader(io.StringIO(to_csv(comparison().rows).decode())))
    assert table[0] == ["method", "judge", "metric", "mean", "sd", "low", "high"]
    found = [x for x in table if x[:3] == ["mbpo", "twin", "reward"]]
    assert found == [["mbpo", "twin", "reward", "4", "0", "4", "4"]]
    assert len(table) - 1 == len({tuple(x[:3]) for x in table[1:]})


def test_the_safety_table_shows_values_and_differences_side_by_side():
    grid = safety_grid(comparison())
    assert grid.head == (
        "Method", "our twin", "test patients", "paper",
        "our twin", "test patients", "our twin", "test patients", "room, %"
    )  # fmt: skip
    cells = line(grid, "MBPO")
    assert [x.text for x in cells] == [
        "MBPO", "4.00", "0.50 ± 0.35", "0.420 ± 0.139", "25.0", "25.0", "0.0", "0.0", "12"
    ]  # fmt: skip
    assert cells[2].note == "−2.50 [−3.50, −1.50]"
    assert cells[4].note == "≈ 0.0 [0.0, 0.0]"
    assert line(grid, "Look-ahead (ceiling)")[1] == Cell()  # the twin was not asked
    assert line(grid, "Clinicians")[-1].text == DASH
    assert grid.groups == {0: "The paper's methods", 3: "What each part of CORMPO does",
                           4: "References"}  # fmt: skip


def test_one_table_says_claim_other_judge_and_truth():
    """For each row: the paper's twin, ours, the truth, each under its own name."""
    known = comparison()
    paper = {name: judged(np.asarray(x) + 1.0) for name, x in TWIN.items()}
    three = replace(known, judged={**known.judged, "tdt": paper})
    assert three.twins == ["tdt", "twin"]
    assert (three.truths, three.surest) == (["patients"], "patients")
    grid = safety_grid(three)
    assert grid.head[:5] == ("Method", "paper's twin", "our twin", "test patients", "paper")
    assert [x.text for x in line(grid, "MBPO")[1:4]] == ["5.00", "4.00", "0.50 ± 0.35"]
    assert short_grid(three).head[:4] == ("method", "paper's twin", "twin", "test")
    rows = claim_rows([three])
    assert [(x["judge"], x["best"], x["mean"], x["percent"]) for x in rows[:2]] == [
        ("tdt", "mbpo", -3.0, -60.0), ("twin", "mbpo", -3.0, -75.0)
    ]  # fmt: skip
    assert (rows[2]["judge"], rows[2]["best"], rows[2]["mean"]) == ("patients", "bc", 2.0)
    assert "in the paper's twin, in the twin, in 2 test patients." in lead_of(three)
    # CORMPO leads in truth and trails in both twins, and each is said of whom it is true
    first, second = say_ranking(three)
    assert first.startswith("Paper's twin and true test patients disagree on the ranking: the "
                            "paper's twin puts MBPO first,")  # fmt: skip
    assert second.startswith("Twin and true test patients disagree")
    assert len(say_comparisons([three, three])) == 2


def test_the_weaning_table_has_all_three_scores():
    cells = line(changes_grid(comparison()), "CORMPO (KDE)")
    texts = [x.text for x in cells[1:4]]
    assert texts == ["3.00", "3.00", "0.018 ± 0.007"]
    assert [x.text for x in cells[4:]] == ["0.50 / 0.25 / 0.12"] * 2 + ["0.173 ± 0.007"]


def test_only_a_clear_winner_is_bold():
    one = comparison()
    strong = [cell.text for row in safety_grid(one).rows for cell in row if cell.strong]
    # In the twin MBPO leads by 2 everywhere. In patients CORMPO and shaped MBPO are both at 3.
    assert strong == ["4.00"]
    assert one.winners == {("twin", "reward"): "mbpo"}


def test_too_few_patients_print_a_dash_and_no_winner():
    alone = np.zeros(4, int)
    both = {"cormpo_kde": judged([[3, 3, 3, 3]], alone), "mbpo": judged([[1, 1, 1, 1]], alone)}
    one = Comparison("c", "recorded", "ours", {"twin": both})
    cells = line(safety_grid(one), "MBPO")
    assert (cells[1].text, cells[1].note) == ("1.00", f"−2.00 {DASH}")
    assert one.winners == {}
    assert b"mbpo,twin,reward,1,0,,\n" in to_csv(one.rows)
    assert "too few patients" in say_against(one, "twin", ["mbpo"])[0]
    assert say_agreement(one) == []


def test_the_short_table_fits_a_terminal():
    text = to_text(short_grid(comparison()))
    wanted = "BC (cloning)          0.00  1.00  -2.00 [-2.00, -2.00]  3.00  0.50    25.0"
    assert wanted in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100


def test_the_drop_is_paired_and_includes_its_share():
    rows = drop_rows(noisy())
    found = find(rows, "mbpo", "twin", "reward_drop")
    share = find(rows, "mbpo", "twin", "reward_drop_percent")
    assert found is not None
    assert share is not None
    assert (found["mean"], found["low"], found["high"]) == (0.5, 0.5, 0.5)
    assert share["mean"] == pytest.approx(12.5)
    assert not any(row["method"] == "hold" for row in rows)  # nothing was learned there
    cells = line(drop_grid(noisy()), "MBPO")
    assert [x.text for x in cells] == [
        "MBPO", "4.00", "3.50", "+0.50 (+12.5 %)",
        "0.50 ± 0.35", "0.00 ± 0.35", "+0.50 (+100.0 %)", "3.97 %",
    ]  # fmt: skip


def test_the_drop_is_that_of_noise_alone_and_the_expert_has_none():
    """A noiseless table of other settings does not enter, and one judgment is no comparison."""
    grid = drop_grid(noisy())
    assert [x.text for x in line(grid, "Expert (learned in the twin)")] == [
        "Expert (learned in the twin)", *[DASH] * 6, "5.74 %",
    ]  # fmt: skip
    assert not any(row["method"] == "expert" for row in drop_rows(noisy()))
    assert "nothing of it differs in noise, so it has no drop" in grid.note
    assert "differ in the noise of the observations alone" in grid.note
    assert "another λ, shaping and number of updates" not in grid.note
    assert "another λ, shaping and number of updates" in drop_grid(noisy("paper")).note
    assert drop_rows(comparison("noisy")) == []  # no training without the noise, no drop


def test_claims_are_held_beside_what_was_found():
    three = [comparison(), comparison("noiseless", shift=7.0), noisy()]
    grid = claims_grid(three)
    reward = line(grid, "Recorded: reward")
    assert [x.text for x in reward[1:4]] == ["+28 %", "+29.6 % (SVR)", "−3.00 (−75 %)"]
    # in patients BC is the best baseline with 1: by patient 2 - 0 and 4 - 2
    assert (reward[4].text, reward[4].note) == ("+2.00", "[+2.00, +2.00] against BC (cloning)")
    assert line(grid, "Reward lost to noise")[3].text == "+50.0 %"
    assert len(claims_grid(three[:1]).rows) == 4  # what was not run is not shown


def test_times_stand_beside_the_papers():
    rows = time_rows([comparison()])
    assert [(x["method"], x["seeds"], x["seconds"]) for x in rows] == [
        ("mbpo", 2, 10.0), ("cormpo_kde", 2, 24.0)
    ]  # fmt: skip
    cells = line(time_grid([comparison()]), "CORMPO (KDE)")
    assert [x.text for x in cells] == ["CORMPO (KDE)", "24.0", "1,196"]
    assert cells[1].note == "12.0 each"


def test_penalty_types_are_a_part_of_the_comparison():
    methods = {row["method"] for row in penalty_rows(comparison())}
    assert methods == {"bc", "mbpo", "cormpo_kde", "clinicians"}
    assert line(penalty_grid(comparison()), "BC (cloning)")[3].text == "0.175 ± 0.118"


def test_cohorts_are_compared_line_by_line():
    grid = cohorts_grid([comparison(), comparison(cohort="hidden-8")], "patients")
    assert [row[0].text for row in grid.rows] == ["guarded-7", "hidden-8"]
    cell = grid.rows[0][grid.head.index("MBPO")]
    assert (cell.text, cell.note, cell.strong) == ("+2.50", "[+1.50, +3.50]", False)
    same = grid.rows[0][grid.head.index("MBPO, reward shaped")]
    assert (same.text, same.strong) == ("0.00", False)


def test_the_papers_margins_follow_from_its_own_tables():
    """Its text says 28, 73, 14.9 and 82.6 %; see paper_numbers.CLAIMS."""
    tables = {claim.words: claim.tables for claim in CLAIMS}

    def percent(table, metric: str, other: str) -> float:
        ours, theirs = table["cormpo_kde"][metric][0], table[other][metric][0]
        return 100 * (ours - theirs) / abs(theirs)

    for words, table, metric, other in (
        ("Recorded: reward", RECORDED, "reward", "svr"),
        ("Recorded: ACP, levels", RECORDED, "acp", "bc"),
        ("Recorded: weaning score", RECORDED, "ws_gradient", "bc"),
        ("Noiseless: reward", NOISELESS, "reward", "mbpo"),
        ("Noiseless: ACP, levels", NOISELESS, "acp", "mopo"),
    ):
        assert tables[words].startswith(f"{signed(percent(table, metric, other), 1)} %")
        best = max if metric != "acp" else min
        named = {x: table[x][metric][0] for x in ("bc", "mbpo", "mopo", "svr")}
        assert best(named, key=named.__getitem__) == other
    for method in ("mbpo", "mopo", "cormpo_kde"):
        clean, rough = NOISELESS[method]["reward"][0], NOISY[method]["reward"][0]
        assert 100 * (clean - rough) / clean == pytest.approx(DROP_PERCENT[method], abs=0.05)


def test_unknown_judges_and_empty_comparisons_are_refused():
    with pytest.raises(ValueError, match="expected judges among tdt, twin"):
        Comparison("c", "recorded", "ours", {"oracle": {"bc": judged([[1, 1, 1, 1]])}})
    with pytest.raises(ValueError, match="at least one judge"):
        Comparison("c", "recorded", "ours", {})
    assert name_of("new method") == "New method"


def test_methods_are_told_apart_without_color_and_stand_in_one_group():
    looks = [(METHODS[x].look.dash, METHODS[x].look.marker) for x in LEARNED]
    assert len(set(looks)) == len(looks)
    assert LEARNED[:6] == (*BASELINES, "cormpo_flow", "cormpo_kde")
    assert {x.group for x in METHODS.values()} == {*GROUPS, "constant"}
    assert set(BASELINES).isdisjoint(PARTS)


def test_metrics_are_defined_rounded_and_have_a_better_side():
    assert {name: (x.sign, x.scale, x.digits) for name, x in METRICS.items()} == {
        "reward": (1.0, 1.0, 2),
        "acp": (-1.0, 1.0, 2),
        "ws_gradient": (1.0, 1.0, 2),
        "unsafe_hours": (-1.0, 100.0, 1),
        "staircase": (-1.0, 1.0, 1),
    }
    assert METRICS["ws_gradient"].axis == "Weaning score (gradient)"
    for metric in METRICS.values():
        assert metric.definition[1].endswith(".")
        assert (np.diff(metric.edges) > 0).all()


# ── all cohorts together ─────────────────────────────────────────────────────────────────────────


def test_rows_are_means_over_cohorts_with_students_interval():
    rows = across_rows([together(x) for x in KNOWN])
    found = {
        (x["cohorts"], x["metric"]): x
        for x in rows
        if x["method"] == "mbpo" and x["judge"] == "fresh"
    }
    whole = found["all", "reward_minus_cormpo_kde"]
    half = student(2) * math.sqrt(7.0) / math.sqrt(3)  # sd of 1, 2 and 6 is the root of 7
    assert (whole["number"], whole["mean"]) == (3, 3.0)
    assert math.isclose(float(whole["high"]), 3.0 + half, rel_tol=1e-6)
    assert found["guarded", "reward_minus_cormpo_kde"]["mean"] == 1.5
    assert found["all", "unsafe_hours_minus_cormpo_kde"]["mean"] == 0.5


def test_what_the_twin_taught_stands_beside_what_the_ensemble_did():
    rows = across_rows([together(x) for x in KNOWN])
    found = {(x["method"], x["metric"]): x["mean"] for x in rows
             if (x["cohorts"], x["judge"]) == ("all", "fresh")}  # fmt: skip
    assert found["mbpo_twin", "reward_minus_mbpo_shaped"] == 1.5  # 0, 1 and 5, minus 0.5
    assert found["mbpo_twin", "reward_minus_clinicians"] == 2.0
    assert ("mbpo", "reward_minus_mbpo_shaped") not in found


def test_other_data_and_settings_do_not_count():
    more = [comparison("noisy"), comparison(setting="paper")]
    assert [x.cohort for x in same_question([together("guarded-7"), *more])] == ["guarded-7"]
    assert say_across([together("guarded-7"), *more]) == []


def test_sentences_say_the_difference_the_other_way_round():
    said = say_across([together(x) for x in KNOWN])
    assert said[0].startswith("Over 3 cohorts, CORMPO minus MBPO in fresh patients: reward −3.00 [")
    assert "; unsafe hours, points, −50.0 [" in said[0]
    # the mean of 3 has a standard error of the root of 7/3; of four p-values that of MBPO shaped,
    # 0.5 ahead in every cohort, is 0, and MBPO's comes next
    p = 3 * 2 * (1 - scipy.stats.t.cdf(3.0 / math.sqrt(7.0 / 3.0), 2))
    assert f", p {p:.3f};" in said[0]


def test_the_table_has_a_column_for_every_preset():
    grid = across_grid([together(x) for x in KNOWN], "fresh")
    assert grid.head[2:5] == ("all", "guarded", "hidden")
    (line,) = (x for x in grid.rows if x[0].text == "MBPO")
    assert [cell.text for cell in line[2:5]] == ["+3.00", "+1.50", "+6.00"]
    assert not line[4].note.endswith("p –")  # a single cohort has no p-value and is not bold
    assert [cell.strong for cell in line[2:5]] == [False, False, False]


def test_what_is_bold_over_cohorts_is_so_for_the_whole_column():
    """By itself an interval may exclude zero where the family of comparisons does not."""
    clear = {"guarded-7": 1.0, "guarded-8": 1.1, "guarded-9": 0.8}
    faint = {"guarded-7": 0.5, "guarded-8": 1.0, "guarded-9": 0.9}
    cohorts = [
        Comparison(name, "recorded", "ours", {"fresh": {
            "cormpo_kde": judged([[0.0] * 4]), "mbpo": judged([[clear[name]] * 4]),
            "mopo": judged([[faint[name]] * 4]),
        }})
        for name in clear
    ]  # fmt: skip
    rows = {x["method"]: x for x in across_rows(cohorts)
            if (x["cohorts"], x["metric"]) == ("all", "reward_minus_cormpo_kde")}  # fmt: skip
    tests: list[Any] = [scipy.stats.ttest_1samp(list(x.values()), 0.0) for x in (clear, faint)]
    ps = [float(x.pvalue) for x in tests]
    assert ps[0] < 0.025 < ps[1] < 0.05
    assert [rows[x]["p_holm"] for x in ("mbpo", "mopo")] == pytest.approx(
        [2 * ps[0], max(2 * ps[0], ps[1])], rel=1e-3
    )
    sd = float(np.std(list(clear.values()), ddof=1))
    assert rows["mbpo"]["detectable"] == pytest.approx(detectable(sd, 3), rel=1e-4)
    grid = detectable_grid(cohorts, "fresh")
    assert [x.text for x in line(grid, "MBPO")[1:4]] == [
        f"{x:.2f}" for x in (sd, detectable(sd, 3), detectable(sd, 3, sure=0.975))
    ]
    strict = [replace(x, judged={"fresh": {**x.judged["fresh"], "svr": judged([[0.0] * 4])}})
              for x in cohorts]  # fmt: skip
    cell = line(across_grid(strict, "fresh"), "MOPO")[2]
    assert (cell.strong, cell.note.startswith("[+0")) == (False, True)  # 2 x p is above 5 %
    assert line(across_grid(cohorts, "fresh"), "MOPO")[2].strong


def test_one_cohorts_differences_are_not_bold():
    grid = cohorts_grid([together(x) for x in KNOWN], "fresh")
    assert not any(cell.strong for row in grid.rows for cell in row)
    assert "some exclude zero by chance" in grid.note


# ── searches ─────────────────────────────────────────────────────────────────────────────────────


def trial(cohort: str, method: str, changes: str, score: float, chosen: str) -> Row:
    values = (cohort, "recorded", "ours", method, changes, score, chosen)
    return dict(zip(SEARCHED, values, strict=True))


def test_the_best_trial_stands_with_its_lead():
    trials = [
        trial("guarded-7", "mbpo", PRESET, -0.5, "no"),
        trial("guarded-7", "mbpo", "sac.discount 0.9", -0.25, "yes"),
        trial("guarded-7", "cormpo_kde", PRESET, 0.1, "yes"),
        trial("guarded-7", "cormpo_kde", "penalty_weight 0.02", 0.0, "no"),
        trial("hidden-7", "mbpo", PRESET, 0.5, "yes"),
    ]
    lines = to_markdown(search_grid(trials)).splitlines()
    assert lines[2] == "| Method | recorded, ours (guarded-7) | recorded, ours (hidden-7) |"
    assert lines[4] == "| MBPO | sac.discount 0.9 (+0.25) | the preset |"
    assert lines[5] == "| CORMPO (KDE) | the preset | – |"
