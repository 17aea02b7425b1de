"""Tiny comparisons whose numbers are known by hand."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from stepdown.handover import DataName, Judged, SettingName
from stepdown.problem.metrics import METRICS
from stepdown.report.comparison import Comparison

ROW = np.array([0, 0, 1, 1])  # two patients, two episodes each
# Means of the two patients; all four draws of two patients are equally likely, so the interval of
# a mean reaches from the lower to the higher patient.
TRUTH = {
    "bc": [[0, 0, 2, 2]],
    "mbpo": [[0.75, 0.75, 0.75, 0.75], [0.25, 0.25, 0.25, 0.25]],
    "cormpo_kde": [[2, 2, 3, 3], [2, 2, 5, 5]],
    "mbpo_shaped": [[2, 2, 4, 4], [2, 2, 4, 4]],
    "clinicians": [[-1, -1, 1, 1]],
    "look-ahead": [[3, 3, 5, 5]],
    "hold": [[0, 0, 2, 2]],
}
TWIN = {
    "bc": [[0, 0, 0, 0]],
    "mbpo": [[4, 4, 4, 4], [4, 4, 4, 4]],
    "cormpo_kde": [[1, 1, 1, 1], [1, 1, 1, 1]],
    "mbpo_shaped": [[2, 2, 2, 2], [2, 2, 2, 2]],
    "clinicians": [[0, 0, 0, 0]],
    "hold": [[0, 0, 0, 0]],
}


def judged(reward, row=ROW, level=6, unsafe=0.25) -> Judged:
    """Episodes with these rewards (seeds, episodes); ACP 3, weaning 0.5, all decisions `level`."""
    values = jnp.asarray(reward, jnp.float32)
    weaning = {"ws_gradient": 0.5, "ws_limits": 0.25, "ws_both": 0.125}
    same = {"acp": 3.0, "total_change": 4.0, "unsafe_hours": unsafe} | weaning
    levels = np.full((*values.shape, 7), level, np.int8)
    scores = {name: jnp.full_like(values, same.get(name, 0.0)) for name in METRICS}
    scores["reward"] = values
    return Judged(scores, levels, np.asarray(row))


def comparison(
    data: DataName = "recorded",
    setting: SettingName = "ours",
    cohort: str = "guarded-7",
    shift: float = 0,
) -> Comparison:
    """Two judges, seven methods; CORMPO is trained twice."""
    both = {
        judge: {name: judged(np.asarray(x) + shift) for name, x in known.items()}
        for judge, known in (("twin", TWIN), ("patients", TRUTH))
    }
    mix = np.full((3, 2, 8), 1 / 8)
    curves = {
        "cormpo_kde": {"reward": np.arange(6.0).reshape(3, 2), "levels": mix},
        "bc": {"held_out": np.array([[2.0, 2.0], [1.0, np.nan], [0.5, np.nan]])},
    }
    return Comparison(cohort, data, setting, both, curves, {"mbpo": 10.0, "cormpo_kde": 24.0})


def noisy(setting: SettingName = "ours") -> Comparison:
    """Noise costs every method 0.5 reward; the expert learned from neither data set."""
    clean, rough = comparison(), comparison("noisy", setting, shift=-0.5)
    expert = {"expert": judged([[1.0] * 4])}
    seen = {judge: dict(known) | expert for judge, known in rough.judged.items()}
    return replace(rough, judged=seen, without_noise=clean.judged)


KNOWN = {"guarded-7": (1.0, 0.5), "guarded-8": (2.0, 0.0), "hidden-7": (6.0, 1.0)}


def together(cohort: str) -> Comparison:
    """CORMPO and clinicians at 0, MBPO ahead by a number that differs between cohorts."""
    gain, unsafe = KNOWN[cohort]
    before = {
        "cormpo_kde": judged([[0.0] * 4], ROW, unsafe=0.0),
        "clinicians": judged([[0.0] * 4], ROW, unsafe=0.0),
        "mbpo": judged([[gain] * 4], ROW, unsafe=unsafe),
        "mbpo_shaped": judged([[0.5] * 4], ROW, unsafe=0.0),
        "mbpo_twin": judged([[gain - 1.0] * 4], ROW, unsafe=0.0),
    }
    return Comparison(cohort, "recorded", "ours", {"twin": before, "fresh": before})
