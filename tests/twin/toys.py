"""A tiny world whose next hour is known, and twins of pocket size."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from stepdown.handover import Role, Transitions
from stepdown.patients.pump import load_profile
from stepdown.signals import (
    CURRENT,
    DBP,
    FLOW,
    LEVEL,
    LOWEST,
    LVP,
    MAP,
    PULSATILITY,
    SBP,
    SPEED,
)
from stepdown.training import FitConfig
from stepdown.twin.baselines import MLPConfig, PersistenceConfig, ProcessConfig
from stepdown.twin.calibrated import CalibratedConfig
from stepdown.twin.fit import TwinConfig
from stepdown.twin.recurrent import LegendreConfig, StateSpaceConfig
from stepdown.twin.ridge import RidgeConfig
from stepdown.twin.transformer import TransformerConfig
from stepdown.twin.twins import TWINS
from tests.documented import documented

STEPS, SIGNALS = 6, 12  # samples of an hour; one shape for all tests
PATIENTS = 16  # rows are dealt to them in turn
# Of free numbers: MAP; speed off its level; current and flow off the map; LVP, LVEDP and HR; the
# share of the pulse below the mean (SBP); nothing (DBP); the pulse (pulsatility); tau, elastance.
MEAN = np.array([80, 0.0, 3.0, 0.2, 50, 15, 80, 0.4, 0, 35, 60, 2.5])
SD = np.array([8, 4e-4, 10.0, 0.1, 10, 4, 8, 0.04, 1, 4, 8, 0.3])
RESPONSE = np.linspace(-0.3, 0.3, SIGNALS)  # z-scores per level

_TRANSFORMER = TransformerConfig(width=16, heads=2, layers=1, feedforward=32, decoder=64)
ERRORS = 256
POCKETS = {  # sizes for tests; a kind that is not named here is tested in its small size
    "tdt": _TRANSFORMER,
    "rotary": dataclasses.replace(_TRANSFORMER, positions="rotary"),
    "mlp": MLPConfig(hidden=(64, 32, 32)),
    "np": ProcessConfig(latent=8, hidden=32),
    "clmu": LegendreConfig(memory=8, hidden=32),
    "ssm": StateSpaceConfig(state=16, hidden=32),
    "persistence": PersistenceConfig(errors=ERRORS),
    "ridge": RidgeConfig(ridges=(1e-4,), members=2, errors=ERRORS),
    "best": CalibratedConfig(
        members=2,
        width=32,
        depth=1,
        errors=ERRORS,
        fit=FitConfig(epochs=25, batch=32, learning_rate=1e-2, decay=True),
    ),
}
KINDS = {kind.name: kind for kind in (*TWINS.values(), documented("A twin"))}
MODELS = tuple(KINDS)


def pocket(model: str, **changes) -> TwinConfig:
    kind = KINDS[model]
    sizes = POCKETS.get(model, kind.small)
    quick = FitConfig(epochs=12, batch=32, learning_rate=3e-3)
    return dataclasses.replace(TwinConfig(kind, sizes, fit=quick), **changes)


def toy_samples(scores: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Samples that obey every identity, of numbers that are free: one for each signal but DBP."""
    free = MEAN + SD * scores
    pump, at = load_profile("cp"), levels - LOWEST
    speed, idle = np.asarray(pump.speed)[at], np.asarray(pump.idle_current)[at]
    slope = float(pump.current_per_flow) * speed / float(pump.reference_speed)
    pulse, below = free[..., PULSATILITY], free[..., SBP]
    made = free.copy()
    made[..., SPEED] = speed * (1 + free[..., SPEED])
    # The positive root of shutoff − head = k₁ Q + k₂ Q²; the toy's heads are far below shutoff.
    spare = np.asarray(pump.shutoff_head)[at] - (free[..., MAP] - free[..., LVP])
    k1, k2 = float(pump.linear_loss) * speed / float(pump.reference_speed), pump.quadratic_loss
    flow = (np.sqrt(k1**2 + 4 * k2 * np.maximum(spare, 0)) - k1) / (2 * k2) + free[..., FLOW]
    made[..., FLOW] = flow
    made[..., CURRENT] = idle + slope * flow + free[..., CURRENT]
    made[..., DBP] = free[..., MAP] - below * pulse
    made[..., SBP] = free[..., MAP] + (1 - below) * pulse
    return made


def toy_hours(rows: int, role: Role, seed: int) -> Transitions:
    """Half of the last deviation stays, and the level of each sample pushes; a little noise.

    The level changes inside every fourth hour.
    """
    draw = np.random.default_rng(seed)
    before = draw.normal(size=(rows, STEPS, SIGNALS))
    before[..., [FLOW, CURRENT]] *= 0.3  # no farther off the pump's map than later hours
    in_force = np.broadcast_to(draw.integers(2, 10, rows)[:, None], (rows, STEPS))
    level = draw.integers(2, 10, rows)
    levels = np.broadcast_to(level[:, None], (rows, STEPS)).copy()
    moves = draw.integers(1, STEPS, rows)
    late = (np.arange(STEPS) >= moves[:, None]) & (np.arange(rows) % 4 == 3)[:, None]
    levels[late] = np.broadcast_to(draw.integers(2, 10, rows)[:, None], late.shape)[late]
    level = np.floor(levels.mean(1) + 0.5).astype(int)
    push = RESPONSE * (levels[..., None] - 5.5)
    later = 0.5 * before[:, -1:] + push + 0.1 * draw.normal(size=(rows, STEPS, SIGNALS))

    def states(scores, levels, level):
        column = np.broadcast_to(level[:, None, None], (rows, STEPS, 1))
        whole = np.concatenate([toy_samples(scores, levels), column], -1)
        return jnp.asarray(whole, jnp.float32)

    # NumPy makes them: what JAX makes is compiled first, in every process that collects tests.
    flags = np.zeros(rows, bool)
    return Transitions(
        state=states(before, in_force, in_force[:, 0]),
        level=jnp.asarray(level, jnp.int32),
        levels=jnp.asarray(levels, jnp.int32),
        reward=jnp.asarray(np.zeros(rows, np.float32)),
        unshaped=jnp.asarray(np.zeros(rows, np.float32)),
        next_state=states(later, levels, level),
        last=jnp.asarray(~flags),
        died=jnp.asarray(flags),
        filled=jnp.asarray(flags),
        patient=jnp.asarray(np.arange(rows) % PATIENTS, jnp.int32),
        role=role,
    )


TRAIN, SELECT = toy_hours(512, "train", 0), toy_hours(128, "select", 1)


def put(hours: Transitions, field: str, where, value: float | np.ndarray) -> Transitions:
    changed = np.array(getattr(hours, field))
    changed[where] = value
    return dataclasses.replace(hours, **{field: jnp.asarray(changed)})


def empty_column(hours: Transitions, column: int) -> Transitions:
    assert column != LEVEL
    gone = put(hours, "state", (..., column), np.nan)
    return put(gone, "next_state", (..., column), np.nan)
