"""`stepdown train`: every method, from records to policies; stopped, killed and gone on."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.__main__ import main
from stepdown.artifacts import check_folder
from stepdown.commands.train import KIND
from stepdown.evaluation.judging import (
    draw_judged_starts,
    judge_in_patients,
    judge_team,
)
from stepdown.experiment.jobs import HALF_DONE
from stepdown.experiment.training import WATCHED
from stepdown.export.datasets import read_d4rl, write_d4rl
from stepdown.patients.cohort import world_of
from stepdown.policies.methods import METHODS as TABLE
from stepdown.policies.planner import Planner
from stepdown.policies.saved import load_policy
from stepdown.policies.search import make_rule
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.records.files import read_cohort, read_latents, read_recipe
from stepdown.records.latents import latents_of
from stepdown.records.split import read_note, read_parts
from stepdown.twin.fit import Twin, fit_twin
from stepdown.twin.ridge import Ridge
from stepdown.twin.twins import load_twin, twin_config
from tests.app.sample_sizes import count

METHODS = (
    "mbpo",
    "cormpo",
    "expert",
    "bc",
    "svr",
)  # one of every kind; the table has its own tests
EPOCHS = 2  # of a pocket training


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Path:
    """A cohort with a twin, a guardian and its hours as a data set."""
    folder = tmp_path_factory.mktemp("training")
    cohort = ("--cohort", folder / "cohort")
    assert run("simulate", "--out", folder / "cohort", "--patients", 10, "--hours", 24) == 0
    assert run("twin", "fit", *cohort, "--model", "persistence", "--out", folder / "twin") == 0
    words = ("--density", "kde", "--contains-patient-data", "--out", folder / "guardian")
    assert run("guardian", "fit", *cohort, *words) == 0
    assert run("export", folder / "cohort", "--d4rl", folder / "d4rl") == 0
    return folder


def train(shelf: Path, method: str, out: Path, *more: object, seeds: int = 1) -> int:
    words = ["--cohort", shelf / "cohort", "--size", "pocket", "--seeds", seeds, "--out", out]
    words += ["--twin", shelf / "twin"] if method == "expert" or "judged" in more else []
    words += ["--guardian", shelf / "guardian"] if method == "cormpo" else []
    return run("train", method, *words, *(word for word in more if word != "judged"))


@pytest.fixture(scope="module")
def trained(shelf) -> dict[str, Path]:
    """All methods; the first model-based one fits the ensemble of the other."""
    folders = {}
    for method in METHODS:
        out, more = shelf / method, ("judged",)
        if method == "cormpo":
            more += ("--ensemble", shelf / "mbpo" / "ensemble")
        assert train(shelf, method, out, *more, seeds=2) == 0
        folders[method] = out
    return folders


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_a_policy_per_seed(method, trained, shelf):
    folder = trained[method]
    check_folder(folder, KIND)
    policies = [load_policy(folder / f"policy-{seed}") for seed in range(2)]
    assert [about.method for _, about in policies] == [method] * 2
    select = make_transitions(read_parts(shelf / "cohort").select).state
    chances = [np.exp(jax.vmap(policy)(select)) for policy, _ in policies]
    np.testing.assert_allclose(chances[0].sum(1), 1.0, atol=1e-5)
    assert not np.allclose(chances[0], chances[1], atol=1e-3)
    summary = json.loads((folder / "summary.json").read_text())
    for row, chance in zip(summary["seeds"], chances, strict=True):
        np.testing.assert_allclose(row["levels"], chance.mean(0), atol=1e-3)
    assert not folder.with_name(f"{folder.name}.jobs").exists()


@pytest.mark.parametrize("method", METHODS)
def test_every_epoch_has_a_line(method, trained):
    found = lines(trained[method])
    wanted = [(seed, epoch) for seed in range(2) for epoch in range(1, EPOCHS + 1)]
    assert [(line["seed"], line["epoch"]) for line in found] == wanted
    last = found[-1]
    assert sum(last["levels"]) == pytest.approx(1.0, abs=1e-5)
    assert np.isfinite(last["twin_reward"])
    if method == "cormpo":
        assert last["penalty"] == pytest.approx(0.08 * last["uncertainty"], rel=1e-4)


def test_a_planner_plans_in_a_ridge_of_these_patients_or_in_the_one_that_is_given(shelf, capsys):
    """As a run makes it: the hours slide by what the table of twins says."""
    cohort, ridge = ("--cohort", shelf / "cohort"), shelf / "ridge"
    assert train(shelf, "planner", shelf / "planner", "judged") == 0
    parts, kind = read_parts(shelf / "cohort"), twin_config("ridge")
    sliding = make_transitions(parts.train, HoursConfig(stride=kind.kind.stride))
    fitted, _ = fit_twin(sliding, make_transitions(parts.select), kind, key=jr.key(0))
    own, other = ridge_of(shelf / "planner"), fitted.network
    assert isinstance(other, Ridge)
    np.testing.assert_allclose(own.weights[0], other.weights[0], rtol=1e-4, atol=1e-4)
    assert "our twin" in (shelf / "planner" / "judged.txt").read_text()
    assert run("twin", "fit", *cohort, "--model", "ridge", "--out", ridge) == 0
    assert train(shelf, "planner", shelf / "elsewhere", "--twin", ridge) == 0
    given = load_twin(ridge)[0].network
    assert isinstance(given, Ridge)
    np.testing.assert_array_equal(ridge_of(shelf / "elsewhere").weights, given.weights)
    capsys.readouterr()
    words = ("--dataset", shelf / "d4rl" / "train.hdf5", "--twin", shelf / "twin")
    assert run("train", "planner", *words, "--out", shelf / "homeless") == 2
    assert "expected --twin with a ridge for planner" in capsys.readouterr().err


def ridge_of(folder: Path) -> Ridge:
    planner, about = load_policy(folder / "policy-0")
    assert about.method == "planner"
    assert isinstance(planner, Planner)
    assert isinstance(planner.dynamics, Twin)
    assert isinstance(planner.dynamics.network, Ridge)
    return planner.dynamics.network


def test_a_training_ends_with_a_judgement(trained, shelf):
    """Both seeds together, in the truth and in the twin, minus the clinicians."""
    recipe = read_recipe(shelf / "cohort")
    test = read_parts(shelf / "cohort").test
    latents = latents_of(read_latents(shelf / "cohort"), read_cohort(shelf / "cohort"), test)
    starts = draw_judged_starts(test, latents, 16, key=jr.key(1))
    world, team = world_of(recipe), judge_team(starts, world_of(recipe))
    policies = [load_policy(trained["bc"] / f"policy-{seed}")[0] for seed in range(2)]
    own = [judge_in_patients(one, starts, world).scores["reward"].mean() for one in policies]
    said = (trained["bc"] / "judged.txt").read_text()
    patients, twin = said.splitlines()[-2:]
    assert (patients[:13], twin[:8]) == ("test patients", "our twin")
    assert float(patients.split()[2]) == pytest.approx(np.mean(own), abs=0.006)
    apart = np.mean(own) - team.scores["reward"].mean()
    assert float(patients.split()[3]) == pytest.approx(apart, abs=0.006)


def test_the_policies_know_their_patients(trained, shelf):
    parts = read_parts(shelf / "cohort")
    for method in ("bc", "cormpo"):
        note = read_note(trained[method] / "policy-1", "policy")
        assert (note["model"], note["cohort"], note["split"]) == (method, parts.digest, 7)
        assert len(note["patients"]) == len(parts.train.patient) + len(parts.select.patient)


def test_a_saved_policy_earns_in_the_twin_what_was_reported(trained, shelf):
    select = make_transitions(read_parts(shelf / "cohort").select)
    rule = make_rule(load_twin(shelf / "twin")[0], select, WATCHED, key=jr.key(0))
    for method, row in (("expert", EPOCHS - 1), ("bc", EPOCHS - 1)):
        policy, _ = load_policy(trained[method] / "policy-0")
        assert lines(trained[method])[row]["twin_reward"] == pytest.approx(rule(policy), abs=1e-5)


# Long enough to be stopped: 100 epochs, each saved.
LONG = {
    "mbpo": ("--updates", 1000, "--save-seconds", 0, "--ensemble", "mbpo/ensemble"),
    "svr": ("--updates", 1000, "--save-seconds", 0),
}


def start(shelf: Path, method: str, out: Path) -> subprocess.Popen:
    words = ["train", method, "--cohort", "cohort", "--size", "pocket", "--seeds", 1]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}  # pyright: ignore[reportAttributeAccessIssue]
    return subprocess.Popen(
        [sys.executable, "-m", "stepdown", *map(str, words), *map(str, LONG[method]), "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | cache,
        cwd=shelf,
    )


def wait_for(jobs: Path, more: int, process: subprocess.Popen) -> int:
    """Until that many updates are saved."""
    while True:
        saved = [int(path.name[3:]) for path in jobs.glob(f"{HALF_DONE}/*/state-0/at-*")]
        if max(saved, default=0) >= more:
            return max(saved)
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def arrays_of(folder: Path, seed: int = 0) -> bytes:
    return (folder / f"policy-{seed}" / "arrays.safetensors").read_bytes()


@pytest.mark.parametrize("method", [*LONG][: count(1, 2)])
def test_a_training_goes_on_after_a_kill_and_a_request_to_end(
    method, trained, shelf, tmp_path, monkeypatch
):
    """Killed, started, ended by SIGTERM, finished: the same policy and the same record."""
    out, jobs = tmp_path / "out", tmp_path / "out.jobs"
    with start(shelf, method, out) as process:
        killed = wait_for(jobs, 20, process)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    with start(shelf, method, out) as process:
        wait_for(jobs, killed + 20, process)
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate()
    assert process.returncode == 143
    assert b"Start the same command again to go on." in words
    assert not out.exists()

    monkeypatch.chdir(shelf)
    assert train(shelf, method, out, *LONG[method]) == 0
    assert train(shelf, method, tmp_path / "once", *LONG[method]) == 0
    assert arrays_of(out) == arrays_of(tmp_path / "once")
    found, once = ([x | {"time": 0} for x in lines(f)] for f in (out, tmp_path / "once"))
    assert len(found) == 100
    assert found == once
    assert not jobs.exists()


def test_a_finished_training_is_told_again_and_others_are_refused(trained, shelf, capsys):
    before = arrays_of(trained["bc"])
    capsys.readouterr()
    assert train(shelf, "bc", trained["bc"], "judged", seeds=2) == 0
    printed = capsys.readouterr()
    assert "holds this training already" in printed.err
    assert printed.out.splitlines()[0].startswith("seed  updates")
    assert train(shelf, "bc", trained["bc"], "judged", seeds=3) == 2
    assert "exists; choose another one or remove it" in capsys.readouterr().err
    assert arrays_of(trained["bc"]) == before


def test_constrained_and_shaped_trainings_say_so(shelf, tmp_path):
    words = ("--constrained", "--shaped", "--jump-weight", 0.7)
    assert train(shelf, "svr", tmp_path / "out", *words) == 0
    policy, about = load_policy(tmp_path / "out" / "policy-0")
    assert about.constrained
    state = make_transitions(read_parts(shelf / "cohort").select).state[0]
    assert (np.exp(policy(state)) > 1e-9).sum() <= 5
    _, settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    _, recipe = settings["config"]
    assert (recipe["jump_weight"], recipe["constrained"]) == (0.7, True)


def test_a_data_set_gives_the_same_policy_as_its_cohort(trained, shelf, tmp_path):
    words = ("--dataset", shelf / "d4rl" / "train.hdf5", "--out", tmp_path / "out")
    assert run("train", "bc", *words, "--seeds", 1, "--size", "pocket") == 0
    assert arrays_of(tmp_path / "out") == arrays_of(trained["bc"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("bc", "expected --cohort or --dataset, got neither"),
        ("bc --cohort COHORT --dataset x", "expected --cohort or --dataset, got both"),
        ("cormpo --cohort COHORT", "expected --guardian for cormpo, got none"),
        ("expert --cohort COHORT", "expected --twin for expert, got none"),
        ("cormpo_flow --cohort COHORT --guardian GUARDIAN", "expected a guardian of flow for"),
        ("mbpo --cohort COHORT --penalty-weight 1", "which has no penalty"),
        ("bc --cohort COHORT --updates 100", "--updates: expected a method that has it"),
        ("mbpo --cohort COHORT --updates 7", "expected whole epochs, got 7 updates"),
        ("bc --cohort COHORT --seeds 0", "expected at least 1 seed"),
        ("dqn --cohort COHORT", "invalid choice 'dqn'"),
        ("mbpo --cohort COHORT --twin GUARDIAN", "expected a saved twin, got a saved guardian"),
        ("mbpo --cohort COHORT --split 3 --twin TWIN", "expected the split 3, got a model"),
        ("mbpo --dataset DATA --ensemble ENSEMBLE", "expected an ensemble fitted on these records"),
        ("bc --dataset nowhere.hdf5", "expected nowhere.hdf5, which is missing"),
    ],
)
def test_wrong_input_is_answered_with_a_sentence(
    words, sentence, trained, shelf, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    places = {"COHORT": "cohort", "TWIN": "twin", "GUARDIAN": "guardian"}
    places |= {"ENSEMBLE": "mbpo/ensemble", "DATA": "d4rl/train.hdf5"}
    for name, folder in places.items():
        words = words.replace(name, str(shelf / folder))
    capsys.readouterr()
    assert main(["train", *words.split(), "--size", "pocket", "--out", "out"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert list(tmp_path.iterdir()) == []


FLAT = ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts")
EXTRA = ("unshaped", "levels", "filled", "patient")


def unusable(hours, what: str):
    """Train hours with one thing wrong."""
    rows = len(hours.level)
    changes = {
        "one level": {"level": jnp.full(rows, 4, jnp.int32)},
        "nan": {"unshaped": jnp.full(rows, jnp.nan)},
    }
    return dataclasses.replace(hours, **changes[what])


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("one level", "more than one level, got P4 alone"),
        ("nan", "expected finite rewards"),
        ("empty", "expected recorded hours, got none"),
        ("test", "expected train patients, got test"),
        ("signals", "expected lvedp"),
    ],
)
def test_unusable_data_sets_are_refused(what, sentence, shelf, tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(shelf / "d4rl", data)
    (data / "train.hdf5").unlink()
    hours = read_d4rl(shelf / "d4rl" / "train.hdf5")
    more: tuple[object, ...] = ()
    if what == "test":
        shutil.copy(data / "test.hdf5", data / "train.hdf5")
    elif what == "empty":
        shutil.copy(shelf / "d4rl" / "train.hdf5", data)
        with h5py.File(data / "train.hdf5", "a") as file:
            for name in (*FLAT, *(f"infos/{extra}" for extra in EXTRA)):
                rows = np.asarray(file[name])[:0]
                del file[name]
                file.create_dataset(name, data=rows)
    elif what == "signals":
        for role in ("train", "select"):
            part = read_d4rl(shelf / "d4rl" / f"{role}.hdf5")
            blind = {n: getattr(part, n).at[..., 5].set(jnp.nan) for n in ("state", "next_state")}
            (data / f"{role}.hdf5").unlink(missing_ok=True)
            write_d4rl(data, dataclasses.replace(part, **blind), patients=(), about={})
        more = ("--twin", shelf / "twin")
    else:
        write_d4rl(data, unusable(hours, what), patients=(), about={})
    words = ("--dataset", data / "train.hdf5", "--size", "pocket", "--out", tmp_path / "out")
    capsys.readouterr()
    assert run("train", "bc", *words, *more) == 2
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_search_goes_on_where_it_stopped(trained, shelf, tmp_path, capsys):
    words = ("search", "bc", "--cohort", shelf / "cohort", "--twin", shelf / "twin")
    words += ("--size", "pocket", "--out", tmp_path / "out")
    assert run(*words) == 0
    file = tmp_path / "out" / "trials.jsonl"
    scores = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["changes"] for one in scores] == list(TABLE["bc"].trials)
    table = capsys.readouterr().out
    assert sum(line.endswith("<") for line in table.splitlines()) == 1
    shutil.rmtree(tmp_path / "out" / "search")  # stopped in the last trial
    shutil.rmtree(tmp_path / "out" / "trial" / "bc-5")
    kept = (tmp_path / "out" / "trial" / "bc-4" / "manifest.json").read_bytes()
    assert run(*words) == 0
    assert capsys.readouterr().out == table
    assert (tmp_path / "out" / "trial" / "bc-4" / "manifest.json").read_bytes() == kept
    assert run(*words, "--seed", 1) == 2
    assert "which holds another; choose another one" in capsys.readouterr().err
