"""All that an answer is made of, and the one call into compiled code."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stepdown.app.forecast import JUDGED, Outlook, keys_of, look_ahead
from stepdown.app.limits import DEFAULT_GATES, GateConfig, Limits
from stepdown.app.support import Support, count_similar, distances
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Policy
from stepdown.signals import LEVELS, NAMES
from stepdown.twin.fit import Twin

DRAWS = 100


@dataclass(frozen=True)
class Engine:
    """The models, the recorded hours, the thresholds."""

    twin: Twin
    guardian: Guardian
    support: Support
    table: str  # profile of speeds that the models were fitted on
    model: dict[str, Any]  # version and digests
    draws: int = DRAWS
    gates: GateConfig = DEFAULT_GATES
    site: Limits = field(default_factory=Limits)
    policy: Policy | None = None  # a learned one of the run
    method: str | None = None  # its name
    read_by_policy: tuple[int, ...] = ()  # columns

    def __post_init__(self):
        if self.draws < 50:
            raise ValueError(f"draws: expected at least 50, got {self.draws}.")

    @property
    def used(self) -> tuple[int, ...]:
        """Columns that any of the models reads."""
        read = {*self.twin.scaler.present, *self.guardian.density.pairs.scaler.present}
        return tuple(sorted(read | set(self.read_by_policy)))


def look(engine: Engine, state: np.ndarray, limits: Limits) -> Outlook:
    """The outlook of one state, on the host."""
    by_column = limits.bounds()
    bounds = jnp.asarray([by_column[column] for column in JUDGED], jnp.float32)
    keys = keys_of(state, engine.draws)
    models = engine.twin, engine.guardian, engine.policy
    found = look_ahead(models, jnp.asarray(state), bounds, keys)
    return jax.tree.map(np.asarray, found)


def warm_up(engine: Engine) -> None:
    """Compile everything that an answer needs, by looking once."""
    state = np.zeros((engine.twin.steps, len(NAMES) + 1), np.float32)
    state[:, : len(NAMES)] = np.asarray(engine.twin.scaler.mean)
    state[:, -1] = LEVELS[0]
    look(engine, state, Limits())
    count_similar(engine.support, distances(engine.support, state))
