"""However a table is written, it comes in right or is asked about, and doctor and import agree.

`STEPDOWN_FULL=1 .venv/bin/python -m pytest tests/records/test_dialects.py` tries 2,000 dialects.
"""

import datetime
import re
from pathlib import Path

import pytest

from stepdown.__main__ import main
from stepdown.records.dialects import QuestionError, find_layout, settle
from stepdown.records.mapping import parse_mapping
from stepdown.records.readers import RecordingError, read_table
from stepdown.records.stays import read_traces
from tests.app.sample_sizes import count
from tests.records.dialects import draw_case, try_case
from tests.records.recordings import VALUES, import_words, mapping_file


@pytest.mark.parametrize("seed", range(count(24, 2000)))
def test_a_dialect_comes_in_right_or_is_asked_about(seed, tmp_path):
    case = draw_case(seed)
    answer = try_case(case, tmp_path / "case")
    expected = "asked" if case.asked else "right"
    assert answer.outcome == expected, (case.asked, case.mapping, answer, case.text[:600])


HEADER = "patient;time;map;hr;pulsatility;level\n"
MAPPING = VALUES | {"time": {"column": "time", "unit": "date", "zone": "UTC"}}


def written(folder: Path, stamps, cells="70,5", more="") -> Path:
    """Some rows of one stay; the second and third signal are whole numbers."""
    rows = [f"a;{x};{cells};{80 + i % 7};{25 + i % 5};6\n" for i, x in enumerate(stamps)]
    (folder / "table.csv").write_text(HEADER + "".join(rows) + more, encoding="utf-8")
    return folder / "table.csv"


def days(form: str, first: int, count: int = 40):
    """Stamps from a day of May on, every ten minutes from 22:00."""
    start = datetime.datetime(2024, 5, first, 22)
    return [(start + i * datetime.timedelta(minutes=10)).strftime(form) for i in range(count)]


@pytest.mark.parametrize(
    ("form", "first", "order"),
    [
        ("%d/%m/%Y %H:%M", 12, "day-month-year"),  # midnight shows the 13th
        ("%m/%d/%Y %H:%M", 12, "month-day-year"),
        ("%d-%m-%Y %H:%M:%S", 30, "day-month-year"),
        ("%d.%m.%Y %H:%M", 3, "day-month-year"),  # dots need no 13th
        ("%Y/%m/%d %H:%M", 3, "year-month-day"),
    ],
)
def test_the_order_of_dates_is_told_by_any_row_of_the_file(form, first, order, tmp_path):
    path = written(tmp_path, days(form, first))
    assert settle(path, parse_mapping(MAPPING)).order == order


@pytest.mark.parametrize("form", ["%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%m-%Y %H:%M"])
def test_days_up_to_the_twelfth_are_asked_about(form, tmp_path):
    path = written(tmp_path, days(form, 3))
    with pytest.raises(QuestionError, match=r"time.order = 'day-month-year' or 'month-day-year'"):
        settle(path, parse_mapping(MAPPING))
    for order in ("day-month-year", "month-day-year"):
        declared = MAPPING | {"time": MAPPING["time"] | {"order": order}}
        assert settle(path, parse_mapping(declared)).order == order


def test_two_orders_in_one_file_are_asked_about(tmp_path):
    path = written(tmp_path, [*days("%d/%m/%Y %H:%M", 20), *days("%m/%d/%Y %H:%M", 20)])
    with pytest.raises(QuestionError, match="days above 12 in the first and in the second place"):
        settle(path, parse_mapping(MAPPING))


@pytest.mark.parametrize(
    ("cells", "comma"),
    [("70,5", True), ("70.5", False), ("70", False), ("0,125", True), ("1.070,5", True),
     ("1,070.25", False), ("1070,125", True), ("1.234.567", True), ("7e1", False)],
)  # fmt: skip
def test_the_decimal_mark_is_told_by_digits_that_are_no_group(cells, comma, tmp_path):
    path = written(tmp_path, days("%Y-%m-%d %H:%M", 1), cells)
    assert settle(path, parse_mapping(MAPPING)).decimal_comma == comma


@pytest.mark.parametrize(
    ("cells", "yes", "no"), [("70,125", 70.125, 70125), ("1.234", 1234, 1.234)]
)
def test_a_mark_before_three_digits_is_asked_about(cells, yes, no, tmp_path):
    path = written(tmp_path, days("%Y-%m-%d %H:%M", 1), cells)
    sentence = re.escape(f"csv.decimal_comma = true ({yes}) or false ({no})")
    with pytest.raises(QuestionError, match=sentence):
        settle(path, parse_mapping(MAPPING))
    for comma, value in ((True, yes), (False, no)):
        columns = settle(path, parse_mapping(MAPPING | {"csv": {"decimal_comma": comma}}))
        (trace,) = read_traces(path, columns)
        assert set(trace.lines["map"].values) == {value}


def test_the_last_row_may_settle_the_decimal_mark(tmp_path):
    more = "a;2024-05-02 10:00;70,5;80;25;6\n"
    path = written(tmp_path, days("%Y-%m-%d %H:%M", 1), "70,125", more)
    (trace,) = read_traces(path, settle(path, parse_mapping(MAPPING)))
    assert list(trace.lines["map"].values[-2:]) == [70.125, 70.5]


def test_two_decimal_marks_are_asked_about_and_never_mixed(tmp_path):
    more = "".join(f"a;2024-05-02 1{i}:00;70.5;80;25;6\n" for i in range(5))
    path = written(tmp_path, days("%Y-%m-%d %H:%M", 1), "70,5", more)
    with pytest.raises(QuestionError, match="got numbers such as '70.5' and '70,5'"):
        settle(path, parse_mapping(MAPPING))
    (trace,) = read_traces(
        path, settle(path, parse_mapping(MAPPING | {"csv": {"decimal_comma": True}}))
    )
    assert len(trace.lines["map"].unreadable) == 5


def test_a_cell_too_many_is_refused_also_where_its_column_is_not_mapped(tmp_path):
    """A decimal comma without quotes shifts every cell behind it."""
    text = "patient,time,map,hr,pulsatility,level,note\n"
    text += "".join(f"a,{x},70,80,25,6\n" for x in days("%Y-%m-%d %H:%M", 1))
    (tmp_path / "t.csv").write_text(text + "a,2024-05-03 10:00,70,5,80,25,6,x\n")
    with pytest.raises(RecordingError, match="expected a readable CSV file"):
        list(read_traces(tmp_path / "t.csv", settle(tmp_path / "t.csv", parse_mapping(MAPPING))))


def test_a_separator_that_two_could_be_is_asked_about(tmp_path):
    (tmp_path / "t.csv").write_text("a;b,c\n1;2,3\n4;5,6\n")
    with pytest.raises(QuestionError, match=r"comma \(2 columns\) or semicolon \(2 columns\)"):
        find_layout(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("a;b,c\n1;2,3,4\n4;5,6,7\n")
    assert find_layout(tmp_path / "t.csv").separator == ";"


@pytest.mark.parametrize(
    ("written_in", "found"),
    [("utf-8", "utf-8"), ("utf-8-sig", "utf-8"), ("latin-1", "cp1252"), ("cp1252", "cp1252"),
     ("utf-16", "utf-16"), ("utf-16-le", "utf-16-le"), ("utf-16-be", "utf-16-be")],
)  # fmt: skip
def test_encodings_are_recognized(written_in, found, tmp_path):
    text = "zeit;Fluß µ\n" + "".join(f"{i};{i},5\n" for i in range(2000)) + "7;8,5\n"
    (tmp_path / "t.csv").write_bytes(text.encode(written_in))
    layout = find_layout(tmp_path / "t.csv")
    assert (layout.encoding, layout.separator) == (found, ";")
    assert read_table(tmp_path / "t.csv", None, layout)["Fluß µ"][-1] == "8,5"


def test_the_same_question_ends_both_commands_and_writes_nothing(tmp_path, capsys):
    path = written(tmp_path, days("%d/%m/%Y %H:%M", 3))
    mapping = mapping_file(tmp_path, MAPPING)
    assert main(import_words(tmp_path, path)) == 2
    asked = capsys.readouterr().err.partition("stepdown: ")[2]
    assert "which may be day, month, year or month, day, year" in asked
    assert main(["doctor", str(path), "--columns", str(mapping)]) == 2
    assert capsys.readouterr().err.partition("stepdown: ")[2] == asked
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mapping.toml", "table.csv"]
    assert main(["doctor", str(path)]) == 2  # without a mapping it gives one to complete
    told = capsys.readouterr().err
    assert 'time = { column = "time", unit = "date" }  # PROPOSAL' in told
    assert 'csv = { encoding = "utf-8", separator = ";", decimal_comma = true }' in told


def test_a_proposal_says_how_the_file_is_written(tmp_path, capsys):
    path = written(tmp_path, days("%d.%m.%Y %H:%M", 3))
    assert main(["doctor", str(path)]) == 1
    printed = capsys.readouterr().out
    assert 'unit = "date", order = "day-month-year" }  # PROPOSAL' in printed
    assert "File read as: utf-8, semicolon, decimal comma, day.month.year" in printed
