"""Numbers behind the figures: constant levels, long horizons, agreement, the same six hours."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.evaluation.judging import judge_in_twin
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.experiment.judging import TEAM, Bench, Trained, read_judged, read_ruled
from stepdown.experiment.patients import read_hours
from stepdown.experiment.readers import read_ensemble, read_policies, read_twin
from stepdown.handover import Episodes, Judged, Moments, Policy, Transitions
from stepdown.patients.episodes import Mode
from stepdown.policies.rules import RULES
from stepdown.problem.clinical import normalized_reward
from stepdown.problem.hours import find_runs
from stepdown.problem.metrics import score_episodes
from stepdown.signals import LEVELS
from stepdown.training import member
from stepdown.twin.fit import Twin
from stepdown.twin.rollout import follow_plans, roll_out

HORIZONS = (1, 2, 3, 4, 6, 8, 10, 12)  # hours
RUNS = 300  # recorded stretches of twelve hours, at most
CASES = {  # what is shown: whose extreme, and which side of it
    "high reward": ("reward", np.argmax),
    "low reward": ("reward", np.argmin),
    "high weaning score": ("ws_gradient", np.argmax),
    "low weaning score": ("ws_gradient", np.argmin),
    "large jumps": ("acp", np.argmax),
    "small jumps": ("acp", np.argmin),
}
KEY = 2


@dataclass(frozen=True)
class MakeFigureNumbers:
    """What the figures of the recorded comparison are drawn from."""

    bench: Bench
    trained: Mapping[str, Trained]  # by method
    ensemble: Job
    ours: str  # whose extreme episodes are shown
    ruled: Job  # the clinicians' levels from the same starts
    horizons: tuple[int, ...] = HORIZONS
    runs: int = RUNS

    def make(self, desk: Desk) -> dict[str, Content]:
        """Everything at once."""
        bench = self.bench
        twin, test = read_twin(desk, bench.twin), read_hours(desk, bench.patients).test
        moments = bench.moments(desk)
        first = {
            name: member(read_policies(desk, one.train), 0) for name, one in self.trained.items()
        }
        arrays = _constants(desk, self.ensemble, moments) | _rewards(twin, test)
        arrays |= _horizons(twin, test, self) | _agreement(first, test)
        if self.ours in self.trained:
            judged = read_judged(desk, self.trained[self.ours].judge)[bench.first]
            scores = {metric: np.asarray(judged.scores[metric])[0] for metric, _ in CASES.values()}
            starts = np.array([pick(scores[metric]) for metric, pick in CASES.values()])
            arrays |= _same_hours(first, twin, moments, starts)
            team = read_ruled(desk, self.ruled, bench.first, ())[TEAM]
            arrays |= _clinicians_hours(team, twin, moments, starts)
        count = arrays["horizon/records/reward"].shape[1]
        about = {"cases": list(CASES), "horizons": list(self.horizons[:count])}
        return arrays_and_info(arrays, about)


def _constants(desk: Desk, ensemble: Job, moments: Moments) -> dict[str, np.ndarray]:
    """What the ensemble believes that holding each level is worth."""
    dynamics = read_ensemble(desk, ensemble)
    rewards = [
        judge_in_twin(RULES[f"always P{level}"], dynamics, moments).scores["reward"][0]
        for level in LEVELS
    ]
    return {"constant/ensemble": np.stack(rewards, axis=1), "constant/row": np.asarray(moments.row)}


@eqx.filter_jit
def _one_hour(twin: Twin, hours: Transitions, keys):
    def one(state, level, key):
        return normalized_reward(twin(state, level, key=key))

    return jax.lax.map(lambda x: one(*x), (hours.state, hours.level, keys), batch_size=1024)


def _rewards(twin: Twin, test: Transitions) -> dict[str, np.ndarray]:
    """Rewards of recorded hours, and of one forecast of each."""
    keys = jr.split(jr.key(KEY), len(test.level))
    forecast = _one_hour(twin, test, keys)
    return {"reward/recorded": np.asarray(test.unshaped), "reward/forecast": np.asarray(forecast)}


def _horizons(twin: Twin, test: Transitions, look: MakeFigureNumbers) -> dict[str, np.ndarray]:
    """The clinicians' decisions in the twin and in the records, up to the longest horizon."""
    horizons, runs = _recorded_runs(test, look.horizons)
    longest = horizons[-1]
    draw = np.random.default_rng(KEY)
    starts = np.sort(draw.choice(runs, min(look.runs, len(runs)), replace=False))
    within = starts[:, None] + np.arange(longest)
    state, level = jnp.asarray(np.asarray(test.state)[starts]), np.asarray(test.level)[within]
    keys = jr.split(jr.key(KEY), (len(starts), 1))
    played = _follow(twin, state, jnp.asarray(level), keys)
    before = np.round(np.asarray(state)[:, -1, -1]).astype(int)
    levels = jnp.asarray(np.concatenate([before[:, None], level], axis=1))
    recorded = jnp.asarray(np.asarray(test.next_state)[within])
    arrays: dict[str, np.ndarray] = {"horizon/row": np.asarray(test.patient)[starts]}
    for who, later in (("twin", played), ("records", recorded)):
        whole = jnp.concatenate([state[:, None], later], axis=1)
        for metric in ("reward", "acp", "ws_gradient"):
            arrays[f"horizon/{who}/{metric}"] = np.stack(
                [_scores(whole, levels, hours)[metric] for hours in horizons], axis=1
            )
    return arrays


def _recorded_runs(test: Transitions, horizons: tuple[int, ...]):
    """The horizons that somebody's hours in a row cover, and where these begin."""
    for count in range(len(horizons), 1, -1):
        try:
            return horizons[:count], find_runs(test, horizons[count - 1])
        except ValueError:  # charts are full of holes
            continue
    return horizons[:1], find_runs(test, horizons[0])


@eqx.filter_jit
def _follow(twin: Twin, states, plans, keys):
    def one(x):
        state, plan, key = x
        return follow_plans(twin, state, plan[None], keys=key)[0, 0]

    return jax.lax.map(one, (states, plans, keys), batch_size=64)


def _scores(states, levels, hours: int):
    alive = jnp.ones((len(levels), hours), bool)
    return score_episodes(Episodes(states[:, : hours + 1], levels[:, : hours + 1], alive))


def _agreement(policies: Mapping[str, Policy], test: Transitions) -> dict[str, np.ndarray]:
    """Which level each policy's first seed would have set in the recorded hours."""
    chosen = {
        f"chosen/{name}": np.asarray(_modes(policy, test.state), np.int8)
        for name, policy in policies.items()
    }
    before = np.round(np.asarray(test.state)[:, -1, -1]).astype(np.int8)
    return chosen | {"recorded/level": np.asarray(test.level, np.int8), "recorded/before": before}


@eqx.filter_jit
def _modes(policy: Policy, states):
    one = partial(Mode(policy), None, key=None)
    return jax.lax.map(one, states, batch_size=256)  # a planner imagines many hours for each


def _same_hours(
    policies: Mapping[str, Policy], twin: Twin, moments: Moments, starts: np.ndarray
) -> dict[str, np.ndarray]:
    """Six hours under every policy from the same moments, with the same luck."""
    states, keys = moments.state[starts], moments.key[starts]
    arrays: dict[str, np.ndarray] = {}
    for name, policy in policies.items():
        played = roll_out(Mode(policy), twin, states, keys=keys)
        arrays |= {f"hours/{name}/state": np.asarray(played.state, np.float32)}
        arrays |= {f"hours/{name}/level": np.asarray(played.level, np.int8)}
    return arrays


def _clinicians_hours(
    team: Judged, twin: Twin, moments: Moments, starts: np.ndarray
) -> dict[str, np.ndarray]:
    """The same moments and the same luck under the levels that the clinicians set."""
    levels, state = np.asarray(team.level)[0, starts], moments.state[starts]
    played = _play_levels(twin, state, jnp.asarray(levels[:, 1:], jnp.int32), moments.key[starts])
    whole = np.concatenate([np.asarray(state)[:, None], np.asarray(played)], axis=1)
    return {
        f"hours/{TEAM}/state": whole.astype(np.float32),
        f"hours/{TEAM}/level": levels.astype(np.int8),
    }


@eqx.filter_jit
def _play_levels(twin: Twin, states, levels, keys):
    """Given levels with the luck of `roll_out`: of an hour's two keys the second is the twin's."""

    def one(state, levels, key):
        luck = jax.vmap(jr.split)(jr.split(key, len(levels)))[:, 1]

        def hour(state, now):
            later = twin(state, now[0], key=now[1])
            return later, later

        return jax.lax.scan(hour, state, (levels, luck))[1]

    return jax.vmap(one)(states, levels, keys)
