"""The better twin: it corrects persistence, its errors are those that happen, its bands cover."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.training import FitConfig, member, stack
from stepdown.twin.calibrated import Calibrated, Member, expect, moved
from stepdown.twin.fit import fit_twin, save_twin
from stepdown.twin.twins import load_twin
from tests.twin.toys import MEAN, SD, SELECT, SIGNALS, STEPS, TRAIN, pocket, toy_hours

CONFIG = pocket("best")
SMALL = CONFIG.sizes
WIDE = dataclasses.replace(CONFIG, sizes=dataclasses.replace(SMALL, errors=1024))


@pytest.fixture(scope="module")
def fitted():
    many = toy_hours(1024, "select", 11)  # a band of errors needs many of them
    return fit_twin(TRAIN, many, WIDE, key=jr.key(0))


def z_scores(states):
    return (np.asarray(states)[..., :SIGNALS] - MEAN) / SD


def test_it_corrects_persistence(fitted):
    carried = fit_twin(TRAIN, SELECT, pocket("persistence"), key=jr.key(0))[1]["select_mse"]
    assert fitted[1]["select_mse"] < 0.3 * carried  # measured: 0.06 of it


def test_bands_cover_what_they_claim_on_new_patients(fitted):
    fresh = toy_hours(256, "test", 9)
    keys = jr.split(jr.key(3), 99)

    @jax.jit
    def draws(state, level):
        return jax.vmap(lambda key: fitted[0](state, level, key=key))(keys)

    drawn = z_scores(jax.vmap(draws)(fresh.state, fresh.level))
    truth = z_scores(fresh.next_state)
    # Of 99 draws and the truth, ranks 5 to 94 from below hold nine tenths.
    rank = (drawn < truth[:, None]).sum(1)
    assert np.mean((rank >= 5) & (rank <= 94)) == pytest.approx(0.90, abs=0.025)


def test_the_usual_step_is_measured_and_never_learned(fitted):
    step = np.asarray(fitted[0].network.members.step)
    assert np.all(step[0] == step[1])  # weight decay leaves it alone
    assert np.all(step > 0)


def ensemble(errors, first, count, members=2) -> Calibrated:
    made = [Member(jnp.ones(SIGNALS), STEPS, SMALL, key=k) for k in jr.split(jr.key(1), members)]
    return Calibrated(stack(made), errors, jnp.asarray(first), jnp.asarray(count))


def test_errors_come_from_hours_that_moved_alike():
    group = jnp.repeat(jnp.arange(3.0), 2)  # lowered, stayed, raised: two hours each
    errors = jnp.broadcast_to(group[:, None, None], (6, STEPS, SIGNALS))
    network = ensemble(errors, [0, 2, 4], [2, 2, 2])
    scores = jnp.zeros((STEPS, SIGNALS + 1)).at[:, -1].set(0.5 / 2.2912878)  # P6 in force
    for level, wanted in ((-0.5, 0.0), (0.5, 1.0), (1.5, 2.0)):  # P5, P6, P7
        score = jnp.asarray(level / 2.2912878)
        center, spread = expect(network.members, scores, score)
        for key in jr.split(jr.key(2), 8):
            drawn = network.decode(scores, score, key=key)
            assert np.allclose((drawn - center) / spread, wanted, atol=1e-4)
        assert int(moved(scores, score)) == int(wanted)


def test_a_draw_is_one_whole_hour_of_errors():
    errors = jr.normal(jr.key(4), (40, STEPS, SIGNALS))
    network = ensemble(errors, [0, 0, 0], [40, 40, 40])
    scores, level = jnp.zeros((STEPS, SIGNALS + 1)), jnp.zeros(())
    center, spread = expect(network.members, scores, level)
    drawn = (network.decode(scores, level, key=jr.key(7)) - center) / spread
    distance = jnp.abs(errors - drawn[None]).max((1, 2))
    assert distance.min() < 1e-4
    assert jnp.sort(distance)[1] > 0.1


def test_members_that_disagree_widen_the_spread():
    members = ensemble(jnp.zeros((1, STEPS, SIGNALS)), [0] * 3, [1] * 3).members
    scores, level = jr.normal(jr.key(5), (STEPS, SIGNALS + 1)), jnp.zeros(())
    one, other = member(members, 0), member(members, 1)
    (far, wide), (far_too, wide_too) = (m.expect(scores, level) for m in (one, other))
    between = (np.asarray(far) - np.asarray(far_too)) ** 2 / 4
    alone = (np.asarray(wide) ** 2 + np.asarray(wide_too) ** 2) / 2
    center, spread = expect(members, scores, level)
    assert np.allclose(center, (np.asarray(far) + np.asarray(far_too)) / 2, atol=1e-6)
    assert np.allclose(spread, np.sqrt(alone + between), rtol=1e-5)
    assert between.max() > 1e-3


def test_the_loss_is_smallest_at_the_median_and_its_mean_distance():
    one = Member(jnp.ones(SIGNALS), STEPS, SMALL, key=jr.key(1))
    scores, level = jnp.zeros((STEPS, SIGNALS + 1)), jnp.zeros(())
    far, spread = one.expect(scores, level)
    # With targets at far +- d the likelihood of Laplace is best where the spread is d.
    near, exact, wide = (
        float(one.loss(scores, level, far + x * spread, key=None)) for x in (0.5, 1.0, 2.0)
    )
    base = float(jnp.mean(jnp.log(spread)))
    assert (near - base, exact - base, wide - base) == pytest.approx((0.5, 1.0, 2.0), rel=1e-4)


def test_a_small_group_draws_from_all():
    upward = np.asarray(SELECT.level) >= np.asarray(SELECT.state)[:, -1, -1]
    rows = np.flatnonzero(upward)[:64]  # no hour in which the level was lowered
    few = jax.tree.map(lambda x: x[rows], SELECT)
    config = dataclasses.replace(
        CONFIG, sizes=dataclasses.replace(SMALL, fit=FitConfig(epochs=1, batch=512))
    )
    network = fit_twin(TRAIN, few, config, key=jr.key(0))[0].network
    assert isinstance(network, Calibrated)
    assert int(network.count[0]) == len(network.errors)
    assert int(network.first[0]) == 0


def test_hours_with_a_change_inside_are_no_lesson():
    """The same rows again, flagged, with another next hour: nothing is learned from them."""
    config = dataclasses.replace(
        CONFIG, sizes=dataclasses.replace(SMALL, fit=FitConfig(epochs=1, batch=512))
    )
    changed = dataclasses.replace(
        TRAIN,
        changed=jnp.ones_like(TRAIN.changed),
        next_state=TRAIN.next_state.at[..., :SIGNALS].multiply(1.2),
    )
    twice = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), TRAIN, changed)
    alone, both = (fit_twin(x, SELECT, config, key=jr.key(0))[0] for x in (TRAIN, twice))
    arrays = (jax.tree.leaves(eqx.filter(x, eqx.is_array)) for x in (alone, both))
    for one, other in zip(*arrays, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    other = pocket("mlp", fit=FitConfig(epochs=1, batch=512))  # the paper's twins take all hours
    alone, both = (fit_twin(x, SELECT, other, key=jr.key(0))[1] for x in (TRAIN, twice))
    assert abs(alone["loss"][0] - both["loss"][0]) > 1e-3


def test_saved_and_loaded_it_forecasts_the_same(fitted, tmp_path):
    save_twin(tmp_path / "best", fitted[0], WIDE)
    loaded, config = load_twin(tmp_path / "best")
    assert config == WIDE
    state, level = TRAIN.state[3], jnp.asarray(4)
    ours, theirs = (t(state, level, key=jr.key(1)) for t in (fitted[0], loaded))
    assert np.array_equal(ours, theirs)
