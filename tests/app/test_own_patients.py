"""Patients of one's own: a table as people write it, followed as it grows, by models that fit."""

import dataclasses
import time

import numpy as np
import pytest

from stepdown.app.own_patients import Own, available, changed, in_columns, read_own, serving
from stepdown.app.recordings import Loaded, request_at
from stepdown.commands.app import AppConfig
from stepdown.records.files import read_cohort, write_cohort
from stepdown.records.split import read_parts
from stepdown.signals import NAMES
from tests.app.exports import rows_of, write_export
from tests.app.small_run import Client, make_service

WITHIN = 2.0  # s until new rows are seen


@pytest.fixture
def table(service, tmp_path):
    """A table with ten hours of a patient, and the mapping beside it."""
    stay = next(x for x in service.stays.values() if (x.level[:72] > 0).all())
    return stay, write_export(tmp_path, stay, 60)


@pytest.fixture
def own(run, table, tmp_path):
    path = Own(table[1], tmp_path / "mapping.toml")
    made = make_service(run, tmp_path / "state", patients=path)
    yield made
    made.stop()


def test_a_table_with_local_dates_is_served_and_followed(own, table):
    """Ten hours, then twelve: within two seconds the screen has what was written."""
    stay, file = table
    client = Client(own)
    (row,) = client.get("/v1/patients").json()["patients"]
    assert (row["patient"], row["recorded_hours"]) == ("A1", 9.8)
    assert row["p_now"] == stay.level[59]
    trend = client.get("/v1/patients/A1/trends?hours=1").json()
    assert trend["channels"]["lactate"]["values"][-1] == 1.8
    assert trend["channels"]["map"]["values"][-1] == pytest.approx(stay.signals[59, 0], abs=0.6)
    answer = client.post("/v1/patients/A1/whatif", {}).json()
    assert answer["status"] in ("ok", "refused")
    assert answer["now"]["map"]["value"] == trend["channels"]["map"]["values"][-1]
    assert set(answer["quality"]["absent"]) == set(NAMES) - {
        "map", "hr", "sbp", "dbp", "pulsatility", "flow",
    }  # fmt: skip

    with file.open("a", encoding="utf-8") as table_file:
        table_file.write("\n".join(rows_of(stay, "A1", 60, 72)) + "\nA1;07.03")  # being written
    begun = time.monotonic()
    while row["recorded_hours"] != 11.8 and time.monotonic() - begun < 4 * WITHIN:
        time.sleep(0.05)
        row = client.get("/v1/patients/A1").json()
    seen = time.monotonic() - begun
    client.close()
    assert row["recorded_hours"] == 11.8, own.trouble
    assert seen < WITHIN


def test_a_file_that_cannot_be_read_keeps_what_was_there_and_says_so(own, table):
    stay, file = table
    client = Client(own)
    file.write_text("Fall;Zeit\n", encoding="utf-8")
    own.read_again()
    told = client.get("/v1/patients").json()
    assert [row["patient"] for row in told["patients"]] == ["A1"]
    assert "could not be read" in told["trouble"]
    assert str(file) not in told["trouble"]
    write_export(file.parent, stay, 66)
    own.read_again()
    told = client.get("/v1/patients").json()
    client.close()
    assert told["trouble"] is None
    assert [row["recorded_hours"] for row in told["patients"]] == [10.8]


def test_an_answer_about_a_patient_of_ones_own_replays_after_more_rows_came(own, table):
    stay, file = table
    client = Client(own)
    answer = client.post("/v1/patients/A1/whatif", {}).json()
    write_export(file.parent, stay, 72)
    own.read_again()
    again = client.get(f"/v1/audit/{answer['audit_id']}/replay")
    client.close()
    assert (again.status_code, again.json()) == (200, answer)


def test_a_cohort_that_the_models_were_fitted_on_is_refused(run, tmp_path):
    parts = read_parts(run / "cohort")
    with pytest.raises(ValueError, match="expected patients that the model has never seen"):
        read_own(Own(run / "cohort"), run, "cp", 6)
    write_cohort(tmp_path / "mine.parquet", parts.test)
    found = read_own(Own(tmp_path / "mine.parquet"), run, "cp", 6)
    assert sorted(found) == sorted(read_cohort(tmp_path / "mine.parquet").patient)


def test_columns_without_patients_say_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match="expected --patients with the recordings"):
        AppConfig(tmp_path, columns=tmp_path / "mapping.toml")


def test_what_changed_is_who_is_new_gone_longer_or_mended(service):
    stays = dict(list(service.stays.items())[:4])
    one, two, three, four = stays
    longer = dataclasses.replace(stays[two], level=stays[two].level[:-1],
                                 signals=stays[two].signals[:-1])  # fmt: skip
    mended = dataclasses.replace(stays[three], signals=stays[three].signals + 1)
    found = {two: longer, three: mended, four: stays[four], "new": stays[four]}
    assert changed(stays, found) == {one, two, three, "new"}


def test_models_with_fewer_signals_serve_who_has_fewer(service, further, tmp_path):
    """The models that read most of what is there; who answered is told."""
    loaded = service.loaded
    wide = Loaded(dataclasses.replace(further.engine, model={"sha256": "w"}), {}, {}, {})
    stay = next(iter(service.stays.values()))
    names = available(stay)
    assert serving([wide, loaded], names) is loaded  # lacks lactate
    assert serving([wide, loaded], names | {"lactate"}) is wide
    assert serving([wide, loaded], {"map"}) is wide  # nobody can: the first fills
    made = make_service(service.config.run, tmp_path, load=False)
    made.loaded, made.runs, made.stays = wide, [wide, loaded], service.stays
    source = {"patient": stay.patient, "minute": stay.last}
    answer = made.compute(
        request_at(in_columns(stay, loaded.engine.columns), stay.last), source
    ).answer
    made.stop()
    assert answer["model"]["sha256"] == loaded.engine.model["sha256"]
    if answer["status"] == "ok":
        assert answer["reasons"][0].startswith("Answered by the models with fewer signals")


def test_a_stay_gets_the_columns_that_models_expect(service):
    stay = next(iter(service.stays.values()))
    wider = in_columns(stay, (*NAMES, "lactate"))
    np.testing.assert_array_equal(wider.signals[:, : len(NAMES)], stay.signals)
    assert np.isnan(wider.signals[:, -1]).all()
    assert in_columns(stay, stay.columns) is stay
