"""A written moment is read as that moment, and an hour that comes twice is not guessed."""

import datetime
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepdown.records.mapping import ORDERS
from stepdown.records.stamps import place, read_stamps

UTC = datetime.UTC
FORMS = {"year-month-day": "%Y-%m-%d", "day-month-year": "%d.%m.%Y", "month-day-year": "%m/%d/%Y"}
CLOCKS = (" %H:%M", "T%H:%M:%S", " %H:%M:%S.%f", " %H:%M:%S,%f", " %I:%M %p", ", %I:%M:%S %p")


@given(
    st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2090, 1, 1)),
    st.sampled_from(ORDERS),
    st.sampled_from(CLOCKS),
    st.sampled_from(["", "Z", "+0200", "+02:00", "-05:30", "+02"]),
)
def test_a_stamp_is_read_as_the_moment_it_was_written(moment, order, clock, offset):
    moment = moment.replace(microsecond=moment.microsecond if "f" in clock else 0)
    moment = moment.replace(second=moment.second if "S" in clock else 0)
    wall = read_stamps(pl.Series([moment.strftime(FORMS[order] + clock) + offset]), order)
    hours = {"": 0, "Z": 0, "-05:30": -5.5}.get(offset, 2)
    expected = moment.replace(tzinfo=UTC).timestamp() - 3600 * hours
    assert wall.second[0] == pytest.approx(expected, abs=2e-6)
    assert wall.local[0] == (offset == "")


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2024-13-01 10:00", "2024-02-30 10:00", "2024-05-01", "2024-05-01 24:10",
     "2024-05-01 13:00 PM", "2024-05-01 10:00 MEZ", "20240501 10:00", "24-05-01 10:00"],
)  # fmt: skip
def test_what_is_no_moment_is_not_read_as_one(text):
    assert np.isnan(read_stamps(pl.Series([text]), "year-month-day").second[0])


def local(first: datetime.datetime, count: int, zone: str) -> list[str]:
    step = datetime.timedelta(minutes=10)
    moments = [(first + i * step).astimezone(ZoneInfo(zone)) for i in range(count)]
    return [moment.strftime("%Y-%m-%d %H:%M") for moment in moments]


AUTUMN = datetime.datetime(2024, 10, 26, 23, tzinfo=UTC)  # Berlin: 02:00 to 02:50 comes twice
SPRING = datetime.datetime(2024, 3, 31, 0, tzinfo=UTC)  # Berlin: 02:00 to 02:50 never comes


def placed(stamps, doubled=None, zone="Europe/Berlin"):
    return place(read_stamps(pl.Series(stamps), "year-month-day"), zone, doubled)


@pytest.mark.parametrize("start", [AUTUMN, SPRING])
def test_a_clock_that_was_changed_is_followed(start):
    found = placed(local(start, 24, "Europe/Berlin"))
    assert found.questions == ()
    np.testing.assert_array_equal(found.second, start.timestamp() + 600.0 * np.arange(24))


def test_an_hour_that_is_passed_once_is_asked_about_and_can_be_declared():
    stamps = local(AUTUMN, 24, "Europe/Berlin")
    once = stamps[:6] + stamps[12:]
    (question,) = placed(once).questions
    assert question.startswith("2024-10-27 02:00:00 to 2024-10-27 02:50:00 comes twice")
    assert "time.doubled" in question
    times = AUTUMN.timestamp() + 600.0 * np.arange(24)
    later, earlier = placed(once, "later"), placed(once, "earlier")
    np.testing.assert_array_equal(later.second, np.delete(times, range(6, 12)))
    np.testing.assert_array_equal(earlier.second, np.delete(times, range(12, 18)))


def test_a_stay_that_ends_or_begins_in_the_doubled_hour_goes_on_without_a_gap():
    stamps = local(AUTUMN, 24, "Europe/Berlin")
    times = AUTUMN.timestamp() + 600.0 * np.arange(24)
    np.testing.assert_array_equal(placed(stamps[:10]).second, times[:10])
    np.testing.assert_array_equal(placed(stamps[14:]).second, times[14:])


def test_rows_that_were_sorted_by_the_wall_are_asked_about():
    found = placed(sorted(local(AUTUMN, 24, "Europe/Berlin")))
    assert len(found.questions) == 1
    assert "order of the rows does not tell" in found.questions[0]


def test_an_hour_that_does_not_exist_is_asked_about_and_a_fixed_offset_settles_it():
    stamps = local(SPRING, 24, "Etc/GMT-1")
    (question,) = placed(stamps).questions
    assert question.startswith("6 stamps such as 2024-03-31 02:00:00, which does not exist")
    found = placed(stamps, zone="Etc/GMT-1")
    assert found.questions == ()
    np.testing.assert_array_equal(found.second, SPRING.timestamp() + 600.0 * np.arange(24))
