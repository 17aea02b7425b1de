"""What good care means: reward, stability, changes of level, weaning (App. A; docs/definitions.md).

Every function speaks physical units and takes one hour (a state) or one episode; callers `vmap`.
A state is one hour, however many samples it holds. A missing (NaN) sample is left out of minima,
means and slopes. A signal that is missing for the whole hour makes the reward NaN and the hour
neither stable nor safe, so that nothing unseen is ever praised.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from stepdown.handover import Episodes, Transitions, require_role
from stepdown.signals import HR, LEVEL, LVEDP, MAP, PULSATILITY, SAMPLE_MINUTES

Scalar = Float[Array, ""]
Flag = Bool[Array, ""]
Hour = Float[Array, "steps columns"]


@dataclass(frozen=True)
class ClinicalConfig:
    """The choices behind the clinical numbers; defaults are docs/definitions.md."""

    both_sides: bool = False  # also charge the fastest heart rate, not only the slowest
    reward_mean: float = -1.7018  # of the raw reward in the paper's cohort
    reward_sd: float = 2.6621
    reward_clip: float = 2.0
    map_limit: float = 60.0  # mmHg; stable strictly above
    hr_limit: float = 50.0  # beats/min
    pulsatility_limit: float = 10.0  # mmHg
    map_slope: float = 1.36  # mmHg per 10 min; stable strictly below
    hr_slope: float = 2.16  # beats/min per 10 min
    pulsatility_slope: float = 1.95  # mmHg per 10 min
    jump: int = 2  # levels; only larger changes count in ACP


PAPER = ClinicalConfig()
STRICT_LIMITS = replace(PAPER, pulsatility_limit=20.0)  # the limit in the authors' published code


class Decision(eqx.Module):
    """One decision with the hour before and the hour that followed: all that a metric looks at."""

    state: Float[Array, "*n steps columns"]
    before: Int[Array, "*n"]  # level in force in the hour before
    level: Int[Array, "*n"]  # ... in the hour that followed
    later: Float[Array, "*n steps columns"]
    alive_before: Bool[Array, "*n"]  # when it was decided
    alive: Bool[Array, "*n"]  # through the hour that followed


def decisions_of(episode: Episodes) -> Decision:
    """The decisions of one episode, one after another."""
    alive_before = jnp.concatenate([jnp.array([True]), episode.alive[:-1]])
    before, level = episode.level[:-1], episode.level[1:]
    state, later = episode.state[:-1], episode.state[1:]
    return Decision(state, before, level, later, alive_before, episode.alive)


def hourly_reward(decision: Decision, config: ClinicalConfig = PAPER) -> Scalar:
    """Normalized reward of the hour that followed; the least there is, where nobody lived on."""
    return jnp.where(decision.alive, normalized_reward(decision.later, config), -config.reward_clip)


def shaped_reward(
    state: Hour,
    level: Int[Array, ""],
    next_state: Hour,
    *,
    jump_weight: float | Scalar,
    weaning_weight: float | Scalar,
    config: ClinicalConfig = PAPER,
) -> Scalar:
    """Normalized reward − λ₁ · jump + λ₂ · weaned if stable by limits (Sec. 4.2).

    λ₁ is `jump_weight`, λ₂ `weaning_weight`. The reward looks at the hour that the decision
    caused, stability at the hour before it, the change at the level in force in that hour.
    """
    before = jnp.round(state[-1, LEVEL]).astype(level.dtype)
    jump = action_change(jnp.stack([before, level]), config.jump)
    weaning = jnp.where(stable_by_limits(state, config), weaned(before - level), 0.0)
    return normalized_reward(next_state, config) - jump_weight * jump + weaning_weight * weaning


class RewardParts(eqx.Module):
    """The five charges of one hour; each is zero in its free range and has no unit."""

    hypotension: Scalar
    hypertension: Scalar
    heart_rate: Scalar
    low_pulsatility: Scalar
    high_pulsatility: Scalar


def normalized_reward(state: Hour, config: ClinicalConfig = PAPER) -> Scalar:
    """Raw reward in z-scores of the paper's cohort, clipped at ±2: at most 0.639 (App. B)."""
    score = (raw_reward(state, config) - config.reward_mean) / config.reward_sd
    return jnp.clip(score, -config.reward_clip, config.reward_clip)


def raw_reward(state: Hour, config: ClinicalConfig = PAPER) -> Scalar:
    """R(s) of App. A: minus the sum of the charges, zero at best."""
    return -sum(jax.tree.leaves(reward_parts(state, config)), start=jnp.zeros(()))


def reward_parts(state: Hour, config: ClinicalConfig = PAPER) -> RewardParts:
    """Charge low MAP, high mean MAP, odd heart rate and odd pulsatility (App. A).

    Hypertension starts at 106 mmHg as in the formula, not at 115 as in a sentence beside it.
    """
    pressure = state[:, MAP]
    pulse = jnp.nanmin(state[:, PULSATILITY])
    return RewardParts(
        hypotension=jax.nn.relu(7.0 * (60.0 - jnp.nanmin(pressure)) / 20.0),
        hypertension=jax.nn.relu((jnp.nanmean(pressure) - 106.0) / 18.0),
        heart_rate=_heart_rate_charge(state[:, HR], config.both_sides),
        low_pulsatility=jax.nn.relu(7.0 * (20.0 - pulse) / 20.0),
        high_pulsatility=jax.nn.relu((pulse - 50.0) / 20.0),
    )


def _heart_rate_charge(rates: Float[Array, " steps"], both_sides: bool) -> Scalar:
    """Charge the slowest rate (App. A); with `both_sides` also the fastest, each side once."""
    slowest, fastest = jnp.nanmin(rates), jnp.nanmax(rates)
    if not both_sides:
        return _off_center(slowest)
    return _off_center(jnp.minimum(slowest, 75.0)) + _off_center(jnp.maximum(fastest, 75.0))


def _off_center(rate: Scalar) -> Scalar:
    """Zero within 15.8 beats/min of 75, quadratic outside: free from 59.2 to 90.8."""
    return jax.nn.relu((rate - 75.0) ** 2 / 250.0 - 1.0)


def fit_reward_scale(hours: Transitions, config: ClinicalConfig = PAPER) -> ClinicalConfig:
    """Replace the paper's mean and sd by those of the raw reward of train patients."""
    require_role(hours, "train")
    rewards = jax.vmap(lambda state: raw_reward(state, config))(hours.next_state)
    mean, sd = float(jnp.nanmean(rewards)), float(jnp.nanstd(rewards))
    if not sd > 0.0:
        raise ValueError(
            f"expected hours with different rewards, got a standard deviation of {sd}. "
            "Pass more train patients or keep the default scale."
        )
    return replace(config, reward_mean=mean, reward_sd=sd)


def stable_by_limits(state: Hour, config: ClinicalConfig = PAPER) -> Flag:
    """Whether the hour's minima of MAP, HR and pulsatility all lie above their limits (App. A)."""
    return (
        (jnp.nanmin(state[:, MAP]) > config.map_limit)
        & (jnp.nanmin(state[:, HR]) > config.hr_limit)
        & (jnp.nanmin(state[:, PULSATILITY]) > config.pulsatility_limit)
    )


def stable_by_gradient(state: Hour, config: ClinicalConfig = PAPER) -> Flag:
    """Whether MAP, HR and pulsatility all drift slowly enough over the hour (App. A).

    An hour that is one row has no slope and is never steady; metrics.py then counts nothing.
    """
    return (
        (jnp.abs(slope(state[:, MAP])) < config.map_slope)
        & (jnp.abs(slope(state[:, HR])) < config.hr_slope)
        & (jnp.abs(slope(state[:, PULSATILITY])) < config.pulsatility_slope)
    )


def stable_by_both(state: Hour, config: ClinicalConfig = PAPER) -> Flag:
    """Whether the hour is within the limits and steady."""
    return stable_by_limits(state, config) & stable_by_gradient(state, config)


def slope(values: Float[Array, " steps"]) -> Scalar:
    """Least-squares slope of one signal over one hour, in its unit per 10 min.

    The samples share the hour evenly, so six and twelve samples of one drift agree.
    """
    spacing = 60.0 / SAMPLE_MINUTES / values.size
    time = jnp.where(jnp.isnan(values), jnp.nan, spacing * jnp.arange(values.size))
    time = time - jnp.nanmean(time)
    return jnp.nansum(time * (values - jnp.nanmean(values))) / jnp.nansum(time**2)


def action_change(levels: Int[Array, " times"], threshold: int = 2) -> Scalar:
    """ACP: sum of the changes strictly larger than the threshold, in levels (Sec. 4.2)."""
    change = jnp.abs(jnp.diff(levels))
    return jnp.sum(jnp.where(change > threshold, change, 0)).astype(float)


def weaned(drop: Int[Array, ""]) -> Scalar:
    """Reward a drop of one or two levels by its size, charge one for any rise (App. A).

    The paper prints the rewarded sign reversed; a rise cannot be both rewarded and charged.
    """
    rewarded = jnp.where((drop == 1) | (drop == 2), drop, 0)
    return jnp.where(drop < 0, -1, rewarded).astype(float)


class StaircaseParts(eqx.Module):
    """Points of instability by row of the paper's table; higher is worse."""

    mean_map: Scalar
    min_map: Scalar
    time_below: Scalar
    pulsatility: Scalar
    heart_rate: Scalar
    lvedp: Scalar
    power: Scalar


def staircase_score(state: Hour, cardiac_output: Scalar | None = None) -> Scalar:
    """Total points of the instability table, at most 43; a known LVEDP costs 3 at least."""
    return sum(jax.tree.leaves(staircase_parts(state, cardiac_output)), start=jnp.zeros(()))


def staircase_parts(state: Hour, cardiac_output: Scalar | None = None) -> StaircaseParts:
    """Points by row (App. A, table). A row that does not say "minimum" reads the hour's mean.

    LVEDP and power count nothing where they are not known; cardiac output is in L/min.
    """
    pressure = state[:, MAP]
    mean = {row: jnp.nanmean(state[:, row]) for row in (MAP, PULSATILITY, HR, LVEDP)}
    below = 100.0 * jnp.nanmean(jnp.where(jnp.isnan(pressure), jnp.nan, pressure < 60.0))
    pulse, rate, filling = mean[PULSATILITY], mean[HR], mean[LVEDP]
    unknown = jnp.array(jnp.nan)
    power = unknown if cardiac_output is None else cardiac_power(mean[MAP], cardiac_output)
    return StaircaseParts(
        mean_map=_pressure_points(mean[MAP]),
        min_map=_pressure_points(jnp.nanmin(pressure)),
        time_below=_points((below <= 0, 0), (below <= 2, 1), (below <= 5, 3), (below > 5, 7)),
        pulsatility=_points((pulse > 20, 0), (pulse >= 10, 5), (pulse < 10, 7)),
        heart_rate=_points((rate > 100, 3), (rate >= 50, 0), (rate < 50, 3)),
        lvedp=_points((filling > 20, 7), (filling >= 15, 4), (filling < 15, 3), unknown=0.0),
        power=_points(
            (power > 1, 0), (power >= 0.6, 1), (power >= 0.5, 3), (power < 0.5, 5), unknown=0.0
        ),
    )


def cardiac_power(pressure: Scalar, cardiac_output: Scalar) -> Scalar:
    """Cardiac power output in W from MAP in mmHg and cardiac output in L/min."""
    return pressure * cardiac_output / 451.0


def _pressure_points(pressure: Scalar) -> Scalar:
    """Points of MAP in [60, ∞), [50, 60), [40, 50) and below 40 mmHg."""
    return _points(
        (pressure >= 60, 0), (pressure >= 50, 1), (pressure >= 40, 3), (pressure < 40, 7)
    )


def _points(*steps: tuple[Flag, int], unknown: float = jnp.nan) -> Scalar:
    """Points of the first step that holds."""
    return jnp.select([held for held, _ in steps], [float(points) for _, points in steps], unknown)
