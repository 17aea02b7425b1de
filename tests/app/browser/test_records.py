"""What is decided is kept: limits, responses, replays, paper (W12, W19, W20, W23, W24)."""

import re

from playwright.sync_api import expect

from tests.app.browser.reading import Chart, show, text_of

PAPER = """() => {
  const told = { cut: [], pale: [] };
  for (const svg of document.querySelectorAll(".whatif svg.chart")) {
    const box = svg.parentElement.getBoundingClientRect(), own = svg.getBoundingClientRect();
    const wider = own.width > box.width + 1 || own.height > box.height + 1;
    if (wider) told.cut.push(svg.getAttribute("class"));
  }
  const written = ".whatif .num, .whatif td, .whatif h2, .chart text";
  for (const one of document.querySelectorAll(written)) {
    const style = getComputedStyle(one);
    const ink = one instanceof SVGElement ? style.fill : style.color;
    const parts = ink.match(/[0-9.]+/g).map(Number);
    if (Math.max(...parts.slice(0, 3)) > 100) told.pale.push([one.className, ink]);
  }
  return told;
}"""


def _entries(served, kind):
    return [one for one in served.ask("/v1/audit?limit=50")["entries"] if one["kind"] == kind]


def _number(page):
    return int(re.findall(r"\d+", text_of(page, "audit-id"))[0])


def test_w12_another_preset_moves_the_line_the_counts_and_the_audit(page, served, moments):
    moment = moments["suggested"]
    show(page, moment.path)
    (before,) = Chart(page, "map").raw["limits"]
    page.goto("/limits")
    page.get_by_test_id("preset-map65").click()
    expect(page.get_by_test_id("limits-told")).to_contain_text("Say who changes the limits first")
    page.get_by_test_id("limits-by").fill("ab")
    page.get_by_test_id("preset-map65").click()
    try:
        expect(page.get_by_test_id("limits-told")).to_contain_text("is in force")
        expect(page.get_by_test_id("limits-current")).to_contain_text("MAP 65")
        told = _entries(served, "limits")[0]["told"]
        assert (told["preset"], told["by"]) == ("map65", "ab")
        answer = served.answer(f"{moment.patient}/whatif?at={moment.minute}")
        show(page, moment.path)
        chart = Chart(page, "map")
        assert chart.raw["limits"] == [chart.pixel(0, 65.0)[1]]
        assert chart.raw["limits"][0] < before
        old = {one["p"]: one["risk"] for one in moment.answer["candidates"]}
        risks = {one["p"]: one["risk"] for one in answer["candidates"]}
        changed = [p for p, risk in risks.items() if risk and risk["map_low"] > old[p]["map_low"]]
        assert changed
        line = page.get_by_test_id("compare").get_by_role("row").nth(changed[0] - 1)
        expect(line.get_by_role("cell").first).to_have_accessible_name(
            re.compile(f"^{re.escape(risks[changed[0]]['words']['map_low'])}")
        )
    finally:
        served.tell("/v1/limits", {"preset": "paper", "by": "ab"})


def test_w19_disagreeing_needs_a_reason_and_changes_no_number(page, served, moments):
    show(page, moments["suggested"].path)
    number = _number(page)
    said = text_of(page, "acceptable")
    original = served.http.get(f"/v1/audit/{number}/replay").content
    page.get_by_test_id("disagree").click()
    told = page.get_by_test_id("response-told")
    expect(told).to_have_text("Disagree needs a reason.")
    expect(page.get_by_test_id("reason")).to_be_focused()
    expect(page.get_by_test_id("reason")).to_have_attribute("aria-invalid", "true")
    assert [one for one in _entries(served, "response") if one["told"]["audit_id"] == number] == []
    page.get_by_test_id("reason").fill("lactate is rising")
    page.get_by_test_id("disagree").click()
    expect(told).to_have_text("Say who you are first: your initials.")
    page.get_by_test_id("who").fill("ab")
    page.get_by_test_id("disagree").click()
    expect(told).to_contain_text("Disagree: kept as audit")
    kept = served.ask(f"/v1/audit/{_entries(served, 'response')[0]['id']}")["body"]
    assert (kept["audit_id"], kept["answer"], kept["reason"], kept["by"]) == (
        number, "disagree", "lactate is rising", "ab",
    )  # fmt: skip
    assert text_of(page, "acceptable") == said
    assert served.http.get(f"/v1/audit/{number}/replay").content == original


def test_w20_agreeing_twice_and_loading_again_is_one_entry(page, served, moments):
    show(page, moments["suggested"].path)
    number = _number(page)
    page.get_by_test_id("who").fill("ab")
    page.get_by_test_id("agree").dblclick()
    expect(page.get_by_test_id("response-told")).to_contain_text("kept")
    page.get_by_test_id("agree").click()
    expect(page.get_by_test_id("response-told")).to_contain_text("was kept already")
    page.reload()
    page.get_by_test_id("whatif").wait_for()
    mine = [one for one in _entries(served, "response") if one["told"]["audit_id"] == number]
    assert [one["told"]["answer"] for one in mine] == ["agree"]


def test_w23_replay_gives_the_same_bytes_and_the_same_screen(page, served, moments):
    with page.expect_response(re.compile(r"/v1/patients/[^/]+/whatif")) as answered:
        page.goto(moments["suggested"].path)
    original = answered.value.body()
    page.get_by_test_id("whatif").wait_for()
    shown = {name: text_of(page, name) for name in ("now", "compare", "acceptable", "reasons")}
    drawn = Chart(page, "map").raw["median"]
    link = page.get_by_test_id("replay-link").get_attribute("href") or ""
    again = served.http.get(link)
    assert again.content == original
    assert again.headers["x-replay"] == "same"
    show(page, f"/audit?replay={_number(page)}")
    assert {name: text_of(page, name) for name in shown} == shown
    assert Chart(page, "map").raw["median"] == drawn
    expect(page.get_by_test_id("agree")).to_have_count(0)  # a replay is not answered


def test_audit_is_verified_and_replayed_from_its_screen(page, served):
    page.goto("/audit")
    page.get_by_test_id("verify").click()
    entries = served.ask("/v1/audit/verify")["entries"]
    expect(page.get_by_test_id("verify-told")).to_contain_text(f"whole: {entries} entries")
    newest = _entries(served, "whatif")[0]["id"]
    page.get_by_test_id(f"replay-{newest}").click()
    expect(page.get_by_test_id("replayed")).to_contain_text(f"{newest:06d}")
    assert page.get_by_role("button", name=re.compile("edit|delete", re.I)).count() == 0


def test_w24_paper_keeps_banner_time_model_and_codes(page, moments):
    for kind in ("suggested", "refused"):
        show(page, moments[kind].path)
        page.emulate_media(media="print")
        for name in ("research-banner", "moment", "patient-id", "model-hash", "audit-id", "now"):
            expect(page.get_by_test_id(name)).to_be_visible()
        for told in moments[kind].answer["refusals"]:
            expect(page.get_by_text(f"{told['code']} · ").first).to_be_visible()
        expect(page.get_by_test_id("agree").filter(visible=True)).to_have_count(0)
        assert page.evaluate(PAPER) == {"cut": [], "pale": []}  # from the dark theme
        paper = page.pdf(prefer_css_page_size=True)
        assert len(re.findall(rb"/Type\s*/Page(?!s)", paper)) == 1
        page.emulate_media(media="screen")
