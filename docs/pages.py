"""What MkDocs does besides: notebooks become pages, examples in docstrings become code.

Links to files of the repository that are not part of the site become plain words.
"""

import json
import re
from pathlib import Path

import griffe
from mkdocs.structure.files import File

DOCS = Path(__file__).parent


def notebook_page(path: Path) -> str:
    """The cells of a notebook as Markdown; outputs are not kept in notebooks."""
    parts = [f"Notebook: `docs/notebooks/{path.name}`. The tests run it."]
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, *rest = parts[1:]
    return "\n\n".join([title, parts[0], *rest]) + "\n"


def on_files(files, config):
    """Add a page for every notebook."""
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        text = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """A link to a file of the repository that is not part of the site keeps its words alone."""
    here = (DOCS / page.file.src_uri).parent

    def out(found):
        words, target = found[1], found[2]
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        place = (here / target.partition("#")[0]).resolve()
        inside = place.is_relative_to(DOCS) and not target.endswith("/")
        return found[0] if inside else f"{words} (`{target.removeprefix('../')}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", out, markdown)


class Examples(griffe.Extension):
    """Lines that begin with >>> in a docstring, and what they print, are code."""

    def on_object(self, *, obj, **_):
        """Fence them."""
        if obj.docstring:
            fenced = re.sub(r"(?m)^>>> (?:.+\n?)+", r"```pycon\n\g<0>\n```", obj.docstring.value)
            obj.docstring.value = fenced
