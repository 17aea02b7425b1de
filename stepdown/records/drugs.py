"""Infusions as two numbers: norepinephrine equivalents and the vasoactive-inotropic score.

Doses are declared in many units, some by weight. Each row is brought to one, and its share in both
numbers is written beside it:

* norepinephrine equivalents, µg/kg/min (Goradia 2021): norepinephrine + epinephrine +
  phenylephrine / 10 + dopamine / 100 + 2.5 · vasopressin in units/min;
* vasoactive-inotropic score (Gaies 2010): dopamine + dobutamine + 100 · epinephrine +
  10 · milrinone + 10,000 · vasopressin in units/kg/min + 100 · norepinephrine.
"""

from dataclasses import dataclass

import polars as pl

from stepdown.records.readers import RecordingError


@dataclass(frozen=True)
class Drug:
    """What one µg/kg/min counts; of vasopressin one unit/min, and one unit/kg/min in the score."""

    nee: float
    vis: float
    usual: tuple[float, float]  # µg/kg/min or units/min; the median of a cohort lies within
    units: bool = False  # dosed in units, not in mass


DRUGS = {
    "norepinephrine": Drug(1.0, 100.0, (0.005, 3.0)),
    "epinephrine": Drug(1.0, 100.0, (0.002, 3.0)),
    "phenylephrine": Drug(0.1, 0.0, (0.05, 15.0)),
    "dopamine": Drug(0.01, 1.0, (0.3, 40.0)),
    "vasopressin": Drug(2.5, 10_000.0, (0.002, 0.2), units=True),
    "dobutamine": Drug(0.0, 1.0, (0.3, 40.0)),
    "milrinone": Drug(0.0, 10.0, (0.03, 2.0)),
}
_AMOUNTS = {"mcg": 1.0, "ug": 1.0, "µg": 1.0, "μg": 1.0, "mg": 1000.0}
_AMOUNTS |= {"units": 1.0, "unit": 1.0, "u": 1.0, "milliunits": 0.001}
_TIMES = {"min": 1.0, "minute": 1.0, "h": 60.0, "hr": 60.0, "hour": 60.0}


def add_shares(doses: pl.DataFrame, table: str) -> pl.DataFrame:
    """Doses with what each counts in `nee` and `vis`; refused where a row cannot be a dose.

    Needs `drug`, `dose`, `unit`, `weight` in kg and `row`. A dose that needs a weight and has none
    counts as unknown.
    """
    _refuse_negative(doses, table)
    factors = {unit: _factor(unit) for unit in doses["unit"].unique().drop_nulls()}
    known = pl.DataFrame(
        [(unit, *found) for unit, found in factors.items() if found is not None],
        {"unit": pl.String, "factor": pl.Float64, "per_kg": pl.Boolean, "in_units": pl.Boolean},
        orient="row",
    )
    about = pl.DataFrame(
        [(name, d.nee, d.vis, d.units) for name, d in DRUGS.items()],
        {"drug": pl.String, "of_nee": pl.Float64, "of_vis": pl.Float64, "wants": pl.Boolean},
        orient="row",
    )
    joined = doses.join(known, "unit", "left").join(about, "drug", "left")
    _refuse_units(joined, table)
    amount = pl.col("dose") * pl.col("factor")
    by_weight = pl.when(pl.col("per_kg") | (pl.col("dose") == 0)).then(amount)
    whole = pl.when(~pl.col("per_kg") | (pl.col("dose") == 0)).then(amount)
    joined = joined.with_columns(
        rate=by_weight.otherwise(amount / pl.col("weight")),
        whole=whole.otherwise(amount * pl.col("weight")),
    )
    base = pl.when("wants").then("whole").otherwise("rate")
    shares = joined.with_columns(
        usual=base, nee=pl.col("of_nee") * base, vis=pl.col("of_vis") * pl.col("rate")
    )
    _refuse_unusual(shares, table)
    return shares.select(*doses.columns, "nee", "vis")


def _factor(unit: str) -> tuple[float, bool, bool] | None:
    """Per minute in µg or units, whether by weight, whether in units; None if it says neither."""
    amount, *rest = unit.strip().lower().replace(" ", "").split("/")
    per_kg = rest[:1] == ["kg"]
    time = rest[1:] if per_kg else rest
    if amount not in _AMOUNTS or len(time) != 1 or time[0] not in _TIMES:
        return None
    in_units = amount in ("units", "unit", "u", "milliunits")
    return _AMOUNTS[amount] / _TIMES[time[0]], per_kg, in_units


def _refuse_negative(doses: pl.DataFrame, table: str) -> None:
    for row in doses.filter(pl.col("dose") < 0).iter_rows(named=True):
        raise RecordingError(
            f"{table}, row {row['row']}: expected a dose of {row['drug']} of at least 0, got "
            f"{row['dose']:g}; correct the row or leave it out."
        )


def _refuse_units(doses: pl.DataFrame, table: str) -> None:
    wrong = doses.filter(
        (pl.col("dose") > 0)
        & (pl.col("factor").is_null() | (pl.col("in_units") != pl.col("wants")))
    )
    for row in wrong.iter_rows(named=True):
        wanted = "units/min or units/hour" if row["wants"] else "mcg/kg/min, mcg/min or mg/hour"
        raise RecordingError(
            f"{table}, row {row['row']}: expected {row['drug']} in {wanted}, got "
            f"{row['unit']!r}; convert the rate."
        )


def _refuse_unusual(doses: pl.DataFrame, table: str) -> None:
    given = doses.filter(pl.col("usual") > 0)
    medians = given.group_by("drug", maintain_order=True).agg(pl.col("usual").median())
    for name, middle in medians.iter_rows():
        low, high = DRUGS[name].usual
        if not low <= middle <= high:
            unit = "units/min" if DRUGS[name].units else "mcg/kg/min"
            raise RecordingError(
                f"{table}: expected {name} mostly at {low:g} to {high:g} {unit}, got a median of "
                f"{middle:g}; the declared unit of its rows is not theirs, correct it."
            )
