"""The server with its real models: paths, fences, refusals, and the same bytes on replay."""

import json
import random
import shutil
import socket
import threading

import httpx
import pytest

from stepdown.app.gates import refusal_codes
from stepdown.app.limits import read_site
from stepdown.app.security import hash_token
from stepdown.artifacts import CONFIG, config_to_dict, write_folder
from stepdown.commands.app import AppConfig, open_door, serve
from stepdown.records.files import COHORT, KIND
from tests.app.sample_sizes import count
from tests.app.small_run import COHORT_CONFIG, Client, beside, make_service


@pytest.fixture(scope="module")
def patient(service):
    return sorted(service.stays)[0]


@pytest.fixture
def own(run, tmp_path):
    """A server with an audit of its own."""
    service = make_service(run, tmp_path / "state")
    made = Client(service)
    yield made
    made.close()
    service.stop()


def ask(client, patient, **query) -> httpx.Response:
    return client.post(f"/v1/patients/{patient}/whatif", {}, params=query)


def body_of(client, patient) -> dict:
    """A valid body, taken from a recorded moment."""
    number = ask(client, patient).json()["audit_id"]
    return client.get(f"/v1/audit/{number}").json()["body"]["request"]


def test_ready_only_after_loading_and_alive_before(run, tmp_path):
    """S3."""
    service = make_service(run, tmp_path, load=False)
    client = Client(service)
    assert client.get("/healthz").json() == {"status": "alive"}
    waiting = client.get("/readyz")
    assert (waiting.status_code, waiting.json()["status"]) == (503, "warming")
    assert waiting.headers["retry-after"] == "2"
    sent = {"t_end": "2000-01-01T01:00:00+00:00", "channels": {}}
    assert client.post("/v1/whatif", sent).status_code == 503
    service.load()
    assert client.get("/readyz").json()["status"] == "ready"
    client.close()
    service.stop()


def test_a_damaged_model_is_never_served(run, tmp_path):
    """R13: not ready, refused answers without numbers, recordings still there."""
    broken = tmp_path / "run"
    shutil.copytree(run, broken)
    file = broken / "twin" / "arrays.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    service = make_service(broken, tmp_path / "state")
    client = Client(service)
    told = [client.get(path).text for path in ("/readyz", "/v1/model")]
    assert not [text for text in told if str(tmp_path) in text]  # no paths for strangers
    assert str(broken) in service.problem
    assert client.get("/readyz").json()["code"] == "R13"
    patient = client.get("/v1/patients").json()["patients"][0]["patient"]
    answer = ask(client, patient).json()
    assert [one["code"] for one in answer["refusals"]] == ["R13"]
    assert all(one["quantiles"] is None for one in answer["candidates"])
    assert client.get(f"/v1/patients/{patient}/trends").status_code == 200
    replayed = client.get(f"/v1/audit/{answer['audit_id']}/replay")
    assert replayed.json() == answer
    client.close()
    service.stop()


UNKNOWN_PUMP = json.dumps(config_to_dict(COHORT_CONFIG) | {"profile": "other"})


@pytest.mark.parametrize(
    ("config", "words"),
    [(UNKNOWN_PUMP, "one of the pumps 2.5, cp, got 'other'"), ("[]", "got AttributeError")],
)
def test_a_run_that_cannot_be_loaded_does_not_warm_up_forever(run, tmp_path, config, words):
    odd = tmp_path / "run"
    shutil.copytree(run, odd)
    shutil.rmtree(odd / "cohort")
    files = {COHORT: (run / "cohort" / COHORT).read_bytes(), CONFIG: config.encode()}
    write_folder(odd / "cohort", files, kind=KIND, about={})
    service = make_service(odd, tmp_path / "state", load=False)
    service.start()
    service.worker.submit(lambda: None).result()  # after the loading
    service.stop()
    assert service.phase == "refused"
    assert words in service.problem


def test_the_list_shows_test_patients_with_what_the_screen_needs(client, service):
    service.review_all()
    rows = client.get("/v1/patients").json()["patients"]
    assert {row["patient"] for row in rows} == set(service.stays)
    ranks = [(row["review"] or {"rank": 9})["rank"] for row in rows]
    assert ranks == sorted(ranks)
    for row in rows:
        assert row["pump_label"] == "CP SmartAssist"
        assert row["age_min"] == 0.0
        assert row["hours_on_support"] == pytest.approx(23.8, abs=0.1)
        assert row["quality"] in ("good", "check", "poor")


def test_trends_are_the_recording_with_gaps_as_gaps(client, service, patient):
    stay = service.stays[patient]
    found = client.get(f"/v1/patients/{patient}/trends", params={"at": "600", "hours": 12}).json()
    values = found["channels"]["map"]["values"]
    assert found["minutes"][-1] == 600.0
    assert found["times"][-1] == "2000-01-01T10:00:00+00:00"
    assert values[-1] == pytest.approx(stay.signals[60, 0], abs=0.06)
    assert values[:12] == [None] * 12  # before the start of support
    assert found["p_levels"][-1] == stay.level[60]
    same = client.get(f"/v1/patients/{patient}/trends", params={"at": found["now"], "hours": 12})
    assert same.json() == found


def test_quality_counts_what_is_recorded(client, patient):
    found = client.get(f"/v1/patients/{patient}/quality").json()
    assert found["chip"] == "good"
    assert found["channels"]["map"]["samples"] == 144
    assert found["channels"]["map"]["missing_share"] == 0.0
    assert found["channels"]["map"]["hard_range"] == [0.0, 250.0]


def test_an_answer_is_audited_and_replays_to_the_same_bytes(client, patient):
    """A3, W23: many moments, two presets, refused ones too."""
    draw, same = random.Random(0), 0
    patients = sorted(client.service.stays)
    replays = count(20, 100)
    for _ in range(replays):
        query = {"at": str(draw.randrange(100, 1450)), "h": draw.choice([1, 6])}
        query |= draw.choice([{}, {"limits": "map65"}])
        first = ask(client, draw.choice(patients), **query)
        again = client.get(f"/v1/audit/{first.json()['audit_id']}/replay")
        same += first.content == again.content and again.headers["x-replay"] == "same"
    assert same == replays
    assert client.get("/v1/audit/verify").json()["valid"]


def test_a_posted_moment_is_answered_as_the_recorded_one(client, patient):
    recorded = ask(client, patient).json()
    posted = client.post("/v1/whatif", body_of(client, patient)).json()
    for name in ("status", "candidates", "acceptable", "suggested", "now", "reasons"):
        assert posted[name] == recorded[name]
    assert posted["skill"] is posted["source"] is None  # nobody knows whose record that is
    assert recorded["source"] == {"patient": patient, "minute": 1430.0}
    assert recorded["at"] == recorded["t_end"] == "2000-01-01T23:50:00+00:00"
    assert recorded["skill"]["of"] > 10


def test_the_audit_can_be_verified_while_it_is_written(own, patient):
    calls = [("POST", f"/v1/patients/{patient}/whatif", {}), ("GET", "/v1/audit/verify", None)]
    found = own.together(*calls * 8)
    assert all(one.json()["valid"] for one in found[1::2])


def test_limits_change_lines_counts_and_audit(own, patient):
    """W12."""
    before = ask(own, patient).json()
    asked = {"preset": "map65", "by": "ab"}
    assert own.post("/v1/limits", asked).status_code == 403  # no CSRF token
    changed = own.post("/v1/limits", asked, headers=own.csrf).json()
    assert changed["effective"]["map_low"] == 65.0
    assert changed["changed"]["by"] == "ab"
    after = ask(own, patient).json()
    assert (before["limits"]["map_low"], after["limits"]["map_low"]) == (60.0, 65.0)
    entry = own.get(f"/v1/audit/{changed['audit_id']}").json()
    assert entry["body"]["before"]["preset"] == "paper"
    looser = {"preset": "site", "by": "ab", "site": {"map_low": 55}}
    refused = own.post("/v1/limits", looser, headers=own.csrf)
    assert (refused.status_code, "stricter" in refused.json()["sentence"]) == (422, True)
    again = own.get(f"/v1/audit/{before['audit_id']}/replay").json()
    assert again == before  # under the limits of back then


def test_limits_outlive_a_restart(run, tmp_path):
    service = make_service(run, tmp_path, load=False)
    service.set_limits("map65", None, "cd")
    service.stop()
    service = make_service(run, tmp_path, load=False)
    assert service.preset == "map65"
    assert (service.changed or {})["by"] == "cd"
    service.stop()


def test_a_response_is_kept_once_and_disagreeing_needs_a_reason(own, patient):
    """W19, W20, W26."""
    answer = ask(own, patient).json()
    nobody = {"audit_id": answer["audit_id"], "answer": "agree"}
    assert own.post("/v1/responses", nobody, headers=own.csrf).status_code == 422
    blank = own.post("/v1/responses", nobody | {"by": " "}, headers=own.csrf)
    assert (blank.status_code, blank.json()["where"]) == (422, ["body.by"])
    told = nobody | {"by": "ab"}
    first = own.post("/v1/responses", told, headers=own.csrf).json()
    second = own.post("/v1/responses", told, headers=own.csrf).json()
    assert first["new"]
    assert second == {"audit_id": first["audit_id"], "new": False, "clipped": False}
    no = told | {"answer": "disagree"}
    assert own.post("/v1/responses", no, headers=own.csrf).status_code == 422
    long = no | {"reason": "<script>alert(1)</script>" + "x" * 10_000 + "\x00"}
    kept = own.post("/v1/responses", long, headers=own.csrf).json()
    assert kept["clipped"]
    entry = own.get(f"/v1/audit/{kept['audit_id']}").json()["body"]
    assert len(entry["reason"]) == 500
    assert entry["reason"].startswith("<script>")  # as text; the page escapes it
    assert (entry["replaces"], entry["by"]) == (first["audit_id"], "ab")
    kinds = [one["kind"] for one in own.get("/v1/audit").json()["entries"]]
    assert kinds == ["response", "response", "whatif", "start"]
    assert own.get(f"/v1/audit/{answer['audit_id']}/replay").json() == answer
    other = {"audit_id": 1, "answer": "agree", "by": "ab"}
    assert own.post("/v1/responses", other, headers=own.csrf).status_code == 409
    missing = {"audit_id": 99, "answer": "agree", "by": "ab"}
    assert own.post("/v1/responses", missing, headers=own.csrf).status_code == 404


def test_a_choice_is_kept_before_the_model_is_shown(own, patient):
    told = {"patient": patient, "at": "600", "p": 5, "reason": "lactate", "by": "cd"}
    number = own.post("/v1/choices", told, headers=own.csrf).json()["audit_id"]
    entry = own.get(f"/v1/audit/{number}").json()
    assert (entry["kind"], entry["body"]["p"], entry["body"]["minute"]) == ("choice", 5, 600.0)
    assert entry["body"]["by"] == "cd"
    lines = own.get("/v1/audit/export").text.splitlines()
    assert len(lines) == number


def test_a_full_disk_is_said_shows_nothing_and_heals(own, patient):
    """SQLite itself is told that no page is left, as a full disk tells it."""
    database = own.service.audit._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    told = [ask(own, patient) for _ in range(4)]  # the last page may have room for some
    assert told[-1].status_code == 503
    assert told[-1].json()["code"] == "audit"
    assert "disk full" in told[-1].json()["sentence"]
    assert told[-1].headers["retry-after"] == "2"
    assert own.get(f"/v1/patients/{patient}/trends").status_code == 200
    database.execute("PRAGMA max_page_count = 1000000")
    assert ask(own, patient).status_code == 200
    assert own.get("/v1/audit/verify").json()["valid"]


def test_too_many_at_once_are_sent_away_and_health_goes_on(service, tmp_path, patient):
    """S2: ten times what the queue holds; no 5xx, and it recovers."""
    small = beside(service, tmp_path, queue=4)
    client = Client(small)
    body = body_of(client, patient)
    calls = [("POST", "/v1/whatif", body)] * 50 + [("GET", "/healthz", None)]
    found = client.together(*calls)
    codes = [one.status_code for one in found[:-1]]
    assert set(codes) == {200, 429}
    assert codes.count(200) == 5  # one being computed, four waiting
    assert all(one.headers["retry-after"] for one in found[:-1] if one.status_code == 429)
    assert found[-1].status_code == 200
    assert client.post("/v1/whatif", body).status_code == 200
    client.close()
    small.stop()


def test_what_takes_too_long_is_refused(service, tmp_path, patient):
    """R14."""
    hurried = beside(service, tmp_path, timeout=1e-4)
    client = Client(hurried)
    answer = ask(client, patient).json()
    assert [one["code"] for one in answer["refusals"]] == ["R14"]
    assert answer["suggested"] is None
    assert all(one["quantiles"] is None for one in answer["candidates"])
    entry = client.get(f"/v1/audit/{answer['audit_id']}").json()["body"]
    assert entry["service"] == "R14"
    client.close()
    hurried.stop()


def test_the_card_the_codes_and_the_calibration(client):
    card = client.get("/v1/model").json()
    assert card["patients"] == {"train": 31, "select": 7, "test": 10}
    assert len(card["sha256"]) == 64
    codes = client.get("/v1/codes").json()
    assert set(codes["refusals"]) == set(refusal_codes())
    found = client.get("/v1/model/calibration").json()
    covered = [one["covered"] for one in found["curve"]]
    assert covered == sorted(covered)
    held = {one["group"]: one["hours"] for one in found["groups"]}
    assert held["level held"] + held["level changed"] == found["hours"] > 150
    assert sum(held[f"P-{p}"] for p in range(2, 10)) == found["hours"]
    told = found["membership"]
    assert told["hours"] == [480, found["hours"]]
    assert 0.4 < told["twin_auc"] < 0.6  # this twin was never trained
    assert told["guardian_auc"] > 0.9  # kernels on the very hours: why they need a flag (A4)


def test_a_site_file_may_only_be_stricter(tmp_path):
    file = tmp_path / "site.json"
    file.write_text('{"limits": {"map_low": 70}, "gates": {"support": 30}}')
    limits, gates = read_site(file)
    assert (limits.map_low, gates.support) == (70.0, 30)
    file.write_text('{"gates": {"support": 3}}')
    with pytest.raises(ValueError, match="stricter"):
        read_site(file)
    for odd in ('{"gates": {"other": 3}}', '{"gates": []', '{"gates": [1]}', "[]", "null"):
        file.write_text(odd)
        with pytest.raises(ValueError, match="expected JSON with limits and gates"):
            read_site(file)
    file.write_text('{"other": {}}')
    with pytest.raises(ValueError, match="expected only limits and gates"):
        read_site(file)


def test_the_thresholds_of_a_site_are_those_that_the_server_speaks_of(service, tmp_path, patient):
    file = tmp_path / "site.json"
    file.write_text('{"gates": {"oldest": 10, "missing": 0.1}, "limits": {"map_low": 62.5}}')
    strict = beside(service, tmp_path / "state", site=file)
    client = Client(strict)
    late = {"at": str(service.stays[patient].last + 12)}
    codes = client.get("/v1/codes").json()["refusals"]
    answer = ask(client, patient, **late).json()
    replayed = client.get(f"/v1/audit/{answer['audit_id']}/replay").json()
    quality = client.get(f"/v1/patients/{patient}/quality", params=late).json()
    asked = {"preset": "site", "by": "ab", "site": {"map_low": 61}}
    looser = client.post("/v1/limits", asked, headers=client.csrf)
    client.close()
    strict.stop()
    again = beside(service, tmp_path / "state", site=file)
    again.stop()
    assert codes["R01"]["sentence"] == "The newest sample is more than 10 min old."
    told = {one["code"]: one["sentence"] for one in answer["refusals"]}
    assert told["R01"] == codes["R01"]["sentence"]
    assert told["R02"].startswith("More than 10 % of the last hour is missing")
    assert replayed == answer
    assert quality["chip"] == "poor"  # by the word of R02
    assert looser.status_code == 422
    told = looser.json()["sentence"]
    assert told.startswith("map_low: expected at least 62.5, the limit of the site's file, got 61.")
    assert again.site.map_low == 62.5


def test_no_preset_and_no_restart_loosens_the_file_of_a_site(service, tmp_path, patient):
    """Its limits are in force from the first answer on, whatever was chosen before it came."""
    state, file = tmp_path / "state", tmp_path / "site.json"
    before = beside(service, state)
    before.set_limits("paper", None, "ab")
    before.stop()
    file.write_text('{"limits": {"map_low": 70, "hr_high": 120}}')
    strict = beside(service, state, site=file)
    client = Client(strict)
    found = {"started": ask(client, patient).json()["limits"]}
    for preset in ("paper", "map65", "site"):
        asked = {"preset": preset, "by": "ab"}
        changed = client.post("/v1/limits", asked, headers=client.csrf).json()
        assert changed["effective"] == ask(client, patient).json()["limits"]
        found[preset] = ask(client, patient, limits=preset).json()["limits"]
    none = {"preset": "site", "by": "ab", "site": {"hr_high": None}}
    refused = client.post("/v1/limits", none, headers=client.csrf)
    tighter = {"preset": "site", "by": "ab", "site": {"map_low": 75}}
    found["tighter"] = client.post("/v1/limits", tighter, headers=client.csrf).json()["effective"]
    client.close()
    strict.stop()
    assert {name: (one["map_low"], one["hr_high"]) for name, one in found.items()} == {
        "started": (70.0, 120.0),
        "paper": (70.0, 120.0),
        "map65": (70.0, 120.0),
        "site": (70.0, 120.0),
        "tighter": (75.0, 120.0),
    }
    assert (
        "hr_high: expected at most 120, the limit of the site's file" in refused.json()["sentence"]
    )


def test_limits_that_contradict_a_preset_are_not_kept(own):
    """They would leave no answer possible, and no restart."""
    odd = {"preset": "paper", "by": "ab", "site": {"map_low": 61, "map_high": 64}}
    refused = own.post("/v1/limits", odd, headers=own.csrf)
    assert (refused.status_code, own.get("/v1/limits").json()["changed"]) == (422, None)
    assert refused.json()["sentence"] == "map_high: expected 65 to 300, got 64."


def test_the_list_never_shows_a_review_under_other_limits(service, tmp_path):
    """After a change a patient is looked at again, and is unknown until then."""
    strict = beside(service, tmp_path / "state")
    first = sorted(strict.stays)[0]
    strict.review_all()
    assert strict.review_of(first) is not None
    highest = 1 + max(float(stay.signals[-6:, 0].max()) for stay in strict.stays.values())
    block = threading.Event()
    strict.worker.submit(block.wait)
    strict.set_limits("site", {"map_low": highest}, "ab")  # everybody is below it
    waiting = strict.review_of(first)
    block.set()
    assert waiting is None
    while any(row["review"] is None for row in strict.patients()):
        strict.worker.submit(lambda: None).result()
    told = [row["review"]["inside_limits"] for row in strict.patients()]
    strict.stop()
    assert told == [False] * len(strict.stays)


def test_a_port_in_use_is_told_before_any_model_is_loaded(run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"got 127.0.0.1 port {port}: Address already in use"):
            serve(AppConfig(run, port=port, state=tmp_path / "state"))
    assert not (tmp_path / "state").exists()  # nothing was begun
    with open_door("127.0.0.1", port) as door:
        assert door.getsockname()[1] == port


def test_only_loopback_goes_without_a_token(service, patient):
    """S6."""
    assert AppConfig(service.config.run, host="127.0.0.1").loopback
    assert not AppConfig(service.config.run, host="0.0.0.0").loopback
    client = Client(service, token=hash_token("secret"))
    assert client.get("/v1/patients").status_code == 401
    assert client.get("/healthz").status_code == 200
    bearer = {"Authorization": "Bearer secret"}
    assert client.get("/v1/patients", headers=bearer).status_code == 200
    wrong = {"Authorization": "Bearer other"}
    assert client.get("/v1/patients", headers=wrong).status_code == 401
    assert client.post("/v1/login", {"token": "other"}).status_code == 401
    entered = client.post("/v1/login", {"token": "secret"})
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/v1/patients").status_code == 200  # by the cookie
    client.close()
