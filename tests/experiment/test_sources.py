"""A fingerprint moves with every module that a job imports, and with no other."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepdown.experiment.jobs import Job, in_order
from stepdown.experiment.plan import make_evidence, make_plan
from stepdown.experiment.presets import PRESETS, CohortChoice
from stepdown.experiment.sources import FOLDER, closure, digest_of
from stepdown.experiment.twins import FitTwin

TWIN = FitTwin.__module__


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of the sources to edit."""
    return Path(
        shutil.copytree(FOLDER, tmp_path / "stepdown", ignore=shutil.ignore_patterns("*.pyc"))
    )


def edited(package: Path, name: str) -> str:
    """The digest of the twin's job after a line more in a module of a fresh copy."""
    file = package.joinpath(*name.split(".")[1:]).with_suffix(".py")
    file = file if file.is_file() else file.with_suffix("") / "__init__.py"
    copy = package.with_name(f"with-{name}")
    shutil.copytree(package, copy)
    with (copy / file.relative_to(package)).open("a") as source:
        source.write("\nANOTHER_LINE = 1\n")
    return digest_of([TWIN], copy)


def test_a_line_in_any_imported_module_moves_the_digest_and_others_do_not(package):
    """Every tenth module of the closure, and some outside."""
    before, inside = digest_of([TWIN], package), sorted(closure([TWIN]))
    assert len(inside) > 20
    for name in inside[::10]:
        assert edited(package, name) != before, name
    for name in ("stepdown.app.gates", "stepdown.policies.sac", "stepdown.report.page"):
        assert name not in inside
        assert edited(package, name) == before, name


def test_what_left_stale_tables_behind_is_in_the_closure():
    """Scores of forecasts and the truth of patients were once in no list."""
    assert "stepdown.evaluation.forecast" in closure([TWIN])
    for job in make_plan(PRESETS["pocket"], CohortChoice()).jobs:
        assert "stepdown.records.latents" in closure([type(job.work).__module__]), job.name


def test_a_table_beside_a_module_counts(package):
    before = digest_of([TWIN], package)
    copy = Path(shutil.copytree(package, package.with_name("copy")))
    profile = copy / "patients" / "profiles" / "cp.json"
    profile.write_text(profile.read_text() + " ")
    assert digest_of([TWIN], copy) != before


def test_a_table_of_another_folder_does_not_count(package):
    before = digest_of([TWIN], package)
    copy = Path(shutil.copytree(package, package.with_name("copy")))
    table = copy / "report" / "measured_regret.json"
    table.write_text(table.read_text() + " ")
    assert digest_of([TWIN], copy) == before


def test_imports_in_functions_count_and_those_for_type_checkers_do_not(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "__init__.py").write_text('"""A folder."""')
    (tmp_path / "deep" / "one.py").write_text(
        "from typing import TYPE_CHECKING\nfrom stepdown.deep import two\n"
        "if TYPE_CHECKING:\n    import stepdown.four\n"
        "def late():\n    from stepdown.three import x\n    return x\n"
    )
    for name in ("deep/two", "three", "four"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    found = closure(["stepdown.deep.one"], tmp_path)
    assert found == {"stepdown.deep", "stepdown.deep.one", "stepdown.deep.two", "stepdown.three"}


@dataclass(frozen=True)
class Nothing:
    def make(self, desk):
        return {}


def test_a_job_of_somebody_elses_module_rests_on_nothing_of_ours():
    assert closure([Nothing.__module__]) == set()
    assert Job("one", Nothing()).fingerprint == Job("one", Nothing()).fingerprint


def test_a_new_row_of_a_table_renews_nothing():
    """No job rests on the tables themselves, only on the row that it was made with."""
    tables = {"stepdown.policies.methods", "stepdown.twin.twins", "stepdown.guardian.guardians"}
    plan = make_plan(PRESETS["paper"], CohortChoice())
    jobs = [*in_order(plan.jobs), *make_evidence(plan).by_kind.values()]
    kinds = {type(job.work).__module__ for job in jobs}
    assert len(kinds) > 6
    assert not tables & closure(kinds)


def test_a_training_rests_on_its_own_method_and_no_other():
    rows = make_plan(PRESETS["paper"], CohortChoice()).recorded
    for name, own, others in (
        ("bc", "bc", ("svr", "model_based")),
        ("cormpo_kde", "model_based", ("svr", "bc")),
    ):
        work = rows[name].train.work
        found = closure({type(work).__module__, work.method.learn.__module__})  # pyright: ignore[reportAttributeAccessIssue]
        assert f"stepdown.policies.{own}" in found
        assert not {f"stepdown.policies.{other}" for other in others} & found


def test_a_new_metric_renews_what_is_judged_and_no_training():
    plan = make_plan(PRESETS["full"], CohortChoice())
    for rows in plan.compared.values():
        for name, trained in rows.items():
            assert "stepdown.problem.metrics" in closure([type(trained.judge.work).__module__])
            for job in in_order([trained.train]):
                found = closure([type(job.work).__module__])
                assert "stepdown.problem.metrics" not in found, (name, job.name)
