"""Careful weaning from a micro-axial heart pump, studied on simulated patients.

The front door: `import stepdown as sd`. In the order of the journey,

- patients: `CohortConfig`, `simulate_cohort`, `world_of`, `write_cohort`, `read_cohort`
- the decision problem: `split_patients`, `make_transitions`
- a twin and a guardian: `twin_config`, `fit_twin`, `density_config`, `fit_guardian`
- a policy: `EnsembleConfig`, `fit_ensemble`, `Task`, `train_policy`
- how it does in patients: `draw_starts`, `Mode`, `OwnTeam`, `play`, `score_episodes`,
  `paired_difference`, `judge_in_patients`, and in a twin: `moments_of`, `judge_in_twin`
- a policy of your own in a finished run: `evaluate`

`help(sd.fit_twin)` shows an example; the examples go on from one to the next in this order, after

>>> import jax.random as jr
>>> import stepdown as sd

A name is loaded when it is used first, so that the import costs nothing.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepdown.commands.evaluate import evaluate as evaluate
    from stepdown.evaluation.compare import paired_difference as paired_difference
    from stepdown.evaluation.judging import judge_in_patients as judge_in_patients
    from stepdown.evaluation.judging import judge_in_twin as judge_in_twin
    from stepdown.evaluation.judging import moments_of as moments_of
    from stepdown.guardian.fit import fit_guardian as fit_guardian
    from stepdown.guardian.guardians import density_config as density_config
    from stepdown.patients.cohort import CohortConfig as CohortConfig
    from stepdown.patients.cohort import simulate_cohort as simulate_cohort
    from stepdown.patients.cohort import world_of as world_of
    from stepdown.patients.episodes import Mode as Mode
    from stepdown.patients.episodes import OwnTeam as OwnTeam
    from stepdown.patients.episodes import draw_starts as draw_starts
    from stepdown.patients.episodes import play as play
    from stepdown.policies.ensemble import EnsembleConfig as EnsembleConfig
    from stepdown.policies.ensemble import fit_ensemble as fit_ensemble
    from stepdown.policies.learning import Task as Task
    from stepdown.policies.methods import train_policy as train_policy
    from stepdown.problem.hours import make_transitions as make_transitions
    from stepdown.problem.metrics import score_episodes as score_episodes
    from stepdown.records.files import read_cohort as read_cohort
    from stepdown.records.files import write_cohort as write_cohort
    from stepdown.records.split import split_patients as split_patients
    from stepdown.twin.fit import fit_twin as fit_twin
    from stepdown.twin.twins import twin_config as twin_config

__version__ = "0.1.0"

# JAX would take three quarters of a GPU's memory at once; ours may have neighbors.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

_HOMES = {
    "CohortConfig": "patients.cohort",
    "simulate_cohort": "patients.cohort",
    "world_of": "patients.cohort",
    "write_cohort": "records.files",
    "read_cohort": "records.files",
    "split_patients": "records.split",
    "make_transitions": "problem.hours",
    "twin_config": "twin.twins",
    "fit_twin": "twin.fit",
    "density_config": "guardian.guardians",
    "fit_guardian": "guardian.fit",
    "EnsembleConfig": "policies.ensemble",
    "fit_ensemble": "policies.ensemble",
    "Task": "policies.learning",
    "train_policy": "policies.methods",
    "draw_starts": "patients.episodes",
    "Mode": "patients.episodes",
    "OwnTeam": "patients.episodes",
    "play": "patients.episodes",
    "score_episodes": "problem.metrics",
    "paired_difference": "evaluation.compare",
    "judge_in_patients": "evaluation.judging",
    "moments_of": "evaluation.judging",
    "judge_in_twin": "evaluation.judging",
    "evaluate": "commands.evaluate",
}


_ENVIRONMENTS = {"Patients-v0": "make_patients", "Twin-v0": "make_twin"}


def _register() -> None:
    """Make the environments known to Gymnasium, as `stepdown/Patients-v0` and `Patients-v0`.

    `gymnasium.make("stepdown:Patients-v0")` imports what stands before the colon and then looks for
    the rest.
    """
    gymnasium = sys.modules["gymnasium.envs.registration"]
    for name, maker in _ENVIRONMENTS.items():
        place = f"stepdown.problem.environment:{maker}"
        for known in (f"stepdown/{name}", name):
            gymnasium.register(
                known, place, max_episode_steps=6, vector_entry_point=f"{place}_vector"
            )


class _WaitForGymnasium:
    """Registers when Gymnasium is imported after us; without it nothing happens."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Look whether Gymnasium is ready to be told, and find nothing."""
        ready = hasattr(sys.modules.get("gymnasium.envs.registration"), "register_envs")
        if ready and name.startswith("gymnasium."):
            sys.meta_path.remove(self)
            _register()


if "gymnasium" in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _WaitForGymnasium())


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stepdown' has no attribute {name!r}")
    return getattr(importlib.import_module(f"stepdown.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
