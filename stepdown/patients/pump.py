"""The pump as its profile describes it: level to speed, head to flow, flow to current.

A profile is data with a named source (`profiles/*.json`). Head and flow follow the usual
quadratic of rotary pumps, H = H0 - k1 w Q - k2 Q², with w the speed relative to the profile's
reference, Q in L/min and H0 the shut-off head of the level (near to growing with w², the
affinity law). The motor current is linear in flow at constant speed. Both relations are what a
console inverts to estimate ventricular pressure.
"""

import json
from importlib import resources

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.signals import LEVELS, LOWEST

BACKFLOW = 0.35  # share of the linear continuation that flows back beyond shut-off
STANDING = 1000.0  # rpm; a pump that turns more slowly is off
SPEED_TOLERANCE = 0.02  # of a level's speed
OFF, UNKNOWN = 0, -1  # what a speed says that is no level's


class PumpProfile(eqx.Module):
    """A pump type; the tables run over P2..P9."""

    speed: Float[Array, " 8"]  # rpm
    shutoff_head: Float[Array, " 8"]  # mmHg at zero flow
    idle_current: Float[Array, " 8"]  # mA at zero flow
    current_per_flow: Float[Array, ""]  # mA per L/min at reference speed
    reference_speed: Float[Array, ""]  # rpm
    linear_loss: Float[Array, ""]  # mmHg per L/min at reference speed
    quadratic_loss: Float[Array, ""]  # mmHg per (L/min)²
    name: str = eqx.field(static=True)
    source: str = eqx.field(static=True)


def profile_names() -> tuple[str, ...]:
    """Profiles that ship with the package."""
    folder = resources.files("stepdown.patients") / "profiles"
    return tuple(sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".json")))


def load_profile(name: str) -> PumpProfile:
    """Read a shipped profile by name."""
    if name not in profile_names():
        raise ValueError(
            f"expected a pump profile out of {', '.join(profile_names())}, got {name!r}. "
            "Choose one of these."
        )
    file = resources.files("stepdown.patients") / "profiles" / f"{name}.json"
    table = json.loads(file.read_text(encoding="utf-8"))
    words = {key: table.pop(key) for key in ("name", "source")}
    if any(len(value) != len(LEVELS) for value in table.values() if isinstance(value, list)):
        raise ValueError(f"expected eight levels P2..P9 in every table of profile {name!r}.")
    return PumpProfile(
        **{key: jnp.asarray(value, jnp.float32) for key, value in table.items()}, **words
    )


def relative_speed(profile: PumpProfile, level: Int[Array, ""]) -> Float[Array, ""]:
    """Speed of a level as a share of the reference."""
    return profile.speed[level - LOWEST] / profile.reference_speed


def level_of_speed(
    profile: PumpProfile, speed: Float[np.ndarray, "*n"] | float, tolerance: float = SPEED_TOLERANCE
) -> Int[np.ndarray, "*n"]:
    """The level whose speed each speed in rpm is; OFF where the pump stands, otherwise UNKNOWN.

    A speed between two levels belongs to neither; where both are within the tolerance (two levels
    of a small pump are 2 % apart) it is the nearer one's. The limit itself still counts.
    """
    steps, speed = np.asarray(profile.speed, float), np.asarray(speed, float)
    middles = 2 / (1 / steps[1:] + 1 / steps[:-1])  # as far from both, relative to each
    place = np.searchsorted(middles, speed)
    with np.errstate(invalid="ignore"):
        near = np.abs(speed / steps[place] - 1) <= tolerance * (1 + 1e-9)
        level = np.where(near, place + LOWEST, UNKNOWN)
        return np.where(speed < STANDING, OFF, level)


def pump_flow(
    profile: PumpProfile, level: Int[Array, ""], head: Float[Array, ""]
) -> Float[Array, ""]:
    """Flow in L/min against a head in mmHg; the positive root of the head-flow curve."""
    w = relative_speed(profile, level)
    k1, k2 = profile.linear_loss * w, profile.quadratic_loss
    spare = profile.shutoff_head[level - LOWEST] - head
    forward = (jnp.sqrt(k1**2 + 4 * k2 * jnp.maximum(spare, 0.0)) - k1) / (2 * k2)
    backward = BACKFLOW * jnp.minimum(spare, 0.0) / k1
    return forward + backward


def pump_head(
    profile: PumpProfile, level: Int[Array, ""], flow: Float[Array, ""]
) -> Float[Array, ""]:
    """Head in mmHg at a flow in L/min: `pump_flow` inverted."""
    w = relative_speed(profile, level)
    k1, k2 = profile.linear_loss * w, profile.quadratic_loss
    losses = k1 * flow + k2 * flow**2
    return profile.shutoff_head[level - LOWEST] - jnp.where(flow > 0, losses, k1 * flow / BACKFLOW)


def motor_current(
    profile: PumpProfile, level: Int[Array, ""], flow: Float[Array, ""]
) -> Float[Array, ""]:
    """Current in mA at a flow in L/min."""
    slope = profile.current_per_flow * relative_speed(profile, level)
    return profile.idle_current[level - LOWEST] + slope * flow
