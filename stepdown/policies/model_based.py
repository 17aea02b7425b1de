"""Learning in imagined hours: MBPO, MOPO, CORMPO and the expert are one loop (App. algorithm).

Every 1,000 updates the policy is played for five hours in the dynamics, from recorded states; the
rows go to a ring of the last five such rollouts. Every batch holds 5 % recorded rows. Methods
differ by the penalty and by the weights of the shaped reward, each combination is possible. The
expert is the loop with the twin as dynamics and no recorded rows.

Readings. Rewards of imagined rows are computed from the predicted hour, shaped, minus the penalty.
Recorded rows keep their recorded reward, shaped by the same weights, and are not penalized: the
paper penalizes "the rewards predicted by the dynamics model".

The loop comes in pieces (`Setting`), which learning.py drives.
"""

from dataclasses import dataclass, field, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.handover import Dynamics, Penalty, Policy, Transitions
from stepdown.policies.learning import (
    ALONE,
    AT_ONCE,
    Info,
    Shrink,
    Task,
    Watch,
    check_dynamics,
    check_hours,
    check_pace,
    fold_seeds,
    run_loop,
    split_seeds,
    to_policy,
    updates_per_call,
)
from stepdown.policies.networks import feature_count
from stepdown.policies.penalties import PENALTIES
from stepdown.policies.rows import (
    Imagination,
    RolloutConfig,
    View,
    imagine,
    make_shaping,
    recorded_rows,
)
from stepdown.policies.sac import (
    Learner,
    Rates,
    SACConfig,
    begin_learner,
    make_rates,
    unpack,
    update,
)
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import LEVELS

NUMBERS = (  # reported per epoch, of rollouts and of updates; beside them the shares of the levels
    *("reward", "penalty", "uncertainty"),
    *("critic_loss", "entropy", "value", "temperature"),
)


@dataclass(frozen=True)
class ModelBasedConfig:
    """One training; defaults are our setting (docs/definitions.md), the paper's are below."""

    updates: int = 30_000
    rollout_every: int = 1000  # updates; one epoch
    batch: int = 256
    real_share: float = 0.05  # of recorded rows in a batch
    widths: tuple[int, ...] = (256, 256)  # of actor and critics
    jump_weight: float = 0.5  # lambda 1 of the shaped reward
    weaning_weight: float = 0.0  # lambda 2
    penalty_weight: float = 0.08  # lambda of the penalty, which `learn_in_model` makes
    constrained: bool = False  # to the allowed levels (constraint.py)
    clinical: ClinicalConfig = PAPER
    sac: SACConfig = SACConfig()
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)

    def __post_init__(self):
        check_pace(self, "rollout_every")
        if not 0 <= self.real_share <= 1:
            raise ValueError(f"real_share: expected 0 to 1, got {self.real_share:g}.")

    def shrunk(self, size: Shrink) -> "ModelBasedConfig":
        """The same for a quick look."""
        return replace(
            self,
            updates=size.updates,
            rollout_every=size.rollout_every,
            batch=size.batch,
            widths=size.widths,
            rollouts=replace(self.rollouts, starts=size.rollouts),
        )


OURS = ModelBasedConfig()
_PAPER = replace(OURS, updates=100_000, sac=SACConfig(discount=0.99))
PAPER_NOISELESS = replace(
    _PAPER, updates=90_000, jump_weight=0.5, weaning_weight=0.3, penalty_weight=0.005
)
PAPER_NOISY = replace(_PAPER, jump_weight=0.0, weaning_weight=0.0, penalty_weight=0.08)
PAPER_RECORDED = replace(_PAPER, jump_weight=1.0, weaning_weight=0.0, penalty_weight=0.005)


def without_records(base: ModelBasedConfig) -> ModelBasedConfig:
    """Online learning: the dynamics are the whole world."""
    return replace(base, real_share=0.0)


@dataclass(frozen=True)
class Sizes:
    """The numbers that shape the programs."""

    every: int  # updates of an epoch
    batch: int
    recorded: int  # recorded rows of the pool
    rollout: int  # rows of one rollout
    kept: int  # rollouts in the pool


class Setting(eqx.Module):
    """Everything that stays as it is during a training; numbers to sweep are arrays."""

    imagination: Imagination
    recorded: Float[Array, "recorded columns"]  # packed rows (sac.py)
    real: Int[Array, ""]  # recorded rows of a batch
    rates: Rates
    updates: int = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)
    sizes: Sizes = eqx.field(static=True)

    @property
    def every(self) -> int:
        """Updates of an epoch."""
        return self.sizes.every

    def begin(self, *, key: Key[Array, "*seeds"]) -> "Training":
        """Fresh networks and an empty ring, as they are before the first update."""
        imagination = self.imagination
        inputs = feature_count(imagination.view.scaler, imagination.starts.shape[1])
        shapes = (inputs, *self.widths), self.sizes
        return _begin(self.recorded, self.rates, shapes, fold_seeds(key, 0))

    def advance(
        self, training: "Training", done: int, *, key: Key[Array, "*seeds"]
    ) -> tuple["Training", int]:
        """Some updates more, after a rollout if an epoch begins; `done` counts the updates so far.

        The old training state is used up. On a GPU this is an epoch, on a CPU a second or two.
        """
        sizes = self.sizes
        number, first = divmod(done, sizes.every)
        k_rollout, k_batches = split_seeds(fold_seeds(key, number + 1))
        if first == 0:
            training = _refresh(_Rollout(self, jnp.asarray(number), k_rollout), training)
        count = min(updates_per_call(sizes.every), sizes.every - first)
        place = jnp.asarray(number), jnp.asarray(first)
        lesson = _Lesson(self.rates, self.real, *place, k_batches)
        return _improve(lesson, training, sizes, count), done + count

    def finish(self, training: "Training") -> Policy:
        """The policy as it is; its leaves lead with the seeds if there are several."""
        return to_policy(training.learner, self.imagination.view)


class Training(eqx.Module):
    """Everything that a training changes; with a leading axis for seeds side by side."""

    learner: Learner
    pool: Float[Array, "*seeds rows columns"]  # recorded rows, then the ring of imagined ones
    tally: dict[str, Array]  # means over the epoch so far


def learn_in_model(
    task: Task, config: ModelBasedConfig, *, keys: Key[Array, " seeds"], watch: Watch
) -> tuple[Policy, Info]:
    """Methods of the table (methods.py), which differ by the penalty."""
    assert task.dynamics is not None
    weight = jnp.asarray(config.penalty_weight, jnp.float32)
    penalty = PENALTIES[task.penalty](task.dynamics, task.guardian, weight)
    return train_model_based(task.hours, task.dynamics, penalty, config, key=keys, watch=watch)


def train_model_based(
    hours: Transitions,
    dynamics: Dynamics,
    penalty: Penalty,
    config: ModelBasedConfig = OURS,
    *,
    key: Key[Array, "*seeds"],
    watch: Watch = ALONE,
) -> tuple[Policy, Info]:
    """Train a policy (or one per key); `info` holds a row per epoch."""
    setting = prepare(hours, dynamics, penalty, config)
    return run_loop(lambda key: (setting, key), key=key, watch=watch)


def prepare(
    hours: Transitions, dynamics: Dynamics, penalty: Penalty, config: ModelBasedConfig = OURS
) -> Setting:
    """Check the parts and lay them out for the device."""
    check_hours(hours, varied=config.real_share > 0)
    check_dynamics(dynamics, hours)
    rollouts = config.rollouts
    shaping = make_shaping(config.jump_weight, config.weaning_weight)
    view = View(fit_scaler(hours), shaping, config.constrained, config.clinical)
    return Setting(
        imagination=Imagination(dynamics, penalty, view, hours.state, rollouts),
        recorded=recorded_rows(hours, view),
        real=jnp.asarray(round(config.real_share * config.batch)),
        rates=make_rates(config.sac, clinical=config.clinical),
        updates=config.updates,
        widths=config.widths,
        sizes=Sizes(
            every=config.rollout_every,
            batch=config.batch,
            recorded=len(hours.level),
            rollout=rollouts.rows,
            kept=rollouts.kept,
        ),
    )


@eqx.filter_jit
def _begin(recorded, rates: Rates, shapes, key) -> Training:
    (inputs, *widths), sizes = shapes
    ring = jnp.zeros((sizes.kept * sizes.rollout, recorded.shape[1]))

    def one(key):
        learner = begin_learner(inputs, tuple(widths), rates, key=key)
        tally = {name: jnp.zeros(()) for name in NUMBERS} | {"levels": jnp.zeros(len(LEVELS))}
        return Training(learner, jnp.concatenate([recorded, ring]), tally)

    return jax.vmap(one)(key) if key.ndim else one(key)


class _Rollout(eqx.Module):
    """A rollout to make: how, in which epoch, with which luck."""

    setting: Setting
    number: Int[Array, ""]  # of the epoch, from 0
    key: Key[Array, "*seeds"]


@eqx.filter_jit(donate="all-except-first")
def _refresh(rollout: _Rollout, training: Training) -> Training:
    """Roll the policy out and put the rows into the ring."""
    setting, key = rollout.setting, rollout.key
    sizes = setting.sizes
    place = sizes.recorded + rollout.number % sizes.kept * sizes.rollout

    def play(x):
        return imagine(x[0].actor, setting.imagination, key=x[1])

    def put(training, rows, info):
        pool = jax.lax.dynamic_update_slice(training.pool, rows, (place, 0))
        tally = {name: jnp.zeros_like(x) for name, x in training.tally.items()}
        return Training(training.learner, pool, tally | info)

    if not key.ndim:
        return put(training, *play((training.learner, key)))
    seeds = (training.learner, key)
    rows, info = jax.lax.map(play, seeds, batch_size=min(AT_ONCE, len(key)))
    return jax.vmap(put)(training, rows, info)


class _Lesson(eqx.Module):
    """Updates to make: nothing here depends on the method, so all share the program."""

    rates: Rates
    real: Int[Array, ""]  # recorded rows of a batch
    number: Int[Array, ""]  # of the epoch, from 0
    first: Int[Array, ""]  # update of the epoch
    key: Key[Array, "*seeds"]


@eqx.filter_jit(donate="all-except-first")
def _improve(lesson: _Lesson, training: Training, sizes: Sizes, count: int) -> Training:
    """Update on batches of the pool."""
    key = lesson.key

    def one(training, key):
        table = _draw(sizes, lesson.real, lesson.number, key=key)
        batches = jax.lax.dynamic_slice_in_dim(table, lesson.first, count)

        def step(learner, index):
            return update(learner, unpack(training.pool[index]), lesson.rates)

        learner, infos = jax.lax.scan(step, training.learner, batches)
        sums = {name: jnp.sum(x) / sizes.every for name, x in infos.items()}
        tally = {name: x + sums.get(name, 0.0) for name, x in training.tally.items()}
        return Training(learner, training.pool, tally)

    return jax.vmap(one)(training, key) if key.ndim else one(training, key)


def _draw(sizes: Sizes, real, number, *, key: PRNGKeyArray) -> Int[Array, "updates batch"]:
    """Rows of the pool for every batch of an epoch: recorded ones, then imagined ones."""
    k_real, k_imagined = jr.split(key)
    shape = sizes.every, sizes.batch
    filled = jnp.minimum(number + 1, sizes.kept) * sizes.rollout
    recorded = jr.randint(k_real, shape, 0, sizes.recorded)
    imagined = sizes.recorded + jr.randint(k_imagined, shape, 0, filled)
    return jnp.where(jnp.arange(sizes.batch)[None] < real, recorded, imagined)
