"""`stepdown score`: pencil numbers through the command, ragged stays, plain JSON."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from stepdown.__main__ import main
from stepdown.handover import Episodes
from stepdown.problem.hours import cut_stays
from stepdown.problem.metrics import METRICS, score_episode
from stepdown.records.files import COLUMNS, read_cohort

COMFORT = {"map": 80.0, "hr": 75.0, "pulsatility": 30.0}
OTHERS = {"speed": 33e3, "current": 400.0, "flow": 3.0, "lvp": 60.0, "lvedp": 15.0}
OTHERS |= {"sbp": 95.0, "dbp": 65.0, "tau": 45.0, "ese": 1.5}


def stay(patient: str, hours: list[tuple[int, dict]]) -> list[dict]:
    """Rows of a stay whose hours each have a level and constant signals, or lists of six."""
    rows = []
    for hour, (level, signals) in enumerate(hours):
        for sample in range(6):
            values = OTHERS | COMFORT | signals
            row = {k: v[sample] if isinstance(v, list) else v for k, v in values.items()}
            minute = 60.0 * hour + 10.0 * sample
            rows.append({"patient": patient, "minute": minute, "level": level} | row)
    return rows


def table(rows: list[dict]) -> pl.DataFrame:
    return pl.DataFrame(rows).select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())


def scored(rows: list[dict], folder, capsys) -> tuple[dict, str]:
    file, out = folder / "cohort.parquet", folder / "scores.json"
    table(rows).write_parquet(file)
    assert main(["score", str(file), "--json", str(out)]) == 0
    return json.loads(out.read_text()), capsys.readouterr().out


def test_a_stay_of_three_hours_by_hand(tmp_path, capsys):
    """P8 in force, then P7 (comfortable), then P3 (MAP down to 50, so 3.5 are charged).

    Rewards: 1.7018/2.6621 and (1.7018 − 3.5)/2.6621. Changes 1 and 4. Both decisions follow a
    stable hour and earn 1 and 0. The second hour after a decision is unsafe. An LVEDP of 15 costs 4
    points; in the last hour a minimum of 50 costs 1 and a sixth of the time below 60 costs 7.
    """
    low = {"map": [50.0, 70.0, 70.0, 70.0, 70.0, 70.0]}
    found, printed = scored(stay("p1", [(8, {}), (7, {}), (3, low)]), tmp_path, capsys)
    assert list(found) == ["stays", "overall", "absent"]
    assert found["absent"] == []
    assert "Absent" not in printed
    (mine,) = found["stays"]
    assert list(mine) == ["patient", *METRICS]
    assert mine.pop("patient") == "p1"
    assert mine == pytest.approx(
        {
            "reward": 0.63927 - 0.67548,
            "acp": 4.0,
            "total_change": 5.0,
            "ws_gradient": 0.5,
            "ws_limits": 0.5,
            "ws_both": 0.5,
            "unsafe_hours": 0.5,
            "staircase": (4 + 12) / 2,
        },
        abs=1e-4,
    )
    assert found["overall"] == mine
    assert printed.splitlines()[0].split() == ["patient", *METRICS]
    last = " ".join(printed.splitlines()[-1].split())
    assert last == "all 1 -0.036 4.000 5.000 0.500 0.500 0.500 0.500 8.000"


def test_stability_is_that_of_the_hour_before(tmp_path, capsys):
    """Hour 2 is low but steady, hour 3 falls by 2 mmHg per sample: each fails one definition."""
    falling = {"map": [80.0, 78.0, 76.0, 74.0, 72.0, 70.0]}
    hours = [(9, {}), (8, {"map": 55.0}), (7, falling), (8, {})]
    (mine,) = scored(stay("p1", hours), tmp_path, capsys)[0]["stays"]
    # Drops 1, 1, −1. By limits: after hours 1 and 3 (1 − 1)/2; by gradient: 1 and 2 (1 + 1)/2.
    assert (mine["ws_limits"], mine["ws_gradient"], mine["ws_both"]) == (0.0, 1.0, 1.0)
    assert mine["unsafe_hours"] == pytest.approx(1 / 3)


def test_the_overall_score_is_the_mean_over_stays_with_a_decision(tmp_path, capsys):
    rows = stay("long", [(6, {})] * 5) + stay("jump", [(9, {}), (5, {})]) + stay("short", [(6, {})])
    found, printed = scored(rows, tmp_path, capsys)
    stays = {one["patient"]: one for one in found["stays"]}
    assert stays["long"]["reward"] == pytest.approx(4 * 0.63927, abs=1e-4)
    assert stays["jump"]["acp"] == 4.0
    assert set(stays["short"].values()) == {"short", None}
    assert found["overall"]["acp"] == 2.0
    assert found["overall"]["reward"] == pytest.approx(2.5 * 0.63927, abs=1e-4)
    assert "short" in printed


def test_the_hour_behind_a_gap_is_a_new_start(tmp_path, capsys):
    rows = stay("p1", [(9, {}), (8, {}), (5, {}), (4, {})])
    del rows[12:18]  # the third hour was not recorded, and with it the change from 8 to 5
    (mine,) = scored(rows, tmp_path, capsys)[0]["stays"]
    assert (mine["acp"], mine["total_change"]) == (0.0, 1.0)
    assert mine["reward"] == pytest.approx(0.63927, abs=1e-4)


def test_ragged_stays_are_scored_as_each_alone(tmp_path, capsys):
    random = np.random.default_rng(3)
    rows = []
    for row, length in enumerate([2, 7, 4, 7, 2]):
        levels = random.integers(2, 10, length)
        pressure = random.uniform(50, 90, (length, 6))
        hours = [(int(a), {"map": p.tolist()}) for a, p in zip(levels, pressure, strict=True)]
        rows += stay(f"p{row}", hours)
    found, _ = scored(rows, tmp_path, capsys)
    cut = cut_stays(read_cohort(tmp_path / "cohort.parquet"))
    for row, mine in enumerate(found["stays"]):
        own = cut.patient == row
        states = jnp.concatenate([cut.state[own][:1], cut.next_state[own]])
        levels = states[:, 0, -1].astype(int)
        alone = jax.jit(score_episode)(Episodes(states, levels, jnp.ones(len(levels) - 1, bool)))
        for name in METRICS:
            assert mine[name] == pytest.approx(float(alone[name]), abs=1e-4)


def test_a_table_of_ordinary_64_bit_columns_scores_as_ours_does(tmp_path, capsys):
    rows = stay("p1", [(8, {}), (7, {}), (3, {"map": [50.1, 70.2, 70.3, 70.4, 70.5, 70.6]})])
    ours, printed = scored(rows, tmp_path, capsys)
    plain = pl.DataFrame(rows)
    assert set(plain.dtypes) == {pl.String, pl.Int64, pl.Float64}
    for level in (pl.Int64, pl.Float64):
        plain.cast({"level": level}).write_parquet(tmp_path / "theirs.parquet")
        words = [str(tmp_path / "theirs.parquet"), "--json", str(tmp_path / "theirs.json")]
        assert main(["score", *words]) == 0
        assert capsys.readouterr().out == printed
        assert json.loads((tmp_path / "theirs.json").read_text()) == ours


def test_a_level_between_two_is_never_rounded(tmp_path, capsys):
    file = tmp_path / "half.parquet"
    pl.DataFrame(stay("p1", [(6, {})] * 3)).with_columns(level=pl.lit(6.5)).write_parquet(file)
    assert main(["score", str(file)]) == 2
    assert "half.parquet: expected whole levels, got 6.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"level": 1}, "expected levels 2 to 9, got 1"),
        ({"map": 0.3}, "expected 'map' in mmHg"),
        ({"map": float("inf")}, "got infinity"),
    ],
)
def test_wrong_files_are_refused_with_one_sentence(change, words, tmp_path, capsys):
    rows = [row | change for row in stay("p1", [(6, {})] * 3)]
    file = tmp_path / "cohort.parquet"
    table(rows).write_parquet(file)
    assert main(["score", str(file)]) == 2
    assert words in capsys.readouterr().err
    assert main(["score", str(tmp_path / "nothing")]) == 2
    assert "expected a cohort folder or a Parquet file" in capsys.readouterr().err


def test_signals_that_no_stay_has_are_named_and_cost_nothing(tmp_path, capsys):
    hours: list[tuple[int, dict]] = [(8, {}), (7, {}), (6, {})]
    whole, _ = scored(stay("p1", hours), tmp_path, capsys)
    without = [(level, {"tau": None, "ese": None}) for level, _ in hours]
    found, printed = scored(stay("p1", without), tmp_path, capsys)
    assert found["absent"] == ["tau", "ese"]
    assert found["stays"] == whole["stays"]
    assert printed.endswith(
        "Absent in all stays: tau, ese. The scores need map, hr and pulsatility alone.\n"
    )
