"""One stay as its file tells it, before anything is mended: raw numbers and declared units."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepdown.records.mapping import CHANNELS, UNITS, Kind
from stepdown.signals import NAMES, SIGNALS


@dataclass(frozen=True)
class Line:
    """The numbers of one signal in file order; NaN where the cell was empty or unreadable."""

    values: np.ndarray  # float64, in the declared unit
    unit: str | None  # of mapping.UNITS; None: nobody declared one
    unreadable: tuple[int, ...] = ()  # rows that hold text
    examples: tuple[str, ...] = ()  # some of that text

    def in_our_unit(self) -> np.ndarray:
        """The values as the declared unit says; taken as ours where none is declared."""
        return self.values * (1.0 if self.unit is None else UNITS[self.unit][1])


@dataclass(frozen=True)
class Trace:
    """A stay: values per signal, or the three channels of a waveform."""

    patient: str
    second: np.ndarray  # s since the first stamp, in file order; NaN where unreadable
    lines: Mapping[str, Line]  # by name of signals.NAMES or mapping.CHANNELS
    level: Line | None = None  # unit None
    start: float | None = None  # s since 1970 of the first stamp, where stamps are dates
    unreadable_times: tuple[str, ...] = ()
    zoneless: bool = False  # dates, and nobody says in which zone
    kind: Kind = "values"

    @property
    def is_waveform(self) -> bool:
        """Whether rows are samples of a waveform."""
        return self.kind == "waveforms"

    @property
    def expected(self) -> tuple[str, ...]:
        """Every signal that could be here."""
        return CHANNELS if self.is_waveform else NAMES


# A waveform swings further than the means of the same line, and a flush goes to 300 mmHg.
HARD = {signal.name: signal.hard for signal in SIGNALS} | {"placement": (-50.0, 350.0)}
SOFT = {signal.name: signal.soft for signal in SIGNALS} | {"placement": (-30.0, 235.0)}
WAVE_SOFT = SOFT | {"current": (0.0, 1400.0)}
OUR_UNITS = {signal.name: signal.unit for signal in SIGNALS} | {"placement": "mmHg"}
