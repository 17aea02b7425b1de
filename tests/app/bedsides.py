"""Bedsides of every kind, for the tests of the gates: likely, odd and hostile ones."""

import numpy as np

from stepdown.app.gates import UNKNOWN, Bedside, forbidding_gates
from stepdown.app.limits import Limits
from stepdown.signals import HIGHEST, SIGNALS

USED = tuple(range(12))
MIDDLE = np.array([75, 39_000, 600, 3.0, 40, 12, 82, 93, 56, 37, 50, 1.5])
SD = np.array([14, 4000, 120, 0.8, 15, 6, 18, 14, 10, 14, 12, 0.5])
ODD = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0, -0.0, 9.6, 60.0, 50.0, 10.0])


def calm(**changes) -> Bedside:
    """One comfortable patient, whom nothing refuses."""
    wave = np.sin(np.arange(6))[:, None] * np.linspace(0.5, 1.5, 12)
    signals = MIDDLE + 0.01 * SD * wave
    fields = {
        "signals": signals,
        "level": np.asarray(6),
        "highest": np.asarray(HIGHEST),
        "age": np.asarray(0.0),
        "clock": np.asarray(True),
        "alarm": np.asarray(False),
        "undeclared": np.asarray(False),
        "speed_level": np.asarray(UNKNOWN),
        "likeness": np.asarray(0.6),
    }
    return Bedside(**(fields | changes))


def crowd(count: int, seed: int) -> Bedside:
    """Random bedsides, from quite normal ones to nonsense."""
    draw = np.random.default_rng(seed)
    signals = MIDDLE + SD * draw.normal(size=(count, 1, 12)) * draw.uniform(0, 2, (count, 1, 1))
    signals = signals + 0.2 * SD * draw.normal(size=(count, 6, 12))
    spoiled = draw.random(signals.shape) < draw.choice([0, 0, 0.01, 0.2], (count, 1, 1))
    signals = np.where(spoiled, draw.choice(ODD, signals.shape), signals)
    stuck = draw.random((count, 1, 12)) < 0.01
    signals = np.where(stuck, signals[:, :1], signals)
    return Bedside(
        signals=signals,
        level=draw.integers(-1, 11, count),
        highest=draw.choice([0, 8, 9, 9, 9], count),
        age=draw.choice(
            [0.0, 10.0, 15.0, 15.02, 30.0, -1.0, np.nan],
            count,
            p=[0.6, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05],
        ),  # fmt: skip
        clock=draw.random(count) > 0.05,
        alarm=draw.random(count) < 0.05,
        undeclared=draw.random(count) < 0.05,
        speed_level=np.where(draw.random(count) < 0.05, draw.integers(2, 10, count), UNKNOWN),
        likeness=draw.choice(
            [np.nan, 0.0, 0.04, 0.05, 0.5, 1.0], count, p=[0.1, 0.05, 0.05, 0.1, 0.5, 0.2]
        ),  # fmt: skip
    )


def allowed_levels(bed: Bedside, refused: np.ndarray, limits: Limits) -> np.ndarray:
    """Levels that no hard gate forbids."""
    return ~np.any(list(forbidding_gates(bed, refused, limits, USED).values()), axis=0)


def one(bed: Bedside, row: int) -> Bedside:
    """One bedside of many."""
    names = ("level", "highest", "age", "clock", "alarm", "undeclared", "speed_level", "likeness")
    return Bedside(
        signals=bed.signals[row],
        **{name: np.asarray(getattr(bed, name)[row]) for name in names},  # pyright: ignore
    )


def put(bed: Bedside, signal: str, values) -> Bedside:
    """The same bedside with other values of one signal."""
    signals = bed.signals.copy()
    signals[..., [s.name for s in SIGNALS].index(signal)] = values
    return calm(
        **{
            name: getattr(bed, name)
            for name in ("level", "highest", "age", "clock", "alarm", "undeclared",
                         "speed_level", "likeness")
        },
        signals=signals,
    )  # fmt: skip
