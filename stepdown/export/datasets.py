"""Transitions for everybody's learners: Minari data sets and D4RL-style HDF5, and back.

An episode is an unbroken stretch of a stay, so a stay without gaps is one episode; lengths differ.
It ends in truncation, as the patient goes on living, or is terminal: then the patient died, and the
reward of the row holds the minimum for each hour of the horizon besides, since most learners expect
nothing behind a terminal row, which would be better than many hours lived. Observations and actions
are those of the environments: the hour in physical units, index i for level P(i+2). Only signals
that every row knows are exported; `columns` in the metadata names them. Train, select and test
patients go to separate data sets, and each says whose it is.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import jax.numpy as jnp
import minari
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Discrete
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from stepdown import __version__
from stepdown.artifacts import ArtifactError
from stepdown.handover import Role, Transitions, require_one_hour
from stepdown.problem.clinical import PAPER
from stepdown.problem.environment import observation_box
from stepdown.problem.hours import require_order
from stepdown.signals import HORIZON, LEVELS, LOWEST, NAMES, columns_with

NOTE = (
    "Hours on a micro-axial heart pump, one decision an hour. Observations are in physical units, "
    "action i sets level P(i+2), the reward is the physiological one, shaped if the weights say "
    "so. Research data, not for treating patients."
)
AFTER_DEATH = np.float32(-HORIZON * PAPER.reward_clip)  # reward of the hours that would follow
_FLAT = ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts")
_EXTRA = ("unshaped", "levels", "filled", "patient")  # of a transition, kept beside Minari's own


def write_minari(
    root: Path,
    hours: Transitions,
    *,
    patients: tuple[str, ...],
    about: Mapping[str, Any],
    name: str | None = None,
    spec: EnvSpec | None = None,
) -> str:
    """Write one data set under a Minari root folder and return its name there.

    Minari finds it when MINARI_DATASETS_PATH names the root. `spec` is the environment that the
    hours came from; by default one with patients of its own, who are measured alike.
    """
    columns, starts, ends = _layout(hours)
    name = name or f"stepdown/{hours.role}-v0"
    folder = root / name / "data"
    folder.mkdir(parents=True)
    (root / "stepdown" / "namespace_metadata.json").write_text("{}", encoding="utf-8")
    steps = hours.state.shape[1]
    # The environment that observes the same numbers.
    whole = hours.columns == NAMES and len(columns) == hours.state.shape[-1]
    storage = MinariStorage.new(
        folder,
        observation_space=observation_box(columns, steps, hours.columns),
        action_space=Discrete(len(LEVELS)),
        env_spec=(spec or gymnasium.spec("stepdown/Patients-v0")) if whole else None,
        data_format="hdf5",
    )
    arrays = _arrays(hours, columns)
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    storage.update_episodes(_episode(arrays, slice(*span)) for span in spans)
    rows = np.asarray(hours.patient)[starts]
    storage.update_episode_metadata([{"patient": patients[row]} for row in rows])
    storage.update_metadata(
        {
            "dataset_id": name,
            "minari_version": minari.__version__,
            "algorithm_name": _who(about),
            "description": NOTE,
            "requirements": [f"stepdown=={__version__}"],
            "stepdown": json.dumps(_labels(hours, columns) | dict(about)),
        }
    )
    return name


def read_dataset(path: Path) -> tuple[Transitions, Transitions]:
    """Train and select hours: train.hdf5 with select.hdf5 beside it, or a Minari root folder."""
    if path.is_dir():
        return read_minari(path, "train"), read_minari(path, "select")
    beside = path.with_name("select.hdf5")
    for file in (path, beside):
        if not file.is_file():
            raise FileNotFoundError(
                f"--dataset: expected {file}, which is missing. Name the train.hdf5 of stepdown "
                "export --d4rl, with select.hdf5 beside it, or a folder of --minari."
            )
    return read_d4rl(path), read_d4rl(beside)


def read_minari(root: Path, role: Role) -> Transitions:
    """Transitions of one role out of a Minari root folder."""
    folders = [root / "stepdown" / f"{role}-v0" / "data"]
    if not folders[0].is_dir():  # of stepdown benchmark data: names say the kind of patients
        folders = [x for x in (root / "stepdown").glob("*/data") if _role_of(x) == role]
    folder = folders[0] if folders else root
    if not folders:
        raise FileNotFoundError(
            f"{folder}: expected a Minari data set, found none; export one with stepdown export."
        )
    data = minari.MinariDataset(folder)
    labels = _read_labels(data.storage.metadata.get("stepdown"), folder)
    parts: dict[str, list] = {name: [] for name in (*_FLAT, *_EXTRA)}
    for episode in data.iterate_episodes():
        parts["observations"].append(episode.observations[:-1])
        parts["next_observations"].append(episode.observations[1:])
        parts["actions"].append(episode.actions)
        parts["rewards"].append(episode.rewards)
        parts["terminals"].append(episode.terminations)
        parts["timeouts"].append(episode.truncations)
        for name in _EXTRA:
            parts[name].append(episode.infos[name][1:])
    return _transitions({name: np.concatenate(rows) for name, rows in parts.items()}, labels)


def _role_of(folder: Path) -> str | None:
    labels = minari.MinariDataset(folder).storage.metadata.get("stepdown")
    return json.loads(labels).get("role") if isinstance(labels, str) else None


def write_d4rl(
    folder: Path, hours: Transitions, *, patients: tuple[str, ...], about: Mapping[str, Any]
) -> str:
    """Write `<role>.hdf5`: flat arrays, one row per decision; `timeouts` ends an episode."""
    columns, _, _ = _layout(hours)
    name = f"{hours.role}.hdf5"
    with h5py.File(folder / name, "w") as out:
        for key, values in _arrays(hours, columns).items():
            out.create_dataset(key if key in _FLAT else f"infos/{key}", data=values)
        out.create_dataset("metadata/patients", data=list(patients), dtype=h5py.string_dtype())
        out.attrs["description"] = NOTE
        out.attrs["stepdown"] = json.dumps(_labels(hours, columns) | dict(about))
    return name


def read_d4rl(file: Path) -> Transitions:
    """Transitions out of a D4RL-style file of ours."""
    try:
        with h5py.File(file, "r") as data:
            labels = _read_labels(data.attrs.get("stepdown"), file)
            names = [*_FLAT, *(f"infos/{name}" for name in _EXTRA)]
            arrays = {name.removeprefix("infos/"): _array(data, name, file) for name in names}
    except OSError as error:
        raise ArtifactError(f"{file}: expected HDF5, got something else ({error}).") from error
    return _transitions(arrays, labels)


def _layout(hours: Transitions) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """Columns that every row knows; first row and the row behind the last of every episode."""
    if len(hours.level) == 0:
        raise ValueError(
            f"expected hours of {hours.role} patients, got none. Export a cohort with more "
            "patients or longer stays."
        )
    require_one_hour(hours, "an exported data set")
    require_order(hours)
    known = [np.isfinite(np.asarray(x)).all((0, 1)) for x in (hours.state, hours.next_state)]
    ends = np.flatnonzero(np.asarray(hours.last)) + 1
    columns = tuple(int(i) for i in np.flatnonzero(known[0] & known[1]))
    return columns, np.concatenate([[0], ends[:-1]]), ends


def _arrays(hours: Transitions, columns: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The rows as others know them, by the names of `_FLAT` and `_EXTRA`."""

    def flat(states) -> np.ndarray:
        return np.asarray(states)[..., list(columns)].reshape(len(states), -1)

    died = np.asarray(hours.died)
    return {
        "observations": flat(hours.state),
        "next_observations": flat(hours.next_state),
        "actions": np.asarray(hours.level, np.int64) - LOWEST,
        "rewards": np.where(died, hours.reward + AFTER_DEATH, hours.reward),
        "terminals": died,
        "timeouts": np.asarray(hours.last) & ~died,
        **{name: np.asarray(getattr(hours, name)) for name in _EXTRA},
    }


def _episode(arrays: dict[str, np.ndarray], rows: slice) -> EpisodeBuffer:
    own: dict[str, Any] = {name: values[rows] for name, values in arrays.items()}
    return EpisodeBuffer(
        observations=np.concatenate([own["observations"], own["next_observations"][-1:]]),  # pyright: ignore[reportArgumentType]
        actions=own["actions"],
        rewards=own["rewards"],
        terminations=own["terminals"],
        truncations=own["timeouts"],
        # Minari's infos begin with that of the reset, which belongs to no decision.
        infos={name: np.concatenate([own[name][:1], own[name]]) for name in _EXTRA},
    )


def _who(about: Mapping[str, Any]) -> str:
    """Who set the levels."""
    recorded = about.get("data", "recorded") == "recorded"
    return "recorded clinicians" if recorded else "expert that learned in the twin"


def _labels(hours: Transitions, columns: tuple[int, ...]) -> dict[str, Any]:
    names = (*hours.columns, "level")
    labels = {"role": hours.role, "columns": [names[i] for i in columns]}
    if further := hours.columns[len(NAMES) :]:  # recorded, though perhaps not in every row
        labels["further"] = list(further)
    return labels | {"steps": hours.state.shape[1]}


def _read_labels(text: Any, where: Path) -> dict[str, Any]:
    labels = json.loads(text) if isinstance(text, str) else {}
    if not {"role", "columns", "steps"} <= set(labels):
        raise ArtifactError(
            f"{where}: expected a data set of stepdown export, got another one; "
            "only these say whose hours and which signals they hold."
        )
    return labels


def _array(data: h5py.File, name: str, file: Path) -> np.ndarray:
    found = data.get(name)
    # A link could lead to any other file of the machine.
    if not isinstance(data.get(name, getlink=True), h5py.HardLink) or not isinstance(
        found, h5py.Dataset
    ):
        raise ArtifactError(f"{file}: expected {name}, which is missing; export it again.")
    return found[()]


def _transitions(arrays: dict[str, np.ndarray], labels: dict[str, Any]) -> Transitions:
    recorded = columns_with(labels.get("further", ()))
    names = (*recorded, "level")
    columns = [names.index(name) for name in labels["columns"]]

    def states(flat: np.ndarray) -> np.ndarray:
        full = np.full((len(flat), labels["steps"], len(names)), np.nan, np.float32)
        full[..., columns] = flat.reshape(len(flat), labels["steps"], len(columns))
        return full

    died = np.asarray(arrays["terminals"], bool)
    reward = np.asarray(arrays["rewards"], np.float32)
    return Transitions(
        state=jnp.asarray(states(arrays["observations"])),
        level=jnp.asarray(arrays["actions"] + LOWEST, jnp.int32),
        levels=jnp.asarray(arrays["levels"], jnp.int32),
        reward=jnp.asarray(np.where(died, reward - AFTER_DEATH, reward)),
        unshaped=jnp.asarray(arrays["unshaped"], jnp.float32),
        next_state=jnp.asarray(states(arrays["next_observations"])),
        last=jnp.asarray(np.asarray(arrays["timeouts"], bool) | died),
        died=jnp.asarray(died),
        filled=jnp.asarray(arrays["filled"], bool),
        patient=jnp.asarray(arrays["patient"], jnp.int32),
        role=labels["role"],
        columns=recorded,
    )
