"""The table of metrics: how an episode, a stay, or an episode under way went.

Every metric is a sum over decisions, or a mean over those that it counts. So one row serves
imagined and simulated episodes of six hours, recorded stays of any length (stays.py) and the
environment, which adds up as it goes. Words, signs and rounding stand beside the number: tables,
figures and sentences read them here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from stepdown.handover import Episodes, Scores, shown
from stepdown.problem.clinical import (
    PAPER,
    ClinicalConfig,
    Decision,
    Scalar,
    action_change,
    decisions_of,
    hourly_reward,
    stable_by_both,
    stable_by_gradient,
    stable_by_limits,
    staircase_score,
    weaned,
)

Part = Callable[[Decision, ClinicalConfig], Scalar]
Sums = dict[str, tuple[Array, Array]]  # by metric: what decisions added, how many counted

Table = Mapping[str, "Metric"]
MOST_POINTS = 43.0  # of the staircase score


@dataclass(frozen=True)
class Metric:
    """What a decision adds to a score; below, how people see it.

    A metric with a table is in the figures of scores and of sensitivity, in that table, in the
    short table and in the rows over all cohorts, and is asked for a winner. Every metric is in the
    CSV files.
    """

    name: str
    part: Part
    over: Part | None = None  # mean over the decisions where this is 1; None: the sum over all
    table: Literal["safety", "changes", ""] = shown("")
    words: str = shown("")  # above its columns
    short: str = shown("")  # beside an axis
    brief: str = shown("")  # in the terminal
    said: str = shown("")  # in a sentence
    bins: tuple[float, float, int] = shown((0.0, 1.0, 10))  # of its histogram: from, to, how many
    definition: tuple[str, str] = shown(("", ""))
    sign: float = shown(1.0)  # −1 where less is better
    scale: float = shown(1.0)  # 100 for what is shown in percent
    digits: int = shown(2)
    printed: bool = shown(False)  # by the paper
    reading: str = shown("")  # which of several definitions
    beside: tuple[str, ...] = shown(())  # the other ones

    @property
    def axis(self) -> str:
        """Beside an axis, with the definition that is taken."""
        return f"{self.short} ({self.reading})" if self.reading else self.short

    @property
    def edges(self) -> np.ndarray:
        """Of the bins of its histogram, as shown."""
        return np.linspace(self.bins[0], self.bins[1], self.bins[2] + 1)


def _jumps(decision: Decision, config: ClinicalConfig) -> Scalar:
    return action_change(jnp.stack([decision.before, decision.level]), config.jump)


def _changes(decision: Decision, config: ClinicalConfig) -> Scalar:
    return action_change(jnp.stack([decision.before, decision.level]), 0)


def _unsafe(decision: Decision, config: ClinicalConfig) -> Scalar:
    return 1.0 - (stable_by_limits(decision.later, config) & decision.alive)


def _staircase(decision: Decision, config: ClinicalConfig) -> Scalar:
    return jnp.where(decision.alive, staircase_score(decision.later), MOST_POINTS)


def _every(decision: Decision, config: ClinicalConfig) -> Scalar:
    return jnp.ones(())


def _weaning(stable: Callable) -> tuple[Part, Part]:
    """The gain of decisions in stable hours, and which these are; nobody weans the dead.

    Both are NaN where it cannot be told whether hours are stable: a single row has no slope.
    """

    def counted(decision: Decision, config: ClinicalConfig) -> Scalar:
        if stable is not stable_by_limits and len(decision.state) == 1:
            return jnp.asarray(jnp.nan)
        return (stable(decision.state, config) & decision.alive_before).astype(float)

    def gained(decision: Decision, config: ClinicalConfig) -> Scalar:
        return counted(decision, config) * weaned(decision.before - decision.level)

    return gained, counted


_ROWS = (  # in the order of the tables
    Metric(
        "reward",
        hourly_reward,
        table="safety",
        words="Reward of 6 hours",
        short="Reward of 6 h",
        brief="reward",
        said="reward",
        bins=(-12.0, 4.0, 32),
        definition=(
            "Reward",
            "sum over six hours of the paper's hourly score of MAP, heart rate and pulsatility, "
            "normalized with its constants: 3.84 at best, −12 at worst. Hours after death count "
            "−2.",
        ),
        printed=True,
    ),
    Metric(
        "acp",
        _jumps,
        table="changes",
        words="ACP, levels",
        short="ACP, levels",
        brief="ACP",
        said="ACP",
        bins=(-0.5, 12.5, 13),
        definition=(
            "ACP",
            "action change penalty: levels moved by jumps of more than two levels, summed over "
            "six decisions.",
        ),
        sign=-1.0,
        printed=True,
    ),
    Metric("total_change", _changes),  # ACP as App. A prints it
    Metric(
        "ws_gradient",
        *_weaning(stable_by_gradient),
        table="changes",
        words="Weaning score: gradient / limits / both",
        short="Weaning score",
        brief="WS",
        said="weaning score",
        bins=(-1.0625, 2.0625, 25),
        definition=(
            "Weaning score (WS)",
            "mean over decisions in stable hours: +1 or +2 for a drop of one or two levels, −1 "
            "for any rise, 0 otherwise.",
        ),
        printed=True,
        reading="gradient",
        beside=("ws_limits", "ws_both"),
    ),
    Metric("ws_limits", *_weaning(stable_by_limits)),
    Metric("ws_both", *_weaning(stable_by_both)),
    Metric(
        "unsafe_hours",
        _unsafe,
        _every,
        table="safety",
        words="Unsafe hours, %",
        short="Unsafe hours, %",
        brief="unsafe",
        said="share of unsafe hours",
        bins=(-100 / 12, 100 + 100 / 12, 7),
        definition=(
            "Unsafe hours",
            "share of the hours after a decision with MAP of 60 mmHg or less, heart rate of "
            "50/min or less, or pulsatility of 10 mmHg or less at any sample, or after death.",
        ),
        sign=-1.0,
        scale=100.0,
        digits=1,
    ),
    Metric(
        "staircase",
        _staircase,
        _every,
        table="safety",
        words="Staircase score, points",
        short="Staircase, points",
        brief="stairs",
        said="staircase score",
        bins=(-0.5, 43.5, 22),
        definition=(
            "Staircase score",
            "the paper's instability table before it is smoothed into the reward, mean of the "
            "hours after a decision: 0 to 43 points, more is worse. A measured LVEDP costs 3 at "
            "least, cardiac power counts nothing, an hour after death costs 43.",
        ),
        sign=-1.0,
        digits=1,
    ),
)
METRICS = {metric.name: metric for metric in _ROWS}


def parts_of(decision: Decision, config: ClinicalConfig = PAPER, metrics: Table = METRICS) -> Sums:
    """What one decision adds to every metric."""
    found = {}
    for name, metric in metrics.items():
        count = jnp.zeros(()) if metric.over is None else metric.over(decision, config)
        found[name] = (metric.part(decision, config), count)
    return found


def scores_of(sums: Sums) -> Scores:
    """Sums, or means over the decisions that counted; 0 where none did (paper: 0/0)."""
    return {name: part / jnp.maximum(count, 1) for name, (part, count) in sums.items()}


def score_episode(
    episode: Episodes, config: ClinicalConfig = PAPER, metrics: Table = METRICS
) -> Scores:
    """Score one episode.

    An hour that the patient did not survive scores the minimum and is unsafe, and no later decision
    counts as weaning. ACP and total change count every decision.
    """
    parts = jax.vmap(lambda decision: parts_of(decision, config, metrics))(decisions_of(episode))
    return scores_of(jax.tree.map(jnp.sum, parts))


@eqx.filter_jit
def score_episodes(
    episodes: Episodes, config: ClinicalConfig = PAPER, metrics: Table = METRICS
) -> Scores:
    """The scores of every episode.

    >>> ours = sd.score_episodes(episodes)
    >>> theirs = sd.score_episodes(sd.play(clinicians, starts, world))
    >>> sorted(ours)[-2:]
    ['ws_gradient', 'ws_limits']
    """
    return jax.vmap(lambda episode: score_episode(episode, config, metrics))(episodes)
