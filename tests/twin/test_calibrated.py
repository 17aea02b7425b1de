"""The better twin: it corrects persistence, its errors are those that happen, its bands cover."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.signals import DBP, HR
from stepdown.training import FitConfig, member, stack
from stepdown.twin.calibrated import Calibrated, Member, expect, features, fit_line, widen
from stepdown.twin.fit import fit_twin, save_twin
from stepdown.twin.twins import load_twin
from tests.twin.toys import SELECT, SIGNALS, STEPS, TRAIN, pocket, toy_hours

CONFIG = pocket("best")
SMALL = CONFIG.sizes
FEATURES = (2 * STEPS - 1) * SIGNALS + 1 + 2 * STEPS + 16
WIDE = dataclasses.replace(CONFIG, sizes=dataclasses.replace(SMALL, errors=1024))


@pytest.fixture(scope="module")
def fitted():
    many = toy_hours(1024, "select", 11)  # a band of errors needs many of them
    return fit_twin(TRAIN, many, WIDE, key=jr.key(0))


def test_it_corrects_persistence(fitted):
    carried = fit_twin(TRAIN, SELECT, pocket("persistence"), key=jr.key(0))[1]["select_mse"]
    assert fitted[1]["select_mse"] < 0.3 * carried  # measured: 0.06 of it


def test_bands_cover_what_they_claim_on_new_patients(fitted):
    fresh = toy_hours(256, "test", 9)
    keys = jr.split(jr.key(3), 99)

    @jax.jit
    def draws(state, level):
        return jax.vmap(lambda key: fitted[0](state, level, key=key))(keys)

    drawn = np.asarray(jax.vmap(draws)(fresh.state, fresh.levels))[..., :SIGNALS]
    truth = np.asarray(fresh.next_state)[..., :SIGNALS]
    # Of 99 draws and the truth, ranks 5 to 94 from below hold nine tenths.
    rank = (drawn < truth[:, None]).sum(1)
    assert np.mean((rank >= 5) & (rank <= 94)) == pytest.approx(0.90, abs=0.025)


def test_the_usual_step_is_measured_and_never_learned(fitted):
    step = np.asarray(fitted[0].network.members.step)
    assert np.all(step[0] == step[1])  # weight decay leaves it alone
    assert np.all((step > 0) == (np.arange(SIGNALS) != DBP))  # which the others determine


def ensemble(errors, first, count, members=2) -> Calibrated:
    one = jnp.ones(SIGNALS)
    made = [Member(one, one, STEPS, SMALL, key=k) for k in jr.split(jr.key(1), members)]
    line = 0.1 * jr.normal(jr.key(8), (FEATURES, STEPS * SIGNALS))
    calm = jnp.asarray(0.5)
    groups = jnp.asarray(first), jnp.asarray(count)
    return Calibrated(line, stack(made), jnp.ones((2, SIGNALS)), calm, errors, *groups)


def test_errors_come_from_hours_that_moved_alike():
    group = jnp.repeat(jnp.arange(4.0), 2)  # lowered, calm, restless, raised: two hours each
    errors = jnp.broadcast_to(group[:, None, None], (8, STEPS, SIGNALS))
    network = ensemble(errors, [0, 2, 4, 6], [2, 2, 2, 2])
    calm = jnp.zeros((STEPS, SIGNALS + 1)).at[:, -1].set(0.5 / 2.2912878)  # P6 in force
    restless = calm.at[:-1, :-1].set(0.6)  # half a usual way is the limit here
    for last, scores, wanted in (
        (-0.5, calm, 0),
        (0.5, calm, 1),
        (0.5, restless, 2),
        (1.5, calm, 3),
    ):
        levels = jnp.full(STEPS, 0.5).at[-1].set(last) / 2.2912878  # P6, and in the end P5, P6, P7
        center, spread = expect(network.line, network.members, scores, levels)
        for key in jr.split(jr.key(2), 8):
            drawn = network.decode(scores, levels, key=key)
            assert np.allclose((drawn - center) / spread, wanted, atol=1e-4)


def test_a_draw_is_one_whole_hour_of_errors():
    errors = jr.normal(jr.key(4), (40, STEPS, SIGNALS))
    network = ensemble(errors, [0] * 4, [40] * 4)
    scores, levels = jnp.zeros((STEPS, SIGNALS + 1)), jnp.zeros(STEPS)
    center, spread = expect(network.line, network.members, scores, levels)
    drawn = (network.decode(scores, levels, key=jr.key(7)) - center) / spread
    distance = jnp.abs(errors - drawn[None]).max((1, 2))
    assert distance.min() < 1e-4
    assert jnp.sort(distance)[1] > 0.1


def test_what_lasts_and_what_passes_have_widths_of_their_own():
    """Errors of 1 to 6 have a mean of 3.5: drawn half as wide, with twice the scatter about it."""
    network = ensemble(jnp.zeros((1, STEPS, SIGNALS)), [0] * 4, [1] * 4)
    width = jnp.stack([jnp.full(SIGNALS, 0.5), jnp.full(SIGNALS, 2.0)])
    network = eqx.tree_at(lambda x: x.width, network, width)
    error = jnp.broadcast_to(jnp.arange(1.0, 7.0)[:, None], (STEPS, SIGNALS))
    by_hand = np.array([-3.25, -1.25, 0.75, 2.75, 4.75, 6.75])
    assert np.allclose(widen(error, network.width), by_hand[:, None])


def textbook_features(scores, levels) -> np.ndarray:
    """Number by number: the samples, their ways to the last, the levels, and these as flags."""
    rows = [[float(x) for x in row] for row in np.asarray(scores, np.float64)]
    before, coming = rows[-1][-1], [float(x) for x in np.asarray(levels, np.float64)]
    seen = [x for row in rows for x in row[:-1]]
    seen += [row[i] - rows[-1][i] for row in rows[:-1] for i in range(SIGNALS)]
    seen += [before, *coming, *(x - before for x in coming)]
    for level in (before, coming[-1]):
        seen += [1.0 if round(level * 2.2912878 + 3.5) == i else 0.0 for i in range(8)]
    return np.clip(seen, -6.0, 6.0)


def test_members_that_disagree_widen_the_spread():
    network = ensemble(jnp.zeros((1, STEPS, SIGNALS)), [0] * 4, [1] * 4)
    scores, levels = jr.normal(jr.key(5), (STEPS, SIGNALS + 1)), jnp.zeros(STEPS)
    one, other = member(network.members, 0), member(network.members, 1)
    (far, wide), (far_too, wide_too) = (m.expect(scores, levels) for m in (one, other))
    between = (np.asarray(far) - np.asarray(far_too)) ** 2 / 4
    alone = (np.asarray(wide) ** 2 + np.asarray(wide_too) ** 2) / 2
    center, spread = expect(network.line, network.members, scores, levels)
    line = textbook_features(scores, levels) @ np.asarray(network.line, np.float64)
    middle = (np.asarray(far) + np.asarray(far_too)) / 2 + line.reshape(STEPS, SIGNALS)
    assert np.allclose(center, middle, atol=1e-4)
    assert np.allclose(spread, np.sqrt(alone + between), rtol=1e-5)
    assert between.max() > 1e-3


def test_the_loss_is_smallest_at_the_median_and_its_mean_distance():
    one = Member(jnp.ones(SIGNALS), jnp.ones(SIGNALS), STEPS, SMALL, key=jr.key(1))
    scores, levels = jnp.zeros((STEPS, SIGNALS + 1)), jnp.zeros(STEPS)
    far, spread = one.expect(scores, levels)
    # With targets at far +- d the likelihood of Laplace is best where the spread is d.
    near, exact, wide = (
        float(one.loss(scores, levels, far + x * spread, key=None)) for x in (0.5, 1.0, 2.0)
    )
    base = float(jnp.mean(jnp.log(spread)))
    assert (near - base, exact - base, wide - base) == pytest.approx((0.5, 1.0, 2.0), rel=1e-4)


def test_a_small_group_draws_from_all():
    upward = np.asarray(SELECT.levels)[:, -1] >= np.asarray(SELECT.state)[:, -1, -1]
    rows = np.flatnonzero(upward)[:64]  # no hour in which the level was lowered
    few = jax.tree.map(lambda x: x[rows], SELECT)
    config = dataclasses.replace(
        CONFIG, sizes=dataclasses.replace(SMALL, fit=FitConfig(epochs=1, batch=512))
    )
    network = fit_twin(TRAIN, few, config, key=jr.key(0))[0].network
    assert isinstance(network, Calibrated)
    assert int(network.count[0]) == len(network.errors)
    assert int(network.first[0]) == 0


def test_the_line_is_least_squares_over_the_features():
    draw = np.random.default_rng(3)
    scores = jnp.asarray(draw.normal(size=(300, STEPS, SIGNALS + 1)), jnp.float32)
    levels = jnp.asarray(draw.choice([-0.5, 0.5], (300, STEPS)) / 2.2912878, jnp.float32)
    target = jnp.asarray(0.1 * draw.normal(size=(300, STEPS, SIGNALS)), jnp.float32)
    one = jnp.ones(SIGNALS)
    found = fit_line((scores, levels, target), one, one)
    seen = np.array([textbook_features(s, a) for s, a in zip(scores, levels, strict=True)])
    assert np.allclose(features(scores[0], levels[0], one), seen[0], atol=1e-5)
    rows = np.concatenate([seen, np.sqrt(10.0) * np.eye(seen.shape[1])])
    wanted = np.concatenate([np.reshape(target, (300, -1)), np.zeros((seen.shape[1], 72))])
    assert np.allclose(found, np.linalg.lstsq(rows, wanted, rcond=None)[0], atol=1e-4)


def test_errors_do_not_answer_to_the_last_hour():
    """Pure noise about a fixed value: what is left of the last hour's noise in a forecast of it.

    Persistence repeats the last sample's; the best guess is the value itself.
    """
    draw = np.random.default_rng(5)
    many = toy_hours(2048, "train", 21)
    noisy = {}
    for name in ("state", "next_state"):
        hour = np.array(getattr(many, name))
        hour[..., HR] = 80 + draw.normal(size=hour.shape[:2])
        noisy[name] = jnp.asarray(hour)
    many = dataclasses.replace(many, **noisy)
    few = dataclasses.replace(jax.tree.map(lambda x: x[:1024], many), role="select")
    quick = dataclasses.replace(SMALL, fit=FitConfig(epochs=1, batch=512))
    twin, _ = fit_twin(many, few, dataclasses.replace(CONFIG, sizes=quick), key=jr.key(0))
    center = np.asarray(jax.jit(jax.vmap(twin.center))(few.state, few.levels))
    kept = np.polyfit(np.asarray(few.state)[:, -1, HR] - 80, center[:, :, HR].mean(1) - 80, 1)[0]
    assert abs(kept) < 0.15  # persistence: 1


def test_saved_and_loaded_it_forecasts_the_same(fitted, tmp_path):
    save_twin(tmp_path / "best", fitted[0], WIDE)
    loaded, config = load_twin(tmp_path / "best")
    assert config == WIDE
    state, level = TRAIN.state[3], jnp.asarray(4)
    ours, theirs = (t(state, level, key=jr.key(1)) for t in (fitted[0], loaded))
    assert np.array_equal(ours, theirs)
