"""The pictures of a run, drawn from what its jobs have left."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from stepdown.evaluation.compare import METRICS, difference, estimate, resample, values_of
from stepdown.experiment.jobs import Desk
from stepdown.experiment.learning import TEAM, read_judged
from stepdown.experiment.plan import Plan
from stepdown.experiment.presets import ExperimentConfig, recipe_of
from stepdown.guardian.threshold import RECORDED
from stepdown.handover import Cohort, Episodes
from stepdown.report.across_cohorts import draw_across, same_question
from stepdown.report.comparison import JUDGES, OURS, Comparison
from stepdown.report.comparison_figures import draw_exploitation
from stepdown.report.pictures import draw_comparison
from stepdown.report.record_figures import (
    SENSITIVE,
    SensitivityPoint,
    constant_levels,
    draw_agreement,
    draw_constant_levels,
    draw_horizons,
    draw_predicted_rewards,
    draw_records,
    draw_sensitivity,
)
from stepdown.report.rollout_figures import draw_rollouts, draw_weaning
from stepdown.signals import HIGHEST, HORIZON, LOWEST

SHOWN = ("bc", "mbpo", "mopo", "svr", OURS, "cormpo_flow")  # in six hours from one start
ROLLOUTS = {
    "rollouts reward": ("high reward", "low reward"),
    "rollouts ws": ("high weaning score", "low weaning score"),
    "rollouts acp": ("large jumps", "small jumps"),
}


def draw_run(
    plan: Plan, desk: Desk, comparisons: Sequence[Comparison], cohort: Cohort, folder: Path
) -> dict[str, bytes]:
    """Every picture by its name on the page; `folder` is a place to draw in."""
    main = comparisons[0]
    pictures = draw_comparison(main, folder)
    for name, draw in (("records", draw_records), ("weaning", draw_weaning)):
        draw(cohort, folder / f"{name}.png")
        pictures[name] = (folder / f"{name}.png").read_bytes()
    if plan.look is not None:
        pictures |= _draw_look(plan, desk, main, cohort, folder)
    return pictures


def draw_cohorts(
    plans: Sequence[Plan], desk: Desk, comparisons: Sequence[Comparison], folder: Path
) -> dict[str, bytes]:
    """All cohorts together, and promise and truth of every further one."""
    own = {x.cohort: x for x in same_question(comparisons)}
    pictures = {}
    if len(own) > 1:
        draw_across(comparisons, folder / "cohorts.png")
        pictures["cohorts"] = (folder / "cohorts.png").read_bytes()
    for plan in (x for x in plans if x.name in own):
        drawn = {"exploitation": partial(draw_exploitation, own[plan.name])}
        if plan.look is not None:
            arrays = desk.arrays(plan.look)
            levels = constant_levels(own[plan.name]) | {"ensemble": arrays["constant/ensemble"]}
            drawn["levels"] = partial(_draw_levels, values=levels, row=arrays["constant/row"])
        for name, draw in drawn.items():
            path = folder / f"{name}-{plan.name}.png"
            draw(path)
            pictures[f"{name}, {plan.name}"] = path.read_bytes()
    return pictures


def _draw_levels(path: Path, values: Mapping[str, np.ndarray], row: np.ndarray) -> None:
    draw_constant_levels(values, row, path)


def _draw_look(
    plan: Plan, desk: Desk, main: Comparison, cohort: Cohort, folder: Path
) -> dict[str, bytes]:
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
    chosen = _by_row(arrays, "chosen/", ORDER)
    recorded, before = arrays["recorded/level"], arrays["recorded/before"]
    drawn = {
        "levels": lambda path: draw_constant_levels(levels, arrays["constant/row"], path, share),
        "rewards": lambda path: draw_predicted_rewards(
            arrays["reward/recorded"], arrays["reward/forecast"], path
        ),
        "horizons": lambda path: draw_horizons(
            info["horizons"], found, arrays["horizon/row"], path
        ),
        "agreement": lambda path: draw_agreement(chosen, recorded, before, path),
    }
    for name, cases in ROLLOUTS.items():
        episodes = {words: _episodes(arrays, info["cases"].index(words)) for words in cases}
        if all(episodes.values()):
            drawn[name] = lambda path, episodes=episodes: draw_rollouts(episodes, path)
    pictures = {}
    for name, draw in drawn.items():
        path = folder / f"{name.replace(' ', '-')}.png"
        draw(path)
        pictures[name] = path.read_bytes()
    return pictures


ORDER = ("bc", "mbpo", "mopo", "svr", OURS, "cormpo_flow", "mbpo_shaped", "disagreement_shaped")


def _by_row(
    arrays: Mapping[str, np.ndarray], start: str, order: Sequence[str]
) -> dict[str, np.ndarray]:
    return {x: arrays[f"{start}{x}"].astype(int) for x in order if f"{start}{x}" in arrays}


def _episodes(arrays: Mapping[str, np.ndarray], case: int) -> dict[str, Episodes]:
    """One start under every method."""
    found = {}
    for row in SHOWN:
        if f"hours/{row}/state" in arrays:
            state, level = arrays[f"hours/{row}/state"][case], arrays[f"hours/{row}/level"][case]
            parts = (state, level.astype(np.int32), np.ones(HORIZON, bool))
            found[row] = Episodes(*map(jnp.asarray, parts))
    return found


def draw_sweep(config: ExperimentConfig, plan: Plan, desk: Desk, folder: Path) -> dict[str, bytes]:
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
                if metric not in SENSITIVE:
                    continue
                apart = difference(values_of(judged, metric), values_of(team[judge], metric))
                found = estimate(apart, weights)
                numbers = (found["mean"], found["low"], found["high"])
                chosen = usual[parameter] == value
                points.append(SensitivityPoint(parameter, value, judge, metric, *numbers, chosen))
    draw_sensitivity(points, folder / "sensitivity.png", minus="clinicians'")
    return {"sensitivity": (folder / "sensitivity.png").read_bytes()}
