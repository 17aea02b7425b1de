"""Charts of simulated patients: points, rounded, stored later, with drugs; exact columns."""

import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stepdown.patients.charting import ChartedStay, chart_cohort
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.records.charted_tables import clif_2, clif_3, mimic_iv, truth_tables
from stepdown.signals import FLOW, MAP


@pytest.fixture(scope="module")
def simulated():
    return simulate_cohort(CohortConfig(patients=24, hours=20.0), key=jr.key(5))


@pytest.fixture(scope="module")
def stays(simulated) -> tuple[ChartedStay, ...]:
    return chart_cohort(*simulated, key=jr.key(6))


def test_about_one_rounded_point_an_hour_of_what_the_console_showed(simulated, stays):
    cohort, _ = simulated
    counts, hours = 0, 0.0
    for row, stay in enumerate(stays):
        hours += stay.minutes / 60
        for name, column, digit in (("map", MAP, 1.0), ("flow", FLOW, 0.1)):
            if name not in stay.lines:
                continue
            line = stay.lines[name]
            shown = np.asarray(cohort.signals)[row, (line.minute / 10).astype(int), column]
            np.testing.assert_allclose(line.value, shown, atol=0.501 * digit)
            np.testing.assert_allclose(line.value / digit, np.rint(line.value / digit), atol=1e-6)
        counts += len(stay.lines["hr"].minute)
    assert counts / hours == pytest.approx(0.95, abs=0.05)


def test_nothing_is_stored_before_it_is_charted_and_some_of_it_hours_later(stays):
    lines = [line for stay in stays for line in stay.lines.values()]
    delay = np.concatenate([line.stored - line.minute for line in lines])
    assert delay.min() >= 1
    assert np.mean(delay > 60) == pytest.approx(0.06, abs=0.02)
    assert np.median(delay) == pytest.approx(7, abs=1)


def test_every_change_of_level_is_charted(simulated, stays):
    cohort, _ = simulated
    for row, stay in enumerate(stays):
        if "level" not in stay.lines:
            assert stay.kind == "no pump"
            continue
        line = stay.lines["level"]
        steps = np.arange(int(stay.minutes // 10))
        entry = np.searchsorted(line.minute, steps * 10.0, side="right") - 1
        np.testing.assert_array_equal(line.value[entry], np.asarray(cohort.level)[row, steps])


def test_infusions_are_the_hidden_drugs(simulated, stays):
    _, latents = simulated
    pressor = np.asarray(latents.course.pressor)
    for row, stay in enumerate(stays):
        rate = np.zeros(20)
        for infusion in stay.infusions:
            assert infusion.end > infusion.start
            if infusion.drug == "norepinephrine":
                rate[int(infusion.start // 60) : int(infusion.end // 60)] = infusion.rate
        hours = int(stay.minutes // 60)
        np.testing.assert_allclose(rate[:hours], 0.5 * pressor[row, :hours], atol=0.0051)


def test_the_same_key_gives_the_same_charts(simulated, stays):
    again = truth_tables(chart_cohort(*simulated, key=jr.key(6)))
    for name, table in truth_tables(stays).items():
        assert again[name].equals(table)


def test_tables_have_the_columns_of_their_formats(stays):
    """As CLIF's dictionary and MIMIC-IV's documentation list them (docs/real-data.md)."""
    assert clif_3(stays)["clif_mcs"].columns == [
        "hospitalization_id",
        "recorded_dttm",
        "support_category",
        "device_category",
        "config_category",
        "setting_category",
        "setting_value",
    ]
    assert clif_3(stays)["clif_vitals"].columns == [
        "hospitalization_id",
        "recorded_dttm",
        "measured_dttm",
        "vital_category",
        "vital_value",
        "meas_site_name",
    ]
    assert {"control_parameter_value", "sweep_set"} <= set(clif_2(stays)["clif_ecmo_mcs"].columns)
    rates = clif_2(stays, rates=True)["clif_ecmo_mcs"].columns
    assert {"device_metric_name", "device_rate", "sweep"} <= set(rates)
    chart = mimic_iv(stays)["icu/chartevents"]
    assert chart.columns == [
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
    entries = sum(len(stay.lines["hr"].minute) for stay in stays)
    assert chart.filter(pl.col("itemid") == 220045).height == entries
