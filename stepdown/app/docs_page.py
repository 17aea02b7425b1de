"""The API's documentation as one plain page: made from OpenAPI here, no script, no foreign host."""

import html
import json
from typing import Any

_METHODS = ("get", "post")


def docs_page(api: dict[str, Any]) -> str:
    """All paths with parameters, bodies and answers."""
    title = html.escape(api["info"]["title"])
    paths = "".join(
        _operation(path, method, entry[method])
        for path, entry in api["paths"].items()
        for method in _METHODS
        if method in entry
    )
    shapes = api.get("components", {}).get("schemas", {})
    listed = "".join(
        f'<section id="{html.escape(name)}"><h3>{html.escape(name)}</h3>{_json(shape)}</section>'
        for name, shape in shapes.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        '<link rel="stylesheet" href="/static/docs.css"></head><body>'
        '<p class="banner" data-testid="research-banner" role="note">Research tool, not for '
        f"patient care</p><main><h1>{title}</h1><p>{html.escape(api['info']['description'])}</p>"
        '<p>For programs: <a href="/openapi.json">openapi.json</a></p>'
        f"<h2>Paths</h2>{paths}<h2>Shapes</h2>{listed}</main></body></html>"
    )


def _operation(path: str, method: str, entry: dict[str, Any]) -> str:
    given = "".join(
        f"<li><code>{html.escape(one['name'])}</code> in {one['in']}: "
        f"<code>{html.escape(json.dumps(one['schema']))}</code></li>"
        for one in entry.get("parameters", [])
    )
    body = entry.get("requestBody", {}).get("content", {}).get("application/json", {})
    sent = f"<p>Body: {_link(body['schema'])}</p>" if body else ""
    answers = "".join(
        f"<li>{status}: {html.escape(one.get('description', ''))} {_answer(one)}</li>"
        for status, one in entry["responses"].items()
    )
    words = html.escape(entry.get("description") or entry.get("summary", ""))
    return (
        f"<section><h3><code>{method.upper()} {html.escape(path)}</code></h3><p>{words}</p>"
        f"<ul>{given}</ul>{sent}<ul>{answers}</ul></section>"
    )


def _answer(one: dict[str, Any]) -> str:
    content = one.get("content", {}).get("application/json", {})
    return _link(content["schema"]) if "schema" in content else ""


def _link(schema: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rsplit("/", 1)[-1]
    if not name:
        return f"<code>{html.escape(json.dumps(schema))}</code>"
    return f'<a href="#{html.escape(name)}">{html.escape(name)}</a>'


def _json(value: Any) -> str:
    return f"<pre>{html.escape(json.dumps(value, indent=2))}</pre>"
