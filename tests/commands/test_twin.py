"""`stepdown twin fit` and `twin score`: unseen patients alone, plain JSON, clear errors."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import matplotlib.image
import numpy as np
import pytest

from stepdown.__main__ import main
from stepdown.evaluation.forecast import forecast_examples, pick_changes
from stepdown.problem.hours import make_transitions
from stepdown.records.files import read_cohort
from stepdown.records.split import read_note, read_parts
from stepdown.twin.fit import fit_twin, save_twin
from stepdown.twin.twins import TWINS, load_twin, twin_config

PATIENTS, HOURS = 10, 24
ASKED = ("mae", "mae_z", "mae_map", "mae_static", "mae_changing", "trend", "trend_base", "crps")
ASKED += ("crps_z", "coverage50", "coverage90")


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Path:
    """Two cohorts, a small twin and a persistence twin of the first."""
    folder = tmp_path_factory.mktemp("twins")
    for name, seed in (("cohort", 7), ("other", 8)):
        words = ("--patients", PATIENTS, "--hours", HOURS, "--seed", seed)
        assert run("simulate", "--out", folder / name, *words) == 0
    for model in ("mlp", "persistence"):
        words = ("--model", model, "--size", "small", "--out", folder / model)
        assert run("twin", "fit", "--cohort", folder / "cohort", *words) == 0
    return folder


@pytest.fixture(scope="module")
def found(shelf) -> dict:
    words = ("--json", shelf / "scores.json", "--figures", shelf / "figures")
    twins = ("--twin", shelf / "mlp")
    assert run("twin", "score", "--cohort", shelf / "cohort", *twins, *words) == 0
    return json.loads((shelf / "scores.json").read_text())


def test_every_model_has_every_score(shelf, found):
    assert set(found["models"]) == {"persistence", "mlp"}
    test = read_parts(shelf / "cohort").test
    whole = np.asarray(test.seen).sum(1) // 6
    for scores in found["models"].values():
        assert all(np.isfinite(scores[name]) and scores[name] >= 0 for name in ASKED)
        assert scores["patients"] == len(test.patient) == 2
        assert scores["rows"] == np.sum(whole - 1)
        assert scores["coverage50"] <= scores["coverage90"] <= 1
        assert len(scores["signals"]) == 12
    difference, low, high = found["models"]["mlp"]["against_persistence"]["mae_z"]
    by_hand = found["models"]["mlp"]["mae_z"] - found["models"]["persistence"]["mae_z"]
    assert difference == pytest.approx(by_hand)
    assert low <= difference <= high


def test_persistence_is_scored_against_the_record_itself(shelf, found):
    """The error of MAP is that of repeating the last sample, here straight from the table."""
    test = read_parts(shelf / "cohort").test
    errors = []
    for row, seen in enumerate(np.asarray(test.seen)):
        pressure = np.asarray(test.signals)[row, seen, 0]
        pressure = pressure[: len(pressure) // 6 * 6].reshape(-1, 6)
        errors += [np.abs(b - a[-1]) for a, b in zip(pressure[:-1], pressure[1:], strict=True)]
    assert found["models"]["persistence"]["mae_map"] == pytest.approx(np.mean(errors), rel=1e-5)


def test_the_table_shows_persistence_and_the_base_rate(shelf, found, capsys):
    assert run("twin", "score", "--cohort", shelf / "cohort", "--twin", shelf / "mlp") == 0
    head, first, second, blank, last = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["model", "mae", "mae_published", "mae_published_static"]
    assert first.split()[0] == "persistence"
    assert float(second.split()[5]) == pytest.approx(found["models"]["mlp"]["mae_z"], abs=6e-4)
    assert blank == ""
    assert last.startswith("46 hours of 2 patients, ")
    assert last.endswith(f"trend scores {found['models']['mlp']['trend_base']:.3f}.")


def test_twins_of_one_model_are_told_apart_by_their_folders(shelf, tmp_path, capsys):
    shutil.copytree(shelf / "mlp", tmp_path / "second")
    words = ("--json", tmp_path / "scores.json")
    twins = ("--twin", shelf / "mlp", tmp_path / "second")
    assert run("twin", "score", "--cohort", shelf / "cohort", *twins, *words) == 0
    models = json.loads((tmp_path / "scores.json").read_text())["models"]
    assert set(models) == {"persistence", "mlp", "second"}
    assert models["mlp"]["crps"] == models["second"]["crps"]
    twins = ("--twin", shelf / "mlp", shelf / "mlp")
    assert run("twin", "score", "--cohort", shelf / "cohort", *twins) == 2
    assert "with different names, got 'mlp' twice" in capsys.readouterr().err


def test_a_saved_persistence_is_the_one_that_is_always_shown(shelf, found, tmp_path):
    words = ("--json", tmp_path / "scores.json", "--twin", shelf / "persistence")
    assert run("twin", "score", "--cohort", shelf / "cohort", *words) == 0
    again = json.loads((tmp_path / "scores.json").read_text())
    assert again["models"] == {"persistence": found["models"]["persistence"]}


def test_a_twin_knows_its_patients_and_forecasts_as_fitted(shelf):
    parts = read_parts(shelf / "cohort")
    note = read_note(shelf / "mlp", "twin")
    assert (note["model"], note["split"], note["cohort"]) == ("mlp", 7, parts.digest)
    assert len(note["patients"]) == len(parts.train.patient) + len(parts.select.patient) == 8
    twin, config = load_twin(shelf / "mlp")
    assert (config.kind.name, config.profile) == ("mlp", "cp")
    hours = make_transitions(parts.test)
    hour = twin.center(hours.state[0], hours.level[0])
    assert np.isfinite(hour).all()
    assert (hour[:, -1] == hours.level[0]).all()


def test_fresh_patients_are_scored_all_and_known_ones_refused(shelf, tmp_path, capsys):
    base = ("twin", "score", "--cohort", shelf / "cohort", "--twin", shelf / "mlp")
    words = ("--json", tmp_path / "scores.json", "--fresh")
    assert run(*base, *words, shelf / "other") == 0
    models = json.loads((tmp_path / "scores.json").read_text())["models"]
    assert models["mlp"]["patients"] == PATIENTS
    capsys.readouterr()
    assert run(*base, "--fresh", shelf / "cohort") == 2
    assert "never seen, got 8 that it was fitted on" in capsys.readouterr().err


def test_a_twin_of_another_cohort_or_split_is_refused(shelf, tmp_path, capsys):
    words = ("--twin", shelf / "persistence")
    assert run("twin", "score", "--cohort", shelf / "other", *words) == 2
    assert "expected a model fitted on this cohort, got one of another" in capsys.readouterr().err
    options = ("--model", "persistence", "--split", 3, "--out", tmp_path / "split3")
    assert run("twin", "fit", "--cohort", shelf / "cohort", *options) == 0
    capsys.readouterr()
    words = ("--twin", shelf / "mlp", tmp_path / "split3")
    assert run("twin", "score", "--cohort", shelf / "cohort", *words) == 2
    assert "expected the split 7, got a model fitted on split 3" in capsys.readouterr().err


def test_a_twin_that_does_not_know_its_patients_is_refused(shelf, tmp_path, capsys):
    parts = read_parts(shelf / "cohort")
    train, select = make_transitions(parts.train), make_transitions(parts.select)
    config = twin_config("persistence")
    twin, _ = fit_twin(train, select, config, key=jr.key(0))
    save_twin(tmp_path / "bare", twin, config)
    words = ("--twin", tmp_path / "bare")
    assert run("twin", "score", "--cohort", shelf / "cohort", *words) == 2
    assert "Fit it with stepdown twin fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("twin", "expected a command (twin fit, twin score), got 'twin'."),
        ("twin fly", "expected a command (twin fit, twin score), got 'twin fly'."),
        ("twin fit --cohort x --out y", "expected --model "),
        ("twin fit --cohort x --out y --model lstm", "invalid choice 'lstm' for argument"),
        ("twin fit --cohort nowhere --out y --model mlp", "nowhere: expected a cohort folder"),
        ("twin fit --cohort x --out y --model mlp --seed -1", "--seed: expected 0 to "),
        ("twin fit --cohort x --out y --model mlp --history 6", "history: expected 1 for mlp"),
        ("twin score --cohort x --twin nowhere", "nowhere: expected a folder with a manifest"),
        ("twin score --cohort x --twin y --json no/where.json", "--json: expected a file in an"),
    ],
)
def test_wrong_input_is_answered_with_a_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("stepdown: ")
    assert sentence in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_nobody_knows_is_refused(shelf, tmp_path, capsys):
    options = ("--model", "persistence", "--profile", "moon", "--out", tmp_path / "out")
    assert run("twin", "fit", "--cohort", shelf / "cohort", *options) == 2
    assert "got 'moon'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_figures_are_drawn_with_the_scores(shelf, found):
    names = {file.name for file in (shelf / "figures").iterdir()}
    pictures = {"examples.png", "calibration.png", "growth.png"}
    assert names == pictures | {"growth.json", "manifest.json"}
    for name in ("examples", "calibration", "growth"):
        pixels = matplotlib.image.imread(shelf / "figures" / f"{name}.png")
        color = [int(TWINS["mlp"].look.color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        own = np.abs(pixels[..., :3] - np.array(color)).max(-1) < 0.02
        assert own.sum() > 200  # the main twin's lines or bars
    growth = json.loads((shelf / "figures" / "growth.json").read_text())
    assert list(growth) == ["mlp", "persistence"]
    assert all(len(one["map"]["mae"]) == 6 for one in growth.values())
    assert growth["persistence"]["map"]["mae"][5] > growth["persistence"]["map"]["mae"][0]


def test_examples_show_large_and_usual_changes_of_different_patients(shelf):
    hours = make_transitions(read_parts(shelf / "cohort").test)
    state = hours.state[:6].at[:, :, -1].set(5.0)
    level = jnp.array([5, 2, 9, 4, 6, 3])  # stays, −3, +4, −1, +1, −2
    rows = {
        "level": level,
        "levels": jnp.tile(level[:, None], (1, 6)).at[-1, 0].set(5),  # the last inside its hour
        "patient": jnp.arange(6),
    }
    kept = ("reward", "unshaped", "next_state", "last", "died", "filled")
    few = type(hours)(
        **{name: getattr(hours, name)[:6] for name in kept},
        **rows,
        state=state,
        role="test",
        columns=hours.columns,
    )
    assert pick_changes(few, 4) == [1, 2, 5, 4]
    calm = type(hours)(
        **{name: getattr(few, name) for name in (*kept, "state", "levels", "patient")},
        level=jnp.full(6, 5),
        role="test",
        columns=hours.columns,
    )
    twin = load_twin(shelf / "mlp")[0]
    assert pick_changes(calm, 4) == []
    assert forecast_examples(twin, calm, key=jr.key(0)) is None
    train = make_transitions(read_parts(shelf / "cohort").train)
    with pytest.raises(ValueError, match="expected test patients, got train patients"):
        forecast_examples(twin, train, key=jr.key(0))


def test_the_split_does_not_depend_on_the_command(shelf):
    first, again = read_parts(shelf / "cohort"), read_parts(shelf / "cohort")
    assert first.test.patient == again.test.patient
    everyone = {*first.train.patient, *first.select.patient, *first.test.patient}
    assert everyone == set(read_cohort(shelf / "cohort").patient)
    assert first.digest != read_parts(shelf / "other").digest
