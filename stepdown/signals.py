"""The vocabulary: signals with units and ranges, the levels, the hour.

Every recording has columns for the twelve `SIGNALS`, in this order; those of `FURTHER` that it
holds follow. What is made from a recording carries the names of its columns. A state is one hour
of samples: these columns, then the level in force.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Signal:
    """One column of a recording, in the unit that everything here speaks."""

    name: str
    unit: str  # as printed on screen
    ucum: str  # as exchanged with machines
    label: str
    hard: tuple[float, float]  # outside: not a measurement
    soft: tuple[float, float]  # outside: worth a look
    holds: float = 0.0  # h for which a value stands until the next one; 0: as the rows say


SIGNALS = (
    Signal("map", "mmHg", "mm[Hg]", "Mean aortic pressure", (0.0, 250.0), (30.0, 150.0)),
    Signal("speed", "rpm", "/min", "Pump speed", (0.0, 60_000.0), (20_000.0, 52_000.0)),
    Signal("current", "mA", "mA", "Motor current", (0.0, 2000.0), (150.0, 1100.0)),
    Signal("flow", "L/min", "L/min", "Pump flow", (-2.0, 8.0), (0.0, 6.5)),
    Signal("lvp", "mmHg", "mm[Hg]", "Mean LV pressure", (-50.0, 350.0), (-20.0, 150.0)),
    Signal("lvedp", "mmHg", "mm[Hg]", "LV end-diastolic pressure", (-60.0, 80.0), (-40.0, 60.0)),
    Signal("hr", "/min", "/min", "Heart rate", (0.0, 300.0), (30.0, 200.0)),
    Signal("sbp", "mmHg", "mm[Hg]", "Systolic pressure", (0.0, 300.0), (40.0, 220.0)),
    Signal("dbp", "mmHg", "mm[Hg]", "Diastolic pressure", (0.0, 200.0), (20.0, 130.0)),
    Signal("pulsatility", "mmHg", "mm[Hg]", "Pulsatility", (0.0, 200.0), (2.0, 100.0)),
    Signal("tau", "ms", "ms", "LV relaxation constant", (0.0, 300.0), (20.0, 120.0)),
    Signal("ese", "mmHg/mL", "mm[Hg]/mL", "End-systolic elastance", (0.0, 20.0), (0.2, 6.0)),
)
# Recorded in some places; a row here is all that a new column needs. The ranges are ours and wide,
# to catch units rather than patients: usual are 0.5 to 2.2 mmol/L, and 0.03 to 0.5 µg/kg/min by the
# dosage guidance that mimic-code quotes.
FURTHER = (
    Signal("lactate", "mmol/L", "mmol/L", "Blood lactate", (0.0, 40.0), (0.3, 20.0), holds=8.0),
    Signal("norepinephrine", "µg/kg/min", "ug/kg/min", "Norepinephrine", (0.0, 10.0), (0.0, 3.0)),
    # all pressors, and all pressors and inotropes, as one number each (records/drugs.py)
    Signal("nee", "µg/kg/min", "ug/kg/min", "Norepinephrine equivalents", (0.0, 20.0), (0.0, 3.0)),
    Signal("vis", "points", "{score}", "Vasoactive-inotropic score", (0.0, 2000.0), (0.0, 200.0)),
    Signal("cvp", "mmHg", "mm[Hg]", "Central venous pressure", (-10.0, 60.0), (0.0, 40.0)),
    Signal("pas", "mmHg", "mm[Hg]", "PA systolic pressure", (0.0, 150.0), (8.0, 100.0)),
    Signal("pad", "mmHg", "mm[Hg]", "PA diastolic pressure", (0.0, 100.0), (2.0, 60.0)),
    Signal("pam", "mmHg", "mm[Hg]", "PA mean pressure", (0.0, 120.0), (5.0, 80.0)),
    Signal("papi", "ratio", "1", "PA pulsatility index", (0.0, 100.0), (0.1, 20.0)),
    Signal("co", "L/min", "L/min", "Cardiac output", (0.0, 20.0), (1.0, 12.0), holds=8.0),
    Signal("cpo", "W", "W", "Cardiac power output", (0.0, 5.0), (0.1, 3.0), holds=8.0),
    # what the console reported, 1 while it did: shown and obeyed, read by no model
    Signal("suction", "flag", "{flag}", "Suction reported", (0.0, 1.0), (0.0, 1.0)),
    Signal("position", "flag", "{flag}", "Wrong position reported", (0.0, 1.0), (0.0, 1.0)),
    Signal("weight", "kg", "kg", "Body weight", (20.0, 350.0), (40.0, 200.0)),
    Signal("age", "years", "a", "Age", (0.0, 120.0), (16.0, 100.0)),
)
MARKS = ("suction", "position")
KNOWN = {signal.name: signal for signal in (*SIGNALS, *FURTHER)}
NAMES = tuple(signal.name for signal in SIGNALS)  # the columns of a recording without further ones

(MAP, SPEED, CURRENT, FLOW, LVP, LVEDP, HR, SBP, DBP, PULSATILITY, TAU, ESE) = range(len(SIGNALS))
LEVEL = -1  # the last column of a state: the level in force
REQUIRED = (MAP, HR, PULSATILITY)  # a recording without these is no decision problem

LEVELS = (2, 3, 4, 5, 6, 7, 8, 9)
LOWEST, HIGHEST = LEVELS[0], LEVELS[-1]

SAMPLE_MINUTES = 10.0
STEPS = 6  # samples in an hour
HORIZON = 6  # decisions in an episode


def columns_with(further: Iterable[str]) -> tuple[str, ...]:
    """The columns of a recording that also holds these signals of `FURTHER`, in one order."""
    held = set(further)  # once: a generator has nothing to give twice
    return NAMES + tuple(signal.name for signal in FURTHER if signal.name in held)


def hard_ranges(columns: tuple[str, ...]) -> list[tuple[float, float]]:
    """Between which values each column of a state lies, the level's last."""
    return [*(KNOWN[name].hard for name in columns), (float(LOWEST), float(HIGHEST))]
