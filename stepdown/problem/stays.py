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
from stepdown.problem.clinical import PAPER, ClinicalConfig, Decision
from stepdown.problem.hours import HourLevel, cut_stays
from stepdown.problem.metrics import METRICS, Table, parts_of
from stepdown.signals import LEVEL


def score_stays(
    cohort: Cohort,
    config: ClinicalConfig = PAPER,
    *,
    level: HourLevel = "mean",
    metrics: Table = METRICS,
) -> Scores:
    """One score per stay of the cohort; NaN for a stay without a decision."""
    cut = cut_stays(cohort, level=level)
    rows = (cut.measured, cut.level, cut.next_measured)
    judged = in_groups(_judge, rows, config, metrics, size=batch_size(len(cut.level)))
    stays = len(cohort.patient)
    known = np.bincount(cut.patient, minlength=stays) > 0

    def total(values):
        return np.bincount(cut.patient, weights=values, minlength=stays)

    def per_stay(part, count):
        share = total(part) / np.maximum(total(count), 1)
        return jnp.asarray(np.where(known, share, np.nan), jnp.float32)

    return {name: per_stay(*judged[name]) for name in metrics}


def mean_scores(scores: Scores) -> Scores:
    """The mean over stays, each counted once; stays without a decision do not count."""
    return jax.tree.map(jnp.nanmean, scores)


def _judge(states, levels, next_states, config: ClinicalConfig, metrics: Table):
    """What each decision adds to the scores of its stay."""

    def one(state, level, later):
        before, alive = jnp.round(state[-1, LEVEL]).astype(level.dtype), jnp.array(True)
        return parts_of(Decision(state, before, level, later, alive, alive), config, metrics)

    return jax.vmap(one)(states, levels, next_states)
