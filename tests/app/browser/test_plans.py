"""Plans, the list, own patients and reviews on the page: by keys and by drag, kept in links."""

import json
import re
import time

import pytest
from playwright.sync_api import expect

from stepdown.app.own_patients import Own
from tests.app.browser.reading import show
from tests.app.browser.serving import Served
from tests.app.exports import rows_of, write_export
from tests.app.small_run import make_service

READ = """(one) => document.querySelector(`[data-testid=${one}] svg .cross text`)?.textContent"""


def _plans(page):
    return re.findall(r"plans=([2-9,%C]+)", page.url)[0].replace("%2C", ",")


def test_plans_are_built_by_keys_and_by_drag_and_the_link_holds_them(
    page, served, service, moments
):
    assert service.planning.wait(300)
    moment = moments["suggested"]
    now = moment.answer["p_now"]
    page.goto(f"/p/{moment.patient}/plan?at={moment.minute}&limits=map65&plans={str(now) * 6}")
    page.get_by_test_id("plan-risks").wait_for()
    first = page.get_by_test_id("plan-a-1")
    first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")  # hour 3 and all after it
    expect(page.get_by_test_id("plan-a-3")).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.press("Shift+ArrowUp")
    made = f"{now}{now}{now - 1}{now - 1}{now - 1}{now}"
    expect(page).to_have_url(re.compile(f"plans={made}$"))
    page.get_by_test_id("add-plan").click()
    cell = page.get_by_test_id("plan-b-1").bounding_box()
    assert cell is not None
    page.mouse.move(cell["x"] + 10, cell["y"] + cell["height"] - 4)
    page.mouse.down()  # at the foot: P-2
    page.mouse.move(cell["x"] + 10 + cell["width"], cell["y"] + 4)  # at the top: P-9
    page.mouse.up()
    drawn = _plans(page).split(",")[1]
    assert drawn[:2] == "29"
    with page.expect_response(re.compile(r"/plans\?")) as answered:
        page.get_by_test_id("hours-12").click()
    answer = json.loads(answered.value.body())
    expect(page.get_by_test_id("plan-told")).to_have_text("")
    assert (answer["hours"], answer["limits"]["map_low"]) == (12, 65.0)
    assert answer["plans"][1]["levels"] == [int(x) for x in made] + [now] * 6
    expect(page.get_by_test_id("untested")).to_contain_text("tested over 6 h")
    rows = page.get_by_test_id("plan-risks").get_by_role("row")
    expect(rows).to_have_count(1 + 3)
    shown = page.get_by_test_id("plan-evidence").inner_text()
    for hour in answer["plans"][1]["by_hour"]:
        assert f"P-{hour['level']} · " in shown
    curves = page.locator("[data-testid=plan-map] path.middle")
    assert curves.count() == sum(bool(one["quantiles"]) for one in answer["plans"])
    page.get_by_test_id("difference").click()
    expect(page.get_by_test_id("difference")).to_be_focused()
    middle = page.locator("[data-testid=plan-map] path.middle").first.get_attribute("d") or ""
    axis = page.locator("[data-testid=plan-map] svg").get_attribute("data-values")
    assert axis == "-30 30"
    assert len(re.findall(r"[ML]", middle)) == 6 * answer["plans"][1]["until_h"]
    before = page.url
    page.goto(before)  # the link alone
    page.get_by_test_id("plan-risks").wait_for()
    assert page.get_by_test_id("plan-a-6").get_attribute("aria-valuenow") == str(now)
    assert page.get_by_test_id("plan-b-2").get_attribute("aria-valuenow") == "9"


def test_one_crosshair_and_one_zoom_read_all_charts(page, moments):
    moment = moments["suggested"]
    show(page, moment.path)
    assert page.evaluate(READ, "chart-hr") is None
    slider = page.get_by_test_id("read-at")
    slider.focus()
    page.keyboard.press("End")
    held = next(
        one for one in moment.answer["candidates"] if one["p"] == moment.answer["suggested"]
    )
    for name in ("map", "hr", "flow"):
        value = held["quantiles"][name]["q50"][-1]
        text = page.evaluate(READ, f"chart-{name}")
        assert abs(float(re.findall(r"^[\d.]+", text)[0]) - value) <= 0.51, (name, text)
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^\+6 h: MAP \d+ \("))
    span = "() => document.querySelector('[data-testid=chart-hr] svg').dataset.minutes"
    page.keyboard.press("+")
    assert page.evaluate(span) == "-180 180"
    page.get_by_test_id("zoom-out").click()
    assert page.evaluate(span) == "-360 360"
    box = page.locator("[data-testid=chart-map] svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    assert "mmHg" in page.evaluate(READ, "chart-pulsatility")
    page.get_by_test_id("plevel-9").click()
    expect(page).to_have_url(re.compile(r"[?&]p=9\b"))
    page.reload()
    page.get_by_test_id("whatif").wait_for()
    expect(page.get_by_test_id("plevel-9")).to_have_attribute("aria-checked", "true")


def test_the_list_is_searched_and_sorted_and_the_address_says_how(page, served):
    rows = served.ask("/v1/patients")["patients"]
    page.goto("/")
    names = page.get_by_test_id("patients").locator("tbody th")
    expect(names).to_have_count(len(rows))
    page.get_by_test_id("sort").select_option("patient")
    assert names.all_inner_texts() == sorted(row["patient"] for row in rows)
    wanted = rows[-1]["patient"]
    page.get_by_test_id("search").fill(wanted.upper())
    expect(names).to_have_text([wanted])
    expect(page).to_have_url(re.compile(rf"\?q={wanted.upper()}&sort=patient$"))
    page.reload()
    expect(names).to_have_text([wanted])
    page.get_by_test_id("search").fill("nobody at all")
    expect(page.get_by_text("Nobody is found")).to_be_visible()


def test_a_choice_comes_first_and_agreement_is_shown(page, served, moments):
    patient = moments["suggested"].patient
    page.goto(f"/review?patient={patient}&at=420")
    page.get_by_test_id("who").fill("Dr Review")
    assert page.get_by_test_id("show-model").count() == 0
    page.get_by_test_id("plevel-9").click()
    page.get_by_test_id("keep-choice").click()
    page.get_by_test_id("show-model").click()
    expect(page.get_by_test_id("replayed")).to_be_visible()
    page.goto("/review")
    expect(page.get_by_test_id("reviewers")).to_contain_text("Dr Review")
    exported = served.http.get("/v1/reviews/export").text.splitlines()
    assert json.loads(exported[-2])["by"] == "Dr Review"


@pytest.fixture
def followed(run, service, tmp_path):
    """A server of a table of one's own, with ten hours of a patient."""
    stay = next(x for x in service.stays.values() if (x.level[:72] > 0).all())
    file = write_export(tmp_path, stay, 60)
    own = make_service(run, tmp_path / "state", patients=Own(file, tmp_path / "mapping.toml"))
    made = Served(own)
    yield made, stay, file
    made.stop()
    own.stop()


def test_own_patients_are_shown_and_new_rows_appear_within_two_seconds(page, followed):
    made, stay, file = followed
    page.goto(f"{made.url}/p/A1/trends")
    moment = page.get_by_test_id("moment")
    expect(moment).to_contain_text("09:50")
    expect(page.get_by_test_id("trend-lactate")).to_be_visible()
    with file.open("a", encoding="utf-8") as table:
        table.write("\n".join(rows_of(stay, "A1", 60, 66)) + "\n")
    begun = time.monotonic()
    expect(moment).to_contain_text("10:50")
    assert time.monotonic() - begun < 2.5  # half a second is left to the browser
    page.goto(f"{made.url}/p/A1/whatif")
    page.get_by_test_id("whatif").wait_for()
    expect(page.get_by_test_id("further-lactate")).to_contain_text("1.80 mmol/L")
    expect(page.get_by_test_id("target-map")).to_have_text("> 60")
