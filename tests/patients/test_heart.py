"""The circulation: conserved, converged, monotone, and a published heart reproduced."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from stepdown.patients.course import START_LUCK, circulation_of, start_course
from stepdown.patients.heart import (
    STEPS_PER_BEAT,
    Circulation,
    activation,
    beat,
    start_volumes,
    step,
)
from stepdown.patients.population import TRAITS_LUCK, World, draw_luck, draw_traits, preset
from stepdown.patients.pump import load_profile

PROFILE = load_profile("cp")
POPULATION = preset("guarded")
WORLD = World(POPULATION, PROFILE)


@eqx.filter_jit
def settle(circulation, level, beats=80, steps=STEPS_PER_BEAT):
    volumes, seen = jax.lax.scan(
        lambda v, _: beat(v, circulation, level, PROFILE, steps),
        start_volumes(circulation.blood_volume),
        None,
        length=beats,
    )
    return volumes, jax.tree.map(lambda x: x[-1], seen)


def hearts(count, recovery=None, seed=0):
    """Circulations of random patients with their slow state as it starts."""

    def one(key):
        for_traits, for_start = draw_luck(TRAITS_LUCK, START_LUCK, key=key)
        traits = draw_traits(POPULATION, for_traits)
        course = start_course(traits, jnp.asarray(6), WORLD, for_start)
        if recovery is not None:
            course = eqx.tree_at(lambda c: c.recovery, course, jnp.asarray(recovery))
        return circulation_of(course, traits, POPULATION)

    return jax.jit(jax.vmap(one))(jr.split(jr.key(seed), count))


def one_heart(number=3):
    return jax.tree.map(lambda x: x[number], hearts(8))


def published_heart(blood_volume):
    """Korakianitis and Shi 2006, as parameterized in ModularCirc; no pump."""
    values = {
        "period": 1.0,
        "lv_elastance": 2.5,
        "lv_dead_volume": 5.0,
        "lv_stiffness": 1.7,
        "lv_curvature": 0.010,
        "relaxation": 0.030,
        "rv_elastance": 1.15,
        "resistance": 1.07,
        "arterial_compliance": 1.68,
        "root_resistance": 0.003,
        "pulmonary_resistance": 0.31,
        "blood_volume": blood_volume,
        "pump_gain": 0.0,
        "venous_compliance": 20.5,
        "pulmonary_artery_compliance": 3.8,
        "pulmonary_vein_compliance": 20.5,
    }
    return Circulation(**{name: jnp.asarray(value, float) for name, value in values.items()})


def test_blood_is_conserved():
    circulation = one_heart()
    volumes, _ = settle(circulation, jnp.asarray(7))
    start, _ = settle(circulation, jnp.asarray(7), beats=70)
    assert abs(float(volumes.total() - start.total())) < 0.01
    assert float(volumes.total()) == pytest.approx(float(circulation.blood_volume), abs=0.05)


def test_a_settled_beat_returns_every_compartment_to_where_it_was():
    circulation = one_heart()
    before, _ = settle(circulation, jnp.asarray(5), beats=300)
    after, _ = beat(before, circulation, jnp.asarray(5), PROFILE)
    for name in ("lv", "arteries", "veins", "rv", "pulmonary_arteries", "pulmonary_veins"):
        start, end = float(getattr(before, name)), float(getattr(after, name))
        assert end == pytest.approx(start, rel=1e-3)


def test_halving_the_step_changes_little():
    circulations = hearts(64)
    levels = jnp.arange(64) % 8 + 2
    _, coarse = jax.vmap(settle)(circulations, levels)
    _, fine = jax.vmap(lambda c, p: settle(c, p, steps=2 * STEPS_PER_BEAT))(circulations, levels)

    def rms(get):
        return float(jnp.sqrt(jnp.mean((get(coarse) - get(fine)) ** 2)))

    assert rms(lambda b: b.map) < 0.5
    assert rms(lambda b: b.sbp - b.dbp) < 1.0
    assert rms(lambda b: b.flow) < 0.02


def ventricle(stretch, e, elastance, stiffness, curvature):
    passive = stiffness * (np.exp(np.clip(curvature * stretch, -6, 4)) - 1)
    return e * elastance * stretch + (1 - e) * passive


def elastance_at(phase, c):
    peak = 0.29 * np.sqrt(c["period"])
    turn = 1.15 * peak
    tau = min(c["relaxation"], 0.27 * (c["period"] - turn))
    seconds = phase * c["period"]
    rise = 0.5 * (1 - np.cos(np.pi * min(seconds, turn) / peak))
    return rise * np.exp(-max(seconds - turn, 0) / tau)


def textbook_beats(circulation, level, volumes, beats):
    """The same heart without our stepping: an ODE for SciPy's LSODA, pump solved exactly."""
    c = {f.name: float(getattr(circulation, f.name)) for f in dataclasses.fields(circulation)}
    w = float(PROFILE.speed[level - 2] / PROFILE.reference_speed)
    gain = c["pump_gain"] * 1000 / 60
    h0, k1, k2 = float(PROFILE.shutoff_head[level - 2]), 11 * w, 5.0

    def pressures_and_flows(t, v):
        phase = (t / c["period"]) % 1.0
        e = elastance_at(phase, c)
        lv = ventricle(v[0] - c["lv_dead_volume"], e, c["lv_elastance"], c["lv_stiffness"],
                       c["lv_curvature"])  # fmt: skip
        rv = ventricle(v[3] - c["rv_dead_volume"], e, c["rv_elastance"], c["rv_stiffness"],
                       c["rv_curvature"])  # fmt: skip
        sa, sv = v[1] / c["arterial_compliance"], v[2] / c["venous_compliance"]
        pa = v[4] / c["pulmonary_artery_compliance"]
        pv = v[5] / c["pulmonary_vein_compliance"]
        suction = 1 / (1 + np.exp(-(v[0] - c["lv_dead_volume"] - 8) / 4))
        root, ejected, pump = sa, 0.0, 0.0
        for _ in range(30):  # pump and valve both load the root: iterate to agreement
            spare = h0 - (root - lv)
            forward = (np.sqrt(k1**2 + 4 * k2 * max(spare, 0)) - k1) / (2 * k2)
            pump = gain * suction * (forward + 0.35 * min(spare, 0) / k1)
            gap = max(lv - sa - c["root_resistance"] * pump, 0)
            ejected = gap / (c["aortic_valve"] + c["root_resistance"])
            root = sa + c["root_resistance"] * (ejected + pump)
        flows = (
            ejected,
            pump,
            max(pv - lv, 0) / c["mitral_valve"],
            (sa - sv) / c["resistance"],
            max(sv - rv, 0) / c["tricuspid_valve"],
            max(rv - pa, 0) / c["pulmonary_valve"],
            (pa - pv) / c["pulmonary_resistance"],
        )
        return root, flows

    def slope(t, v):
        ejected, pump, filling, perfusion, returned, right, lungs = pressures_and_flows(t, v)[1]
        return [
            filling - ejected - pump,
            ejected + pump - perfusion,
            perfusion - returned,
            returned - right,
            right - lungs,
            lungs - filling,
        ]

    times = np.linspace((beats - 1) * c["period"], beats * c["period"], 400, endpoint=False)
    solved = solve_ivp(slope, (0, beats * c["period"]), volumes, "LSODA", times, rtol=1e-6,
                       atol=1e-6, max_step=0.004)  # fmt: skip
    roots, flows = zip(
        *(pressures_and_flows(t, v) for t, v in zip(solved.t, solved.y.T, strict=True)),
        strict=True,
    )
    return np.array(roots), np.array([f[1] for f in flows]) * 60 / 1000


@pytest.mark.parametrize(("number", "level"), [(0, 9), (3, 5), (6, 2)])
def test_an_independent_stiff_solver_agrees(number, level):
    circulation = jax.tree.map(lambda x: x[number], hearts(8))
    volumes, ours = settle(circulation, jnp.asarray(level), beats=300)
    parts = (volumes.lv, volumes.arteries, volumes.veins, volumes.rv,
             volumes.pulmonary_arteries, volumes.pulmonary_veins)  # fmt: skip
    root, pump = textbook_beats(circulation, level, [float(x) for x in parts], 8)
    assert float(ours.map) == pytest.approx(root.mean(), abs=0.5)
    assert float(ours.sbp - ours.dbp) == pytest.approx(root.max() - root.min(), abs=1.0)
    assert float(ours.flow) == pytest.approx(pump.mean(), abs=0.02)


def test_a_published_heart_is_reproduced():
    """Reference values: ModularCirc 0.3.0 with Korakianitis parameters at EDV 137 mL."""
    _, ours = settle(published_heart(762.0), jnp.asarray(2), beats=120)
    assert float(ours.lv_largest) == pytest.approx(137, rel=0.01)
    assert float(ours.lv_smallest) == pytest.approx(51.9, rel=0.03)
    assert float(ours.sbp) == pytest.approx(118.5, rel=0.03)
    assert float(ours.dbp) == pytest.approx(78.2, rel=0.03)
    assert float(ours.map) == pytest.approx(98.9, rel=0.03)
    assert float(ours.output) == pytest.approx(5.12, rel=0.03)
    assert float(ours.lvedp) == pytest.approx(4.7, abs=0.5)
    assert float(ours.lvp) == pytest.approx(36, rel=0.05)


def test_more_support_raises_pressure_and_flow_and_unloads_the_ventricle():
    circulations = hearts(1000)
    settled = jax.jit(
        jax.vmap(jax.vmap(lambda c, p: settle(c, p, beats=60)[1], (None, 0)), (0, None))
    )
    beats = settled(circulations, jnp.arange(2, 10))

    def share(values, sign):
        return float(jnp.mean(jnp.all(sign * jnp.diff(values, axis=1) > -1e-3, axis=1)))

    assert share(beats.map, 1) >= 0.99
    assert share(beats.flow, 1) >= 0.99
    assert share(beats.lvedp, -1) >= 0.99
    assert share(beats.sbp - beats.dbp, -1) >= 0.99


def loop(circulation, level):
    """Pressure and volume of the left ventricle over one settled beat."""
    volumes, _ = settle(circulation, jnp.asarray(level), beats=200)
    phases = (jnp.arange(STEPS_PER_BEAT) + 1.0) / STEPS_PER_BEAT
    active = activation(phases, circulation.period, circulation.relaxation)
    _, moments = jax.lax.scan(
        lambda v, e: step(v, circulation, jnp.asarray(level), PROFILE, e), volumes, active
    )
    return np.asarray(moments.lv_volume), np.asarray(moments.lv), np.asarray(moments.ejected)


def signed_area(x, y):
    """Positive when the loop runs counter-clockwise."""
    return 0.5 * np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y)


def test_the_loop_runs_counter_clockwise_and_moves_left_and_down_with_support():
    circulation = one_heart()
    volume, pressure, _ = loop(circulation, 2)
    assert signed_area(volume, pressure) > 1000
    supported, lower, _ = loop(circulation, 9)
    assert supported.mean() < volume.mean() - 3
    assert lower.min() < pressure.min()


def test_without_a_pump_the_loop_has_isovolumic_phases():
    heart = published_heart(762.0)
    volume, _, ejected = loop(heart, 2)
    change = np.abs(np.diff(volume))
    still = change < 0.01 * change.max()
    assert still.sum() >= 6  # both valves shut, volume stands still
    assert (ejected > 0).sum() >= 15
