"""Small decisions and a density that can be checked by hand, for the tests of this folder."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from stepdown.guardian.density import Pairs
from stepdown.handover import Role, Transitions
from stepdown.problem.scaling import fit_scaler

ROWS = 200  # one shape for all


def ward(role: Role, *, rows: int = ROWS, seed: int = 0) -> Transitions:
    """Hours around a comfortable patient; the choice mostly keeps the level in force."""
    draw = np.random.default_rng(seed)
    base = draw.normal(size=(rows, 1, 12)) + 0.2 * draw.normal(size=(rows, 6, 12))
    before = draw.integers(3, 9, rows)
    level = before + draw.choice([-1, 0, 0, 0, 0, 0, 1], rows)
    state = np.concatenate([70 + 5 * base, np.tile(before[:, None, None], (1, 6, 1))], -1)
    zeros, no = jnp.zeros(rows), jnp.zeros(rows, bool)
    return Transitions(
        state=jnp.asarray(state, jnp.float32),
        level=jnp.asarray(level),
        levels=jnp.asarray(np.tile(level[:, None], (1, 6))),
        reward=zeros,
        unshaped=zeros,
        next_state=jnp.asarray(state, jnp.float32),
        last=no,
        died=no,
        filled=no,
        patient=jnp.asarray(np.arange(rows) // 20),
        role=role,
    )


class Normal(eqx.Module):
    """log p is minus half the squared distance to the average decision."""

    pairs: Pairs
    bottom: float | None = eqx.field(static=True, default=None)

    def floor(self) -> float | None:
        """As given."""
        return self.bottom

    @property
    def shape(self) -> tuple[int, int]:
        """No recorded decision inside."""
        return 0, 74

    def log_density(self, state, level, /):
        """Nats."""
        return -0.5 * jnp.sum(self.pairs(state, level) ** 2)

    def log_densities(self, states, levels, /):
        """Nats."""
        return jax.vmap(self.log_density)(states, levels)


def normal(train: Transitions, action_weight: float = 1.0) -> Normal:
    """The density of these decisions."""
    return Normal(Pairs(fit_scaler(train), jnp.asarray(action_weight)))
