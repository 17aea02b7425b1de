"""Jobs of trainings: all seeds of a method on a data set, and the choice among trials.

A training keeps its state and its record in the half-done folder of the job, so that one that was
stopped goes on to the same result. `metrics.jsonl` is the record: a line for every epoch and seed.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from stepdown.artifacts import Content
from stepdown.experiment.datasets import Source
from stepdown.experiment.jobs import Desk, Job, Teller, arrays_and_info, saved
from stepdown.experiment.patients import read_hours
from stepdown.experiment.readers import read_ensemble, read_guardian, read_policies, read_twin
from stepdown.guardian.threshold import PValuePenalty
from stepdown.handover import Penalty, Policy, Transitions
from stepdown.policies.learning import Changes, Epoch, Info, Method, Task, Watch, apply_changes
from stepdown.policies.saved import POLICIES, save_policies
from stepdown.policies.search import TwinReward, make_rule
from stepdown.training import member

METRICS = "metrics.jsonl"
KEY, EXPERT_KEY, CHOICE_KEY, WATCH_KEY = 1, 0, 3, 0
WATCHED = 256  # select hours from which a twin watches every epoch; a curve, no verdict
MIXED = 2048  # select hours over which levels are counted


@dataclass(frozen=True)
class TrainPolicy:
    """Train all seeds of a method; the curves are kept."""

    method: Method
    config: Any  # the method's own
    seeds: tuple[int, ...]
    source: Source
    dynamics: Job | None = None  # ensemble or twin, if the method learns in one
    guardian: Job | None = None
    ranked: bool = False  # charge the guardian's -log p-value, which has no threshold
    search: Job | None = None  # whose best trial changes the config
    watcher: Job | None = None  # twin that tells the reward of every epoch
    key: int = KEY

    def make(self, desk: Desk) -> dict[str, Content]:
        """Policies, curves and the record."""
        hours, select = self.source.hours(desk)
        task = Task(
            hours,
            select,
            dynamics=self.learned_in(desk),
            guardian=self.charged_by(desk),
            penalty=self.method.penalty,
        )
        rule = None
        if self.watcher is not None:
            twin = read_twin(desk, self.watcher)
            rule = make_rule(twin, select, WATCHED, key=jr.key(WATCH_KEY))
        folder = desk.half_done or Path()
        record = Record(folder, self, desk.teller, select, rule)
        keys = jr.split(jr.key(self.key), max(self.seeds) + 1)[np.array(self.seeds)]
        watch = Watch(record.tell, desk.stopping, desk.half_done, desk.save_seconds)
        policies, curves = self.method.learn(task, self.config_used(desk), keys=keys, watch=watch)
        record.fill(curves, policies)
        kept = {name: x for name, x in curves.items() if np.ndim(x) > 1}
        files = arrays_and_info(kept, {"method": self.method.name, "seeds": list(self.seeds)})
        files |= saved(lambda path: save_policies(path, policies, self.method.name), POLICIES)
        return files | {METRICS: record.file.read_bytes()}

    def config_used(self, desk: Desk) -> Any:
        """The config, as the best trial of a search has changed it."""
        if self.search is None:
            return self.config
        return apply_changes(self.config, desk.info(self.search)["chosen"])

    def charged_by(self, desk: Desk) -> Penalty | None:
        """What says how strange a choice is, if the method needs a guardian."""
        if self.guardian is None:
            return None
        guardian = read_guardian(desk, self.guardian)
        return PValuePenalty(guardian) if self.ranked else guardian

    def learned_in(self, desk: Desk) -> Any:
        """The ensemble or the twin in which the method imagines hours, if it does."""
        if self.dynamics is None:
            return None
        return (read_ensemble if self.method.dynamics == "ensemble" else read_twin)(
            desk, self.dynamics
        )


class Record:
    """The lines of a training: numbers of every epoch and seed."""

    def __init__(
        self,
        folder: Path,
        work: TrainPolicy,
        teller: Teller,
        select: Transitions,
        rule: TwinReward | None,
    ):
        self.file = folder / METRICS
        self._folder, self._work, self._teller = folder, work, teller
        self._select, self._rule = select, rule
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = read_lines(self.file)
        self._begun: set[int] = set()  # seeds that have told something since

    def tell(self, epoch: Epoch) -> None:
        """Write what an epoch brought for every seed, and say so."""
        for place, row in enumerate(epoch.seeds):
            info, policy = epoch.of(place)
            self._write(self._work.seeds[row], epoch, info, policy)

    def fill(self, curves: Info, policies: Policy) -> None:
        """Write the curves of a method that tells nothing while it learns, such as cloning."""
        if self._begun:
            return
        epochs = len(next(iter(curves.values())))
        for row, seed in enumerate(self._work.seeds):
            for number in range(1, epochs + 1):
                info = {name: np.asarray(x[number - 1, row]) for name, x in curves.items()}
                last = member(policies, row)
                epoch = Epoch((row,), number, number, number / epochs, info, last)
                self._write(seed, epoch, info, last)

    def _write(self, seed: int, epoch: Epoch, info: Info, policy: Policy) -> None:
        if not all(np.isfinite(x).all() for x in info.values()):
            raise ValueError(
                f"expected finite losses, got NaN or infinity in seed {seed} after "
                f"{epoch.updates} updates. Lower the learning rate or the weight of the penalty."
            )
        if seed not in self._begun:
            self._begin(seed, epoch.updates)
        told = {name: np.asarray(x).tolist() for name, x in info.items()}
        told |= self._judge(told, policy)
        head = {"seed": seed, "epoch": epoch.number, "updates": epoch.updates}
        line = head | {"time": round(time.time(), 1)} | told
        self._lines.append(line)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        self._teller.epoch(self._folder, self._work.method.name, epoch.share, line)

    def _begin(self, seed: int, updates: int) -> None:
        """Forget what was written about a seed and will be written again."""
        self._begun.add(seed)
        self._lines = [x for x in self._lines if x["seed"] != seed or x["updates"] < updates]
        draft = self.file.with_suffix(".draft")
        text = "".join(json.dumps(x, allow_nan=False) + "\n" for x in self._lines)
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, self.file)
        own = [x for x in self._lines if x["seed"] == seed]
        self._teller.begin(self._folder, seed, own)

    def _judge(self, told: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
        """The reward in the twin, if one watches, and the levels where nobody has counted them."""
        if self._rule is None:
            return {}
        found: dict[str, Any] = {"twin_reward": self._rule(policy)}
        if "levels" not in told:
            found["levels"] = level_mix(policy, self._select.state).tolist()
        return found


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a record; one that a sudden end has cut short is left out."""
    if not file.is_file():
        return []
    lines = []
    for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def level_mix(policy: Policy, states: Float[Array, "n steps columns"]) -> Float[np.ndarray, " 8"]:
    """Mean probability of each level."""
    return np.asarray(_level_mix(policy, states[:MIXED]))


@eqx.filter_jit
def _level_mix(policy, states):
    return jnp.mean(jnp.exp(jax.vmap(policy)(states)), axis=0)


@dataclass(frozen=True)
class Trial:
    """One change of a recipe, and its training."""

    changes: Changes
    job: Job


@dataclass(frozen=True)
class ChooseTrial:
    """Play every trial from the same select hours in the twin; the best mean reward is chosen."""

    method: str
    trials: tuple[Trial, ...]
    source: Source
    twin: Job

    def make(self, desk: Desk) -> dict[str, Content]:
        """The scores and the choice."""
        patients = self.source.patients
        select = (
            self.source.hours(desk)[1] if patients is None else read_hours(desk, patients).select
        )
        rule = make_rule(read_twin(desk, self.twin), select, key=jr.key(CHOICE_KEY))
        scores = [rule(member(read_policies(desk, one.job), 0)) for one in self.trials]
        best = max(range(len(scores)), key=scores.__getitem__)
        found = [
            {"changes": dict(one.changes), "score": score}
            for one, score in zip(self.trials, scores, strict=True)
        ]
        chosen = dict(self.trials[best].changes)
        return arrays_and_info({}, {"method": self.method, "trials": found, "chosen": chosen})
