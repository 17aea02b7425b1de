"""Tables of the results pages are what the numbers beside them give; nobody edits one by hand."""

import re

import pytest

from benchmarks.documents import results
from benchmarks.tables import DOCS, filled


def test_the_tables_of_the_pages_are_what_the_kept_numbers_give():
    for page, text in results.pages().items():
        assert page.read_text("utf-8") == text, f"run python -m {results.__name__}"


def test_a_number_edited_by_hand_is_put_back():
    page = DOCS / "results.md"
    told = page.read_text("utf-8")
    number = re.search(r"<!-- headline -->.*?([0-9]\.[0-9]{2})", told, re.S)
    assert number is not None
    other = told[: number.start(1)] + "9.99" + told[number.end(1) :]
    assert filled(other, {"headline": results.independent_page.write_headline(
        results.independent_page.planned())}) == told  # fmt: skip


@pytest.mark.parametrize("name", ["results.md", "all-results.md"])
def test_every_table_of_numbers_stands_between_markers(name):
    text = (DOCS / name).read_text("utf-8")
    free = re.sub(r"<!-- (?!end)[^>]* -->\n.*?<!-- end -->", "", text, flags=re.S)
    tables = re.findall(r"(?:^\|.*\n)+", free, re.M)
    assert [x for x in tables if re.search(r"\d\.\d", x) and "claim of the paper" not in x] == []


def test_pages_whose_numbers_were_not_kept_are_as_they_were():
    assert results.changed_pages() == []


def test_every_file_of_results_is_named_by_a_page_that_says_what_made_it():
    told = "".join(
        (DOCS / page).read_text("utf-8")
        for page in ("reproduce.md", "results.md", "all-results.md", "results/independent.md")
    )
    files = {x.name for x in (DOCS / "results").iterdir() if x.is_file()}
    assert {x for x in files if x not in told} == set()
