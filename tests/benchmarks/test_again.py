"""A row made again agrees, or is told to disagree."""

import copy

from benchmarks.studies.again import compare, draw

LINE = {
    "preset": "guarded",
    "version": 2,
    "seed": 1,
    "device": "cpu",
    "rows": {
        "hold": {
            "reward": {"mean": -0.1, "gain": [0.02, -0.05, 0.09]},
            "unsafe_hours": {"mean": 0.2, "gain": [0.001, -0.002, 0.004]},
        }
    },
}


def changed(metric: str, *, by: float) -> dict:
    line = copy.deepcopy(LINE)
    own = line["rows"]["hold"][metric]
    own["mean"] += by
    own["gain"][0] += by
    return line


def said(line: dict, device: str = "cpu") -> list[str]:
    return [one[-1] for one in compare(LINE, line, device)]


def test_the_same_device_gives_the_same_digits():
    assert said(LINE) == ["yes"] * 4
    assert said(changed("reward", by=0.004)) == ["yes"] * 4
    assert said(changed("reward", by=0.006)) == ["NO", "NO", "yes", "yes"]
    assert said(changed("unsafe_hours", by=0.0006)) == ["yes", "yes", "NO", "NO"]


def test_another_device_lands_in_the_interval_over_patients():
    assert said(changed("reward", by=0.06), "gpu") == ["yes", "yes"]
    assert said(changed("reward", by=-0.08), "gpu") == ["NO", "yes"]


def test_the_lot_decides_which_cohort_it_is():
    lines = [LINE | {"seed": seed} for seed in range(20)]
    assert draw(lines, 5) == draw(lines, 5)
    assert len({draw(lines, lot)["seed"] for lot in range(40)}) > 10
