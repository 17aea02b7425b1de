"""Pump types as the screen names them: which levels exist, and which table of speeds they have.

A profile in `patients/profiles` is a pump type of its own name with all levels, unless its table is
shared by types that are told apart here.
"""

import functools
from dataclasses import dataclass

from stepdown.patients.pump import PumpProfile, load_profile, profile_names
from stepdown.signals import HIGHEST


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


@functools.cache
def profile_of(table: str) -> PumpProfile:
    """The table of a pump."""
    return load_profile(table)
