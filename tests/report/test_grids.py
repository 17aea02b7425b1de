"""One writer for all tables: the same cells in every form, tidy rows as CSV."""

import pytest

from stepdown.report.grids import (
    Cell,
    Grid,
    apart,
    number,
    signed,
    to_csv,
    to_html,
    to_markdown,
    to_text,
)


def test_grids_say_the_same_in_every_form():
    rows = ((Cell("a|<b>"), Cell("−1", "≈ 0 [−1, +1]", strong=True)), (Cell("c"), Cell()))
    grid = Grid("T", ("Name", "x"), rows, (("", 1), ("Over", 1)), {0: "First"}, "Why.")
    assert "| a\\|<b> | **−1** (≈ 0 [−1, +1]) |" in to_markdown(grid)
    assert "| Name | Over, x |" in to_markdown(grid)
    assert "<strong>−1</strong><small>≈ 0 [−1, +1]</small>" in to_html(grid)
    assert "a|&lt;b&gt;" in to_html(grid)
    assert to_text(grid).splitlines()[-2:] == ["a|<b>  -1*", "c        -"]
    with pytest.raises(ValueError, match="expected 2 columns"):
        Grid("T", ("Name", "x"), ((Cell("a"),),))


def test_a_long_note_is_wrapped_in_markdown():
    note = " ".join(f"word-{number}" for number in range(60))
    lines = to_markdown(Grid("", ("Name",), ((Cell("a"),),), note=note)).splitlines()[4:]
    assert len(lines) > 1
    assert max(map(len, lines)) <= 120
    assert " ".join(lines) == note


def test_numbers_have_real_signs_and_no_minus_zero():
    assert [number(x) for x in (-1.005, -0.001, 1234.5)] == ["−1.00", "0.00", "1,234.50"]
    assert [signed(x) for x in (0.5, -0.5, 0.0, float("nan"))] == ["+0.50", "−0.50", "0.00", "–"]


def test_a_difference_is_strong_where_its_interval_excludes_zero():
    clear = apart({"mean": 0.02, "low": 0.01, "high": 0.03}, 1, 100.0)
    assert clear == Cell("+2.0", "[+1.0, +3.0]", strong=True)
    assert not apart({"mean": 0.02, "low": -0.01, "high": 0.03}).strong


def test_tidy_rows_keep_their_columns_and_leave_gaps_empty():
    rows = [{"a": "x,y", "b": 1 / 3}, {"a": "z", "b": None, "c": float("nan")}, {"c": 2}]
    assert to_csv(rows).decode() == 'a,b,c\n"x,y",0.333333,\nz,,\n,,2\n'
    assert to_csv(rows[:1], digits=None).decode() == 'a,b\n"x,y",0.3333333333333333\n'
    assert to_csv([], ["a", "b"]).decode() == "a,b\n"


def test_columns_of_words_stand_left_and_may_have_no_rule_or_title():
    rows = ((Cell("7"), Cell("0.5"), Cell("P2 50%")), (Cell("10"), Cell(), Cell("P3")))
    grid = Grid("", ("seed", "loss", "levels"), rows, kinds=("number", "number", ""))
    assert to_text(grid, rule=False).splitlines() == [
        "seed  loss  levels", "   7   0.5  P2 50%", "  10     -  P3"
    ]  # fmt: skip
    assert to_text(grid, least=6).splitlines()[:2] == ["  seed    loss  levels", "-" * 22]
    assert to_markdown(grid).splitlines()[:2] == ["| seed | loss | levels |", "|---:|---:|---|"]
    assert "<h3>" not in to_html(grid)


def test_a_table_without_names_has_plain_cells():
    grid = Grid(
        "T", ("a", "b"), ((Cell("x"), Cell("1", kind="bad")),), groups={0: "G"}, names=False
    )
    assert to_html(grid) == (
        '<h3>T</h3>\n<div class="wide"><table><thead><tr><th>a</th><th class="number">b</th></tr>'
        '</thead><tbody><tr class="group"><th colspan="2">G</th></tr>\n'
        '<tr><td>x</td><td class="bad">1</td></tr></tbody></table></div>\n'
    )
