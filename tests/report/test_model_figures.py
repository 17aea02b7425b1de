"""Figures of models: their size, and that no model is cut off."""

from typing import Any

import numpy as np
import pytest

from stepdown.report.model_figures import draw_growth, draw_horizons, draw_predicted_rewards
from tests.report.comparisons import ROW
from tests.report.pixels import inches


def test_horizons_and_rewards_are_drawn():
    values = np.arange(8.0).reshape(4, 2)
    found = {"records": {"reward": values}, "twin": {"reward": values + 1}}
    assert inches(draw_horizons([6, 12], found, ROW)) == pytest.approx((13.0, 4.0), abs=0.02)
    rewards = np.linspace(-2, 0.6, 50)
    png = draw_predicted_rewards(rewards, rewards[::-1].copy())
    assert inches(png) == pytest.approx((12.0, 4.6), abs=0.02)


def test_a_model_far_worse_than_the_first_is_within_the_axes():
    def growth(error: float) -> dict[str, Any]:
        one = {"mae": [error, error], "sd": [0.1, 0.1], "coverage90": [0.9, 0.8]}
        return {"map": one, "hr": one, "lactate": one}

    large, larger = (draw_growth({"tdt": growth(1.0), "mlp": growth(x)}, 9) for x in (50.0, 60.0))
    assert inches(large) == pytest.approx((11.5, 6.4), abs=0.02)
    assert large != larger
