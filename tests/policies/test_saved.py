"""Half-done trainings on disk: the newest whole one counts, and damage is found."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.artifacts import ArtifactError
from stepdown.policies.constraint import Constrained
from stepdown.policies.ensemble import (
    Ensemble,
    EnsembleConfig,
    Member,
    load_ensemble,
    save_ensemble,
)
from stepdown.policies.half_done import load_training, save_training
from stepdown.policies.networks import LearnedPolicy, make_network
from stepdown.policies.rules import RULES
from stepdown.policies.sac import SACConfig, begin_learner, make_rates
from stepdown.policies.saved import load_policy, save_policy
from stepdown.problem.clinical import STRICT_LIMITS
from stepdown.problem.scaling import blank_scaler
from stepdown.signals import NAMES


def learner(seed: int):
    return begin_learner(5, (4,), make_rates(SACConfig()), key=jr.key(seed))


def equal(one, two) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def test_the_newest_training_is_loaded_and_older_ones_go(tmp_path):
    assert load_training(tmp_path / "none", lambda: learner(0)) is None
    for seed, done in ((1, 90), (2, 100), (3, 1100)):  # 90 would be the last by name
        save_training(tmp_path, learner(seed), done)
        assert [path.name for path in tmp_path.iterdir()] == [f"at-{done}"]
    loaded, done = load_training(tmp_path, lambda: learner(0)) or (None, 0)
    assert done == 1100
    assert equal(loaded, learner(3))


def test_what_an_interrupted_save_has_left_is_no_training(tmp_path):
    save_training(tmp_path, learner(1), 100)
    torn = tmp_path / ".at-200.1a2b3c4d"
    torn.mkdir()
    (torn / "arrays.safetensors").write_bytes(b"half")
    assert (load_training(tmp_path, lambda: learner(0)) or (None, 0))[1] == 100
    assert [path.name for path in tmp_path.iterdir()] == ["at-100"]


def test_two_saved_trainings_are_possible_and_the_newer_counts(tmp_path):
    """A machine may stop between the new save and the removal of the old one."""
    save_training(tmp_path / "a", learner(1), 100)
    save_training(tmp_path / "b", learner(2), 200)
    (tmp_path / "b" / "at-200").rename(tmp_path / "a" / "at-200")
    loaded, done = load_training(tmp_path / "a", lambda: learner(0)) or (None, 0)
    assert (done, equal(loaded, learner(2))) == (200, True)


def test_damage_and_other_shapes_are_found(tmp_path):
    save_training(tmp_path, learner(1), 100)
    other = begin_learner(5, (6,), make_rates(SACConfig()), key=jr.key(0))
    with pytest.raises(ArtifactError, match="load it with the config it was saved with"):
        load_training(tmp_path, lambda: other)
    (tmp_path / "at-100").rename(tmp_path / "at-300")
    with pytest.raises(ArtifactError, match="expected 300 updates, got 100"):
        load_training(tmp_path, lambda: learner(0))
    file = tmp_path / "at-300" / "arrays.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="damaged"):
        load_training(tmp_path, lambda: learner(0))


def test_a_policy_keeps_its_limits_and_its_length_of_hour(tmp_path):
    scaler = blank_scaler((0, 6, 9), NAMES)
    inner = LearnedPolicy(scaler, make_network((3 * 12 + 1, 5, 7, 8), key=jr.key(0)))
    bound = Constrained(inner, STRICT_LIMITS)
    save_policy(tmp_path / "policy", bound, "mbpo", seed=4)
    loaded, about = load_policy(tmp_path / "policy")
    assert (about.steps, about.widths, about.present) == (12, (5, 7), (0, 6, 9))
    assert isinstance(loaded, Constrained)
    assert loaded.config == STRICT_LIMITS
    assert equal(loaded, bound)
    with pytest.raises(TypeError, match="expected a learned policy or a planner"):
        save_policy(tmp_path / "rule", RULES["hold"], "hold")


def test_an_ensemble_comes_back_and_forecasts_the_same(tmp_path):
    config = EnsembleConfig(members=3, elites=2, width=8, depth=2)
    scaler = blank_scaler((0, 6, 9), NAMES)
    made = [make_network((20, 8, 8, 36), jax.nn.swish, key=jr.key(i)) for i in range(3)]
    networks = jax.tree.map(lambda *xs: jnp.stack(xs), *made)
    bounds = jr.normal(jr.key(3), (2, 3, 18))
    factor = jnp.linalg.cholesky(0.5 * jnp.eye(18) + 0.5)
    ensemble = Ensemble(scaler, Member(networks, *bounds), jnp.array([2, 0]), factor)
    save_ensemble(tmp_path / "ensemble", ensemble, config)
    loaded, about = load_ensemble(tmp_path / "ensemble")
    assert (about.config, about.steps) == (config, 6)
    assert equal(loaded, ensemble)
    state, level = 70.0 * jnp.ones((6, 13)), jnp.asarray(4)
    ask = eqx.filter_jit(lambda model: model(state, level, key=jr.key(1)))
    later = ask(loaded)
    np.testing.assert_array_equal(later, ask(ensemble))
    assert np.isfinite(later[:, [0, 6, 9, 12]]).all()
    save_ensemble(tmp_path / "wrong", ensemble, dataclasses.replace(config, width=9))
    with pytest.raises(ArtifactError, match="load it with the config it was saved with"):
        load_ensemble(tmp_path / "wrong")
