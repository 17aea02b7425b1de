"""Dates as seconds: the order of their parts, their zone, and the hour that comes twice.

An offset in the stamp counts more than the declared zone. Without either, a stamp is taken for UTC
and the stay says that its zone has to be declared.

In autumn a clock on the wall shows an hour twice. The rows of a stay stand in order of time, so
the step back between two of them tells where the second pass begins. Where an hour is passed only
once, the reading that leaves no gap is taken, as at the end of a stay; where both leave one, or
the rows go back several times, nobody can tell, and the stay says what has to be declared. In
spring an hour does not exist: a stamp inside it comes from a clock that was not changed, and then
every later stamp is off by an hour, so this is asked about, too.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepdown.records.mapping import Doubled, Order

_CLOCK = (
    r"(?:[T\s]|,\s?)\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?"
    r"\s*([aApP]\.?[mM]\.?)?\s*([zZ]|[+-]\d{2}(?::?\d{2})?)?$"
)
_YEAR_FIRST = r"^(?<y>\d{4})[-./](?<a>\d{1,2})[-./](?<b>\d{1,2})" + _CLOCK
_YEAR_LAST = r"^(?<a>\d{1,2})[-./](?<b>\d{1,2})[-./](?<y>\d{4})" + _CLOCK
_ISO = "%Y-%m-%dT%H:%M:%S%.f"


@dataclass(frozen=True)
class Wall:
    """Stamps of some rows as they are written."""

    second: np.ndarray  # s since 1970, of the wall's clock where `local`, else in UTC; NaN: none
    local: np.ndarray  # no offset in the stamp


@dataclass(frozen=True)
class Placed:
    """The stamps of a stay in UTC, and what has to be declared before they can be believed."""

    second: np.ndarray  # s since 1970
    questions: tuple[str, ...] = ()


def read_stamps(cells: pl.Series, order: Order) -> Wall:
    """Stamps of a column, by type or by text."""
    if isinstance(cells.dtype, pl.Datetime):
        aware = cells.dtype.time_zone is not None
        micro = cells.dt.epoch("us").cast(pl.Float64).fill_null(np.nan).to_numpy()
        return Wall(micro / 1e6, np.full(len(cells), not aware))
    text = cells.cast(pl.String).str.strip_chars()
    year_first = order == "year-month-day"
    parts = text.str.replace(r"^(.{10})t", "${1}T").str.extract_groups(
        _YEAR_FIRST if year_first else _YEAR_LAST
    )
    names = ["y", "a", "b"] if year_first else ["a", "b", "y"]
    names += ["hour", "minute", "second", "fraction", "half", "offset"]
    frame = pl.DataFrame(dict(zip(names, (parts.struct[i] for i in range(9)), strict=True)))
    month, day = ("b", "a") if order == "day-month-year" else ("a", "b")
    half, hour = pl.col("half").str.to_lowercase().str.slice(0, 1), pl.col("hour").cast(pl.Int64)
    turned = pl.when(half == "p").then(hour % 12 + 12).when(half == "a").then(hour % 12)
    # A clock of twelve hours knows neither 0 nor 13.
    turned = pl.when(half.is_null() | hour.is_between(1, 12)).then(turned.otherwise(hour))
    iso = pl.format(
        "{}-{}-{}T{}:{}:{}.{}",
        "y",
        *(pl.col(name).str.zfill(2) for name in (month, day)),
        turned.cast(pl.String).str.zfill(2),
        "minute",
        pl.col("second").fill_null("00"),
        pl.col("fraction").fill_null("0"),
    )
    stamp = iso.str.to_datetime(_ISO, strict=False, time_unit="us").dt.epoch("us")
    frame = frame.select(
        second=stamp.cast(pl.Float64) / 1e6 - _offset(), local=pl.col("offset").is_null()
    )
    return Wall(frame["second"].fill_null(np.nan).to_numpy(), frame["local"].to_numpy())


def _offset() -> pl.Expr:
    """Seconds that an offset such as +02:00 lies before UTC; 0 without one."""
    digits = pl.col("offset").str.replace_all(r"[^\d]", "").str.pad_end(4, "0")
    hours, minutes = digits.str.slice(0, 2), digits.str.slice(2, 2)
    size = 3600 * hours.cast(pl.Float64, strict=False) + 60 * minutes.cast(pl.Float64, strict=False)
    sign = pl.when(pl.col("offset").str.starts_with("-")).then(-1.0).otherwise(1.0)
    return (sign * size).fill_null(0.0)


def place(wall: Wall, zone: str | None, doubled: Doubled | None) -> Placed:
    """The stamps of one stay, in file order, in UTC."""
    local = wall.local & np.isfinite(wall.second)
    if not local.any() or zone == "UTC":
        return Placed(wall.second)
    if zone is None:
        question = (
            f"{int(local.sum()):,} dates without a zone: an hour may come twice or not at all. "
            "Say time.zone in the mapping, such as 'Europe/Berlin'."
        )
        return Placed(wall.second, (question,))
    early, late = (_in_zone(wall.second, zone, which) for which in ("earliest", "latest"))
    skipped = local & np.isnan(early)
    twice = np.flatnonzero(local & (late > early))
    second = np.where(local, early, wall.second)
    questions = []
    if skipped.any():
        shown = _shown(wall.second[np.argmax(skipped)])
        second[skipped] = wall.second[skipped]  # somewhere near; the question stops the import
        questions.append(
            f"{int(skipped.sum()):,} stamps such as {shown}, which does not exist in {zone}: the "
            "clock was not changed in spring. Say time.zone as the fixed offset that the clock "
            "kept, such as 'Etc/GMT-1', or export in UTC."
        )
    for rows in np.split(twice, np.flatnonzero(np.diff(wall.second[twice]) > 86400.0) + 1):
        if len(rows):
            passes = _passes(rows, wall.second, (early, late), doubled)
            if passes is None:
                questions.append(_undecided(wall.second[rows], zone))
            else:
                second[rows] = np.where(passes, late[rows], early[rows])
    return Placed(second, tuple(questions))


def _in_zone(second: np.ndarray, zone: str, which) -> np.ndarray:
    """Wall seconds in UTC, of a doubled hour the earliest or latest; NaN in a skipped one."""
    micro = pl.Series(np.rint(second * 1e6), nan_to_null=True, dtype=pl.Float64).cast(pl.Int64)
    stamp = micro.cast(pl.Datetime("us"))
    placed = stamp.dt.replace_time_zone(zone, ambiguous=which, non_existent="null")
    utc = placed.dt.convert_time_zone("UTC").dt.epoch("us").cast(pl.Float64)
    return utc.fill_null(np.nan).to_numpy() / 1e6


def _passes(rows, wall, placed, doubled: Doubled | None) -> np.ndarray | None:
    """Which of the rows of a doubled hour belong to its second pass; None if nobody can tell."""
    steps = np.diff(wall[rows])
    back = np.flatnonzero(steps < 0)
    again = np.any(steps == 0)
    if len(back) == 1 and not again:
        return np.arange(len(rows)) > back[0]
    if len(back) or again:
        return None
    if doubled is not None:
        return np.full(len(rows), doubled == "later")
    gaps = [_gap_around(rows, wall, one, placed[0]) for one in placed]
    if gaps[0] == gaps[1]:
        return None
    return np.full(len(rows), gaps[1] < gaps[0])


def _gap_around(rows, wall, inside, others) -> bool:
    """Whether a reading of these rows leaves an hour empty, before or after them."""
    before, after = _known(wall, int(rows[0]), -1), _known(wall, int(rows[-1]), 1)
    gaps = [inside[rows[0]] - others[before]] if before is not None else []
    gaps += [others[after] - inside[rows[-1]]] if after is not None else []
    return bool(max(gaps, default=0.0) >= 3600.0)


def _known(wall: np.ndarray, row: int, by: int) -> int | None:
    """The next row in a direction that has a time."""
    row += by
    while 0 <= row < len(wall) and np.isnan(wall[row]):
        row += by
    return row if 0 <= row < len(wall) else None


def _undecided(wall: np.ndarray, zone: str) -> str:
    first, last = _shown(float(wall.min())), _shown(float(wall.max()))
    return (
        f"{first} to {last} comes twice in {zone}, and the order of the rows does not tell which "
        "is meant. Say time.doubled = 'earlier' or 'later' where it is passed once, time.zone as "
        "a fixed offset such as 'Etc/GMT-1' if the clock was not changed, or export in UTC."
    )


def _shown(second: float) -> str:
    return str(np.datetime64(int(second), "s")).replace("T", " ")
