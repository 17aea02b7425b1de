"""An answer on the screen is that of the API: forecasts as numbers, refusals as words (W3 to W9,
W11, W16 to W18)."""

import re
import shutil

import pytest
from playwright.sync_api import expect

from tests.app.browser.reading import QUANTILES, SHOWN, Chart, show, text_of, whole
from tests.app.browser.serving import Served, posted
from tests.app.small_run import beside, make_service

TOLERANCE = 0.5  # px
INVENTED = re.compile(r"\bNaN\b|\bnull\b|\bundefined\b|\bNone\b|\[object")


def test_w3_levels_are_one_radio_group_for_the_keyboard(page, moments):
    moment = moments["suggested"]
    show(page, moment.path)
    labels = {one["p"]: one["label"] for one in moment.answer["candidates"]}
    for p, label in labels.items():
        radio = page.get_by_role("radio", name=label, exact=True)
        expect(radio).to_have_attribute("data-testid", f"plevel-{p}")
    page.get_by_test_id(f"plevel-{moment.answer['suggested']}").focus()
    seen = {}
    for key, p in [("Home", 2), ("End", 9), ("ArrowRight", 2), ("ArrowLeft", 9), ("ArrowUp", 8),
                   ("ArrowDown", 9), ("ArrowLeft", 8)]:  # fmt: skip
        page.keyboard.press(key)
        radio = page.get_by_test_id(f"plevel-{p}")
        expect(radio).to_be_focused()
        expect(radio).to_have_attribute("aria-checked", "true")
        assert page.locator("[role=radio][aria-checked=true]").count() == 1
        assert page.locator("[role=radio][tabindex='0']").count() == 1
        assert labels[p] in page.get_by_test_id("candidate-note").inner_text()
        seen[p] = Chart(page, "map").raw["median"]
    assert seen[8] is not None
    assert seen[8] != seen[9]


@pytest.mark.parametrize("hours", [6, 1])
def test_w4_w6_curves_are_the_answer_of_the_api(page, served, moments, hours):
    moment = moments["suggested"]
    path = f"{moment.patient}/whatif?at={moment.minute}&h={hours}"
    answer = served.answer(path)
    show(page, f"/p/{path}")
    drawn = 0
    for candidate in answer["candidates"]:
        if candidate["status"] == "refused":
            continue
        page.get_by_test_id(f"plevel-{candidate['p']}").click()
        for name in set(SHOWN) & set(candidate["quantiles"]):
            chart = Chart(page, name)
            for value, y in chart.raw["ticks"]:  # the scale is the one that is written on it
                assert chart.pixel(0, float(value.replace("−", "-")))[1] == pytest.approx(
                    y, abs=0.1
                )
            curves = chart.quantiles()
            for quantile in QUANTILES:
                wanted = [chart.pixel(0, v)[1] for v in candidate["quantiles"][name][quantile]]
                assert curves[quantile] == pytest.approx(wanted, abs=TOLERANCE), (name, quantile)
            times = [chart.pixel(10 * (i + 1), 0)[0] for i in range(6 * hours)]
            assert [x for x, _ in chart.points("median")] == pytest.approx(times, abs=TOLERANCE)
            carried = candidate["carry_forward"][name]
            ends = [chart.pixel(0, carried), chart.pixel(60 * hours, carried)]
            assert chart.points("carry") == [pytest.approx(end, abs=TOLERANCE) for end in ends]
            drawn += 1
    assert drawn >= 10


def test_w5_bands_are_ordered_in_every_answer_and_on_the_page(page, served, moments):
    answers = [served.answer(f"{row['patient']}/whatif")
               for row in served.ask("/v1/patients")["patients"]]  # fmt: skip
    checked = 0
    for answer in [*answers, *(one.answer for one in moments.values())]:
        for candidate in answer["candidates"]:
            for bands in (candidate["quantiles"] or {}).values():
                rows = list(zip(*(bands[name] for name in QUANTILES), strict=True))
                assert all(list(row) == sorted(row) for row in rows)
                checked += len(rows)
    assert checked > 1000
    show(page, moments["suggested"].path)
    for name in SHOWN:
        curves = Chart(page, name).quantiles()
        rows = list(zip(*(curves[quantile] for quantile in QUANTILES), strict=True))
        assert len(rows) == 36
        assert all(list(row) == sorted(row, reverse=True) for row in rows)  # y grows downward


def test_w7_refused_level_has_no_curve_at_all(page, moments):
    moment = moments["levels"]
    show(page, moment.path)
    refused = [one for one in moment.answer["candidates"] if one["status"] == "refused"]
    for candidate in refused:
        page.get_by_test_id(f"plevel-{candidate['p']}").click()
        told = candidate["refusals"][0]
        assert page.locator("path.forecast").count() == 0
        assert page.locator("path.carry").count() == 0
        for name in SHOWN:
            assert Chart(page, name).raw["code"] == told["code"]
        box = page.get_by_test_id("refused-map")
        expect(box).to_contain_text(f"{told['code']} · {told['sentence']}")
        assert "repeating-linear-gradient" in box.evaluate(
            "(one) => getComputedStyle(one).backgroundImage"
        )
        line = page.get_by_test_id("compare").get_by_role("row").nth(candidate["p"] - 1)
        assert line.get_by_role("cell").count() == 3  # refused, hours, p-value: no risk
    assert page.get_by_test_id("now-map-value").inner_text() == whole(
        moment.answer["now"]["map"]["value"]
    )


def test_w16_below_p4_only_the_lv_metric_ends(page, low):
    served, body = low
    answer = posted(served, body)
    candidate = next(one for one in answer["candidates"] if one["p"] == 3)
    assert candidate["status"] == "ok"
    assert "lvedp" not in candidate["quantiles"]
    show(page, f"{served.url}/audit?replay={answer['audit_id']}")
    page.get_by_test_id("plevel-3").click()
    told = candidate["refusals"][0]
    lvedp = Chart(page, "lvedp")
    assert (lvedp.raw["code"], lvedp.raw["forecasts"]) == ("R12", 0)
    expect(page.get_by_test_id("refused-lvedp")).to_contain_text(told["sentence"])
    for name in ("map", "pulsatility", "hr", "flow"):
        chart = Chart(page, name)
        assert (chart.raw["code"], chart.raw["forecasts"]) == (None, 3)
    page.get_by_test_id("plevel-4").click()
    assert Chart(page, "lvedp").raw["code"] != "R12"


# What is refused, missing or odd is said, and no number is invented.


def _changed(body, name, change):
    """A body with other values of one channel; `change` gets the value and its place."""
    channel = body["channels"][name]
    values = [change(x, i) for i, x in enumerate(channel["values"])]
    return body["channels"] | {name: channel | {"values": values}}


def _bare(page):
    """A refused screen: the past stays, nothing of a forecast and no suggestion is there."""
    assert page.locator("path.forecast, path.carry").count() == 0
    assert page.get_by_test_id("suggestion").count() == 0
    assert not page.locator("[data-testid=compare] td.between").count()
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
    expect(live).to_contain_text("R01: The newest sample is more than 15 min old.")
    assert page.get_by_test_id("whatif").get_attribute("data-status") == "refused"
    _bare(page)
    assert text_of(page, "now-map-value") == whole(moment.answer["now"]["map"]["value"])


def test_r01_by_the_server_is_the_same_refusal(page, served, moments):
    row = served.ask(f"/v1/patients/{moments['suggested'].patient}")
    path = f"{row['patient']}/whatif?at={row['minute'] + 16:g}"
    answer = served.answer(path)
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
        "MAP> 60 72 mmHg"  # with its limit
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


@pytest.fixture
def wider(service, further, tmp_path):
    """A server of a run whose models read lactate, too."""
    other = beside(service, tmp_path, further.engine, further.stays)
    made = Served(other)
    yield made
    made.stop()
    other.stop()


def test_a_further_column_is_drawn_as_the_api_tells_it(page, further, wider):
    """Among the forecasts, and among the trends."""
    asked = ((one, wider.answer(f"{one}/whatif?at=700")) for one in further.stays)
    patient, candidate = next(
        (patient, level)
        for patient, answer in asked
        for level in answer["candidates"]
        if level["status"] == "ok"
    )
    show(page, f"{wider.url}/p/{patient}/whatif?at=700&h=6")
    page.get_by_test_id(f"plevel-{candidate['p']}").click()
    chart = Chart(page, "lactate")
    wanted = [chart.pixel(0, value)[1] for value in candidate["quantiles"]["lactate"]["q50"]]
    assert chart.quantiles()["q50"] == pytest.approx(wanted, abs=TOLERANCE)
    drawn = page.locator("[data-testid=chart-lactate] path.measured")
    assert drawn.evaluate("line => getComputedStyle(line).stroke") != "none"
    page.goto(f"{wider.url}/p/{patient}/trends?at=700")
    expect(page.get_by_test_id("trend-lactate")).to_contain_text("mmol/L")
