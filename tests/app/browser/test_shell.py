"""The frame of every screen: banner, network, login, lost server, hostile text, races."""

import random
import re

from playwright.sync_api import expect

from stepdown.app.security import hash_token
from stepdown.app.server import BANNER
from tests.app.browser.reading import show, text_of, whole
from tests.app.browser.serving import Served
from tests.app.sample_sizes import count
from tests.app.small_run import beside

PLAIN = ("/", "/model", "/limits", "/audit", "/review", "/p/nobody/nowhere")
HOSTILE = "<script>document.title='taken'<script><img src=x onerror=alert(1)>"
SWITCHED = count(30, 100)  # times in each of two tabs
SWITCHES = """async ({ switches, seed, expected }) => {
  let state = seed;
  const draw = () => (state = (1103515245 * state + 12345) % 2147483648) / 2147483648;
  const ids = Object.keys(expected);
  const text = (name) => document.querySelector(`[data-testid=${name}]`)?.textContent ?? null;
  const mixed = [], told = { mixed, switches: 0, seen: 0 };
  const check = (id) => {
    const header = text("patient-id"), value = text("now-map-value"), level = text("now-level");
    if (header !== null && header !== id) mixed.push([id, header]);
    if (value === null) return;
    told.seen += 1;
    const [map, p] = expected[id];
    if (value !== map || !level.includes(p)) mixed.push([id, value, level]);
  };
  for (let i = 0; i < switches; i += 1) {
    const id = ids[Math.floor(draw() * ids.length)];
    const link = document.createElement("a");
    link.href = `/p/${id}/whatif`;
    document.body.append(link);
    link.click();
    link.remove();
    told.switches += 1;
    const patient = i % 5 === 4; // every fifth time until all is there
    const until = performance.now() + (patient ? 5000 : 80 * draw()), before = told.seen;
    while (performance.now() < until && !(patient && told.seen > before)) {
      await new Promise((done) => setTimeout(done, 4));
      check(id);
    }
  }
  return told;
}"""


def _routes(moments):
    return [*PLAIN, *(f"/p/{moments['suggested'].patient}{one}"
                      for one in ("", "/trends", "/whatif", "/quality"))]  # fmt: skip


def test_w1_w2_banner_on_every_route_and_no_request_leaves(page, served, moments):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    banner = page.get_by_test_id("research-banner")
    for route in _routes(moments):
        page.goto(route)
        page.locator("main > *").first.wait_for()
        for width, height in ((1280, 800), (640, 400)):  # the second is a zoom of 200 %
            page.set_viewport_size({"width": width, "height": height})
            page.mouse.wheel(0, 5000)
            expect(banner).to_contain_text(BANNER)
            expect(banner).to_be_in_viewport(ratio=1.0)
            assert banner.get_by_role("button").count() == 0
    assert len(asked) > 100
    assert [url for url in asked if not url.startswith(served.url + "/")] == []


def test_a_token_is_asked_for_by_the_page_and_opens_it(browser, page, service, moments):
    served = Served(service, hash_token("correct-horse"))
    path = moments["suggested"].path
    page.goto(served.url + path)
    form = page.get_by_test_id("token")
    form.wait_for()
    expect(page.get_by_test_id("research-banner")).to_contain_text(BANNER)
    assert page.get_by_test_id("now").count() == 0
    form.fill("wrong")
    form.press("Enter")
    expect(page.get_by_test_id("login-told")).to_contain_text("Expected the token of this server.")
    form.fill("correct-horse")
    form.press("Enter")
    page.get_by_test_id("whatif").wait_for()
    assert text_of(page, "patient-id") == moments["suggested"].patient
    kept = page.context.cookies(served.url)
    assert [(one.get("httpOnly"), one.get("sameSite")) for one in kept] == [(True, "Strict")]
    assert page.evaluate("() => document.cookie") == ""
    show(page, served.url + path)  # the cookie opens the page from now on
    served.stop()


def test_w21_two_tabs_never_mix_patients(page, served):
    expected = {}
    for row in served.ask("/v1/patients")["patients"]:
        answer = served.answer(f"{row['patient']}/whatif")
        expected[row["patient"]] = [whole(answer["now"]["map"]["value"]), f"P-{answer['p_now']}"]
    assert len({tuple(one) for one in expected.values()}) > 5
    other = page.context.new_page()
    tabs = [page, other]
    for tab in tabs:
        tab.goto("/")
        tab.evaluate(f"() => {{ window.switching = {SWITCHES}; }}")
    for seed, tab in enumerate(tabs):
        told = {"switches": SWITCHED, "seed": 11 + seed, "expected": expected}
        tab.evaluate("(told) => { window.told = window.switching(told); }", told)
    results = [tab.evaluate("() => window.told") for tab in tabs]
    assert [one["mixed"] for one in results] == [[], []]
    assert [one["switches"] for one in results] == [SWITCHED, SWITCHED]
    assert min(one["seen"] for one in results) >= SWITCHED // 5


def test_w22_a_lost_server_is_said_and_numbers_are_struck_through(page, service, moments):
    served = Served(service)
    page.clock.install()
    show(page, served.url + moments["suggested"].path)
    told = page.get_by_test_id("not-updating")
    expect(told).to_have_text("")
    served.stop()
    page.clock.fast_forward("00:10")
    expect(told).to_contain_text("Not updating")
    struck = "(one) => getComputedStyle(one.closest('.num') ?? one).textDecorationLine"
    numbers = ("now-map-value", "now-flow-value", "acceptable", "skill", "age", "moment")
    for name in numbers:
        assert page.get_by_test_id(name).evaluate(struck) == "line-through", name
    assert page.locator("[data-testid=compare] td").first.evaluate(struck) == "line-through"


def test_a_link_during_warm_up_and_a_server_that_came_back_heal(page, service, moments, tmp_path):
    made = beside(service, tmp_path)
    stays, made.stays, made.phase = made.stays, {}, "warming"
    served = Served(made)
    page.goto(served.url + moments["suggested"].path)
    expect(page.get_by_test_id("problem")).to_contain_text("The models are being loaded.")
    made.stays, made.phase = stays, "ready"
    page.get_by_test_id("whatif").wait_for()
    number = text_of(page, "audit-id")
    told = page.get_by_test_id("not-updating")
    page.route("**/healthz", lambda route: route.abort())
    expect(told).to_contain_text("Not updating")
    page.unroute("**/healthz")
    expect(told).to_have_text("")
    expect(page.get_by_test_id("audit-id")).not_to_have_text(number)  # it was asked anew
    served.stop()
    made.stop()


def test_w25_an_answer_to_an_older_question_is_dropped(page, served, moments):
    moment = moments["suggested"]
    others = [row["patient"] for row in served.ask("/v1/patients")["patients"]]
    other = random.Random(4).choice([one for one in others if one != moment.patient])
    held = []
    page.route(
        "**/v1/patients/*/whatif?*h=1*", lambda route: held.append(route)
    )  # slow; all others pass at once
    page.goto(f"/p/{moment.patient}/whatif?h=1")
    page.get_by_text("Computing").wait_for()
    page.evaluate(
        "(path) => { const a = document.createElement('a'); a.href = path;"
        " document.body.append(a); a.click(); }",
        f"/p/{other}/whatif?h=6",
    )
    page.get_by_test_id("whatif").wait_for()
    assert len(held) == 1
    held[0].continue_()
    page.wait_for_timeout(500)
    answer = served.answer(f"{other}/whatif?h=6")
    assert text_of(page, "patient-id") == other
    assert text_of(page, "now-map-value") == whole(answer["now"]["map"]["value"])
    expect(page.get_by_test_id("horizon-6")).to_have_attribute("aria-current", "true")


def test_w26_hostile_patients_and_reasons_are_text_and_clipped(page, served, moments):
    dialogs = []
    page.on("dialog", lambda one: (dialogs.append(one.message), one.dismiss()))
    for name in (HOSTILE, "x" * 10_000):
        page.goto("/p/" + "".join(f"%{byte:02X}" for byte in name.encode()) + "/whatif")
        page.get_by_test_id("problem").wait_for()
        assert len(page.title()) < 100
        assert len(page.locator("body").inner_text()) < 1000
    show(page, moments["suggested"].path)
    page.get_by_test_id("who").fill("ab")
    page.get_by_test_id("reason").fill(HOSTILE + "y" * 10_000)
    page.get_by_test_id("disagree").click()
    told = page.get_by_test_id("response-told")
    expect(told).to_contain_text("The reason was clipped.")
    number = int(re.findall(r"audit (\d+)", told.inner_text())[0])
    kept = served.ask(f"/v1/audit/{number}")["body"]["reason"]
    assert kept == (HOSTILE + "y" * 10_000)[:500]
    page.goto(f"/audit?entry={number}")
    expect(page.get_by_test_id("entry")).to_contain_text(kept)
    assert page.locator("main img, main script").count() == 0
    assert page.title() != "taken"
    assert dialogs == []
