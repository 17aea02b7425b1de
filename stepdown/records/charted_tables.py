"""Charted stays as the tables that hospitals share: CLIF 3.0, CLIF 2.1 and MIMIC-IV.

Written to try out the import, so nothing here is taken from it: names and ids stand here a second
time. The columns are those of the formats, in their order; a column that the simulator knows
nothing about is empty.
"""

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

from stepdown.patients.charting import ChartedStay, Line

Tables = dict[str, pl.DataFrame]  # file, without its ending -> rows
MINUTE = timedelta(minutes=1)


def truth_tables(stays: Sequence[ChartedStay]) -> Tables:
    """What was charted, as it was: stays, entries and infusions, minutes since each stay began."""
    about = [
        {"patient": s.patient, "id": str(number), "kind": s.kind, "minutes": float(s.minutes)}
        for number, s in _numbered(stays)
    ]
    entries = [
        (str(number), name, float(minute), float(stored), float(value))
        for number, stay in _numbered(stays)
        for name, line in stay.lines.items()
        for minute, stored, value in _rows(line)
    ]
    doses = [
        {"id": str(number), **vars(infusion), "weight": stay.weight}
        for number, stay in _numbered(stays)
        for infusion in stay.infusions
    ]
    names = ("id", "name", "minute", "stored", "value")
    return {
        "stays": pl.DataFrame(about),
        "entries": pl.DataFrame(entries, names, orient="row"),
        "infusions": pl.DataFrame(doses),
    }


def to_csv_gz(table: pl.DataFrame) -> Callable[[Path], None]:
    """Who writes this table as csv.gz, every time the same bytes."""

    def write(file: Path) -> None:
        text = table.write_csv(datetime_format="%Y-%m-%d %H:%M:%S").encode()
        file.write_bytes(gzip.compress(text, 6, mtime=0))

    return write


def to_csv(table: pl.DataFrame) -> Callable[[Path], None]:
    """Who writes this table as CSV with times in UTC."""
    return lambda file: table.write_csv(file, datetime_format="%Y-%m-%dT%H:%M:%SZ")


# ── CLIF ─────────────────────────────────────────────────────────────────────────────────────────

_CLIF_3_DEVICE = {
    "right": ("rvad", "impella", "rp"),
    "5.5": ("lvad", "impella", "5_5"),
    "unnamed": ("lvad", "impella", None),
}
_CLIF_2_DEVICE = {
    "right": ("impella_rp", "temporary_rvad"),
    "5.5": ("impella_5_5", "impella_lvad"),
    "unnamed": ("impella_lv_other_unspec", "impella_lvad"),
}
_CLIF_PRESSURES = {"cvp": "cvp", "pas": "pa_systolic", "pad": "pa_diastolic", "pam": "pa_mean"}
_CLIF_VITALS = {"map": "map", "sbp": "sbp", "dbp": "dbp", "hr": "heart_rate"}


def clif_3(stays: Sequence[ChartedStay]) -> Tables:
    """CLIF 3.0: `mcs` has a row for every setting, and vitals say when they were measured."""
    mcs, vitals = [], []
    for number, stay in _numbered(stays):
        who = {"hospitalization_id": str(20_000_000 + number)}
        left = ("lvad", "impella", "cp")
        support, device, config = _CLIF_3_DEVICE.get(stay.kind, left)
        about = {"support_category": support, "device_category": device, "config_category": config}
        for setting, line in _settings(stay):
            for minute, _, value in _rows(line):
                when = {"recorded_dttm": stay.start + int(minute) * MINUTE}
                mcs.append(
                    who | when | about | {"setting_category": setting, "setting_value": value}
                )
        if stay.kind in ("ecmo", "balloon"):
            kind = {"ecmo": ("ecmo", "centrimag", "va"), "balloon": ("iabp", "iabp", None)}
            names = ("support_category", "device_category", "config_category")
            when = {"recorded_dttm": stay.start + 90 * MINUTE}
            other = dict(zip(names, kind[stay.kind], strict=True))
            flow = {"setting_category": "flow", "setting_value": 3.5}
            mcs.append(who | when | other | flow)
        for category, site, minute, stored, value in _vitals(stay):
            vitals.append(
                who
                | {
                    "recorded_dttm": stay.start + int(stored) * MINUTE,
                    "measured_dttm": stay.start + int(minute) * MINUTE,
                    "vital_category": category,
                    "vital_value": value,
                    "meas_site_name": site,
                }
            )
    both = {"clif_mcs": mcs, "clif_vitals": vitals}
    tables = {name: pl.DataFrame(x, infer_schema_length=None) for name, x in both.items()}
    return {name: _utc(table) for name, table in (tables | _clif_both(stays)).items()}


def clif_2(stays: Sequence[ChartedStay], *, rates: bool = False) -> Tables:
    """CLIF 2.1: `ecmo_mcs` in either variant; `rates` is the one with `device_rate`."""
    names = {"rpm": ("Pump speed", "rpm"), "performance": ("Performance Level", "impella_power")}
    rows, vitals = [], []
    for number, stay in _numbered(stays):
        who = {"hospitalization_id": str(20_000_000 + number)}
        device, group = _CLIF_2_DEVICE.get(stay.kind, ("impella_cp", "impella_lvad"))
        about = {"device_name": device, "device_category": device, "mcs_group": group}
        for setting, line in _settings(stay):
            name, category = names.get(setting, (None, None))
            for minute, _, value in _rows(line):
                when = {"recorded_dttm": stay.start + int(minute) * MINUTE}
                number_set = value if name else None
                parameter: dict[str, Any] = (
                    {"device_metric_name": name, "device_rate": number_set}
                    if rates
                    else {
                        "control_parameter_name": name,
                        "control_parameter_category": category,
                        "control_parameter_value": number_set,
                    }
                )
                rows.append(who | when | about | parameter | {"flow": None if name else value})
        if stay.kind in ("ecmo", "balloon"):
            other = {"ecmo": ("ecmo_other_unspec", "ecmo"), "balloon": ("iabp", "iabp")}[stay.kind]
            when = {"recorded_dttm": stay.start + 90 * MINUTE, "flow": 3.5}
            about = dict(zip(about, (other[0], *other), strict=True))
            rows.append(who | when | about)
        for category, site, minute, _, value in _vitals(stay):
            label = {"arterial": "Arterial Blood Pressure", "cuff": "Non Invasive Blood Pressure"}
            vitals.append(
                who
                | {
                    "recorded_dttm": stay.start + int(minute) * MINUTE,
                    "vital_name": f"{label[site]} {category}" if site else "Heart Rate",
                    "vital_category": category,
                    "vital_value": value,
                    "meas_site_name": None,
                }
            )
    gas = ("sweep", "fdO2") if rates else ("sweep_set", "fdO2_set")
    support = pl.DataFrame(rows, infer_schema_length=None).with_columns(
        *(pl.lit(None, pl.Float64).alias(name) for name in gas)
    )
    sites = pl.DataFrame(vitals, schema_overrides={"meas_site_name": pl.String})
    tables = {"clif_ecmo_mcs": support, "clif_vitals": sites}
    return {name: _utc(table) for name, table in (tables | _clif_both(stays)).items()}


def _clif_both(stays: Sequence[ChartedStay]) -> Tables:
    """The tables that have not changed between the versions."""
    admitted, moves, doses, people = [], [], [], []
    for number, stay in _numbered(stays):
        who = {"hospitalization_id": str(20_000_000 + number)}
        begin, end = stay.start - 120 * MINUTE, stay.start + int(stay.minutes + 240) * MINUTE
        fate = "Expired" if stay.died else "Home"
        admitted.append(
            {"patient_id": str(10_000_000 + number)}
            | who
            | {"admission_dttm": begin, "discharge_dttm": end}
            | {"age_at_admission": stay.age, "discharge_category": fate}
        )
        death = stay.start + int(stay.minutes) * MINUTE if stay.died else None
        people.append({"patient_id": str(10_000_000 + number), "death_dttm": death})
        moves.append(who | {"in_dttm": begin, "out_dttm": end, "location_category": "icu"})
        doses += [who | row for row in _administered(stay)]
    schema: Any = {"age_at_admission": pl.Int64}
    deaths: Any = {"death_dttm": pl.Datetime("us")}
    tables = {
        "clif_patient": pl.DataFrame(people, schema_overrides=deaths),
        "clif_hospitalization": pl.DataFrame(admitted, schema_overrides=schema),
        "clif_adt": pl.DataFrame(moves),
        "clif_medication_admin_continuous": pl.DataFrame(doses),
        "clif_invasive_hemodynamics": pl.DataFrame(list(_clif_hemodynamics(stays))),
        "clif_labs": pl.DataFrame(list(_clif_labs(stays))),
    }
    return {name: table for name, table in tables.items() if table.height}


def _clif_hemodynamics(stays: Sequence[ChartedStay]) -> Iterator[dict[str, Any]]:
    """Central venous and pulmonary pressures."""
    for number, stay in _numbered(stays):
        for name in _CLIF_PRESSURES.keys() & stay.lines.keys():
            for minute, _, value in _rows(stay.lines[name]):
                yield {
                    "hospitalization_id": str(20_000_000 + number),
                    "recorded_dttm": stay.start + int(minute) * MINUTE,
                    "measurement_category": _CLIF_PRESSURES[name],
                    "measurement_value": value,
                }


def _clif_labs(stays: Sequence[ChartedStay]) -> Iterator[dict[str, Any]]:
    """Lactate: drawn, and known when the result is there."""
    for number, stay in _numbered(stays):
        for minute, stored, value in (
            _rows(stay.lines["lactate"]) if "lactate" in stay.lines else ()
        ):
            yield {
                "hospitalization_id": str(20_000_000 + number),
                "lab_collect_dttm": stay.start + int(minute) * MINUTE,
                "lab_result_dttm": stay.start + int(stored) * MINUTE,
                "lab_category": "lactate",
                "lab_value_numeric": value,
                "reference_unit": "mmol/L",
            }


def _administered(stay: ChartedStay) -> Iterator[dict[str, Any]]:
    """A row for every change of a rate; every other stay has its norepinephrine in mcg/min."""
    plain = int(stay.weight * 10) % 2 == 0
    for infusion in stay.infusions:
        per_kg = plain or infusion.drug != "norepinephrine"
        unit = "mcg/kg/min" if per_kg else "mcg/min"
        dose = infusion.rate if per_kg else round(infusion.rate * stay.weight, 4)
        about = {"med_category": infusion.drug}
        for minute, action, value in ((infusion.start, "start", dose), (infusion.end, "stop", 0.0)):
            again = action == "stop" and any(
                other.drug == infusion.drug and other.start == minute for other in stay.infusions
            )
            if not again:  # the next rate says it
                yield {
                    "admin_dttm": stay.start + int(minute) * MINUTE,
                    **about,
                    "mar_action_category": action,
                    "med_dose": value,
                    "med_dose_unit": unit,
                }


def _settings(stay: ChartedStay) -> Iterator[tuple[str, Line]]:
    """What the pump was set to and gave, by CLIF's name."""
    for setting, name in (("performance", "level"), ("flow", "flow"), ("rpm", "speed")):
        if name in stay.lines:
            yield setting, stay.lines[name]


def _vitals(stay: ChartedStay) -> Iterator[tuple[str, str | None, float, float, float]]:
    """Category, site, chart and store minute, value."""
    for name, line in stay.lines.items():
        category = _CLIF_VITALS.get(name.removeprefix("cuff "))
        if category is None:
            continue
        site = None if name == "hr" else "cuff" if name.startswith("cuff") else "arterial"
        yield from ((category, site, *row) for row in _rows(line))
    yield "weight_kg", None, 0.0, 0.0, stay.weight


def _utc(table: pl.DataFrame) -> pl.DataFrame:
    times = [name for name in table.columns if name.endswith("_dttm")]
    return table.with_columns(pl.col(times).cast(pl.Datetime("us")).dt.replace_time_zone("UTC"))


# ── MIMIC-IV ─────────────────────────────────────────────────────────────────────────────────────

# item, label, unit, kind of value, table
_ITEMS = {
    "level": (228156, "Performance Level", None, "Text", "chartevents"),
    "right level": (229675, "Performance Level (R)", None, "Text", "chartevents"),
    "flow": (228154, "Flow Rate (Impella)", "L/min", "Numeric", "chartevents"),
    "right flow": (229671, "Flow Rate (Impella) (R)", "L/min", "Numeric", "chartevents"),
    "lvedp": (229898, "LVEDP (Impella)", "mmHg", "Numeric", "chartevents"),
    "catheter": (229679, "Type of Catheter (Impella)", None, "Text", "chartevents"),
    "sbp": (220050, "Arterial Blood Pressure systolic", "mmHg", "Numeric", "chartevents"),
    "dbp": (220051, "Arterial Blood Pressure diastolic", "mmHg", "Numeric", "chartevents"),
    "map": (220052, "Arterial Blood Pressure mean", "mmHg", "Numeric", "chartevents"),
    "cuff sbp": (220179, "Non Invasive Blood Pressure systolic", "mmHg", "Numeric", "chartevents"),
    "cuff dbp": (220180, "Non Invasive Blood Pressure diastolic", "mmHg", "Numeric", "chartevents"),
    "cuff map": (220181, "Non Invasive Blood Pressure mean", "mmHg", "Numeric", "chartevents"),
    "hr": (220045, "Heart Rate", "bpm", "Numeric", "chartevents"),
    "ecmo": (229270, "Flow (ECMO)", "L/min", "Numeric", "chartevents"),
    "balloon": (225980, "IABP Volume", "mL", "Numeric", "chartevents"),
    "cvp": (220074, "Central Venous Pressure", "mmHg", "Numeric", "chartevents"),
    "pas": (220059, "Pulmonary Artery Pressure systolic", "mmHg", "Numeric", "chartevents"),
    "pad": (220060, "Pulmonary Artery Pressure diastolic", "mmHg", "Numeric", "chartevents"),
    "pam": (220061, "Pulmonary Artery Pressure mean", "mmHg", "Numeric", "chartevents"),
    "weight": (226512, "Admission Weight (Kg)", "kg", "Numeric", "chartevents"),
    "temperature": (223761, "Temperature Fahrenheit", "°F", "Numeric", "chartevents"),
    "norepinephrine": (221906, "Norepinephrine", "mg", "Solution", "inputevents"),
    "dobutamine": (221653, "Dobutamine", "mg", "Solution", "inputevents"),
}
_D_ITEMS = ["itemid", "label", "abbreviation", "linksto", "category", "unitname", "param_type"]
_D_ITEMS += ["lownormalvalue", "highnormalvalue"]
_ICUSTAYS = ["subject_id", "hadm_id", "stay_id", "first_careunit", "last_careunit", "intime"]
_ICUSTAYS += ["outtime", "los"]
_CHARTEVENTS = [
    "subject_id",
    "hadm_id",
    "stay_id",
    "caregiver_id",
    "charttime",
    "storetime",
    "itemid",
    "value",
    "valuenum",
    "valueuom",
    "warning",
]
_INPUTEVENTS = [
    "subject_id",
    "hadm_id",
    "stay_id",
    "caregiver_id",
    "starttime",
    "endtime",
    "storetime",
    "itemid",
    "amount",
    "amountuom",
    "rate",
    "rateuom",
    "orderid",
    "linkorderid",
    "ordercategoryname",
    "secondaryordercategoryname",
    "ordercomponenttypedescription",
    "ordercategorydescription",
    "patientweight",
    "totalamount",
    "totalamountuom",
    "isopenbag",
    "continueinnextdept",
    "statusdescription",
    "originalamount",
    "originalrate",
]
_PATIENTS = ["subject_id", "gender", "anchor_age", "anchor_year", "anchor_year_group", "dod"]
_ADMISSIONS = [
    "subject_id",
    "hadm_id",
    "admittime",
    "dischtime",
    "deathtime",
    "admission_type",
    "admit_provider_id",
    "admission_location",
    "discharge_location",
    "insurance",
    "language",
    "marital_status",
    "race",
    "edregtime",
    "edouttime",
    "hospital_expire_flag",
]
_LABEVENTS = [
    "labevent_id",
    "subject_id",
    "hadm_id",
    "specimen_id",
    "order_provider_id",
    "itemid",
    "charttime",
    "storetime",
    "value",
    "valuenum",
    "valueuom",
    "ref_range_lower",
    "ref_range_upper",
    "flag",
    "priority",
    "comments",
]
_CATHETERS = {"5.5": "5.5", "right": "RP", "no pump": None, "unnamed": None}


def mimic_iv(stays: Sequence[ChartedStay]) -> Tables:
    """MIMIC-IV: stays, items, charted values and infusions; of `hosp`, lactate, age and fate."""
    charted, infused, about = [], [], []
    for number, stay in _numbered(stays):
        who = (10_000_000 + number, 20_000_000 + number, 30_000_000 + number)
        begin, end = stay.start - 120 * MINUTE, stay.start + int(stay.minutes + 240) * MINUTE
        days = (stay.minutes + 360) / 1440
        about.append((*who, "CCU", "CCU", begin, end, days))
        for name, minute, stored, text, value in _mimic_rows(stay):
            item, _, unit, _, _ = _ITEMS[name]
            times = (stay.start + int(minute) * MINUTE, stay.start + int(stored) * MINUTE)
            charted.append((*who, None, *times, item, text, value, unit, 0))
        infused += [(*who, *row) for row in _mimic_infusions(stay)]
    items = [
        (item, label, label, table, "Charted", unit, kind, None, None)
        for item, label, unit, kind, table in _ITEMS.values()
    ]
    return {
        "icu/d_items": _table(items, _D_ITEMS),
        "icu/icustays": _table(about, _ICUSTAYS),
        "icu/chartevents": _table(charted, _CHARTEVENTS),
        "icu/inputevents": _table(infused, _INPUTEVENTS),
        **_hosp(stays),
    }


def _hosp(stays: Sequence[ChartedStay]) -> Tables:
    people, admitted, labs = [], [], []
    for number, stay in _numbered(stays):
        who = (10_000_000 + number, 20_000_000 + number)
        begin, end = stay.start - 120 * MINUTE, stay.start + int(stay.minutes + 240) * MINUTE
        death = stay.start + int(stay.minutes) * MINUTE if stay.died else None
        age = None if stay.age is None else stay.age - 2  # two years before this stay
        people.append((who[0], None, age, begin.year - 2, None, None))
        admitted.append((*who, begin, end, death, *[None] * 10, int(stay.died)))
        rows = _rows(stay.lines["lactate"]) if "lactate" in stay.lines else ()
        for minute, stored, value in rows:
            times = (stay.start + int(minute) * MINUTE, stay.start + int(stored) * MINUTE)
            about = (len(labs), who[0], None, len(labs), None, 50813, *times)
            labs.append((*about, f"{value:g}", value, "mmol/L", 0.5, 2.0, *[None] * 3))
    tables = {
        "hosp/patients": _table(people, _PATIENTS),
        "hosp/admissions": _table(admitted, _ADMISSIONS),
        "hosp/d_labitems": _table(
            [(50813, "Lactate", "Blood", "Blood Gas")], ["itemid", "label", "fluid", "category"]
        ),
    }
    return tables | ({"hosp/labevents": _table(labs, _LABEVENTS)} if labs else {})


def _mimic_rows(stay: ChartedStay) -> Iterator[tuple[str, float, float, str, float | None]]:
    """Item, chart and store minute, text, number."""
    catheter = _CATHETERS.get(stay.kind, "2.5 / CP")
    if catheter is not None:
        yield "catheter", 0.0, 9.0, catheter, None
    if stay.kind in ("ecmo", "balloon"):
        yield stay.kind, 90.0, 95.0, "3.5", 3.5
    yield "weight", 0.0, 5.0, f"{stay.weight:g}", stay.weight
    yield "temperature", 30.0, 35.0, "98.6", 98.6
    for name, line in stay.lines.items():
        item = f"right {name}" if stay.kind == "right" and name in ("level", "flow") else name
        if item not in _ITEMS:
            continue  # MIMIC-IV has no speed of this pump
        for minute, stored, value in _rows(line):
            if name == "level":
                yield item, minute, stored, f"P-{value:.0f}", None
            else:
                yield item, minute, stored, f"{value:g}", value


def _mimic_infusions(stay: ChartedStay) -> Iterator[tuple[Any, ...]]:
    """The columns after the three ids."""
    for order, infusion in enumerate(stay.infusions):
        item = _ITEMS[infusion.drug][0]
        begin, end, stored = (
            stay.start + int(x) * MINUTE for x in (infusion.start, infusion.end, infusion.stored)
        )
        amount = infusion.rate * stay.weight * (infusion.end - infusion.start) / 1000
        words = ("01-Drips", None, "Main order parameter", "Continuous Med")
        tail = (stay.weight, None, None, 0, 0, "ChangeDose/Rate", amount, infusion.rate)
        head = (None, begin, end, stored, item, amount, "mg", infusion.rate, "mcg/kg/min")
        yield (*head, order, order, *words, *tail)


def _table(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(rows, names, orient="row", infer_schema_length=None)


def _numbered(stays: Sequence[ChartedStay]) -> Iterable[tuple[int, ChartedStay]]:
    return enumerate(stays, start=1)


def _rows(line: Line) -> Iterator[tuple[float, float, float]]:
    """Chart minute, store minute, value."""
    columns = (line.minute, line.stored, line.value)
    yield from zip(*(column.tolist() for column in columns), strict=True)
