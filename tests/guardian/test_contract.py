"""What every density of the table keeps: the same tests for all rows."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.artifacts import load_config
from stepdown.guardian.fit import (
    KIND,
    DensityConfig,
    SavedGuardian,
    fit_guardian,
    read_saved,
    save_guardian,
)
from stepdown.guardian.guardians import DENSITIES, density_config, density_of, load_guardian
from stepdown.guardian.kde import KdeConfig
from stepdown.guardian.threshold import RECORDED, Guardian
from stepdown.signals import LEVELS
from stepdown.training import FitConfig
from tests.documented import documented
from tests.guardian.decisions import ward

TRAIN, SELECT, TEST = ward("train"), ward("select", seed=1), ward("test", seed=2)
QUICK = {"fit": FitConfig(epochs=3, batch=64), "layers": 2, "width": 8, "neighbors": 20}
FEW = 40
KINDS = {kind.name: kind for kind in (*DENSITIES.values(), documented("A density"))}


def config_of(name: str) -> DensityConfig:
    """The row's own numbers, made quick where it has such numbers."""
    kind = KINDS[name]
    own = {x.name for x in dataclasses.fields(kind.config)}
    quick = {x: value for x, value in QUICK.items() if x in own}
    return DensityConfig(kind, settings=dataclasses.replace(kind.config, **quick))


@functools.cache
def fitted(name: str) -> Guardian:
    return fit_guardian(TRAIN, SELECT, config_of(name), RECORDED, key=jr.key(0))[0]


@eqx.filter_jit
def log_densities(guardian: Guardian, states, levels):
    return guardian.density.log_densities(states, levels)


@eqx.filter_jit
def log_density(guardian: Guardian, state, level):
    return guardian.density.log_density(state, level)


@pytest.mark.parametrize("name", KINDS)
def test_recorded_decisions_are_denser_than_strange_ones(name):
    """A choice five levels away is rarer than the recorded one, in four of five hours."""
    far = jnp.where(TEST.level > 5, TEST.level - 5, TEST.level + 5).clip(2, 9)
    recorded, swapped = (log_densities(fitted(name), TEST.state, x) for x in (TEST.level, far))
    assert np.isfinite(recorded).all()
    assert np.mean(recorded > swapped) > 0.8


@pytest.mark.parametrize("name", KINDS)
def test_one_decision_equals_its_place_among_many(name):
    whole = log_densities(fitted(name), TEST.state[:FEW], TEST.level[:FEW])
    for row in (0, FEW - 1):
        alone = log_density(fitted(name), TEST.state[row], TEST.level[row])
        assert float(alone) == pytest.approx(float(whole[row]), rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_the_threshold_charges_the_asked_share_of_select_patients(name):
    charged = eqx.filter_jit(fitted(name).penalties)(SELECT.state, SELECT.level) > 0
    assert float(charged.mean()) == pytest.approx(RECORDED.percentile / 100, abs=0.02)


@pytest.mark.parametrize("name", KINDS)
def test_any_level_and_any_hour_has_a_finite_charge(name):
    states = jnp.concatenate([TEST.state[:4], TEST.state[:4] + 1e4, 0.0 * TEST.state[:4]])
    for level in LEVELS:
        u = eqx.filter_jit(fitted(name).penalties)(states, jnp.full(len(states), level))
        assert np.isfinite(u).all()


@pytest.mark.parametrize("name", KINDS)
def test_the_same_key_gives_the_same_guardian(name):
    again, _ = fit_guardian(TRAIN, SELECT, config_of(name), RECORDED, key=jr.key(0))
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(fitted(name)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("share", [None, 0.5])
def test_a_saved_guardian_comes_back_and_says_what_it_holds(name, share, tmp_path):
    config = dataclasses.replace(config_of(name), share=share)
    guardian, _ = fit_guardian(TRAIN, SELECT, config, RECORDED, key=jr.key(0))
    kind, folder = KINDS[name], tmp_path / "guardian"
    if kind.holds_patients:
        with pytest.raises(ValueError, match=r"--contains-patient-data.*holds every recorded hour"):
            save_guardian(folder, guardian, config, RECORDED)
        assert list(tmp_path.iterdir()) == []
    save_guardian(folder, guardian, config, RECORDED, contains_patient_data=True)
    about = load_config(folder, SavedGuardian, kind=KIND)
    loaded = read_saved(folder, config, about)
    assert about.contains_patient_data == kind.holds_patients == (about.points == len(TRAIN.level))
    assert ("recorded hours of patients" in about.warning) == kind.holds_patients
    if name in DENSITIES:
        assert density_of(about, folder) == dataclasses.replace(config, share=config.kept)
        assert load_guardian(folder)[1] == about
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(guardian), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        log_densities(loaded, TEST.state, TEST.level),
        log_densities(guardian, TEST.state, TEST.level),
    )


@pytest.mark.parametrize("name", [x for x, kind in KINDS.items() if kind.explain])
def test_a_density_that_explains_itself_shows_the_hours_it_knows(name):
    density = fitted(name).density
    kernels = getattr(density, "joint", density)
    found = KINDS[name].explain(kernels, TRAIN, TRAIN.state[7], TRAIN.level[7], 3)  # pyright: ignore[reportOptionalCall]
    assert int(found.row[0]) == 7
    assert float(found.distance[0]) == 0.0
    np.testing.assert_array_equal(found.level, TRAIN.level[found.row])


def test_a_density_is_named_with_its_settings():
    config = density_config("kde", 0.5, neighbors=7)
    assert (config.kind, config.kept) == (DENSITIES["kde"], 0.5)
    assert config.settings == KdeConfig(neighbors=7)
    assert density_config("flow").settings == DENSITIES["flow"].config
    with pytest.raises(ValueError, match="expected a density out of kde, flow"):
        density_config("kd")
