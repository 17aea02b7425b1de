"""Every screen can be read: by everybody, in both themes, at every width (W10, W13 to W15)."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from stepdown.app.security import hash_token
from tests.app.browser.reading import show
from tests.app.browser.serving import Served, posted

SIZES = """() => { const e = document.documentElement;
  return [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight]; }"""
WIDER = """() => [...document.querySelectorAll(".panel")]
  .filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.className)"""
SCRIPT = Axe().axe_script
AXE = """async (options) => (await axe.run(options)).violations.map(
  (one) => [one.id, one.impact, one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160))])"""
TEXTS = """() => {
  const walk = document.createTreeWalker(document.getElementById("main"), NodeFilter.SHOW_TEXT);
  const found = [];
  while (walk.nextNode()) {
    const said = walk.currentNode.parentElement.closest("[aria-label]:not(section):not(table)");
    found.push([walk.currentNode.data, said?.getAttribute("aria-label") ?? ""]);
  }
  return found;
}"""
BUSY = re.compile("Loading|Computing|Walking|not looked at yet")
NAMES = re.compile(  # of things, which have digits but no unit
    r"P-\d|[RH]\d{1,2}\b|\bp\d+\b|day \d+|\d\d:\d\d|audit \d{6}|model [\d.]+|[0-9a-f]{12}…"
)
UNITS = re.compile(
    r"mmHg|/min|L/min|rpm|%|\d h\b|\bmin\b|of 100|hours?\b|courses|p-value|of \d+ times"
)


@pytest.fixture(scope="module")
def states(served, moments, body):
    """Addresses of every screen in every state."""
    patient = moments["suggested"].patient
    stale = served.ask(f"/v1/patients/{patient}")["minute"] + 16
    levels = [None if p is None else min(p, 8) for p in body["p_levels"]]
    older = posted(served, body, pump_profile="cp-older", p_now=8, p_levels=levels)
    return {
        "patients": "/", "trends": f"/p/{patient}/trends", "quality": f"/p/{patient}/quality",
        "plan": f"/p/{patient}/plan?plans=665544,555555",
        "what-if": moments["suggested"].path, "one hour": f"/p/{patient}/whatif?h=1",
        "refused": moments["refused"].path, "stale": f"/p/{patient}/whatif?at={stale:g}",
        "replay": f"/audit?replay={older['audit_id']}", "model": "/model", "limits": "/limits",
        "audit": "/audit", "entry": f"/audit?entry={older['audit_id']}", "review": "/review",
        "choice": f"/review?patient={patient}", "problem": "/p/nobody/whatif",
    }  # fmt: skip


def _open(page, path):
    page.goto(path)
    page.locator("main > *").first.wait_for()
    expect(page.locator("main")).not_to_have_text(BUSY)


def _violations(page, **options):
    """What axe-core finds: rule, impact, some of the elements. Only that leaves the page."""
    if page.evaluate("() => typeof axe === 'undefined'"):
        page.evaluate(SCRIPT)
    return page.evaluate(AXE, {"resultTypes": ["violations"], **options})


def test_w13_w15_axe_finds_nothing_and_nothing_is_wider_than_320_px(page, states, service):
    contrast = {"type": "rule", "values": ["color-contrast"]}  # all that a theme can change
    found, wide = {}, {}
    page.clock.install()
    for name, path in states.items():
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 1280, "height": 800})
        _open(page, path)
        if name == "what-if":
            page.locator(".behind summary").first.click()  # with the numbers of a chart
        if name not in ("one hour", "stale", "audit"):  # others have all their parts
            found[name, "dark"] = _violations(page)
            page.emulate_media(color_scheme="light")
            found[name, "light"] = _violations(page, runOnly=contrast)
        page.set_viewport_size({"width": 320, "height": 200})  # also 1280x800 at a zoom of 400 %
        wide[name] = page.evaluate(SIZES)[0]
    fenced = Served(service, hash_token("secret"))
    page.goto(fenced.url)
    page.get_by_test_id("token").wait_for()
    found["login", "light"] = _violations(page)
    wide["login"] = page.evaluate(SIZES)[0]
    fenced.stop()
    page.clock.fast_forward("00:10")
    expect(page.get_by_test_id("not-updating")).to_contain_text("Not updating")
    found["lost", "light"] = _violations(page)
    assert {name: one for name, one in found.items() if one} == {}
    assert {name: one for name, one in wide.items() if one} == {}


def test_w13_a_refused_level_passes_too(page, moments):
    moment = moments["levels"]
    refused = next(one["p"] for one in moment.answer["candidates"] if one["status"] == "refused")
    show(page, moment.path)
    page.get_by_test_id(f"plevel-{refused}").click()
    assert _violations(page) == []


def test_w15_the_what_if_screen_fits_1280_by_800(page, states, moments):
    for name in ("what-if", "one hour", "refused", "stale", "replay"):
        _open(page, states[name])
        page.get_by_test_id("whatif").wait_for()
        assert page.evaluate(SIZES) == [0, 0], name
        assert page.evaluate(WIDER) == [], name
    show(page, moments["levels"].path)
    for p in range(2, 10):
        page.get_by_test_id(f"plevel-{p}").click()
        assert page.evaluate(SIZES) == [0, 0], p


def test_w14_states_are_words_and_signs_not_colors(page, states, moments):
    page.goto("/")
    expect(page.get_by_test_id("patients")).to_be_visible()
    expect(page.locator("main")).not_to_have_text(BUSY)
    for chip in page.locator(".chip").all_inner_texts():
        assert re.fullmatch(r"\S+ .*[a-zP].*", chip), chip
    show(page, moments["levels"].path)
    for candidate in moments["levels"].answer["candidates"]:
        radio = page.get_by_test_id(f"plevel-{candidate['p']}").inner_text()
        assert ("⊘" in radio) == (candidate["status"] == "refused")
        assert ("✓" in radio) == candidate["acceptable"]


@pytest.mark.parametrize("kind", ["suggested", "levels", "refused"])
def test_w10_every_number_has_its_unit(page, moments, kind):
    show(page, moments[kind].path)
    numbers = [(text, said) for text, said in page.evaluate(TEXTS)
               if re.search(r"\d", NAMES.sub("", text))]  # fmt: skip
    assert len(numbers) > 30
    assert [one for one in numbers if not UNITS.search(" ".join(one))] == []
