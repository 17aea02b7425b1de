"""The forecasts on the screen are the numbers of the API, and nothing else (W3 to W7, W16)."""

import pytest
from playwright.sync_api import expect

from tests.app.browser.reading import QUANTILES, SHOWN, Chart, show, whole
from tests.app.browser.serving import posted

TOLERANCE = 0.5  # px


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
    path = f"/v1/patients/{moment.patient}/whatif?at={moment.minute}&h={hours}"
    answer = served.ask(path)
    show(page, f"/p/{moment.patient}/whatif?at={moment.minute}&h={hours}")
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
    answers = [served.ask(f"/v1/patients/{row['patient']}/whatif")
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
        assert "/20" not in line.inner_text()
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
