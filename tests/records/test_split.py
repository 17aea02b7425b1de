"""Patients are split once, and parts never mix."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepdown.handover import Cohort, require_role
from stepdown.records.split import make_parts, note_patients, require_unseen, split_patients
from stepdown.signals import NAMES
from tests.records.recordings import with_lactate


def cohort(patients: int) -> Cohort:
    """Patient i has the level 2 + i % 8 and nothing else."""
    number = np.arange(patients)
    signals = np.broadcast_to(number[:, None, None], (patients, 2, 12)).astype(np.float32)
    level = np.broadcast_to(2 + number[:, None] % 8, (patients, 2)).astype(np.int32)
    return Cohort(
        signals=jnp.asarray(signals),
        level=jnp.asarray(level),
        seen=jnp.asarray(np.ones((patients, 2), bool)),
        patient=tuple(f"p{i}" for i in range(patients)),
    )


@given(st.integers(5, 60), st.integers(0, 1000))
def test_every_patient_is_in_exactly_one_part(patients, seed):
    parts = split_patients(cohort(patients), key=jr.key(seed))
    assert sorted(name for part in parts for name in part.patient) == sorted(
        cohort(patients).patient
    )
    assert [part.role for part in parts] == ["train", "select", "test"]
    for part in parts:
        numbers = [int(name[1:]) for name in part.patient]
        np.testing.assert_array_equal(np.asarray(part.signals)[:, 0, 0], numbers)


def test_a_part_keeps_the_names_of_its_columns():
    wider = with_lactate(cohort(20))
    for part in split_patients(wider, key=jr.key(0)):
        rows = [wider.patient.index(name) for name in part.patient]
        assert part.columns == (*NAMES, "lactate")
        np.testing.assert_array_equal(part.signals, np.asarray(wider.signals)[rows])


def test_a_part_keeps_its_deaths():
    whole = dataclasses.replace(cohort(20), died=jnp.arange(20) % 3 == 0)
    for part in split_patients(whole, key=jr.key(0)):
        rows = np.array([whole.patient.index(name) for name in part.patient])
        assert part.died is not None
        np.testing.assert_array_equal(part.died, rows % 3 == 0)


def test_a_further_column_hides_no_patient():
    train = make_parts(cohort(20)).train
    note = note_patients(make_parts(cohort(20)))
    with pytest.raises(ValueError, match=f"got {len(train.patient)} that it was fitted on"):
        require_unseen(note, with_lactate(train), Path("model"))


def test_the_paper_sizes_come_out():
    sizes = [len(part.patient) for part in split_patients(cohort(379), key=jr.key(0))]
    assert sizes == [246, 57, 76]


def test_the_same_key_gives_the_same_split_and_another_key_another():
    first, again, other = (split_patients(cohort(40), key=jr.key(seed)) for seed in (1, 1, 2))
    assert [part.patient for part in first] == [part.patient for part in again]
    assert first[2].patient != other[2].patient


def test_a_part_is_refused_where_another_is_expected():
    train, select, _ = split_patients(cohort(20), key=jr.key(0))
    require_role(train, "train")
    with pytest.raises(ValueError, match="expected train patients, got select patients"):
        require_role(select, "train")
    with pytest.raises(ValueError, match="expected all patients, got train patients"):
        split_patients(train, key=jr.key(0))


@pytest.mark.parametrize("patients", [1, 2, 3])
def test_too_few_patients_are_refused_in_words(patients):
    with pytest.raises(ValueError, match="would train, select and test; bring more patients"):
        split_patients(cohort(patients), key=jr.key(0))
