"""Tables in Markdown, the interval of all studies, and the pages that tables are put into."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stepdown.evaluation.compare import over_cohorts

DOCS = Path(__file__).parent.parent / "docs"


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    head, *lines = ("| " + " | ".join(row) + " |" for row in (heads, *rows))
    return "\n".join([head, "|---" * len(heads) + "|", *lines])


def student(values: Iterable[float], digits: int = 2) -> str:
    """The mean over cohorts with Student's interval, in words."""
    return sure(over_cohorts([float(x) for x in values]), digits)


def sure(found: Mapping[str, float], digits: int = 2) -> str:
    """A mean and its interval in words."""
    mean, low, high = (f"{found[x]:+.{digits}f}" for x in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def fill(page: Path, tables: Mapping[str, str]) -> None:
    """Put tables between their markers, `<!-- name -->` and `<!-- end -->`."""
    page.write_text(filled(page.read_text(encoding="utf-8"), tables), encoding="utf-8")


def filled(text: str, tables: Mapping[str, str]) -> str:
    """A page with these tables in it; all else stays as it is."""
    for name, table in tables.items():
        before, found, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not found or not end:
            raise SystemExit(f"expected the markers of {name!r} in the page, found none.")
        text = f"{before}{found}{table}\n{end}{after}"
    return text
