"""The pictures of a run, drawn from what its jobs have left."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from stepdown.evaluation.compare import difference, estimate, resample, values_of
from stepdown.experiment.jobs import Desk
from stepdown.experiment.learning import TEAM, read_judged
from stepdown.experiment.plan import Plan
from stepdown.experiment.presets import ExperimentConfig, recipe_of
from stepdown.guardian.threshold import RECORDED
from stepdown.handover import Cohort, Episodes
from stepdown.report.bedside_figures import draw_agreement, draw_rollouts, draw_weaning
from stepdown.report.cohort_report import draw_records
from stepdown.report.comparison import Comparison, same_question
from stepdown.report.comparison_figures import (
    SensitivityPoint,
    constant_levels,
    draw_across,
    draw_comparison,
    draw_constant_levels,
    draw_exploitation,
    draw_sensitivity,
)
from stepdown.report.labels import AGREED, BEDSIDE, JUDGES, METRICS, OURS
from stepdown.report.twin_figures import draw_horizons, draw_predicted_rewards
from stepdown.signals import HIGHEST, HORIZON, LOWEST

ROLLOUTS = {
    "rollouts reward": ("high reward", "low reward"),
    "rollouts ws": ("high weaning score", "low weaning score"),
    "rollouts acp": ("large jumps", "small jumps"),
}


def draw_run(
    plan: Plan, desk: Desk, comparisons: Sequence[Comparison], cohort: Cohort
) -> dict[str, bytes]:
    """Every picture by its name on the page."""
    main = comparisons[0]
    pictures = draw_comparison(main)
    pictures |= {"records": draw_records(cohort), "weaning": draw_weaning(cohort)}
    if plan.look is not None:
        pictures |= _draw_look(plan, desk, main, cohort)
    return pictures


def draw_cohorts(
    plans: Sequence[Plan], desk: Desk, comparisons: Sequence[Comparison]
) -> dict[str, bytes]:
    """All cohorts together, and promise and truth of every further one."""
    own = {x.cohort: x for x in same_question(comparisons)}
    pictures = {"cohorts": draw_across(comparisons)} if len(own) > 1 else {}
    for plan in (x for x in plans if x.name in own):
        pictures[f"exploitation, {plan.name}"] = draw_exploitation(own[plan.name])
        if plan.look is not None:
            arrays = desk.arrays(plan.look)
            levels = constant_levels(own[plan.name]) | {"ensemble": arrays["constant/ensemble"]}
            pictures[f"levels, {plan.name}"] = draw_constant_levels(levels, arrays["constant/row"])
    return pictures


def _draw_look(plan: Plan, desk: Desk, main: Comparison, cohort: Cohort) -> dict[str, bytes]:
    assert plan.look is not None
    arrays, info = desk.arrays(plan.look), desk.info(plan.look)
    levels = constant_levels(main) | {"ensemble": arrays["constant/ensemble"]}
    seen = np.asarray(cohort.level)[np.asarray(cohort.seen)]
    share = np.bincount(seen - LOWEST, minlength=HIGHEST - LOWEST + 1) / len(seen)
    found = {
        who: {
            metric: arrays[f"horizon/{who}/{metric}"] for metric in ("reward", "acp", "ws_gradient")
        }
        for who in ("records", "twin")
    }
    chosen = _by_row(arrays, "chosen/", AGREED)
    recorded, before = arrays["recorded/level"], arrays["recorded/before"]
    pictures = {
        "levels": draw_constant_levels(levels, arrays["constant/row"], share),
        "rewards": draw_predicted_rewards(arrays["reward/recorded"], arrays["reward/forecast"]),
        "horizons": draw_horizons(info["horizons"], found, arrays["horizon/row"]),
        "agreement": draw_agreement(chosen, recorded, before),
    }
    for name, cases in ROLLOUTS.items():
        episodes = {words: _episodes(arrays, info["cases"].index(words)) for words in cases}
        if all(episodes.values()):
            pictures[name] = draw_rollouts(episodes)
    return pictures


def _by_row(
    arrays: Mapping[str, np.ndarray], start: str, order: Sequence[str]
) -> dict[str, np.ndarray]:
    return {x: arrays[f"{start}{x}"].astype(int) for x in order if f"{start}{x}" in arrays}


def _episodes(arrays: Mapping[str, np.ndarray], case: int) -> dict[str, Episodes]:
    """One start under every method."""
    found = {}
    for row in BEDSIDE:
        if f"hours/{row}/state" in arrays:
            state, level = arrays[f"hours/{row}/state"][case], arrays[f"hours/{row}/level"][case]
            parts = (state, level.astype(np.int32), np.ones(HORIZON, bool))
            found[row] = Episodes(*map(jnp.asarray, parts))
    return found


def draw_sweep(config: ExperimentConfig, plan: Plan, desk: Desk) -> dict[str, bytes]:
    """CORMPO with one number changed, start by start minus the clinicians."""
    if not plan.sweep:
        return {}
    recipe, points = recipe_of(OURS, "ours", "recorded", config.shrink), []
    rules = read_judged(desk, plan.rules)
    usual = {
        "tau": RECORDED.percentile,
        "lambda": getattr(recipe, "penalty_weight", None),
        "lambda1": getattr(recipe, "jump_weight", None),
        "lambda2": getattr(recipe, "weaning_weight", None),
    }
    team = {judge: rules[f"{TEAM}/{judge}"] for judge in JUDGES if f"{TEAM}/{judge}" in rules}
    for (parameter, value), one in plan.sweep.items():
        for judge, judged in read_judged(desk, one.judge).items():
            weights = resample(judged.row)
            for metric in METRICS:
                apart = difference(values_of(judged, metric), values_of(team[judge], metric))
                found = estimate(apart, weights)
                numbers = (found["mean"], found["low"], found["high"])
                chosen = usual[parameter] == value
                points.append(SensitivityPoint(parameter, value, judge, metric, *numbers, chosen))
    return {"sensitivity": draw_sensitivity(points, to="clinicians'")}
