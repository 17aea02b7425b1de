"""What is refused, missing or odd is said, and no number is invented (W8, W9, W11, W17, W18)."""

import re
import shutil

import pytest
from playwright.sync_api import expect

from tests.app.browser.reading import SHOWN, Chart, show, text_of, whole
from tests.app.browser.serving import Served, posted
from tests.app.small_run import beside, make_service

INVENTED = re.compile(r"\bNaN\b|\bnull\b|\bundefined\b|\bNone\b|\[object")


def _changed(body, name, change):
    """A body with other values of one channel; `change` gets the value and its place."""
    channel = body["channels"][name]
    values = [change(x, i) for i, x in enumerate(channel["values"])]
    return body["channels"] | {name: channel | {"values": values}}


def _bare(page):
    """A refused screen: the past stays, nothing of a forecast and no suggestion is there."""
    assert page.locator("path.forecast, path.carry").count() == 0
    assert page.get_by_test_id("suggestion").count() == 0
    assert "/20" not in text_of(page, "compare")
    expect(page.get_by_test_id("now")).to_be_visible()
    assert Chart(page, "map").raw["measured"]


def test_w8_the_screen_refuses_by_itself_when_the_newest_sample_is_too_old(page, moments):
    moment = moments["suggested"]
    page.clock.install()
    show(page, moment.path)
    live = page.get_by_test_id("refusal-live")
    expect(live).to_have_attribute("aria-live", "polite")
    page.clock.fast_forward("14:50")
    expect(page.get_by_test_id("age")).to_have_text("newest 14 min ago")
    assert page.get_by_test_id("whatif").get_attribute("data-status") == "ok"
    page.clock.fast_forward("00:11")
    expect(live).to_contain_text("R01: The newest sample is more than 15 min old.", timeout=5000)
    assert page.get_by_test_id("whatif").get_attribute("data-status") == "refused"
    _bare(page)
    assert text_of(page, "now-map-value") == whole(moment.answer["now"]["map"]["value"])


def test_r01_by_the_server_is_the_same_refusal(page, served, moments):
    row = served.ask(f"/v1/patients/{moments['suggested'].patient}")
    path = f"{row['patient']}/whatif?at={row['minute'] + 16:g}"
    answer = served.ask(f"/v1/patients/{path}")
    assert "R01" in [one["code"] for one in answer["refusals"]]
    show(page, f"/p/{path}")
    panel = page.get_by_test_id("screen-refusal")
    for told in answer["refusals"]:
        expect(panel).to_contain_text(f"{told['code']} · {told['sentence']} {told['remedy']}")
        expect(page.get_by_test_id("refusal-live")).to_contain_text(told["sentence"])
    _bare(page)


def test_w9_a_missing_value_is_a_dash(page, served, body):
    last = len(body["channels"]["map"]["values"]) - 1
    channels = body["channels"]
    for name in ("map", "lvedp"):
        channels = _changed(
            body | {"channels": channels}, name, lambda x, i: None if i == last else x
        )
    answer = posted(served, body, channels=channels)
    assert answer["now"]["map"]["value"] is None
    show(page, f"/audit?replay={answer['audit_id']}")
    for name in ("map", "lvedp"):
        assert text_of(page, f"now-{name}-value") == "—"
        assert "—" in (page.get_by_test_id(f"now-{name}").get_attribute("aria-label") or "")
    assert text_of(page, "now-hr-value") == whole(answer["now"]["hr"]["value"])
    assert INVENTED.findall(page.content()) == []


def test_w11_a_declared_unit_is_converted_and_an_undeclared_one_refused(page, served, body):
    kpa = _changed(body, "map", lambda x, i: 9.6 + 0.01 * ((i + 1) % 6))
    kpa["map"] = kpa["map"] | {"unit": "kPa", "values": [*kpa["map"]["values"][:-1], 9.6]}
    converted = posted(served, body, channels=kpa)
    assert converted["now"]["map"]["value"] == pytest.approx(72.0, abs=0.01)
    show(page, f"/audit?replay={converted['audit_id']}")
    assert re.sub(r"\s+", " ", page.get_by_test_id("now-map").inner_text()).startswith(
        "MAP 72 mmHg"
    )
    expect(page.get_by_test_id("converted-map")).to_have_text("converted from kPa")
    plain = kpa | {"map": kpa["map"] | {"unit": "mm[Hg]"}}
    refused = posted(served, body, channels=plain)
    assert "R05" in [one["code"] for one in refused["refusals"]]
    show(page, f"/audit?replay={refused['audit_id']}")
    expect(page.get_by_test_id("screen-refusal")).to_contain_text("R05 · ")
    assert page.get_by_test_id("converted-map").count() == 0
    _bare(page)


def test_w17_reported_suction_leaves_no_suggestion(page, served, body):
    answer = posted(served, body, alarms=["suction"])
    show(page, f"/audit?replay={answer['audit_id']}")
    told = next(one for one in answer["refusals"] if one["code"] == "R08")
    panel = page.get_by_test_id("screen-refusal")
    expect(panel).to_contain_text(f"R08 · {told['sentence']} {told['remedy']}")
    assert re.findall(r"\b(reduce|lower|raise|set|step)\b", panel.inner_text().lower()) == []
    _bare(page)


def test_w18_a_level_that_the_pump_lacks_cannot_be_chosen(page, served, body):
    levels = [None if p is None else min(p, 8) for p in body["p_levels"]]
    older = posted(
        served, body, pump_profile="cp-older", p_levels=levels, p_now=min(body["p_now"], 8)
    )
    show(page, f"/audit?replay={older['audit_id']}")
    reason = older["candidates"][-1]["refusals"][0]["sentence"]
    assert reason.startswith("P-9 is not a level of")
    ninth = page.get_by_test_id("plevel-9")
    expect(ninth).to_have_attribute("aria-disabled", "true")
    expect(ninth).to_have_accessible_name(f"P-9, {reason}")
    expect(page.get_by_test_id("plevel-9-reason")).to_have_text(reason)
    before = page.locator("[aria-checked=true]").get_attribute("data-testid")
    ninth.click(force=True)
    assert page.locator("[aria-checked=true]").get_attribute("data-testid") == before
    smart = posted(served, body)
    show(page, f"/audit?replay={smart['audit_id']}")
    expect(ninth).not_to_have_attribute("aria-disabled", "true")
    ninth.click()
    expect(ninth).to_have_attribute("aria-checked", "true")


def test_r13_a_damaged_model_leaves_the_recordings_to_look_at(page, run, moments, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    damaged = next((copy / "twin").rglob("*.safetensors"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    service = make_service(copy, tmp_path / "state")
    served = Served(service)
    moment = moments["suggested"]
    page.goto(served.url)
    expect(page.get_by_text("R13 · The models cannot be used.")).to_be_visible()
    show(page, served.url + moment.path)
    expect(page.get_by_test_id("screen-refusal")).to_contain_text("R13 · ")
    assert text_of(page, "now-map-value") == whole(moment.answer["now"]["map"]["value"])
    _bare(page)
    served.stop()
    service.stop()


def test_r14_a_computation_that_takes_too_long_is_refused(page, service, moments, tmp_path):
    hurried = beside(service, tmp_path / "state", timeout=1e-5)
    served = Served(hurried)
    moment = moments["suggested"]
    show(page, served.url + moment.path)
    panel = page.get_by_test_id("screen-refusal")
    expect(panel).to_contain_text("R14 · The computation took too long and was given up.")
    for name in SHOWN:
        assert Chart(page, name).raw["code"] == "R14"
    assert text_of(page, "now-map-value") == whole(moment.answer["now"]["map"]["value"])
    _bare(page)
    page.set_viewport_size({"width": 320, "height": 800})  # no room for sentences in the charts
    expect(page.get_by_test_id("refused-map")).to_have_text(
        "R14 · no forecast", use_inner_text=True
    )
    expect(page.get_by_test_id("refused-note")).to_be_visible()
    served.stop()
    hurried.stop()
