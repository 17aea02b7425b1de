"""Rules worked by hand on single hours."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.patients.episodes import Mode, Sampled
from stepdown.policies.rules import RULES
from stepdown.signals import HR, LEVEL, MAP, PULSATILITY
from tests.policies.toys import CENTER


def hour(level: int, *, pressure=80.0, pulse=30.0, rate=75.0, dip=None) -> jnp.ndarray:
    state = np.tile(CENTER, (6, 1))
    state[:, MAP], state[:, PULSATILITY], state[:, HR] = pressure, pulse, rate
    state[:, LEVEL] = level
    if dip is not None:
        state[2, MAP] = dip
    return jnp.asarray(state)


def chosen(name: str, state) -> int:
    return int(Mode(RULES[name])(None, state, jr.key(0)))


@pytest.mark.parametrize(
    ("name", "state", "level"),
    [
        ("hold", hour(6), 6),
        ("taper", hour(6), 4),
        ("taper", hour(3), 2),
        ("taper", hour(2), 2),
        ("taper", hour(6, dip=59.0), 6),  # one sample below 60 mmHg is no stable hour
        ("taper", hour(6, pulse=10.0), 6),
        ("protocol", hour(6), 4),
        ("protocol", hour(6, pressure=66.0), 6),  # not low, not ready
        ("protocol", hour(6, pulse=15.0), 6),
        ("protocol", hour(6, rate=115.0), 6),
        ("protocol", hour(6, pressure=63.0), 7),
        ("protocol", hour(6, pressure=58.0), 8),
        ("protocol", hour(7, pressure=58.0), 8),  # its ceiling
        ("protocol", hour(9, pressure=58.0), 9),  # never down out of low pressure
        ("blind stepping down", hour(6, pressure=40.0), 5),
        ("blind stepping down", hour(2), 2),
        *[(f"always P{level}", hour(5), level) for level in range(2, 10)],
    ],
)
def test_rules_choose_as_written(name, state, level):
    assert chosen(name, state) == level
    assert int(Sampled(RULES[name])(None, state, jr.key(1))) == level
    np.testing.assert_allclose(np.exp(RULES[name](state)), np.arange(2, 10) == level)


def test_chance_gives_every_level_an_eighth():
    np.testing.assert_allclose(np.exp(RULES["random"](hour(5))), 0.125, rtol=1e-6)
    draws = jax.vmap(lambda key: Sampled(RULES["random"])(None, hour(5), key))(
        jr.split(jr.key(0), 4000)
    )
    share = np.bincount(np.asarray(draws), minlength=10)[2:] / 4000
    np.testing.assert_allclose(share, 0.125, atol=0.02)
