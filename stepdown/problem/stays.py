"""How whole stays went, as recorded: the metrics of an episode, for any number of hours.

The first hour of a stay is the start, every later hour is a decision. Stays are ragged, so each
decision is judged by itself in one compiled call, and the stays are summed up afterward. The hour
after a gap is a new start.
"""

import jax
import jax.numpy as jnp
import numpy as np

from stepdown.handover import Cohort, Scores
from stepdown.patients.cohort import batch_size, in_groups
from stepdown.problem.clinical import (
    PAPER,
    ClinicalConfig,
    action_change,
    normalized_reward,
    stable_by_gradient,
    stable_by_limits,
    weaned,
)
from stepdown.problem.hours import HourLevel, cut_stays
from stepdown.signals import LEVEL


def score_stays(
    cohort: Cohort, config: ClinicalConfig = PAPER, *, level: HourLevel = "mean"
) -> Scores:
    """One score per stay of the cohort; NaN for a stay without a decision."""
    cut = cut_stays(cohort, level=level)
    rows = (cut.measured, cut.level, cut.next_measured)
    judged = in_groups(_judge, rows, config, size=batch_size(len(cut.level)))
    stays = len(cohort.patient)
    decisions = np.bincount(cut.patient, minlength=stays).astype(float)

    def total(values):
        return np.bincount(cut.patient, weights=values, minlength=stays)

    def per_stay(values, of: np.ndarray | float = 1.0):
        share = values / np.maximum(of, 1)
        return jnp.asarray(np.where(decisions > 0, share, np.nan), jnp.float32)

    def weaning(stable):
        return per_stay(total(stable * judged["weaned"]), of=total(stable))

    limits, slopes = judged["limits"], judged["slopes"]
    return Scores(
        reward=per_stay(total(judged["reward"])),
        acp=per_stay(total(judged["jump"])),
        total_change=per_stay(total(judged["change"])),
        ws_gradient=weaning(slopes),
        ws_limits=weaning(limits),
        ws_both=weaning(limits & slopes),
        unsafe_hours=per_stay(total(~judged["safe"]), of=decisions),
    )


def mean_scores(scores: Scores) -> Scores:
    """The mean over stays, each counted once; stays without a decision do not count."""
    return jax.tree.map(jnp.nanmean, scores)


def _judge(states, levels, next_states, config: ClinicalConfig):
    """What each decision adds to the scores of its stay."""

    def one(state, level, later):
        before = jnp.round(state[-1, LEVEL]).astype(level.dtype)
        change = jnp.stack([before, level])
        return {
            "reward": normalized_reward(later, config),
            "jump": action_change(change, config.jump),
            "change": action_change(change, 0),
            "weaned": weaned(before - level),
            "limits": stable_by_limits(state, config),
            "slopes": stable_by_gradient(state, config),
            "safe": stable_by_limits(later, config),
        }

    return jax.vmap(one)(states, levels, next_states)
