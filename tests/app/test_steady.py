"""A word is said only where the courses are clear of the line; hardly another state keeps it."""

import dataclasses

import numpy as np
import pytest
import scipy.stats

from stepdown.app import steady
from stepdown.app.engine import BLOCK, MOST, Outlook, look
from stepdown.app.gates import ACCEPTABLE, PLACES, RISKY, place_levels
from stepdown.app.limits import Limits
from stepdown.app.request import Channel, model_state, read_request
from stepdown.app.steady import Advice, advise, fewer_than_holding, rank, risk_interval
from stepdown.app.whatif import what_if
from stepdown.signals import LEVELS
from tests.app.bedsides import calm

HELD = 6  # the level of calm()
OPEN = np.abs(np.array(LEVELS) - HELD) <= 2


def outlook(left: dict[int, int], courses: int = 1000) -> Outlook:
    """The first `left[p]` of the courses leave the MAP limit at P-p, none elsewhere."""
    found = np.zeros((8, courses, 3), bool)
    for p, count in left.items():
        found[p - 2, :count, 0] = True
    by_level, pair = np.full(8, np.nan), np.full((8, 2), np.nan)
    return Outlook(
        quantiles=np.full((8, 5, 36, 5), np.nan), carried=np.full((8, 5), np.nan), left=found,
        courses=np.full(8, courses), by_member=by_level[None], p_value=by_level, within=pair,
        between=pair, preference=by_level, weighed=None,
    )  # fmt: skip


def placed(seen: Outlook, before: np.ndarray | None = None) -> np.ndarray:
    return place_levels(calm(), OPEN, OPEN, risk_interval(seen), before=before)


@pytest.mark.parametrize(("count", "draws"), [(0, 200), (3, 200), (20, 200), (260, 2200), (50, 50)])
def test_the_interval_is_that_of_wilson(count, draws):
    low, high = steady.interval(np.array(count), np.array(draws))
    told = scipy.stats.binomtest(count, draws).proportion_ci(steady.LEVEL_OF, "wilson")
    assert (float(low), float(high)) == pytest.approx((told.low, told.high), abs=1e-4)


def test_near_the_line_it_is_undecided_and_clear_of_it_a_word():
    """The line is 10 %: of 1,000 courses 60 are below it for sure, 140 above it, 100 neither."""
    seen = placed(outlook({4: 140, 5: 100, 6: 60}))
    assert [PLACES[x] for x in seen[2:5]] == ["risky", "undecided", "acceptable"]
    fewer = placed(outlook({4: 28, 5: 20, 6: 12}, courses=200))  # the same shares of fewer courses
    assert [PLACES[x] for x in fewer[2:5]] == ["undecided"] * 3


def test_a_word_said_a_moment_ago_stays_while_the_courses_leave_it_open():
    near = outlook({4: 140, 5: 100, 6: 60})
    for word in (ACCEPTABLE, RISKY):
        assert placed(near, np.full(8, word))[3] == word
    assert list(placed(near, np.full(8, RISKY))[[2, 4]]) == [RISKY, ACCEPTABLE]  # clear is clear
    assert list(placed(near, np.full(8, ACCEPTABLE))[[2, 4]]) == [RISKY, ACCEPTABLE]


def test_two_levels_are_compared_course_by_course():
    """P-7 spares 100 of the 140 courses that leave at P-6; the same luck makes that certain."""
    mean, low, high = fewer_than_holding(outlook({6: 140, 7: 40, 8: 130}), HELD)
    assert mean[5] == pytest.approx(0.10)
    assert low[5] == pytest.approx(0.10 - steady.Z * np.sqrt(102 - 1000 * 0.01) / 1000)
    assert low[6] < 0.05 < low[5]
    assert (mean[4], low[4], high[4]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ({6: 20}, Advice("acceptable", None)),
        ({4: 500, 5: 500, 6: 400, 7: 200, 8: 90}, Advice("act", 7, (7, 8))),
        ({4: 400, 5: 400, 6: 400, 7: 400, 8: 400}, Advice("watch", 6)),
        ({4: 400, 5: 400, 6: 400, 7: 350, 8: 400}, Advice("undecided", None)),
        ({4: 400, 5: 400, 6: 100, 7: 400, 8: 400}, Advice("undecided", None)),
    ],
)
def test_where_nothing_is_acceptable_to_act_is_told_from_to_watch(left, told):
    seen = outlook(left)
    place = placed(seen)
    if told.kind == "act":  # P-8 alone is below the line, and more support than P-6 may be needed
        place = np.where(place == ACCEPTABLE, RISKY, place)
    assert advise(seen, place, OPEN, HELD) == told


def test_levels_are_ranked_by_their_courses_and_then_by_the_change():
    assert rank(outlook({4: 300, 5: 100, 6: 100, 7: 50, 8: 50}), OPEN, HELD) == {
        7: 1, 8: 2, 6: 3, 5: 4, 4: 5,
    }  # fmt: skip


def state_of(engine, request):
    found = model_state(read_request(request, 6, "cp", engine.columns, engine.used), engine.used)
    assert found is not None
    return found[0]


def test_hardly_another_state_meets_the_same_luck(engine, answered):
    """A thousandth of a mmHg moves a few courses across a limit, not a quarter of them."""
    shown = [(r, [c["risk"] for c in a["candidates"] if c["risk"]]) for r, a in answered]
    request, _ = max(shown, key=lambda x: sum(risk["any"] / risk["draws"] for risk in x[1]))
    state = state_of(engine, request)
    near = state.copy()
    near[-1, 0] += 0.001
    one, other = (look(engine, x, Limits()).left for x in (state, near))
    assert one.any(-1).mean() > 0.05
    assert (one != other).mean() < 0.002
    luck = look(dataclasses.replace(engine, luck=1), state, Limits()).left
    assert (one != luck).mean() > 0.02


def test_further_courses_are_those_of_the_same_luck_and_stop_when_it_is_clear(engine, answered):
    state = state_of(engine, answered[0][0])
    asked = []

    def unclear(seen):
        asked.append(seen.courses.copy())
        return np.isin(LEVELS, [5] if len(asked) < 3 else [])

    seen = look(dataclasses.replace(engine, most=MOST), state, Limits(), unclear)
    assert list(seen.courses) == [engine.draws + 2 * BLOCK * (p == 5) for p in LEVELS]
    assert len(asked) == 3
    np.testing.assert_array_equal(seen.left[:, : engine.draws], look(engine, state, Limits()).left)


def test_a_word_of_a_moment_ago_is_kept_only_after_further_courses(engine, answered):
    """A level that was risky and of which hardly a course leaves now is acceptable, not kept."""
    request, answer = next((r, a) for r, a in answered if a["acceptable"])
    before = {str(p): "risky" for p in answer["acceptable"]}
    again = what_if(engine, request, before=before)
    for p in answer["acceptable"]:
        one, then = again["candidates"][p - 2], answer["candidates"][p - 2]
        assert (one["word"], one["risk"]["draws"]) == ("acceptable", then["risk"]["draws"])


def test_the_same_patient_hardly_changed_never_gets_the_opposite_word(engine, answered):
    """The moments nearest to the line, where 25 of 39 changed their answer once."""

    def nearness(answer):
        shares = [x["risk"]["map_low"] / x["risk"]["draws"] for x in answer["candidates"]
                  if x["risk"] and not x["gates"]]  # fmt: skip
        return min((abs(x - engine.gates.risk) for x in shares), default=1.0)

    for request, answer in sorted(answered, key=lambda x: nearness(x[1]))[:3]:
        said = [answer]
        for change in (0.001, -0.005):
            *before, last = request.channels["map"].values
            other = Channel(request.channels["map"].unit, (*before, last + change))
            near = dataclasses.replace(request, channels={**request.channels, "map": other})
            said.append(what_if(engine, near))
        said.append(what_if(dataclasses.replace(engine, luck=3), request))
        for p in range(8):
            words = {x["candidates"][p]["word"] for x in said}
            assert not {PLACES[ACCEPTABLE], PLACES[RISKY]} <= words
        assert len({x["advice"]["kind"] for x in said} - {"undecided"}) <= 1
