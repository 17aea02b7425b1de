"""The one fitting loop: it finds the optimum, keeps the best, and members do not meet."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.training import FitConfig, fit, member, stack

draw = np.random.default_rng(0)
TRUTH = np.array([1.5, -2.0, 0.5])
INPUTS = draw.normal(size=(96, 3)).astype(np.float32)
OUTPUTS = (INPUTS @ TRUTH + 0.5 * draw.normal(size=96)).astype(np.float32)
ROWS = (
    (jnp.asarray(INPUTS[:64]), jnp.asarray(OUTPUTS[:64])),
    (jnp.asarray(INPUTS[64:]), jnp.asarray(OUTPUTS[64:])),
)
STORMY = FitConfig(epochs=25, batch=16, learning_rate=0.2, patience=2)
PLACES = (0.0, 8.0, 4.0)  # near to the solution and far from it


class Line(eqx.Module):
    """A linear map; dropout of its input where nothing is held out."""

    weight: jax.Array
    inference: bool = False


def loss(line: Line, row, *, key):
    inputs, output = row
    kept = jnp.ones(3) if line.inference else 1.0 * jr.bernoulli(key, 0.9, (3,))
    return (line.weight @ (inputs * kept) - output) ** 2


def plain_loss(line: Line, row, *, key):
    inputs, output = row
    return (line.weight @ inputs - output) ** 2


def start(*places: float) -> Line:
    return stack([Line(jnp.full(3, place)) for place in places])


def held_out(line: Line) -> float:
    inputs, outputs = (np.asarray(x, np.float64) for x in ROWS[1])
    return float(np.mean((inputs @ np.asarray(line.weight, np.float64) - outputs) ** 2))


def test_the_loop_finds_the_least_squares_solution():
    config = FitConfig(epochs=60, batch=16, learning_rate=0.1, patience=60, decay=True)
    watched = []
    rows = (ROWS[0], ROWS[0])  # held out is what is fitted: the best epoch is the optimum
    lines, info = fit(start(0.0), plain_loss, rows, config, key=jr.key(0), watch=watched.append)
    expected, residual, *_ = np.linalg.lstsq(INPUTS[:64], OUTPUTS[:64], rcond=None)
    assert np.allclose(member(lines, 0).weight, expected, atol=0.02)
    assert info["held_out"].min() == pytest.approx(residual[0] / 64, rel=1e-3)
    assert info["held_out"].shape == (60, 1)
    assert watched == sorted(watched)
    assert watched[-1] == 1.0


@pytest.fixture(scope="module")
def stormy():
    """Three members whose rate is too high, so that epochs get worse as well as better."""
    keys = jr.split(jr.key(1), 3)
    return fit(start(*PLACES), loss, ROWS, STORMY, key=keys), keys


def test_the_best_weights_are_kept_not_the_last(stormy):
    (lines, info), _ = stormy
    for i in range(3):
        best = info["best_epoch"][i]
        assert held_out(member(lines, i)) == pytest.approx(info["held_out"][best, i], rel=1e-4)
        assert info["held_out"][: best + 1, i].argmin() == best
    slowest = info["best_epoch"].argmax()  # for this one the last epoch was not the best
    assert info["held_out"][-1, slowest] > info["held_out"][:, slowest].min()


def test_a_member_comes_out_as_if_fitted_alone(stormy):
    (lines, info), keys = stormy
    lengths = []
    for i in range(3):
        alone, own = fit(start(PLACES[i]), loss, ROWS, STORMY, key=keys[i : i + 1])
        assert np.allclose(member(alone, 0).weight, member(lines, i).weight, rtol=1e-5)
        assert own["best_epoch"][0] == info["best_epoch"][i]
        length = len(own["held_out"])
        assert length == own["best_epoch"][0] + STORMY.patience + 1 <= STORMY.epochs
        lengths.append(length)
    assert len(info["held_out"]) == max(lengths) > min(lengths)
    # Some member saw better epochs after its own end, while others went on; they do not count.
    late = [info["held_out"][n:, i].min(initial=np.inf) for i, n in enumerate(lengths)]
    assert np.any(np.array(late) < [held_out(member(lines, i)) for i in range(3)])


def test_one_key_gives_every_member_luck_of_its_own():
    config = FitConfig(epochs=1, batch=16)
    _, info = fit(start(0.0, 0.0, 0.0), loss, ROWS, config, key=jr.key(2))
    assert len(set(info["loss"][0].tolist())) == 3


def test_rows_fewer_than_a_batch_are_one_batch():
    few = tuple(x[:5] for x in ROWS[0])
    config = FitConfig(epochs=1, batch=16, learning_rate=0.1)
    lines, info = fit(start(0.0), plain_loss, (few, few), config, key=jr.key(3))
    assert info["loss"][0, 0] == pytest.approx(np.mean(OUTPUTS[:5] ** 2), rel=1e-5)
    # Adam's first step has the size of the rate, against the sign of the gradient.
    slope = -2 * (INPUTS[:5] * OUTPUTS[:5, None]).mean(0)
    assert np.allclose(member(lines, 0).weight, -0.1 * np.sign(slope), rtol=1e-4)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch": 0}, {"learning_rate": 0.0}])
def test_settings_that_cannot_fit_are_refused(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        FitConfig(**wrong)


class Lucky(eqx.Module):
    """A weight, and a seed, which is a whole number."""

    weight: jax.Array
    seed: jax.Array


def test_whole_numbers_are_members_too():
    """A planner's luck is one; what is loaded and judged leads with the seeds in every leaf."""
    each = [Lucky(jnp.asarray([1.0, float(i)]), jnp.asarray(i)) for i in range(3)]
    models = stack(each)
    assert (models.weight.shape, models.seed.tolist()) == ((3, 2), [0, 1, 2])
    assert int(member(models, 2).seed) == 2
