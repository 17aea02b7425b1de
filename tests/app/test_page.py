"""The page without a browser: local assets only, no inline code, no words that it must not say."""

import re
from pathlib import Path

import pytest

import stepdown.app
from stepdown.app.gates import GATES, refusal_codes
from stepdown.app.security import HEADERS, OPEN, hash_token
from stepdown.app.server import BANNER, PAGES
from tests.app.small_run import Client, make_service

STATIC = Path(stepdown.app.__file__).parent / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
STYLES = sorted(STATIC.glob("*.css"))
PAGE = (STATIC / "index.html").read_text()
COMMENT = re.compile(r"(?<!:)//[^\n]*|/\*.*?\*/", re.DOTALL)


def _code(path: Path) -> str:
    return COMMENT.sub("", path.read_text())


def test_banner_stands_in_the_page_itself():
    found = re.search(r'data-testid="research-banner"[^>]*>\s*<span>([^<]+)</span>', PAGE)
    assert found is not None
    assert found.group(1) == BANNER


def test_page_obeys_its_own_policy():
    assert "'unsafe-inline'" not in HEADERS["content-security-policy"]
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=", PAGE) == []
    assert re.findall(r"<script(?![^>]*\bsrc=)", PAGE) == []


def test_every_asset_is_local_and_there():
    asked = re.findall(r'(?:src|href)="(/static/[^"]+)"', PAGE)
    assert len(asked) >= 3
    for path in asked:
        assert (STATIC / path.removeprefix("/static/")).is_file(), path
    for path in [*SCRIPTS, *STYLES]:
        text = _code(path).replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|@import|url\((?!#)", text) == [], path.name


def test_modules_import_what_others_export():
    exported = {
        path.name: set(
            re.findall(r"export (?:async )?(?:function|const|class) (\w+)", path.read_text())
        )
        for path in SCRIPTS
    }
    for path in SCRIPTS:
        for names, source in re.findall(r'import \{([^}]+)\} from "\./([^"]+)"', path.read_text()):
            wanted = {name.strip() for name in names.split(",")}
            assert wanted <= exported[source], (path.name, source)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_insert_text_only_and_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert re.findall(unsafe, text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_words_that_are_not_ours(path):
    code = _code(path).lower()
    for word in ("alarm", "success", "confidence"):
        assert word not in code


def test_no_text_is_smaller_than_14_px():
    for path in STYLES:
        text = path.read_text()  # on paper 9 pt
        sizes = [float(x) for x in re.findall(r"font-size:\s*([\d.]+)px", text)]
        assert min((float(x) for x in re.findall(r"([\d.]+)pt", text)), default=9) >= 9, path.name
        assert min(sizes, default=14) >= 14, path.name
        relative = [float(x) for x in re.findall(r"font-size:\s*([\d.]+)rem", path.read_text())]
        assert min(relative, default=1) >= 1, path.name  # of 15 px


def test_the_scripts_have_no_refusal_of_their_own():
    """Sentences hold thresholds, which a site may change: they come from the server alone."""
    code = "".join(_code(path) for path in SCRIPTS)
    assert "codes.refusals.R01" in code
    for one in refusal_codes().values():
        assert one.sentence[:20] not in code
        assert one.remedy[:20] not in code


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colors_can_be_read_in_both_themes():
    themes = re.findall(r":root \{(.*?)\}", (STATIC / "style.css").read_text(), re.DOTALL)[:2]
    for theme in themes:
        colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", theme))
        for name in ("text", "muted", "map", "hr", "pulsatility", "lvedp", "flow", "limit", "link"):
            for ground in ("ground", "panel"):
                assert _contrast(colors[name], colors[ground]) >= 4.5, (name, ground)
        assert _contrast(colors["band"], colors["panel"]) >= 3.0


@pytest.fixture
def fenced(tmp_path):
    """A server that needs a token; no model is loaded, as none is asked."""
    service = make_service(tmp_path / "run", tmp_path / "state", load=False)
    client = Client(service, token=hash_token("secret"))
    yield client
    client.close()
    service.stop()


def test_page_opens_without_a_token(fenced):
    for path in PAGES:
        found = fenced.get(path.replace("{patient}", "p001").replace("{screen}", "whatif"))
        assert (found.status_code, found.text) == (200, PAGE), path
    for path in [*SCRIPTS, *STYLES]:
        found = fenced.get(f"/static/{path.name}")
        assert (found.status_code, found.text) == (200, path.read_text()), path.name
    assert fenced.get("/healthz").json() == {"status": "alive"}


def test_the_api_does_not_open_without_a_token(fenced):
    closed = 0
    for path, methods in fenced.app.app.openapi()["paths"].items():
        filled = re.sub(r"{\w+}", "1", path)
        for method in methods:
            found = fenced.send(method.upper(), filled, None, None, {"json": {}})
            assert (found.status_code == 401) == (filled not in OPEN), filled
            closed += found.status_code == 401
    assert closed > 15
    for path in ("/docs", "/openapi.json", "/p/a/b/c", "/models", "/static/"):
        assert fenced.get(path).status_code == 401, path
    for path in ("/static/%2e%2e/v1/audit", "/p/%2e%2e%2fv1%2faudit", "/p/1/..%2f..%2fv1%2faudit"):
        found = fenced.get(path)
        assert found.status_code in (401, 404), path
        assert "entries" not in found.text
    assert fenced.post("/audit", {}).status_code == 401  # a page is read, never written
    with_token = fenced.get("/v1/audit", headers={"Authorization": "Bearer secret"})
    assert with_token.json() == {"entries": []}


def test_the_guide_names_every_refusal_and_shows_small_pictures():
    guide = (Path(__file__).parents[2] / "docs" / "app.md").read_text("utf-8")
    for code in [*refusal_codes(), *GATES]:
        assert re.search(rf"\b{code}\b", guide), code
    pictures = re.findall(r"\]\((app/[\w-]+\.png)\)", guide)
    assert len(pictures) >= 4
    for name in pictures:
        size = (Path(__file__).parents[2] / "docs" / name).stat().st_size
        assert 10_000 < size < 250_000, name
