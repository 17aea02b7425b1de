"""However a table is written, it comes in right or is asked about, and doctor and import agree.

`STEPDOWN_FULL=1 .venv/bin/python -m pytest tests/records/test_dialects.py` tries 2,000 dialects.
"""

import pytest

from tests.app.sample_sizes import count
from tests.records.dialects import draw_case, try_case


@pytest.mark.parametrize("seed", range(count(24, 2000)))
def test_a_dialect_comes_in_right_or_is_asked_about(seed, tmp_path):
    case = draw_case(seed)
    answer = try_case(case, tmp_path / "case")
    expected = "asked" if case.asked else "right"
    assert answer.outcome == expected, (case.asked, case.mapping, answer, case.text[:600])
