"""Ways of setting levels, judged by the truth: scores, paired differences, a ceiling.

The look-ahead reads the latent state and plans on the true model, but with random numbers of
its own: it knows the patient, not the future. It is a ceiling, not a policy anybody can have.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.handover import Episodes, Scores
from stepdown.patients.bedside import play_hour
from stepdown.patients.population import World
from stepdown.problem.clinical import PAPER, ClinicalConfig, normalized_reward, score_episode
from stepdown.signals import HIGHEST, LEVEL, LOWEST


class LookAhead(eqx.Module):
    """Try every level within two of the present one for two hours on the true model."""

    world: World
    hours: int = eqx.field(static=True, default=2)
    reach: int = eqx.field(static=True, default=2)

    def __call__(self, patient, state, key):
        """Take the level whose imagined hours score best."""
        now = jnp.round(state[-1, LEVEL]).astype(int)
        goals = jnp.clip(now + jnp.arange(-self.reach, self.reach + 1), LOWEST, HIGHEST)
        steps = round(1 / self.world.dt)
        imagined = jr.split(jr.fold_in(key, 2), (self.hours, steps))

        def value(level):
            def hour(patient, keys):
                patient, later = play_hour(patient, level, self.world, keys=keys)
                reward = normalized_reward(later)
                return patient, jnp.where(patient.course.alive > 0, reward, -PAPER.reward_clip)

            return jnp.sum(jax.lax.scan(hour, patient, imagined)[1])

        values = jax.vmap(value)(goals)
        # an equal choice goes to the smaller change
        return goals[jnp.argmax(values - 1e-4 * jnp.abs(goals - now))]


@eqx.filter_jit
def score_episodes(episodes: Episodes, config: ClinicalConfig = PAPER) -> Scores:
    """The clinical scores of every episode."""
    return jax.vmap(lambda e: score_episode(e.state, e.level, e.alive, config))(episodes)


def paired_difference(
    ours: Float[Array, " n"] | Float[np.ndarray, " n"],
    theirs: Float[Array, " n"] | Float[np.ndarray, " n"],
    row: Int[Array, " n"] | Int[np.ndarray, " n"],
    draws: int = 2000,
) -> tuple[float, float, float]:
    """Mean difference of paired episodes and its 95 % interval, by a bootstrap over patients."""
    difference = np.asarray(ours, float) - np.asarray(theirs, float)
    patients, index = np.unique(row, return_inverse=True)
    total = np.bincount(index, difference)
    count = np.bincount(index)
    chosen = np.random.default_rng(0).integers(len(patients), size=(draws, len(patients)))
    means = total[chosen].sum(1) / count[chosen].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference.mean()), float(low), float(high)
