"""The worked examples of CONTRIBUTING.md: a new file and a row of a table, as printed there."""

import importlib
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
FENCE = r"```python\n(.*?)```"


def documented(heading: str) -> Any:
    """The row of the example under a heading such as "A density", made of the example's file.

    The file is new, the table exists, and the row needs nothing but the two.
    """
    text = PAGE.read_text("utf-8")
    section = re.split(r"\n##+ ", text.split(f"### {heading}\n")[1])[0]
    new, table = re.findall(r"`(stepdown/[\w/]+\.py)`", section)[:2]
    assert not (ROOT / new).exists(), f"{new}: expected a file that is not there yet"
    assert (ROOT / table).is_file()
    source, row = re.findall(FENCE, section, re.S)
    module: dict[str, Any] = {"__name__": new.removesuffix(".py").replace("/", ".")}
    exec(compile(source, new, "exec"), module)
    known = vars(importlib.import_module(table.removesuffix(".py").replace("/", ".")))
    return eval(row, {**known, **module})
