"""The table of searches: the best trial, and its lead over the preset."""

from stepdown.evaluation.compare import Row
from stepdown.report.grids import to_markdown
from stepdown.report.search_table import COLUMNS, PRESET, search_grid


def trial(cohort: str, method: str, changes: str, score: float, chosen: str) -> Row:
    values = (cohort, "recorded", "ours", method, changes, score, chosen)
    return dict(zip(COLUMNS, values, strict=True))


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
