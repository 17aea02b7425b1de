"""Tables of twins, guardians, trainings and searches, line by line."""

import math
from typing import Any

import pytest

from stepdown.evaluation.guardians import SearchConfig
from stepdown.evaluation.guardians import Trial as DensityTrial
from stepdown.report.grids import DASH, Cell, Grid, to_csv
from stepdown.report.labels import TWIN_METRICS
from stepdown.report.model_tables import (
    densities_text,
    forecasts_text,
    guardian_grid,
    guardian_rows,
    guardian_text,
    settings_grid,
    settings_rows,
    shifts_text,
    training_text,
    trials_text,
    twin_grid,
    twin_rows,
)


def line(grid: Grid, name: str) -> list[Cell]:
    return next(list(row) for row in grid.rows if row[0].text == name)


def test_twins_and_windows_have_the_papers_numbers_beside_them():
    name = "mae_published"  # the paper's unit; ours has none of theirs beside it
    seeds = [{name: 5.0, "mae_z": None}, {name: 7.0, "mae_z": None}]
    rows = {x["metric"]: x for x in twin_rows({"tdt": seeds})}
    assert (rows[name]["mean"], rows[name]["paper_mean"]) == (6.0, 5.41)
    assert math.isnan(float(rows["mae"]["paper_mean"]))
    assert rows[name]["sd"] == pytest.approx(math.sqrt(2))
    cells = line(twin_grid({"tdt": seeds}), "Transformer (the paper's)")
    assert (cells[2].text, cells[2].note) == ("6.000 ± 1.414", "paper 5.41 ± 0.05")
    assert cells[5].text == DASH
    windows = {"60 min at 600 s": {"tdt": {"mse_z": [0.2], "mse_map": [20.0]}}}
    assert settings_rows(windows)[0]["paper_mean"] == 0.124
    assert settings_grid(windows).rows[0][1].text == "0.200"


def test_forecasts_are_printed_with_what_they_rest_on():
    one: dict[str, Any] = dict.fromkeys(TWIN_METRICS, 0.25) | {"mae": 12.0, "mae_z": None}
    one |= {"rows": 1234, "patients": 20, "changing": {"rows": 56}, "trend_base": 0.5}
    one |= {"inside": {"rows": 7}}
    head, first, second, blank, said = forecasts_text(
        {"persistence": one, "mlp": one}, "persistence"
    ).splitlines()
    assert head.split()[:4] == ["model", "mae", "mae_published", "mae_published_static"]
    assert first.split()[:7] == ["persistence", "12.000", "0.250", "0.250", "0.250", "-", "0.250"]
    assert second.startswith("mlp          12.000")
    assert (blank, said) == (
        "",
        "1,234 hours of 20 patients, 56 with a change of level, 7 inside the hour; always guessing "
        "the most frequent trend scores 0.500.",
    )


GUARDIAN = {
    "decisions": 1000, "patients": 20, "rate": 0.05, "threshold_alarms": 0.123,
    "false_alarms": [{"asked": 0.01, "real": 0.0125}, {"asked": 0.2, "real": 1 / 3}],
    "small_changes": {"refused": None, "decisions": 0},
    "shifts": [
        {"kind": "offset", "size": 1.0, "auroc": 0.75, "recall": 0.5},
        {"kind": "noise", "size": 2.0, "auroc": 0.5, "recall": 0.25},
        {"kind": "action", "size": 3.0, "auroc": 1.0, "recall": 1.0},
    ],
}  # fmt: skip


def test_guardians_are_columns_in_the_terminal_and_lines_on_the_page():
    found = {"kde": GUARDIAN, "kde, sharper": GUARDIAN}
    assert guardian_text(found).splitlines() == [
        "guardian                                 kde    kde, sharper",
        "false alarms, asked 1 %                0.013           0.013",
        "false alarms, asked 20 %               0.333           0.333",
        "AUROC, offset 1 sd                     0.750           0.750",
        "AUROC, action 3 levels                 1.000           1.000",
        "small changes refused at 5 %               -               -",
    ]
    grid = guardian_grid(found)
    assert [row[0].text for row in grid.rows] == ["kde", "kde, sharper"]
    table = to_csv(guardian_rows(found), digits=None).decode().splitlines()
    assert table[1] == "kde,0.0125,0.3333333333333333,0.75,1.0,"


def test_shifts_are_printed_for_every_guardian():
    assert shifts_text({"kde": GUARDIAN}).splitlines() == [
        "kde: 1,000 decisions of 20 test patients",
        "  false alarms: 1.2 % (asked 1 %), 33.3 % (asked 20 %); below the threshold of u: 12.3 %",
        "  recorded changes of one or two levels refused at 5 %: - of 0",
        "  shift            AUROC  recall at 5 %",
        "  offset 1 sd      0.750          0.500",
        "  noise 2 sd       0.500          0.250",
        "  action 3 levels  1.000          1.000",
    ]


def test_the_chosen_density_is_marked_and_named():
    trials = [
        DensityTrial(8.0, 1.0, 0.5, 0.8, 0.2, 0.9, 0.95, allowed=True),
        DensityTrial(1.0, 0.5, 1.0, 0.6, 0.4, 0.9, 0.95, allowed=False),
    ]
    assert densities_text(trials[0], trials, SearchConfig()).splitlines() == [
        "weight  bandwidth  share  swapped  small changes refused  1-sd recall  allowed",
        "     8          1    0.5    0.800                 20.0 %        0.950      yes  <",
        "     1        0.5      1    0.600                 40.0 %        0.950       no",
        "",
        "chosen: weight 8, bandwidth 1, share 0.5.",
    ]
    said = densities_text(trials[1], trials[1:], SearchConfig()).splitlines()[-1]
    assert said == (
        "no trial refuses at most 25 % of small changes and at least 90 % of moved hours; closest "
        "by AUROC: weight 1, bandwidth 0.5, share 1."
    )


def test_a_training_is_a_line_for_each_seed():
    rows = [{"seed": x, "updates": 50, "reward": 0.5, "twin_reward": x + 0.5} for x in (0, 2)]
    found = {"method": "mbpo", "seeds": rows}
    mixes = ["P2 50% P3 50%", "P9 100%"]
    names = ("updates", "reward", "loss", "twin_reward")
    assert training_text(found, names, mixes).splitlines() == [
        "seed  updates  reward  twin_reward  levels on select patients",
        "   0       50   0.500        0.500  P2 50% P3 50%",
        "   2       50   0.500        2.500  P9 100%",
        "",
        "mbpo: reward in the twin, select patients: 1.500 ± 1.000 over 2 seeds",
    ]
    assert training_text(found, ("updates",), mixes).splitlines()[-1] == "   2       50  P9 100%"


def test_the_best_trial_of_a_policy_is_marked():
    changes = {"sac.discount": 0.95}
    trials = [{"changes": {}, "score": -0.5}, {"changes": changes, "score": 0.25}]
    assert trials_text({"trials": trials, "chosen": changes}).splitlines() == [
        "reward in the twin, select patients  change of the preset",
        "                             -0.500  none",
        "                              0.250  sac.discount 0.95  <",
    ]
