"""Recording faults are labelled to the sample, and absent unless asked for."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.handover import Cohort
from stepdown.patients.recording import LV_DERIVED, FaultConfig, corrupt
from stepdown.signals import CURRENT, DBP, MAP, NAMES, PULSATILITY, SBP, SPEED

FIELDS = ("gaps", "frozen", "missing", "flat", "unit_slips")
OFF = FaultConfig(**dict.fromkeys(FIELDS, 0.0), hide_low=False)
MANY = FaultConfig(**dict.fromkeys(FIELDS, 2.0))


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    draw = np.random.default_rng(0)
    seen = np.arange(300) < np.array([300, 180, 299, 60])[:, None]
    signals = draw.normal(60, 5, (4, 300, 12)).astype(np.float32)
    signals[~seen] = np.nan
    signals[1, 40:70, 10] = np.nan  # a stretch without tau, as some consoles have it
    level = np.where(seen, draw.integers(2, 10, (4, 300)), 0).astype(np.int32)
    return Cohort(jnp.asarray(signals), jnp.asarray(level), jnp.asarray(seen), ("a", "b", "c", "d"))


def changed(before: Cohort, after: Cohort) -> np.ndarray:
    x, y = np.asarray(before.signals), np.asarray(after.signals)
    return ~((x == y) | (np.isnan(x) & np.isnan(y)))


def labelled(cohort: Cohort, faults) -> np.ndarray:
    mask = np.zeros(cohort.signals.shape, bool)
    for fault in faults:
        column = slice(None) if fault.signal == "all" else NAMES.index(fault.signal)
        mask[cohort.patient.index(fault.patient), fault.first : fault.last + 1, column] = True
    return mask


def test_nothing_changes_when_all_faults_are_off(cohort):
    after, faults = corrupt(cohort, OFF, key=jr.key(0))
    assert faults == ()
    for name in ("signals", "level", "seen"):
        np.testing.assert_array_equal(getattr(after, name), getattr(cohort, name))


@pytest.mark.parametrize("seed", range(4))
def test_labels_name_exactly_what_changed(cohort, seed):
    after, faults = corrupt(cohort, MANY, key=jr.key(seed))
    assert {fault.kind for fault in faults} >= {"gap", "frozen", "missing", "flat", "hidden"}
    known = ~np.isnan(np.asarray(cohort.signals))
    np.testing.assert_array_equal(changed(cohort, after), labelled(cohort, faults) & known)
    gone = labelled(cohort, [fault for fault in faults if fault.kind == "gap"])[..., 0]
    np.testing.assert_array_equal(after.seen, np.asarray(cohort.seen) & ~gone)
    np.testing.assert_array_equal(after.level, np.where(gone, 0, cohort.level))


def test_the_same_key_gives_the_same_faults(cohort):
    assert corrupt(cohort, MANY, key=jr.key(3))[1] == corrupt(cohort, MANY, key=jr.key(3))[1]
    assert corrupt(cohort, MANY, key=jr.key(3))[1] != corrupt(cohort, MANY, key=jr.key(4))[1]


def test_ventricular_signals_vanish_below_p4_and_nowhere_else(cohort):
    config = FaultConfig(**dict.fromkeys(FIELDS, 0.0))
    after, faults = corrupt(cohort, config, key=jr.key(0))
    low = np.asarray(cohort.seen) & (np.asarray(cohort.level) < 4)
    assert np.all(np.isnan(np.asarray(after.signals)[low][:, LV_DERIVED]))
    assert {fault.kind for fault in faults} == {"hidden"}
    np.testing.assert_array_equal(changed(cohort, after).any(-1), low)


def only(kind: str, cohort: Cohort):
    """The cohort with a single kind of fault, and where it struck."""
    config = FaultConfig(**(dict.fromkeys(FIELDS, 0.0) | {kind: 3.0}), hide_low=False)
    after, faults = corrupt(cohort, config, key=jr.key(1))
    assert len({fault.kind for fault in faults}) == 1
    return np.asarray(after.signals), faults


def test_a_flat_pressure_line_has_no_pulse(cohort):
    after, faults = only("flat", cohort)
    pulses = [fault for fault in faults if fault.signal == "pulsatility"]
    assert pulses
    for fault in pulses:
        stretch = after[cohort.patient.index(fault.patient), fault.first : fault.last + 1]
        assert np.all(stretch[:, PULSATILITY] == 0)
        assert len(np.unique(stretch[:, (MAP, SBP, DBP)])) == 1


def test_frozen_signals_repeat_the_value_before(cohort):
    after, faults = only("frozen", cohort)
    assert {fault.signal for fault in faults} <= {NAMES[column] for column in LV_DERIVED}
    for fault in faults:
        values = after[cohort.patient.index(fault.patient), :, NAMES.index(fault.signal)]
        earlier = values[: fault.first]
        assert np.all(values[fault.first : fault.last + 1] == earlier[~np.isnan(earlier)][-1])


def test_unit_slips_scale_whole_groups_of_signals(cohort):
    after, faults = only("unit_slips", cohort)
    before = np.asarray(cohort.signals)
    factors = {CURRENT: 1e-3, SPEED: 1e-3}
    for fault in faults:
        row, column = cohort.patient.index(fault.patient), NAMES.index(fault.signal)
        stretch = (row, slice(fault.first, fault.last + 1), column)
        expected = before[stretch] * factors.get(column, 0.1333224)  # kPa per mmHg
        np.testing.assert_allclose(after[stretch], expected, rtol=1e-6)
