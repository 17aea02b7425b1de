"""Exports: what goes out comes back, patients stay apart, Minari reads it by itself."""

import dataclasses
import json

import h5py
import jax
import jax.numpy as jnp
import jax.random as jr
import minari
import numpy as np
import pytest

from stepdown.__main__ import main
from stepdown.artifacts import ArtifactError, check_folder
from stepdown.export.datasets import read_d4rl, read_minari, write_d4rl, write_minari
from stepdown.handover import Transitions
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.records.files import cohort_table, read_cohort, to_parquet
from stepdown.signals import LEVEL, LOWEST, NAMES, TAU
from tests.records.recordings import with_lactate


@pytest.fixture(scope="module")
def ward():
    """Ragged stays, one with a gap, one with a lost sample, all with a silent tau."""
    cohort, _ = simulate_cohort(CohortConfig(patients=12, hours=12.0), key=jr.key(4))
    seen = np.array(cohort.seen)
    seen[1, 30:] = False
    seen[2, 20:30] = False
    signals = np.where(seen[..., None], cohort.signals, np.nan)
    signals[3, 8, 0] = np.nan
    return dataclasses.replace(
        cohort,
        signals=jnp.asarray(signals),
        seen=jnp.asarray(seen),
        level=jnp.asarray(np.where(seen, cohort.level, 0)),
    )


@pytest.fixture(scope="module")
def hours(ward):
    """The first patient died."""
    weights = HoursConfig(jump_weight=0.5, weaning_weight=0.3)
    died = jnp.arange(len(ward.patient)) == 0
    return make_transitions(dataclasses.replace(ward, role="train", died=died), weights)


def assert_same(ours: Transitions, theirs: Transitions):
    assert ours.role == theirs.role
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == other.dtype
        if mine is ours.reward:  # what a death costs besides is added and taken away
            np.testing.assert_allclose(mine, other, rtol=0, atol=2e-6)
        else:
            assert np.array_equal(mine, other, equal_nan=mine.dtype == np.float32)


def test_a_death_is_terminal_and_no_way_out(hours, ward, tmp_path):
    """Who expects nothing behind a terminal row finds the hours of the dead in its reward."""
    file = tmp_path / write_d4rl(tmp_path, hours, patients=ward.patient, about={})
    rows = np.flatnonzero(np.asarray(hours.patient) == 0)
    with h5py.File(file) as data:
        ends, stops, rewards = (np.asarray(data[x]) for x in ("terminals", "timeouts", "rewards"))
    assert np.flatnonzero(ends).tolist() == [rows[-1]]
    assert not (ends & stops).any()
    assert np.array_equal(ends | stops, hours.last)
    own = np.asarray(hours.reward)
    np.testing.assert_allclose(rewards - own, np.where(ends, -12.0, 0.0), atol=2e-6)
    assert rewards[rows[-1]] < 6 * own.min()


@pytest.mark.parametrize("charted", ["always", "at times"])
def test_a_further_signal_comes_back_from_both_formats(charted, ward, tmp_path):
    wider = with_lactate(dataclasses.replace(ward, role="train"))
    if charted == "at times":  # not in every row: its numbers stay behind, its name does not
        wider = dataclasses.replace(wider, signals=wider.signals.at[0, :, -1].set(jnp.nan))
    hours = make_transitions(wider)
    name = write_minari(tmp_path, hours, patients=ward.patient, about={})
    file = tmp_path / write_d4rl(tmp_path, hours, patients=ward.patient, about={})
    data = minari.MinariDataset(tmp_path / name / "data")
    columns = json.loads(data.storage.metadata["stepdown"])["columns"]
    assert columns == [*NAMES, *(["lactate"] if charted == "always" else []), "level"]
    assert data.observation_space.shape == (6 * len(columns),)
    if charted == "at times":
        gone = [x.at[..., -2].set(jnp.nan) for x in (hours.state, hours.next_state)]
        hours = dataclasses.replace(hours, state=gone[0], next_state=gone[1])
    for back in (read_minari(tmp_path, "train"), read_d4rl(file)):
        assert back.columns == (*NAMES, "lactate")
        assert_same(back, hours)


@pytest.mark.parametrize("silent", [False, True])
def test_transitions_come_back_from_both_formats(silent, hours, ward, tmp_path):
    if silent:  # a signal that nobody measured
        hours = dataclasses.replace(
            hours,
            state=hours.state.at[..., TAU].set(jnp.nan),
            next_state=hours.next_state.at[..., TAU].set(jnp.nan),
        )
    write_minari(tmp_path, hours, patients=ward.patient, about={})
    assert_same(read_minari(tmp_path, "train"), hours)
    assert_same(
        read_d4rl(tmp_path / write_d4rl(tmp_path, hours, patients=ward.patient, about={})), hours
    )


def test_minari_reads_a_stay_as_an_episode(hours, ward, tmp_path, monkeypatch):
    write_minari(tmp_path, hours, patients=ward.patient, about={"jump_weight": 0.5})
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert list(minari.list_local_datasets()) == ["stepdown/train-v0"]
    data = minari.load_dataset("stepdown/train-v0")
    lengths = [len(episode) for episode in data.iterate_episodes()]
    assert lengths[1] == 4  # 30 samples: five hours
    assert lengths[2] + lengths[3] < 11  # a gap makes two episodes of one stay
    assert sum(lengths) == len(hours.level) == data.total_steps
    names = [str(one["patient"]) for one in data.storage.get_episode_metadata(range(4))]
    assert names == ["p01", "p02", "p03", "p03"]
    first = next(iter(data.iterate_episodes()))
    assert first.observations.shape == (lengths[0] + 1, 78)
    assert np.array_equal(first.actions + LOWEST, hours.level[: lengths[0]])
    assert np.array_equal(first.observations[1:, LEVEL], hours.level[: lengths[0]])
    assert first.terminations.tolist() == [False] * (lengths[0] - 1) + [True]  # died
    assert not first.truncations.any()
    second = next(x for x in data.iterate_episodes() if x.id == 1)
    assert second.truncations.tolist() == [False] * 3 + [True]
    assert not second.terminations.any()
    labels = json.loads(data.storage.metadata["stepdown"])
    assert (labels["role"], labels["jump_weight"], len(labels["columns"])) == ("train", 0.5, 13)


def test_the_environment_of_a_data_set_has_its_spaces(hours, ward, tmp_path):
    write_minari(tmp_path, hours, patients=ward.patient, about={})
    data = minari.MinariDataset(tmp_path / "stepdown/train-v0/data")
    env = data.recover_environment()
    assert env.observation_space == data.observation_space
    assert env.action_space == data.action_space


def test_the_command_keeps_patients_apart(ward, tmp_path, capsys):
    file = tmp_path / "cohort.parquet"
    to_parquet(cohort_table(ward))(file)
    out = {"minari": tmp_path / "m", "d4rl": tmp_path / "d"}
    words = [str(file), "--minari", str(out["minari"]), "--d4rl", str(out["d4rl"])]
    assert main(["export", *words]) == 0
    printed = capsys.readouterr().out
    owners = []
    for role in ("train", "select", "test"):
        with h5py.File(out["d4rl"] / f"{role}.hdf5") as data:
            owners += [name.decode() for name in data["metadata/patients"][()]]  # pyright: ignore
        theirs = read_minari(out["minari"], role)
        assert_same(theirs, read_d4rl(out["d4rl"] / f"{role}.hdf5"))
        assert f"{role}: {len(theirs.level)} decisions" in printed
    assert sorted(owners) == sorted(ward.patient)
    for kind, folder in out.items():
        assert check_folder(folder, kind)["about"]["seed"] == 7
    everybody = make_transitions(read_cohort(file))
    parts = [read_minari(out["minari"], role) for role in ("train", "select", "test")]
    assert sum(len(part.level) for part in parts) == len(everybody.level)


@pytest.mark.parametrize("write", [write_minari, write_d4rl])
def test_a_data_set_without_hours_is_refused_and_leaves_nothing(write, hours, tmp_path):
    empty = jax.tree.map(lambda x: x[:0], hours)
    with pytest.raises(ValueError, match="expected hours of train patients, got none"):
        write(tmp_path, empty, patients=(), about={})
    assert list(tmp_path.iterdir()) == []


def test_wrong_input_is_refused_in_words(hours, ward, tmp_path, capsys):
    assert main(["export", str(tmp_path)]) == 2
    assert "expected --minari or --d4rl" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="expected a Minari data set, found none"):
        read_minari(tmp_path, "test")
    shuffled = jax.tree.map(lambda x: x[::-1], hours)
    with pytest.raises(ValueError, match="one hour apart and in order"):
        write_d4rl(tmp_path, shuffled, patients=ward.patient, about={})
    (tmp_path / "text.hdf5").write_text("not hdf5")
    with pytest.raises(ArtifactError, match="expected HDF5"):
        read_d4rl(tmp_path / "text.hdf5")
    with h5py.File(tmp_path / "foreign.hdf5", "w") as data:
        data["observations"] = np.zeros(3)
    with pytest.raises(ArtifactError, match="expected a data set of stepdown export"):
        read_d4rl(tmp_path / "foreign.hdf5")
    file = tmp_path / write_d4rl(tmp_path, hours, patients=ward.patient, about={})
    with h5py.File(file, "a") as data:
        del data["rewards"]
        data["rewards"] = h5py.ExternalLink("/etc/hostname", "rewards")
    with pytest.raises(ArtifactError, match="expected rewards, which is missing"):
        read_d4rl(file)
