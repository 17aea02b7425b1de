"""`stepdown guardian` from a cohort folder to saved guardians, numbers and figures."""

import json

import jax.random as jr
import numpy as np
import pytest

from stepdown.__main__ import main
from stepdown.artifacts import check_folder
from stepdown.evaluation.guardians import SearchConfig, Trial, score_shifts
from stepdown.guardian.fit import KIND
from stepdown.guardian.guardians import load_guardian
from stepdown.guardian.threshold import log_densities
from stepdown.problem.hours import make_transitions
from stepdown.records.split import read_parts
from stepdown.report.model_tables import densities_text, shifts_text

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A pocket cohort and a guardian of each kind."""
    folder = tmp_path_factory.mktemp("guardians")
    cohort = str(folder / "cohort")
    assert main(["simulate", "--out", cohort, "--patients", "16", "--hours", "24"]) == 0
    shared = ["guardian", "fit", "--cohort", cohort, "--contains-patient-data"]
    for density in ("kde", "conditional"):
        assert main([*shared, "--density", density, "--out", str(folder / density)]) == 0
    return folder


def test_a_saved_guardian_is_the_guardian_that_was_fitted(made):
    parts = read_parts(made / "cohort")
    select = make_transitions(parts.select)
    for name in ("kde", "conditional"):
        guardian, about = load_guardian(made / name)
        scores = np.sort(log_densities(guardian.density, select.state, select.level))
        np.testing.assert_allclose(guardian.scores, scores, rtol=1e-5, atol=1e-4)
        assert float(guardian.threshold) == pytest.approx(np.quantile(scores, 0.35), rel=1e-4)
        assert about.contains_patient_data
        manifest = check_folder(made / name, KIND)
        assert manifest["about"]["config"]["contains_patient_data"] is True
        assert "recorded hours of patients" in manifest["about"]["config"]["warning"]


def test_kernels_are_not_saved_by_accident(made, capsys):
    words = ["guardian", "fit", "--cohort", str(made / "cohort"), "--density", "kde"]
    assert main([*words, "--out", str(made / "never")]) == 2
    assert "expected --contains-patient-data for a kde guardian" in capsys.readouterr().err
    assert not (made / "never").exists()


def test_scores_are_written_as_numbers_and_figures(made, capsys):
    out, figures = made / "scores.json", made / "figures"
    words = ["guardian", "score", "--cohort", str(made / "cohort"), "--guardian"]
    words += [str(made / "kde"), str(made / "conditional")]
    assert main([*words, "--json", str(out), "--figures", str(figures)]) == 0
    found = json.loads(out.read_text())["guardians"]
    test = make_transitions(read_parts(made / "cohort").test)
    expected, _ = score_shifts(load_guardian(made / "kde")[0], test, key=jr.key(0))
    assert found["kde"] == expected
    assert [row["asked"] for row in found["kde"]["false_alarms"]] == [0.01, 0.05, 0.2]
    assert {row["kind"] for row in found["conditional"]["shifts"]} == {"offset", "noise", "action"}
    printed = capsys.readouterr().out
    assert printed == shifts_text({name: found[name] for name in ("kde", "conditional")})
    for name in ("shifts.png", "densities-kde.png", "densities-conditional.png"):
        assert (figures / name).read_bytes()[:4] == PNG


def test_a_guardian_of_another_split_is_refused(made, capsys):
    other = str(made / "other")
    words = ["guardian", "fit", "--cohort", str(made / "cohort"), "--density", "kde"]
    assert main([*words, "--contains-patient-data", "--out", other, "--split", "8"]) == 0
    words = ["guardian", "score", "--cohort", str(made / "cohort"), "--guardian"]
    assert main([*words, str(made / "kde"), other]) == 2
    assert "expected the split 7, got a model fitted on split 8" in capsys.readouterr().err


def test_the_search_prints_and_draws_what_it_tried(made, capsys):
    out, figures = made / "search.json", made / "search"
    words = ["guardian", "search", "--cohort", str(made / "cohort"), "--json", str(out)]
    words += ["--weights", "1", "8", "--bandwidths", "1", "--shares", "0.5", "1"]
    assert main([*words, "--figures", str(figures)]) == 0
    found = json.loads(out.read_text())
    tried = [(one["weight"], one["share"]) for one in found["trials"]]
    assert tried == [(1, 0.5), (1, 1), (8, 0.5), (8, 1)]
    allowed = [one for one in found["trials"] if one["allowed"]] or found["trials"]
    assert found["best"]["swapped"] == max(one["swapped"] for one in allowed)
    by = {(one["weight"], one["share"]): one["swapped"] for one in found["trials"]}
    assert by[8, 1] > by[1, 1]
    assert (figures / "search.png").read_bytes()[:4] == PNG
    assert f"weight {found['best']['weight']:g}" in capsys.readouterr().out


def test_a_search_without_an_allowed_trial_says_so():
    trial = Trial(8.0, 1.0, 1.0, 0.8, 0.4, 0.9, 0.95, allowed=False)
    text = densities_text(trial, (trial,), SearchConfig())
    assert "no trial refuses at most 25 % of small changes and at least 90 % of moved" in text
    assert "closest by AUROC: weight 8, bandwidth 1, share 1." in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fit", "--density", "kde", "--out", "g", "--percentile", "0"], "percentile: expected"),
        (["fit", "--density", "flow", "--out", "g", "--share", "2"], "share: expected 0 to 1"),
        (["fit", "--density", "flow", "--out", "g", "--seed", "-1"], "--seed: expected 0 to"),
        (["search", "--weights", "-1"], "expected weights and bandwidths above 0"),
        (["score", "--guardian", "nowhere"], "expected a folder with a manifest.json"),
    ],
)
def test_wrong_input_is_refused(made, capsys, monkeypatch, words, sentence):
    monkeypatch.chdir(made)
    assert main(["guardian", words[0], "--cohort", "cohort", *words[1:]]) == 2
    assert sentence in capsys.readouterr().err
