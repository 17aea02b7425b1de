"""Version 2 of the patients: bouts over a calm ground, small steps inside the hour."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.patients.clinicians import decide, decide_luck
from stepdown.patients.cohort import CohortConfig, admit, simulate_cohort, world_of
from stepdown.patients.course import circulation_of, heart_rate
from stepdown.patients.movement import KINDS, STIR_LUCK, calm, laplace, push, stir
from stepdown.patients.population import Luck, Movement, draw_luck, preset
from stepdown.signals import DBP, LVEDP, LVP, MAP, PULSATILITY, SBP, SIGNALS

WORLD = world_of(CohortConfig())
MOVEMENT = WORLD.population.movement or Movement()


@pytest.fixture(scope="module")
def patient():
    return admit(WORLD, key=jr.key(1))


@pytest.fixture(scope="module")
def ward():
    return simulate_cohort(CohortConfig(patients=64, hours=48.0), key=jr.key(3))[0]


def quiet(uniforms=(), normals=()) -> Luck:
    """No bout and no wandering, but what is told."""
    uniform = jnp.full(STIR_LUCK[0], 0.999)
    for index, value in dict(uniforms).items():
        uniform = uniform.at[index].set(value)
    normal = jnp.zeros(STIR_LUCK[1])
    for index, value in dict(normals).items():
        normal = normal.at[index].set(value)
    return Luck(uniform, normal)


def test_sizes_of_bouts_are_laplace():
    uniform = (np.arange(100_000) + 0.5) / 100_000
    sizes = np.asarray(laplace(jnp.asarray(uniform)))
    assert np.abs(sizes).mean() == pytest.approx(1.0, abs=0.01)
    assert np.median(sizes) == pytest.approx(0.0, abs=1e-3)
    for limit in (0.5, 1.0, 2.0):  # P(|x| > limit) = exp(-limit)
        assert (np.abs(sizes) > limit).mean() == pytest.approx(np.exp(-limit), abs=0.005)


def test_a_bout_comes_at_its_rate_and_fades_with_its_time():
    dt, ticks = 1 / 6, 40_000

    @jax.jit
    def many(keys):
        def one(now, key):
            (luck,) = draw_luck(STIR_LUCK, key=key)
            after = stir(now, MOVEMENT, dt, luck)
            return after, after.bouts

        return jax.lax.scan(one, calm(), keys)[1]

    bouts = np.asarray(many(jr.split(jr.key(0), ticks)))
    kept = np.exp(-dt / float(MOVEMENT.run_hours))
    jumps = np.abs(bouts[1:, 2] - kept * bouts[:-1, 2]) > 1e-4
    expected = 1 - np.exp(-float(MOVEMENT.runs) * dt)
    assert jumps.mean() == pytest.approx(expected, rel=0.1)
    one = stir(calm(), MOVEMENT, dt, quiet({2: 0.0, KINDS + 2: 0.9}))
    size = float(laplace(jnp.asarray(0.9)))
    assert np.asarray(one.bouts) == pytest.approx([0, 0, size, 0, 0], abs=1e-6)
    later = stir(one, MOVEMENT, dt, quiet())
    assert float(later.bouts[2]) == pytest.approx(size * kept, rel=1e-5)


def test_what_each_bout_moves():
    def moved(kind: int, size: float):
        bouts = jnp.zeros(KINDS).at[kind].set(size)
        return push(dataclasses.replace(calm(), bouts=bouts), MOVEMENT)

    still = push(calm(), MOVEMENT)
    assert [float(x) for x in jax.tree.leaves(still)] == [0, 0, 0, 0, 0, 1]
    m, (cough, bolus, run, turn, suction) = MOVEMENT, range(KINDS)
    assert float(moved(cough, 1.0).thorax) == pytest.approx(float(m.cough_thorax))
    assert float(moved(bolus, -2.0).drive) == pytest.approx(-2 * float(m.bolus_drive))
    assert float(moved(run, -1.0).rate) == pytest.approx(-float(m.run_rate))
    assert float(moved(run, -1.0).drive) == pytest.approx(-float(m.run_drive))  # lost either way
    assert float(moved(turn, 1.0).volume) == pytest.approx(float(m.turn_volume))
    assert float(moved(suction, -1.0).gain) == pytest.approx(1 - float(m.suction_gain))
    assert float(moved(suction, 1e3).gain) == pytest.approx(0.4)  # never all of the flow


def test_bouts_act_on_the_circulation(patient):
    def after(kind: int, size: float):
        bouts = jnp.zeros(KINDS).at[kind].set(size)
        stirred = dataclasses.replace(calm(), bouts=bouts)
        course = dataclasses.replace(patient.course, stir=stirred)
        rate = heart_rate(course, patient.traits, WORLD.population)
        return circulation_of(course, patient.traits, WORLD.population), float(rate)

    (still, rate), (driven, _) = after(0, 0.0), after(1, 1.0)
    ratio = float(driven.lv_elastance / still.lv_elastance)
    assert ratio == pytest.approx(np.exp(float(MOVEMENT.bolus_drive)), rel=1e-4)
    assert after(2, 0.5)[1] - rate == pytest.approx(0.5 * float(MOVEMENT.run_rate), rel=1e-3)
    assert float(after(3, 1.0)[0].blood_volume - still.blood_volume) == pytest.approx(
        float(MOVEMENT.turn_volume), rel=1e-3
    )


def test_contractility_follows_the_rate(patient):
    """Force and frequency: half as fast again gives half of `force_frequency` more."""

    def elastance(rate: float) -> float:
        traits = dataclasses.replace(patient.traits, rate=jnp.asarray(rate))
        still = dict(reflex=0.0, inotrope=0.0, fibrillating=0.0, rate_wander=0.0)
        values = {name: jnp.asarray(x) for name, x in still.items()}
        course = dataclasses.replace(patient.course, stir=calm(), **values)
        return float(circulation_of(course, traits, WORLD.population).lv_elastance)

    gain = float(MOVEMENT.force_frequency)
    assert elastance(120.0) / elastance(80.0) == pytest.approx(1 + 0.5 * gain, rel=1e-3)


def test_pressures_keep_their_order_through_every_bout(ward):
    seen = np.asarray(ward.seen)
    signals = np.asarray(ward.signals)[seen]
    assert (signals[:, SBP] >= signals[:, MAP]).all()
    assert (signals[:, MAP] >= signals[:, DBP]).all()
    assert signals[:, PULSATILITY] == pytest.approx(signals[:, SBP] - signals[:, DBP], abs=1e-3)


def test_pressing_moves_high_pressures_more_than_low_ones(ward):
    """What coughing does to the pressure signal is in proportion to it."""
    steps = np.diff(np.asarray(ward.signals), axis=1)
    known = np.asarray(ward.seen)[:, 1:]
    steps = steps[known & (np.diff(np.asarray(ward.level), axis=1) == 0)]
    large = steps[np.abs(steps[:, MAP]) > 6]
    size = np.median(np.abs(large), axis=0)
    assert size[SBP] > size[MAP] > size[DBP]
    assert size[LVP] > size[LVEDP]


def test_teams_change_inside_the_hour_by_small_steps(ward):
    level, seen = np.asarray(ward.level), np.asarray(ward.seen)
    hours = level.reshape(len(level), -1, 6)
    full = seen.reshape(hours.shape).all(-1)
    inside = (hours != hours[..., :1]).any(-1)[full].mean()
    assert 0.06 < inside < 0.16  # five fresh cohorts: 8 to 14 %; this is a small one
    steps = np.abs(np.diff(level, axis=1))[seen[:, 1:]]
    sizes = np.bincount(steps, minlength=4)[1:]
    assert len(sizes) == 3
    assert sizes[0] > 3 * sizes[1] > 0
    assert sizes[2] < sizes[1]


def test_a_decision_is_reached_step_by_step(patient):
    """Toward the goal by one level, by two for a share of the steps, and never beyond."""
    calm_enough = jnp.zeros(len(SIGNALS)).at[jnp.array([MAP, PULSATILITY])].set(80.0)
    memory = dataclasses.replace(
        patient.memory, level=jnp.asarray(8), goal=jnp.asarray(5), map_now=jnp.asarray(80.0)
    )

    def after(go: float, stride: float):
        uniform = jnp.full(decide_luck(WORLD.population)[0], 0.999)
        uniform = uniform.at[13].set(go).at[14].set(stride)
        now = decide(
            memory, patient.clinician, calm_enough, jnp.ones(()), WORLD, Luck(uniform, jnp.zeros(0))
        )
        assert now.goal is not None
        return int(now.level), int(now.goal)

    strides = float(MOVEMENT.strides)
    assert after(0.999, 0.999) == (8, 5)  # waits
    assert after(0.0, 0.999) == (7, 5)
    assert after(0.0, 0.9 * strides) == (6, 5)
    assert after(0.0, 0.1 * strides) == (5, 5)


def test_no_two_presets_share_a_patient():
    cohorts = {
        name: simulate_cohort(
            CohortConfig(patients=8, hours=2.0, preset=name, version=version), key=jr.key(5)
        )
        for name in ("guarded", "hidden")
        for version in (2,)
    }
    one, other = (np.asarray(cohorts[name][1].patients.traits.rate) for name in cohorts)
    assert not np.isin(one, other).any()
    old = [
        simulate_cohort(CohortConfig(patients=8, hours=2.0, preset=name, version=1), key=jr.key(5))[
            1
        ].patients.traits.rate
        for name in ("guarded", "hidden")
    ]
    np.testing.assert_array_equal(old[0], old[1])  # as they did in version 1


def test_version_1_has_no_movement_and_its_own_numbers():
    old, new = preset("benign", 1), preset("benign")
    assert old.movement is None
    assert float(old.pressure_noise) == pytest.approx(2.9)
    for name in ("ischemic_loss", "pressor_effect", "inotrope_effect", "restlessness"):
        assert float(getattr(old, name)) == float(getattr(new, name))  # what makes it benign


def test_version_1_is_what_it_was():
    """Numbers of the commit before there was a version 2; another processor may round them."""
    config = CohortConfig(patients=6, hours=8.0, version=1)
    cohort, _ = simulate_cohort(config, key=jr.key(7))
    assert np.asarray(cohort.level)[:, 47].tolist() == [6, 9, 8, 9, 6, 6]
    assert np.asarray(cohort.signals)[0, 47, MAP] == pytest.approx(64.92952, abs=0.01)
    assert np.nansum(np.asarray(cohort.signals, float)) == pytest.approx(12_731_379.0, rel=1e-5)
