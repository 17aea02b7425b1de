"""Policies played for six hours and scored, in a twin and in the simulated patients.

All methods and seeds meet the same starts and the same luck: a start's random numbers belong to
the start (twin) or to the patient (truth), never to who decides. Hours are played one by one for
all seeds at once, so the costly program, an hour of the twin or of the patients, is compiled once
and serves every policy; only the small one that chooses levels is compiled per kind of policy.

The look-ahead reads the latent state and plans on the true model, but with random numbers of
its own: it knows the patient, not the future. It is a ceiling, not a policy anybody can have.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.handover import (
    Cohort,
    Dynamics,
    Episodes,
    Judged,
    Moments,
    Policy,
    Role,
    Transitions,
    advance,
    require_role,
)
from stepdown.patients.cohort import GROUP, Latents, in_groups, play_hour, tick_keys
from stepdown.patients.episodes import Mode, OwnTeam, Sampled, Starts, draw_starts, play
from stepdown.patients.population import World, host_generator
from stepdown.policies.constraint import Constrained
from stepdown.policies.networks import LearnedPolicy, each
from stepdown.policies.planner import Planner
from stepdown.policies.rules import Chance
from stepdown.problem.clinical import PAPER, normalized_reward
from stepdown.problem.hours import find_runs
from stepdown.problem.metrics import METRICS, score_episodes
from stepdown.signals import HIGHEST, HORIZON, LEVEL, LOWEST

LOOK_AHEAD, REACH = 2, 2  # hours of the look-ahead, and levels up or down that it tries
SIDE_BY_SIDE = 8192  # rows of one call on a GPU; on a CPU those of the simulator's groups


def draw_judged_starts(
    cohort: Cohort, latents: Latents, count: int, *, history: int = 1, key: PRNGKeyArray
) -> Starts:
    """Starts in simulated test patients, or in fresh ones (role "all"); others are refused.

    Nothing may have been fitted to a cohort of role "all": a cohort itself cannot know that.
    """
    if cohort.role not in ("test", "all"):
        raise ValueError(
            f"expected test patients or fresh ones, got {cohort.role} patients. "
            "Scores on patients that were fitted to or chosen on are not reported."
        )
    if len(latents.outcome) != len(cohort.patient):
        raise ValueError(
            f"expected the truth behind {len(cohort.patient)} patients, got "
            f"{len(latents.outcome)}. Take their part of it by latents_of."
        )
    return draw_starts(cohort, latents, count, history=history, key=key)


def moments_of(starts: Starts, *, key: PRNGKeyArray) -> Moments:
    """The same starts for a twin; a start's luck depends on its number alone.

    >>> moments = sd.moments_of(starts, key=jr.key(0))
    """
    keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(len(starts.row)))
    return Moments(jnp.asarray(starts.state), jnp.asarray(starts.row), keys)


def draw_moments(
    hours: Transitions, count: int, *, key: PRNGKeyArray, role: Role = "test"
) -> tuple[Moments, Int[np.ndarray, "n hours"]]:
    """Starts out of recordings, and the levels recorded in the six hours that follow each.

    Hours without six recorded hours ahead are left out: nobody knows what would have been set.
    In simulated patients that is known, so there every hour may be a start (`judge_team`).
    """
    require_role(hours, role)
    k_starts, k_luck = jr.split(key)
    runs = find_runs(hours, HORIZON)
    start = host_generator(k_starts).choice(runs, count, replace=count > len(runs))
    plans = np.asarray(hours.level)[start[:, None] + np.arange(HORIZON)]
    state, row = (jnp.asarray(np.asarray(x)[start]) for x in (hours.state, hours.patient))
    keys = jax.vmap(lambda i: jr.fold_in(k_luck, i))(jnp.arange(count))
    return Moments(state, row, keys), plans


def judge_in_twin(
    policies: Policy, dynamics: Dynamics, moments: Moments, *, sampled: bool = False
) -> Judged:
    """A policy, or one per seed (leaves lead with the seeds), in a twin; nobody dies there.

    >>> imagined = sd.judge_in_twin(policy, twin, moments)
    >>> imagined.scores["unsafe_hours"].shape
    (1, 64)
    """
    luck = _twin_luck(moments.key, HORIZON)
    choose = _chooser(policies, luck[:, 0], sampled)
    return _judge_in_twin(choose, _seeds(policies) or 1, dynamics, moments, luck[:, 1])


def judge_plans(plans: Int[np.ndarray, "n hours"], dynamics: Dynamics, moments: Moments) -> Judged:
    """Given levels, such as the recorded ones, in a twin, with the luck of `judge_in_twin`."""
    luck = _twin_luck(moments.key, plans.shape[1])
    return _judge_in_twin(lambda hour, _: plans[None, :, hour], 1, dynamics, moments, luck[:, 1])


def judge_in_patients(
    policies: Policy,
    starts: Starts,
    world: World,
    *,
    sampled: bool = False,
    hours: int = HORIZON,
) -> Judged:
    """A policy, or one per seed, in the simulated patients, as `play` does it one by one.

    >>> judged = sd.judge_in_patients(policy, starts, world)
    >>> judged.scores["reward"].shape  # seeds, episodes
    (1, 64)
    """
    seeds, per_hour = _seeds(policies) or 1, round(1 / world.dt)
    ticks = np.asarray(starts.tick) + per_hour * np.arange(hours)[:, None]
    choose = _chooser(policies, _decision_keys(starts.key, jnp.asarray(ticks)), sampled)
    patients, keys = _for_seeds((starts.patient, starts.key), seeds)

    def step(hour: int, patients, states, levels):
        rows = (patients, keys, np.tile(ticks[hour], seeds), levels.ravel())
        return in_groups(_patient_hour, rows, world, size=_size(levels.size))

    return _judged(_play_hours(choose, step, patients, _start(starts, seeds), hours), starts.row)


def judge_team(starts: Starts, world: World) -> Judged:
    """The patients' own clinicians, who go on where the record stops.

    `level[0, :, 1:]` are the plans that `judge_plans` plays in a twin: as recorded, and beyond.
    """
    return _judged([play(OwnTeam(), starts, world)], starts.row)


def judge_look_ahead(starts: Starts, world: World) -> Judged:
    """The ceiling: two hours of look-ahead on the true model, which nobody has at a bedside."""
    return _judged([play(LookAhead(world), starts, world)], starts.row)


class LookAhead(eqx.Module):
    """Try every level within two of the present one for two hours on the true model."""

    world: World

    def __call__(self, patient, state, key):
        """Take the level whose imagined hours score best."""
        now = jnp.round(state[-1, LEVEL]).astype(int)
        goals = jnp.clip(now + jnp.arange(-REACH, REACH + 1), LOWEST, HIGHEST)
        steps = round(1 / self.world.dt)
        imagined = jr.split(jr.fold_in(key, 2), (LOOK_AHEAD, steps))

        def value(level):
            def hour(patient, keys):
                patient, later = play_hour(patient, level, self.world, keys=keys)
                reward = normalized_reward(later)
                return patient, jnp.where(patient.course.alive > 0, reward, -PAPER.reward_clip)

            return jnp.sum(jax.lax.scan(hour, patient, imagined)[1])

        values = jax.vmap(value)(goals)
        # an equal choice goes to the smaller change
        return goals[jnp.argmax(values - 1e-4 * jnp.abs(goals - now))]


def judged_to_arrays(name: str, judged: Judged) -> dict[str, np.ndarray]:
    """Flat arrays to store: "NAME/reward" and so on; NAME is such as "cormpo/twin"."""
    scores = {key: np.asarray(judged.scores[key]) for key in METRICS}
    scores |= {"level": judged.level, "row": judged.row}
    return {f"{name}/{key}": value for key, value in scores.items()}


def arrays_to_judged(arrays: Mapping[str, np.ndarray]) -> dict[str, Judged]:
    """What `judged_to_arrays` stored, by NAME."""
    wanted, made = [*METRICS, "level", "row"], {}
    for name in dict.fromkeys(key.rpartition("/")[0] for key in arrays):
        if lacking := [key for key in wanted if f"{name}/{key}" not in arrays]:
            raise ValueError(
                f"expected {name}/{lacking[0]} beside the others, got none. Judge {name} anew."
            )
        scores = {key: jnp.asarray(arrays[f"{name}/{key}"]) for key in METRICS}
        made[name] = Judged(scores, arrays[f"{name}/level"], arrays[f"{name}/row"])
    return made


States = Float[np.ndarray, "seeds n past columns"]
Levels = Int[np.ndarray, "seeds n"]
Chooser = Callable[[int, States], Levels]  # at an hour
Step = Callable[[int, Any, States, Levels], tuple[Any, np.ndarray, np.ndarray]]


def _play_hours(choose: Chooser, step: Step, kept, start: States, hours: int) -> list[Episodes]:
    """Hour by hour, all seeds at once; a step gives back what is kept, the hour, who is alive."""
    state, played, alive = start, [], []
    levels = [np.round(start[..., -1, LEVEL]).astype(np.int32)]
    for hour in range(hours):
        levels.append(choose(hour, state))
        kept, later, lived = step(hour, kept, state, levels[-1])
        played.append(later.reshape(*start.shape[:2], *later.shape[1:]))
        state = np.asarray(advance(state, played[-1]))
        alive.append(lived.reshape(levels[-1].shape))
    states = [start[:, :, -played[0].shape[2] :], *played]
    whole = [jnp.asarray(np.stack(part, axis=2)) for part in (states, levels, alive)]
    return [Episodes(*(part[seed] for part in whole)) for seed in range(len(start))]


def _judge_in_twin(
    choose: Chooser, seeds: int, dynamics: Dynamics, moments: Moments, keys: Key[Array, "hours n"]
) -> Judged:
    own = _for_seeds(keys.T, seeds)

    def step(hour: int, kept, states, levels):
        rows = (states.reshape(-1, *states.shape[2:]), levels.ravel(), own[:, hour])
        later = in_groups(_twin_hour, rows, dynamics, size=_size(levels.size))
        return kept, later, np.ones(levels.size, bool)

    episodes = _play_hours(choose, step, (), _start(moments, seeds), len(keys))
    return _judged(episodes, moments.row)


def _judged(episodes: list[Episodes], row) -> Judged:
    """Scores of all seeds, on the host."""
    scores = [jax.tree.map(np.asarray, score_episodes(one)) for one in episodes]
    level = np.stack([np.asarray(one.level, np.int8) for one in episodes])
    return Judged(jax.tree.map(lambda *x: np.stack(x), *scores), level, np.asarray(row))


def _twin_hour(states, levels, keys, dynamics: Dynamics):
    return jax.vmap(lambda state, level, key: dynamics(state, level, key=key))(states, levels, keys)


def _patient_hour(patients, keys, ticks, levels, world: World):
    """One hour under given levels: the patients, what was recorded, who is alive."""
    per_hour = round(1 / world.dt)

    def one(patient, key, tick, level):
        own = tick_keys(key, tick, per_hour)
        patient, state = play_hour(patient, level, world, keys=own)
        return patient, state, patient.course.alive > 0

    return jax.vmap(one)(patients, keys, ticks, levels)


def _chooser(policies: Policy, keys: Key[Array, "hours n"], sampled: bool) -> Chooser:
    """The levels that every seed's policy sets in its own states; chance is always drawn."""
    drawn = sampled or isinstance(policies, Chance)
    decider, several = (Sampled if drawn else Mode)(policies), _seeds(policies) > 0
    return lambda hour, states: np.asarray(_choose(decider, states, keys[hour], several))


@eqx.filter_jit
def _choose(decider, states, keys, several: bool) -> Int[Array, "seeds n"]:
    def one(decider, states):
        return jax.vmap(lambda state, key: decider(None, state, key))(states, keys)

    return each(one, decider, states) if several else one(decider, states[0])[None]


def _seeds(policies: Policy) -> int:
    """Seeds that the leaves lead with (the scale of the signals has two axes), or 0."""
    inner = policies.policy if isinstance(policies, Constrained) else policies
    if isinstance(inner, Planner):
        return len(inner.luck) if inner.luck.ndim else 0
    mean = inner.scaler.mean if isinstance(inner, LearnedPolicy) else np.zeros(0)
    return len(mean) if mean.ndim == 2 else 0


def _start(starts: Starts | Moments, seeds: int) -> States:
    return np.broadcast_to(np.asarray(starts.state), (seeds, *starts.state.shape))


def _for_seeds(tree: Any, seeds: int) -> Any:
    """The same rows for every seed, one seed after another."""
    return jax.tree.map(lambda x: x[np.tile(np.arange(len(x)), seeds)], tree)


def _size(rows: int) -> int:
    """Rows of one compiled call; a GPU waits rather than counts, so one size serves it best."""
    on_cpu = jax.default_backend() == "cpu"
    return min(GROUP, 1 << (rows - 1).bit_length()) if on_cpu else SIDE_BY_SIDE


@eqx.filter_jit
def _twin_luck(keys: Key[Array, " n"], hours: int) -> Key[Array, "hours 2 n"]:
    """Keys of every decision and of the hour that follows it, as `roll_out` derives them."""
    return jnp.moveaxis(jax.vmap(lambda key: jax.vmap(jr.split)(jr.split(key, hours)))(keys), 0, 2)


@eqx.filter_jit
def _decision_keys(keys: Key[Array, " n"], ticks: Int[Array, "hours n"]) -> Key[Array, "hours n"]:
    """Keys of the decisions among simulated patients, as `play` derives them."""
    one = jax.vmap(lambda key, tick: jr.fold_in(jr.fold_in(key, tick), 1))
    return jax.vmap(one, (None, 0))(keys, ticks)
