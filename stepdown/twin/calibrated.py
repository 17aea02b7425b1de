"""The better twin: an ensemble that corrects persistence, and errors as they really happen.

Each member says how far the coming hour will lie from persistence and how sure it is (a Laplace
likelihood: its center is the median, which is what an absolute error rewards). The spread of a
forecast joins what the members expect and how far they disagree. A draw adds one whole hour of
scaled errors that the ensemble made on a select patient, so that samples and signals err
together, extremes are as frequent as they are, and bands cover what they claim. Errors are drawn
among hours in which the level moved the same way; where it stays, among hours as calm or restless
as the last one was. What an hour of errors moves as a whole lasts into the hours that follow, what
its samples scatter about that passes: each has a width of its own (horizon.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.problem.scaling import LEVEL_SD
from stepdown.signals import LEVELS
from stepdown.training import FitConfig, fit, member, stack
from stepdown.twin.transformer import (
    Fitted,
    Hour,
    Levels,
    Scores,
    check_dropout,
    drop,
    fitted_loss,
    squared_error,
)

FARTHEST = 6.0  # usual ways: samples farther from the last one look alike
LEAST, MOST = -5.0, 6.0  # log of the spread, in usual steps
RIDGE = 10.0  # hours
GROUPS = ("lowered", "calm", "restless", "raised")
LONGEST = 12  # hours of history
FEWEST = 50  # hours of errors that a group must hold to be drawn from on its own


def check_longest(history: int) -> None:
    """Refuse a history that no twin reads."""
    if not 1 <= history <= LONGEST:
        raise ValueError(f"history: expected 1 to {LONGEST} hours, got {history}.")


@dataclass(frozen=True)
class CalibratedConfig:
    """Sizes of the better twin."""

    members: int = 5
    width: int = 512
    depth: int = 3
    dropout: float = 0.1  # of the inputs, in training alone
    errors: int = 4096  # hours of select patients' errors that a draw comes from
    history: int = 1  # hours that it reads
    fit: FitConfig = FitConfig(epochs=40, batch=256, patience=8, decay=True, weight_decay=0.1)

    def __post_init__(self):
        if min(self.members, self.width, self.depth, self.errors) < 1:
            raise ValueError(
                "expected members, width, depth and errors of at least 1, got "
                f"{self.members}, {self.width}, {self.depth} and {self.errors}."
            )
        check_dropout(self.dropout)
        check_longest(self.history)


SMALL_CALIBRATED = CalibratedConfig(  # a minute on two cores
    members=3,
    width=128,
    depth=2,
    fit=FitConfig(epochs=20, batch=256, patience=8, decay=True, weight_decay=0.1),
)


class Member(eqx.Module):
    """How far from persistence the hour will lie, and how surely."""

    trunk: eqx.nn.MLP
    step: Float[Array, " signals"]  # usual error of persistence where the level stays
    walk: Float[Array, " signals"]  # usual way of a signal within an hour
    dropout: float = eqx.field(static=True)

    def __init__(
        self,
        step: Float[Array, " signals"],
        walk: Float[Array, " signals"],
        steps: int,
        config: CalibratedConfig,
        *,
        key: PRNGKeyArray,
    ):
        signals = len(step)
        inputs = (2 * steps - 1) * signals + 1 + 2 * steps + 2 * len(LEVELS)
        inputs += (config.history - 1) * (signals + 1)
        self.trunk = eqx.nn.MLP(
            inputs, 2 * steps * signals, config.width, config.depth, jax.nn.silu, key=key
        )
        self.step, self.walk, self.dropout = step, walk, config.dropout

    def expect(
        self, scores: Scores, levels: Levels, key: PRNGKeyArray | None = None
    ) -> tuple[Hour, Hour]:
        """Distance from persistence and spread."""
        step = jax.lax.stop_gradient(self.step)[None]
        walk = jax.lax.stop_gradient(self.walk)
        seen = drop(features(scores, levels, walk), self.dropout, key=key)
        far, spread = self.trunk(seen).reshape(2, len(levels), -1)
        wide = jnp.exp(jnp.clip(spread, LEAST, MOST)) * step
        return far * step, jnp.where(step > 0, wide, 1.0)

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Negative log-likelihood of Laplace's distribution, without its constant."""
        far, spread = self.expect(scores, levels, key)
        return jnp.mean(jnp.abs(target - far) / spread + jnp.log(spread))


def features(
    scores: Scores, levels: Levels, walk: Float[Array, " signals"]
) -> Float[Array, " features"]:
    """The hour, its way to the last sample in usual ones, the levels, their differences.

    Hours before it, if there are any, come last: how far their means lie from the last sample.
    """
    past, scores = scores[: -len(levels)], scores[-len(levels) :]
    earlier = earlier_means(past, len(levels))
    far = jnp.clip(earlier[:, :-1] - scores[-1:, :-1], -FARTHEST, FARTHEST)
    signals, way, before = scores[:, :-1], ways(scores, walk), scores[-1, -1]
    number = len(LEVELS)
    known = [jax.nn.one_hot(_number(x), number) for x in (before, levels[-1])]
    numbers = [before[None], levels, levels - before]
    behind = [far.ravel(), earlier[:, -1] - before]
    return jnp.concatenate([signals.ravel(), way.ravel(), *numbers, *known, *behind])


def earlier_means(
    past: Float[Array, "past used"], steps: int
) -> Float[Array, "earlier_hours used"]:
    """Mean of every signal and of the level in each hour before the last one."""
    return past.reshape(-1, steps, past.shape[1]).mean(1)


def ways(
    scores: Float[Array, "steps used"], walk: Float[Array, " signals"]
) -> Float[Array, "steps-1 signals"]:
    """From the last sample to those before it, in usual ways."""
    far = (scores[:-1, :-1] - scores[-1:, :-1]) / walk[None]
    return jnp.clip(far, -FARTHEST, FARTHEST)


class Calibrated(eqx.Module):
    """Members side by side, and the errors they made on select patients."""

    line: Float[Array, "features outputs"]  # what is linear in the features
    members: Member  # what is not; leaves lead with the members
    width: Float[Array, "2 signals"]  # of what lasts and of what passes of an error (horizon.py)
    calm: Float[Array, ""]  # restlessness up to which an hour is calm
    errors: Float[Array, "rows steps signals"]  # scaled by the spread; sorted by group
    first: Int[Array, " 4"]  # row at which the errors of each group begin
    count: Int[Array, " 4"]

    def encode(self, scores: Scores) -> Scores:
        """Read nothing ahead."""
        return scores

    def decode(self, latent: Scores, levels: Levels, *, key: PRNGKeyArray | None) -> Hour:
        """The center, or a draw around it."""
        center, spread = expect(self.line, self.members, latent, levels)
        if key is None:
            return center
        group = alike(latent, levels, self.members.walk[0], self.calm)
        row = self.first[group] + jr.randint(key, (), 0, self.count[group])
        return center + spread * widen(self.errors[row], self.width)

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Mean squared error of one draw, or of the center without a key."""
        return squared_error(self, scores, levels, target, key)


def widen(error: Hour, width: Float[Array, "2 signals"]) -> Hour:
    """An hour of errors: its mean as wide as what lasts, the rest as wide as what passes."""
    lasting = jnp.mean(error, axis=0, keepdims=True)
    return width[:1] * lasting + width[1:] * (error - lasting)


def expect(line, members: Member, scores: Scores, levels: Levels) -> tuple[Hour, Hour]:
    """Center and spread of the whole ensemble; members that disagree widen it."""
    far, spread = eqx.filter_vmap(lambda one: one.expect(scores, levels))(members)
    spread = jnp.sqrt(jnp.mean(spread**2, axis=0) + jnp.var(far, axis=0))
    return straight(line, scores, levels, members.walk[0]) + jnp.mean(far, axis=0), spread


def straight(line, scores: Scores, levels: Levels, walk) -> Hour:
    """What is linear in the features, none of them farther out than is usual."""
    seen = jnp.clip(features(scores, levels, walk), -FARTHEST, FARTHEST)
    return (seen @ line).reshape(len(levels), -1)


@eqx.filter_jit
def fit_line(rows, step, walk) -> Float[Array, "features outputs"]:
    """Least squares with a little ridge over the train hours.

    Persistence repeats the noise of the last sample; how much of it to keep is linear. A network
    that finds this only nearly would leave errors that answer to the last hour, and draws, which
    add errors of other hours, would scatter more from hour to hour than patients do.
    """
    scores, levels, targets = rows
    seen = jax.vmap(lambda s, a: jnp.clip(features(s, a, walk), -FARTHEST, FARTHEST))(
        scores, levels
    )
    usual = jnp.where(step > 0, step, 1.0)[None, None]
    wanted = (jnp.clip(targets / usual, -FARTHEST, FARTHEST) * usual).reshape(len(seen), -1)
    square = seen.T @ seen + RIDGE * jnp.eye(seen.shape[1])
    return jnp.linalg.solve(square, seen.T @ wanted)


def moved(scores: Scores, levels: Levels) -> Int[Array, ""]:
    """0 where the hour ends at a lower level than before, 1 at the same, 2 at a higher one."""
    return jnp.sign(_number(levels[-1]) - _number(scores[-1, -1])).astype(int) + 1


def restlessness(scores: Scores, walk: Float[Array, " signals"]) -> Float[Array, ""]:
    """How far the samples of an hour lie from its last one, in usual ways, mean over signals.

    An hour that is one sample is at rest.
    """
    if len(scores) == 1:
        return jnp.zeros(())
    return jnp.mean(jnp.abs(ways(scores, walk)))


def alike(scores: Scores, levels: Levels, walk, calm: Float[Array, ""]) -> Int[Array, ""]:
    """Hours that err alike: 0 lowered, 1 calm and 2 restless at the same level, 3 raised."""
    turn = moved(scores, levels)
    stirred = restlessness(scores[-len(levels) :], walk) > calm
    return jnp.where(turn == 1, 1 + stirred, turn + turn // 2)


def _number(level: Float[Array, ""]) -> Int[Array, ""]:
    """Index of the level that a z-score stands for."""
    middle = (len(LEVELS) - 1) / 2
    return jnp.round(level * LEVEL_SD + middle).astype(int)


def fit_calibrated(
    networks: list,
    rows,
    config,
    *,
    patients,
    keys: Key[Array, "ensembles 2"],
    watch: Callable[[float], None],
) -> tuple[list[Calibrated], dict[str, np.ndarray]]:
    """Fit the members of all ensembles side by side, then keep each ensemble's own errors.

    `rows` are those of train and those of select patients, `config.sizes` a `CalibratedConfig`.
    """
    sizes, (train, select) = config.sizes, rows
    steps = train[2].shape[1]
    step, walk, number = usual_step(*train), usual_walk(train[0][:, -steps:]), sizes.members
    starts, fits = (jax.vmap(lambda k: jr.split(k, number + 1))(k) for k in keys.T)
    made = [Member(step, walk, steps, sizes, key=k) for k in starts[:, :number].ravel()]
    start = stack([Fitted(one) for one in made])
    line = fit_line(train, step, walk)
    rest = _beside(line, train, walk), _beside(line, select, walk)
    best, info = fit(start, fitted_loss, rest, sizes.fit, key=fits[:, :number].ravel(), watch=watch)
    made = []
    for index, k_errors in enumerate(fits[:, number]):
        own = [member(best, i).network for i in range(index * number, (index + 1) * number)]
        made.append(calibrate(line, stack(own), select, sizes.errors, key=k_errors))
    shape = (len(keys), number)
    return made, {k: x.reshape(*x.shape[:-1], *shape).mean(-1) for k, x in info.items()}


@eqx.filter_jit
def _beside(line, rows, walk):
    """The same rows with what the line leaves over."""
    scores, levels, targets = rows
    found = jax.vmap(lambda s, a: straight(line, s, a, walk))(scores, levels)
    return scores, levels, targets - found


def usual_step(scores, levels, targets) -> Float[Array, " signals"]:
    """Robust sd of persistence's error per signal over the train hours whose level stays.

    It is 0 where there is nothing to learn: a coordinate that is always 0.
    """
    stays = jax.vmap(moved)(scores, levels) == 1
    size = jnp.where(stays[:, None, None], jnp.abs(targets), jnp.nan)
    usual = jnp.maximum(1.4826 * jnp.nanmedian(size, axis=(0, 1)), 1e-3)
    return jnp.where(jnp.abs(targets).max((0, 1)) > 0, usual, 0.0)


def usual_walk(scores: Float[Array, "n steps used"]) -> Float[Array, " signals"]:
    """Robust sd per signal of the way from the samples of an hour to its last one."""
    if scores.shape[1] == 1:  # nothing lies between
        return jnp.ones(scores.shape[2] - 1)
    way = jnp.abs(scores[:, :-1, :-1] - scores[:, -1:, :-1])
    return jnp.maximum(1.4826 * jnp.median(way, axis=(0, 1)), 1e-4)


def make_calibrated(
    steps: int, signals: int, config: CalibratedConfig, *, key: PRNGKeyArray
) -> Calibrated:
    """An ensemble that has learned nothing and made no errors yet."""
    keys = jr.split(key, config.members)
    members = stack(
        [Member(jnp.ones(signals), jnp.ones(signals), steps, config, key=key) for key in keys]
    )
    none = jnp.zeros(len(GROUPS), int)
    seen = jnp.zeros((config.history * steps, signals + 1))
    inputs = len(features(seen, jnp.zeros(steps), jnp.ones(signals)))
    line = jnp.zeros((inputs, steps * signals))
    errors = jnp.zeros((config.errors, steps, signals))
    return Calibrated(line, members, jnp.ones((2, signals)), jnp.zeros(()), errors, none, none)


@eqx.filter_jit
def calibrate(line, members: Member, rows, number: int, *, key: PRNGKeyArray) -> Calibrated:
    """Keep `number` whole hours of scaled errors of select patients, group by group.

    A group that is too small to speak for itself draws from all.
    """

    def error(row):
        hour, levels, target = row
        center, spread = expect(line, members, hour, levels)
        return (target - center) / spread, alike(hour, levels, walk, calm)

    walk = members.walk[0]
    last = rows[0][:, -rows[2].shape[1] :]
    calm = jnp.median(jax.vmap(lambda hour: restlessness(hour, walk))(last))
    count = len(rows[1])
    chosen = jr.choice(key, count, (number,), replace=count < number)
    kept = jax.tree.map(lambda x: x[chosen], rows)
    errors, group = jax.lax.map(error, kept, batch_size=min(1024, number))
    size = jnp.bincount(group, length=len(GROUPS))
    small = size < FEWEST
    return Calibrated(
        line=line,
        members=members,
        width=jnp.ones((2, errors.shape[-1])),
        calm=calm,
        errors=errors[jnp.argsort(group, stable=True)],
        first=jnp.where(small, 0, jnp.cumsum(size) - size),
        count=jnp.where(small, number, size),
    )
