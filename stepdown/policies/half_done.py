"""Half-done trainings on disk: whole or not at all, and without pickles.

A training is saved under the number of updates that it has done, beside the one before, which goes
only when the new one is on the disk. Whatever moment a machine stops at, the newest whole one is
there, and the training goes on from it to the same result.
"""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import equinox as eqx

from stepdown.artifacts import ArtifactError, load_config, load_module, save_module

TRAINING = "training state"
AT = "at-"  # folders of half-done trainings, by updates

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class Done:
    """How far a training is."""

    updates: int


def save_training(folder: Path, training: eqx.Module, done: int) -> None:
    """Save a half-done training, then forget the ones before it."""
    older = _saved(folder)
    if done in older:
        return
    save_module(folder / f"{AT}{done}", training, config=Done(done), kind=TRAINING)
    for number in older:
        shutil.rmtree(folder / f"{AT}{number}", ignore_errors=True)


def load_training(folder: Path, like: Callable[[], Tree]) -> tuple[Tree, int] | None:
    """The newest half-done training and its updates, or None where nothing was saved.

    `like` gives the shapes of the training, such as by `eqx.filter_eval_shape`.
    """
    for left in folder.glob(".*"):  # of an interrupted save
        shutil.rmtree(left, ignore_errors=True)
    saved = _saved(folder)
    if not saved:
        return None
    path = folder / f"{AT}{saved[-1]}"
    done = load_config(path, Done, kind=TRAINING).updates
    if done != saved[-1]:
        raise ArtifactError(f"{path}: expected {saved[-1]} updates, got {done}; remove the folder.")
    return load_module(path, like(), kind=TRAINING, finite=False), done


def _saved(folder: Path) -> list[int]:
    """Updates of the saved trainings, ascending."""
    found = []
    for path in folder.glob(f"{AT}*"):
        with contextlib.suppress(ValueError):
            found.append(int(path.name.removeprefix(AT)))
    return sorted(found)
