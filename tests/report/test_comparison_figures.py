"""Figures of a comparison: their size, and the numbers that they draw."""

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from stepdown.handover import Cohort, Episodes
from stepdown.report.comparison import Comparison
from stepdown.report.comparison_figures import (
    DPI,
    draw_exploitation,
    draw_score_distributions,
    look_of,
)
from stepdown.report.record_figures import (
    SensitivityPoint,
    agreement,
    constant_levels,
    draw_agreement,
    draw_constant_levels,
    draw_horizons,
    draw_predicted_rewards,
    draw_records,
    draw_sensitivity,
)
from stepdown.report.rollout_figures import draw_rollouts, draw_weaning, pick_weaning
from stepdown.report.training_figures import draw_action_mix, draw_curves, draw_training_mix
from stepdown.signals import HR, LEVEL, LEVELS, MAP, PULSATILITY
from tests.report.comparisons import ROW, comparison, judged


def inches(path) -> tuple[float, float]:
    """Width and height; the picture must not be empty."""
    image = matplotlib.image.imread(path)
    assert image[..., :3].std() > 0.02
    height, width = image.shape[:2]
    return width / DPI, height / DPI


def has(path, color: str) -> bool:
    """Whether a color is drawn somewhere, exactly."""
    image = np.round(255 * matplotlib.image.imread(path)[..., :3]).astype(int)
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((image == wanted).all(-1).any())


def test_the_exploitation_has_a_line_for_each_method(tmp_path):
    draw_exploitation(comparison(), tmp_path / "a.png")
    # six methods beside the clinicians, whom they are compared with
    assert inches(tmp_path / "a.png") == pytest.approx((12.5, 1.9 + 0.36 * 6), abs=0.02)
    assert has(tmp_path / "a.png", "#d55e00")  # the twin
    assert has(tmp_path / "a.png", "#0072b2")  # the truth


def test_the_exploitation_works_without_truth_and_clinicians(tmp_path):
    alone = Comparison("c", "recorded", "ours", {"twin": {"bc": judged([[1, 1, 2, 2]])}})
    draw_exploitation(alone, tmp_path / "a.png")
    assert inches(tmp_path / "a.png")[0] == pytest.approx(12.5, abs=0.02)
    assert not has(tmp_path / "a.png", "#0072b2")


def test_scores_have_a_row_for_each_method(tmp_path):
    draw_score_distributions(comparison(), tmp_path / "a.png", "patients", ["mbpo", "cormpo_kde"])
    assert inches(tmp_path / "a.png") == pytest.approx((13.5, 1.3 + 1.65 * 2), abs=0.02)
    assert has(tmp_path / "a.png", look_of("mbpo")["color"])


def test_curves_skip_seeds_that_stopped(tmp_path):
    draw_curves(comparison(), tmp_path / "a.png")
    assert inches(tmp_path / "a.png") == pytest.approx((14.0, 1.2 + 2.9), abs=0.02)
    bare = Comparison("c", "recorded", "ours", comparison().judged)
    with pytest.raises(ValueError, match="expected curves"):
        draw_curves(bare, tmp_path / "b.png")


def test_mixes_of_levels_are_drawn(tmp_path):
    draw_action_mix(comparison(), tmp_path / "a.png")
    draw_training_mix(comparison().curves, tmp_path / "b.png")
    assert inches(tmp_path / "a.png")[0] == pytest.approx(11.0, abs=0.02)
    assert inches(tmp_path / "b.png") == pytest.approx((13.0, 3.4), abs=0.02)


def test_constant_levels_come_out_of_the_rules(tmp_path):
    rules = {f"always P{x}": judged([[x, x, 2 * x, 2 * x]], level=x) for x in LEVELS}
    one = Comparison("c", "recorded", "ours", {"twin": rules, "patients": rules})
    found = constant_levels(one)
    assert found["truth"].tolist() == found["twin"].tolist()
    assert found["truth"][0].tolist() == list(LEVELS)
    assert found["truth"][3].tolist() == [2 * x for x in LEVELS]
    draw_constant_levels(found, ROW, tmp_path / "a.png", np.full(8, 1 / 8))
    assert inches(tmp_path / "a.png") == pytest.approx((8.0, 6.2), abs=0.02)
    assert constant_levels(comparison()) == {}


def test_agreement_counts_changes_by_hand(tmp_path):
    before = np.array([6, 6, 6, 6, 9])
    recorded = np.array([6, 6, 5, 5, 2])  # 0, 0, -1, -1, -7
    chosen = np.array([6, 7, 5, 9, 9])  # 0, +1, -1, +3, 0
    table = agreement(chosen, recorded, before)
    assert table[3].tolist() == [0, 0, 0, 50, 50, 0, 0]
    assert table[2].tolist() == [0, 0, 50, 0, 0, 0, 50]
    assert table[0].tolist() == [0, 0, 0, 100, 0, 0, 0]
    assert np.isnan(table[[1, 4, 5, 6]]).all()
    methods = ("bc", "mbpo", "mopo", "svr", "cormpo_kde")
    draw_agreement(dict.fromkeys(methods, chosen), recorded, before, tmp_path / "a.png")
    assert inches(tmp_path / "a.png") == pytest.approx((1.8 + 3.1 * 3, 0.9 + 3.1 * 2), abs=0.02)


def test_sensitivity_has_a_panel_for_each_parameter(tmp_path):
    points = [
        SensitivityPoint(parameter, value, judge, "reward", value, value - 1, value + 1, value == 1)
        for parameter in ("tau", "lambda")
        for value in (0.0, 1.0, 2.0)
        for judge in ("twin", "patients", "fresh")
    ]
    draw_sensitivity(points, tmp_path / "a.png")
    assert inches(tmp_path / "a.png") == pytest.approx((1.2 + 3.3 * 2, 1.5 + 2.1), abs=0.02)
    with pytest.raises(ValueError, match="expected points for tau"):
        draw_sensitivity([], tmp_path / "b.png")


def test_horizons_and_rewards_are_drawn(tmp_path):
    values = np.arange(8.0).reshape(4, 2)
    found = {"records": {"reward": values}, "twin": {"reward": values + 1}}
    draw_horizons([6, 12], found, ROW, tmp_path / "a.png")
    assert inches(tmp_path / "a.png") == pytest.approx((13.0, 4.0), abs=0.02)
    rewards = np.linspace(-2, 0.6, 50)
    draw_predicted_rewards(rewards, rewards[::-1].copy(), tmp_path / "b.png")
    assert inches(tmp_path / "b.png") == pytest.approx((12.0, 4.6), abs=0.02)


def episode(level: int, alive: bool = True) -> Episodes:
    """Seven steady hours; MAP is 70 and low in the last one."""
    state = np.full((7, 6, 13), 30.0, np.float32)
    state[..., MAP], state[..., HR], state[..., PULSATILITY] = 70, 80, 40
    state[-1, :, MAP] = 50
    state[..., LEVEL] = level
    living = jnp.full(6, True).at[-1].set(alive)
    return Episodes(jnp.asarray(state), jnp.full(7, level), living)


def test_rollouts_mark_unsafe_hours(tmp_path):
    safe = episode(6)
    safe = Episodes(safe.state.at[-1, :, MAP].set(70), safe.level, safe.alive)
    draw_rollouts({"one": {"mbpo": safe}}, tmp_path / "a.png")
    draw_rollouts({"one": {"mbpo": episode(6), "bc": safe}}, tmp_path / "b.png")
    assert inches(tmp_path / "a.png") == pytest.approx((1.0 + 2.55, 0.5 + 4.3), abs=0.02)
    assert inches(tmp_path / "b.png") == pytest.approx((1.0 + 2.55 * 2, 0.5 + 4.3), abs=0.02)
    red = [np.sum(matplotlib.image.imread(tmp_path / x)[..., 0]
                  - matplotlib.image.imread(tmp_path / x)[..., 1] > 0.5)
           for x in ("a.png", "b.png")]  # fmt: skip
    assert red[1] > 2 * red[0]  # twice the lines of MAP, and a bar


@pytest.fixture
def cohort() -> Cohort:
    """Three stays of two days: steady, weaned from P9 to P3 within a day, up and down."""
    samples = 288
    signals = np.full((3, samples, 12), 60.0, np.float32)
    level = np.full((3, samples), 8, np.int32)
    level[1] = np.clip(9 - np.maximum(np.arange(samples) - 60, 0) // 20, 3, 9)
    level[2] = np.where(np.arange(samples) // 40 % 2 == 0, 8, 5)
    arrays = jnp.asarray(signals), jnp.asarray(level), jnp.asarray(np.ones((3, samples), bool))
    return Cohort(arrays[0], arrays[1], arrays[2], ("a", "b", "c"), 10.0)


def test_weaning_examples_fall_steadily(tmp_path, cohort):
    # the fall takes from sample 80 to 180; the first day that holds it whole is taken
    assert pick_weaning(cohort) == [(1, 180 - 143)]  # who is not weaned on balance is no example
    draw_weaning(cohort, tmp_path / "a.png", [(1, 37), (2, 0)])
    assert inches(tmp_path / "a.png") == pytest.approx((1.0 + 5.6 * 2, 5.6), abs=0.02)


def test_the_records_are_drawn(tmp_path, cohort):
    draw_records(cohort, tmp_path / "a.png")
    assert inches(tmp_path / "a.png") == pytest.approx((15.0, 4.6), abs=0.02)
