"""What the pump's sensors deliver, and what they add: noise, drift, digits, artifacts."""

from dataclasses import dataclass

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import Float, Int8, PRNGKeyArray

ARTIFACTS = ("none", "flush", "flat", "dropout")
DRIFT_SECONDS, DRIFT_STEP = 60.0, 10.0  # s: correlation time of the pressure's drift, its knots
DRIFT_STEPS = 40  # after which the drift remembers nothing
ARTIFACT_SECONDS = {"flush": (1, 4), "flat": (3, 12), "dropout": (2, 20)}  # shortest and longest
FLUSH_PRESSURE = (240.0, 300.0)  # mmHg of the bag
DAMPED = 0.9  # share of the pulse that a flat stretch loses


@dataclass(frozen=True)
class SensorConfig:
    """Noise as sd, artifacts as counts per hour."""

    pressure_noise: float = 0.7  # mmHg, white
    pressure_drift: float = 0.3  # mmHg, over a minute or so
    pressure_digit: float = 0.25  # mmHg
    current_noise: float = 6.0  # mA, white
    speed_noise: float = 15.0  # rpm
    flushes: float = 1.5  # seconds of square high pressure
    flats: float = 1.5  # seconds of damped pressure
    dropouts: float = 1.0  # seconds without a sample in any channel


class Recording(eqx.Module):
    """Three channels at 25 Hz or faster, simulated or real; NaN where nothing was measured."""

    second: Float[np.ndarray, " samples"]  # since the start of support, increasing
    placement: Float[np.ndarray, " samples"]  # mmHg at the aortic root
    speed: Float[np.ndarray, " samples"]  # rpm
    current: Float[np.ndarray, " samples"]  # mA


def sense(
    ideal: Recording, config: SensorConfig, *, key: PRNGKeyArray
) -> tuple[Recording, Int8[np.ndarray, " samples"]]:
    """The recording with sensor errors, and for each sample its place in `ARTIFACTS`."""
    c = config
    k_noise, k_artifacts = jr.split(key)
    rng = _generator(k_noise)
    noise = rng.standard_normal((3, len(ideal.second)), np.float32)
    pressure, artifact = _disturb(ideal, c, _generator(k_artifacts))
    pressure += c.pressure_noise * noise[0] + c.pressure_drift * _drift(ideal.second, rng)
    pressure = c.pressure_digit * np.round(pressure / c.pressure_digit)
    speed = np.round(ideal.speed + c.speed_noise * noise[1])
    current = np.round(ideal.current + c.current_noise * noise[2])
    lost = artifact == ARTIFACTS.index("dropout")
    kept = [np.where(lost, np.nan, x).astype(np.float32) for x in (pressure, speed, current)]
    return Recording(ideal.second, *kept), artifact


def _generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's generator, since samples come in any number and need no compiled program."""
    return np.random.default_rng(np.asarray(jr.key_data(key)).ravel())


def _drift(second, rng) -> np.ndarray:
    """A slow wandering of unit variance."""
    knots = np.arange(second[0], second[-1] + 2 * DRIFT_STEP, DRIFT_STEP)
    keep = np.exp(-DRIFT_STEP / DRIFT_SECONDS)
    kernel = np.sqrt(1 - keep**2) * keep ** np.arange(DRIFT_STEPS)
    white = rng.standard_normal(len(knots) + DRIFT_STEPS - 1)
    return np.interp(second, knots, np.convolve(white, kernel, mode="valid"))


def _disturb(ideal: Recording, config: SensorConfig, rng):
    """Put in flushes, flat stretches and dropouts at random times."""
    second, pressure = ideal.second, np.array(ideal.placement, float)
    artifact = np.zeros(len(second), np.int8)
    hours = (second[-1] - second[0]) / 3600
    rates = {"flush": config.flushes, "flat": config.flats, "dropout": config.dropouts}
    for name, rate in rates.items():
        count = rng.poisson(rate * hours)
        starts = rng.uniform(second[0], second[-1], count)
        ends = starts + rng.uniform(*ARTIFACT_SECONDS[name], count)
        heights = rng.uniform(*FLUSH_PRESSURE, count)
        for start, end, height in zip(starts, ends, heights, strict=True):
            part = slice(*np.searchsorted(second, (start, end)))
            artifact[part] = ARTIFACTS.index(name)
            if name == "flush":
                pressure[part] = height
            if name == "flat":
                pressure[part] += DAMPED * (pressure[part].mean() - pressure[part])
    return pressure, artifact
