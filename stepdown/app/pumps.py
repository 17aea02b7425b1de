"""Pump types as the screen names them: which levels exist, and which table of speeds they have.

A profile in `patients/profiles` is a pump type of its own name with all levels, unless its table is
shared by types that are told apart here.
"""

import functools
from dataclasses import dataclass

import numpy as np

from stepdown.app.gates import UNKNOWN
from stepdown.patients.pump import load_profile, profile_names
from stepdown.signals import HIGHEST, LOWEST

TOLERANCE = 0.02  # of a step of the profile; a speed between steps belongs to no level


@dataclass(frozen=True)
class Pump:
    """A pump type."""

    label: str
    table: str  # profile of speeds (patients/profiles)
    highest: int = HIGHEST  # P-level


_TYPES = {  # of tables that several pump types share; the one with all levels first
    "cp-smartassist": Pump("CP SmartAssist", "cp"),
    "cp-older": Pump("CP (older)", "cp", highest=8),
}
_SHARED = {pump.table for pump in _TYPES.values()}
PUMPS = _TYPES | {name: Pump(name, name) for name in profile_names() if name not in _SHARED}


def pump_of_table(table: str) -> str:
    """The pump type of a recording that names only its table; the one with all its levels."""
    found = [name for name, pump in PUMPS.items() if pump.table == table]
    if not found:
        known = ", ".join(sorted({pump.table for pump in PUMPS.values()}))
        raise ValueError(
            f"expected a recording of one of the pumps {known}, got {table!r}. "
            "Add its profile to patients/profiles."
        )
    return found[0]


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
