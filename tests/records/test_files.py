"""Cohorts survive the way to disk and back; a wrong file is named with what is wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stepdown.artifacts import ArtifactError, write_folder
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, Latents, admit, simulate_cohort, world_of
from stepdown.records.files import (
    COHORT,
    COLUMNS,
    DEATHS,
    KIND,
    LATENTS,
    cohort_table,
    death_table,
    latents_to_bytes,
    read_cohort,
    read_latents,
    to_parquet,
)
from stepdown.signals import ESE, NAMES, SIGNALS, TAU
from tests.records.recordings import with_lactate

CENTER = np.array([sum(signal.soft) / 2 for signal in SIGNALS], np.float32)


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    """Two stays of different length, one with a gap, one without tau."""
    seen = np.arange(20) < np.array([20, 12])[:, None]
    seen[0, 4:7] = False
    noise = np.random.default_rng(0).normal(1, 0.02, (2, 20, len(SIGNALS))).astype(np.float32)
    signals = np.where(seen[..., None], CENTER * noise, np.nan).astype(np.float32)
    signals[1, :, TAU] = np.nan
    level = np.where(seen, 6, 0).astype(np.int32)
    return Cohort(jnp.asarray(signals), jnp.asarray(level), jnp.asarray(seen), ("b", "a"))


def write(cohort_or_table, path):
    table = cohort_or_table
    if isinstance(table, Cohort):
        table = cohort_table(table)
    to_parquet(table)(path)
    return path


@pytest.mark.parametrize("minutes", [10.0, 0.5])
def test_a_cohort_comes_back_as_it_was(cohort, minutes, tmp_path):
    grid = Cohort(cohort.signals, cohort.level, cohort.seen, cohort.patient, minutes)
    back = read_cohort(write(grid, tmp_path / "some.parquet"))
    assert (back.patient, back.minutes) == (("b", "a"), minutes)
    for name in ("signals", "level", "seen"):
        np.testing.assert_array_equal(getattr(back, name), getattr(grid, name))


def test_a_further_signal_comes_back_under_its_name(cohort, tmp_path):
    wider = with_lactate(cohort)
    table = cohort_table(wider)
    assert table.columns == ["patient", "minute", *wider.columns, "level"]
    backwards = table.select(reversed(table.columns))
    back = read_cohort(write(backwards, tmp_path / "wider.parquet"))
    assert back.columns == (*NAMES, "lactate")
    np.testing.assert_array_equal(back.signals, wider.signals)
    path = write(table.with_columns(lactate=pl.lit(90.0)), tmp_path / "odd.parquet")
    with pytest.raises(ArtifactError, match="expected 'lactate' in mmol/L, mostly 0.3 to 20"):
        read_cohort(path)


def test_the_table_holds_seen_samples_only_in_the_promised_types(cohort):
    table = cohort_table(cohort)
    assert table.schema == pl.Schema(COLUMNS)
    assert table.height == 17 + 12
    first = table.filter(pl.col("patient") == "b")["minute"].to_list()
    assert first == [10.0 * step for step in (*range(4), *range(7, 20))]


def test_the_same_cohort_gives_the_same_bytes(cohort, tmp_path):
    files = [write(cohort, tmp_path / name).read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_row_order_does_not_matter(cohort, tmp_path):
    table = cohort_table(cohort)
    shuffled = pl.concat([table.head(1), table.tail(-1).sample(fraction=1, shuffle=True, seed=1)])
    back = read_cohort(write(shuffled, tmp_path / "shuffled"))
    np.testing.assert_array_equal(back.signals, cohort.signals)


def change(**columns):
    return lambda table: table.with_columns(**columns)


BROKEN = {
    "expected a column 'hr', which is missing": lambda table: table.drop("hr"),
    "expected no column 'note'": change(note=pl.lit("hello")),
    "expected column 'level' as Int32, got String": change(level=pl.col("level").cast(pl.String)),
    "expected column 'hr' as Float32, got Boolean": change(hr=pl.lit(value=True)),
    "expected column 'patient' as String, got Float64": change(patient=pl.lit(1.0)),
    "expected whole levels, got 6.5; write the level that was set": change(level=pl.lit(6.5)),
    "expected levels 2 to 9, got 1.09951e[+]12": change(level=pl.lit(2**40)),
    "expected 'level' in every row, 29 lack it": change(level=pl.lit(np.nan)),
    "expected finite 'flow', got 1e[+]300": change(flow=pl.lit(1e300)),
    "expected samples, got an empty table": lambda table: table.head(0),
    "expected 'level' in every row, 1 lack it": lambda table: table.with_row_index().with_columns(
        level=pl.when(pl.col("index") > 0).then(pl.col("level"))
    ).drop("index"),
    "expected levels 2 to 9, got 1": change(level=pl.lit(1, pl.Int32)),
    "expected minutes since the start of support, got 2.9e[+]07": change(
        minute=pl.col("minute") + 2.9e7
    ),
    "expected minutes since the start of support, got nan": change(minute=pl.lit(np.nan)),
    "expected 'map' in mmHg, mostly 30 to 150, got a median of 12": change(
        map=pl.lit(12, pl.Float32)
    ),
    "expected finite 'flow', got infinity": change(flow=pl.lit(np.inf, pl.Float32)),
    "expected values in 'hr', got none": change(hr=pl.lit(np.nan, pl.Float32)),
    "expected one row per patient and minute": lambda table: pl.concat([table, table.head(1)]),
    "expected one sample every 10 min, got one at minute 94": change(
        minute=pl.when(pl.col("minute") == 90).then(94.0).otherwise(pl.col("minute"))
    ),
}  # fmt: skip


NARROW = {name: pl.UInt16 for name in ("speed", "hr")}
WIDE = {name: pl.Float64 for name in COLUMNS if name not in ("patient", "level")}


@pytest.mark.parametrize(
    "types",
    [
        {"level": pl.Int64, **WIDE},  # what pandas writes
        {"level": pl.UInt8, "minute": pl.UInt16},
        {"level": pl.Float64},  # whole numbers, which pandas makes floats where one is missing
        {"level": pl.Decimal(4, 1), "map": pl.Decimal(20, 12), "minute": pl.Float32},
        {"patient": pl.Categorical, **NARROW},
    ],
    ids=lambda types: ", ".join(map(str, types.values()))[:40],
)
def test_other_types_that_mean_the_same_are_read(cohort, types, tmp_path):
    whole = pl.col(*NARROW).round()  # a beat more or less: these become whole numbers
    table = cohort_table(cohort).with_columns(whole, pl.col("map").round(6))
    expected = read_cohort(write(table, tmp_path / "ours.parquet"))
    back = read_cohort(write(table.cast(types), tmp_path / "theirs.parquet"))
    assert back.patient == expected.patient
    for name in ("signals", "level", "seen"):
        one, other = getattr(back, name), getattr(expected, name)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_patients_may_be_numbers_and_a_signal_may_be_nothing_but_empty(cohort, tmp_path):
    table = cohort_table(cohort).with_columns(
        patient=pl.col("patient").replace_strict({"b": 12, "a": 3}), ese=pl.lit(None)
    )
    assert (table["patient"].dtype, table["ese"].dtype) == (pl.Int64, pl.Null)
    back = read_cohort(write(table, tmp_path / "numbers.parquet"))
    assert back.patient == ("12", "3")
    assert np.isnan(np.asarray(back.signals)[..., ESE]).all()


def test_a_file_may_have_brackets_in_its_name(cohort, tmp_path):
    """As browsers name a second copy; polars would look for a pattern."""
    assert read_cohort(write(cohort, tmp_path / "cohort [1].parquet")).patient == cohort.patient


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_wrong_table_is_refused_in_words(cohort, sentence, tmp_path):
    path = write(BROKEN[sentence](cohort_table(cohort)), tmp_path / "broken.parquet")
    with pytest.raises(ArtifactError, match=f"broken.parquet: {sentence}"):
        read_cohort(path)


def test_a_foreign_file_is_refused_in_words(tmp_path):
    (tmp_path / "foreign.parquet").write_text("patient,minute\n")
    with pytest.raises(ArtifactError, match="expected a Parquet table, got something else"):
        read_cohort(tmp_path / "foreign.parquet")
    with pytest.raises(FileNotFoundError, match="found none; check the path"):
        read_cohort(tmp_path / "nowhere.parquet")


@pytest.fixture(scope="module")
def latents() -> Latents:
    """The truth of three patients over two hours, as they were admitted."""
    keys = jr.split(jr.key(3), 3)
    patients = jax.vmap(lambda key: admit(world_of(CohortConfig()), key=key))(keys)
    twice = [patients.course, patients.memory]
    course, memory = jax.tree.map(lambda x: jnp.stack([x, x], 1), twice)
    return Latents(patients, course, memory, keys, jnp.array([0, 1, 2]))


def save(path, cohort, content: bytes, version: bytes = b', "version": 2'):
    files = {
        COHORT: to_parquet(cohort_table(cohort)),
        LATENTS: content,
        "config.json": b'{"hours": null, "minutes": 10.0, "patients": 3, "preset": "guarded", '
        b'"profile": "cp"' + version + b"}",
    }
    write_folder(path, files, kind=KIND, about={})
    return path


def test_latents_come_back_as_they_were_and_say_what_they_are_for(cohort, latents, tmp_path):
    content = latents_to_bytes(latents)
    assert b"for judging only" in content[:20_000]
    back = read_latents(save(tmp_path / "saved", cohort, content))
    assert jax.tree.structure(back) == jax.tree.structure(latents)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(latents), strict=True):
        assert one.dtype == other.dtype
        assert jnp.array_equal(one, other)


def test_a_cohort_that_does_not_say_its_version_is_of_the_first(cohort, tmp_path):
    old = simulate_cohort(CohortConfig(patients=3, hours=2.0, version=1), key=jr.key(0))[1]
    back = read_latents(save(tmp_path / "saved", cohort, latents_to_bytes(old), b""))
    assert back.course.stir is None
    assert jax.tree.structure(back) == jax.tree.structure(old)


def test_a_folder_is_verified_before_it_is_read(cohort, latents, tmp_path):
    folder = save(tmp_path / "saved", cohort, latents_to_bytes(latents))
    assert read_cohort(folder).patient == cohort.patient
    content = bytearray((folder / COHORT).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / COHORT).write_bytes(content)
    with pytest.raises(ArtifactError, match="got other bytes"):
        read_cohort(folder)


def test_deaths_come_back_and_a_folder_without_them_tells_of_none(cohort, tmp_path):
    known = dataclasses.replace(cohort, died=jnp.array([False, True]))
    content = {
        COHORT: to_parquet(cohort_table(cohort)),
        "config.json": b'{"minutes": 10.0}',
    }
    write_folder(tmp_path / "old", content, kind=KIND, about={})
    assert read_cohort(tmp_path / "old").died is None
    content[DEATHS] = to_parquet(death_table(known))
    write_folder(tmp_path / "new", content, kind=KIND, about={})
    back = read_cohort(tmp_path / "new")
    assert back.died is not None
    np.testing.assert_array_equal(back.died, [False, True])
    content[DEATHS] = to_parquet(death_table(dataclasses.replace(known, patient=("b", "x"))))
    write_folder(tmp_path / "odd", content, kind=KIND, about={})
    with pytest.raises(ArtifactError, match=r"expected patients of cohort.parquet, got 'x'"):
        read_cohort(tmp_path / "odd")


def test_latents_of_another_version_are_refused(cohort, latents, tmp_path):
    other = save(
        tmp_path / "saved", cohort, latents_to_bytes(latents).replace(b"ischemia", b"xschemia")
    )
    with pytest.raises(ArtifactError, match="simulate the cohort again"):
        read_latents(other)
