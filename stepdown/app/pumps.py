"""Pump types as the screen names them: which levels exist, and which table of speeds they have."""

import functools
from dataclasses import dataclass

import numpy as np

from stepdown.app.gates import UNKNOWN
from stepdown.patients.pump import load_profile
from stepdown.signals import HIGHEST, LOWEST

TOLERANCE = 0.02  # of a step of the profile; a speed between steps belongs to no level


@dataclass(frozen=True)
class Pump:
    """A pump type."""

    label: str
    table: str  # profile of speeds (patients/profiles)
    highest: int  # P-level


PUMPS: dict[str, Pump] = {
    "cp-smartassist": Pump("CP SmartAssist", "cp", HIGHEST),
    "cp-older": Pump("CP (older)", "cp", 8),
    "2.5": Pump("2.5", "2.5", HIGHEST),
}


def pump_of_table(table: str) -> str:
    """The pump type of a recording that names only its table; the one with all its levels."""
    return next(name for name, pump in PUMPS.items() if pump.table == table)


def level_of_speed(speeds: np.ndarray, speed: float) -> int:
    """The level whose speed this is, UNKNOWN between the steps of the profile."""
    if not np.isfinite(speed):
        return UNKNOWN
    off = np.abs(speed / speeds - 1)
    nearest = int(np.argmin(off))
    return nearest + LOWEST if off[nearest] <= TOLERANCE else UNKNOWN


@functools.cache
def speeds_of(table: str) -> np.ndarray:
    """Speeds of P-2 to P-9, rpm."""
    return np.asarray(load_profile(table).speed)
