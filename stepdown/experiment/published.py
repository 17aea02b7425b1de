"""The results of a run: models to use, tables, figures, one page, few lines for the terminal."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepdown.artifacts import Content, check_folder
from stepdown.experiment.jobs import Desk
from stepdown.experiment.kept import read_policies
from stepdown.experiment.patients import read_truth
from stepdown.experiment.plan import JUDGING_TWIN, Imported, Plan, Simulated
from stepdown.experiment.presets import OURS_ROW, ExperimentConfig
from stepdown.experiment.results import read_comparisons
from stepdown.experiment.simulate import CARD, OVERVIEW, write_cohort
from stepdown.policies.checkpoints import save_policy
from stepdown.records import files
from stepdown.report.calibration import describe_cohort
from stepdown.report.comparison import Comparison, drop_rows, penalty_rows, time_rows, to_csv
from stepdown.report.comparison_tables import short_grid
from stepdown.report.grids import to_text
from stepdown.report.page import Section, cohort_section, make_page, provenance_section
from stepdown.report.parts import Parts, read_parts, save_fitted
from stepdown.report.stages import Stage, guardian_stage, kept_files, twin_stage
from stepdown.report.tables import to_csv as cohort_csv
from stepdown.report.tables import to_text as cohort_text
from stepdown.training import member
from stepdown.twin.fit import load_twin

REPORT, RESULTS = "report.html", "results.txt"
TIMES = ("cohort", "data", "setting", "method", "seeds", "seconds", "paper_seconds")


def publish(
    sizes: ExperimentConfig, plans: Sequence[Plan], desk: Desk, folder: Path
) -> dict[str, Content]:
    """Every file of the results; `folder` is a place to make them in."""
    plan = plans[0]
    _lay_out_cohort(plan, desk, folder / "cohort")
    manifest, parts = check_folder(folder / "cohort", files.KIND), read_parts(folder / "cohort")
    twins, guardians = _twins(plan, desk, parts, folder), guardian_stage(parts, folder)
    comparisons = [one for each in plans for one in read_comparisons(each, desk)]
    content = twins.files | guardians.files | _tables(comparisons)
    content |= kept_files(folder / "cohort", "cohort")
    content |= _policy(plan, desk, parts, folder)
    lead = _lead(plan, parts)
    rows = describe_cohort(files.read_cohort(folder / "cohort"))
    shown = [to_text(short_grid(one)) for one in comparisons if one.setting == "ours"]
    text = "\n".join([cohort_text(rows), "", twins.text, guardians.text, *shown])
    sections = (
        _cohort_section(rows, folder / "cohort"),
        twins.section,
        guardians.section,
        provenance_section(manifest["about"]),
    )
    return content | {
        "tables/cohort.csv": cohort_csv(rows),
        RESULTS: f"{lead}\n\n{text}\n".encode(),
        REPORT: make_page("Stepping down, on simulated patients", lead, sections).encode(),
    }


def _lay_out_cohort(plan: Plan, desk: Desk, path: Path) -> None:
    """The patients as `stepdown simulate` or `import` would have left them."""
    settings = plan.patients.settings
    if isinstance(settings, Imported):
        if settings.path.is_dir():
            shutil.copytree(settings.path, path)
            return
        raise ValueError(
            f"--from-cohort: expected a folder of stepdown import, got the file {settings.path}. "
            "Import it first: stepdown import FILE --out DIR."
        )
    assert isinstance(settings, Simulated)
    truth = read_truth(desk.folder(plan.patients), settings.cohort)
    write_cohort(path, (truth.cohort, truth.latents), settings.cohort, settings.seed)


def _twins(plan: Plan, desk: Desk, parts: Parts, folder: Path) -> Stage:
    order = [*(name for name in plan.twins if name != JUDGING_TWIN), JUDGING_TWIN]
    loaded = {name: load_twin(desk.folder(plan.twins[name]) / "twin") for name in order}
    twins = {name: twin for name, (twin, _) in loaded.items()}
    return twin_stage(parts, twins, loaded[JUDGING_TWIN][1], folder)


def _policy(plan: Plan, desk: Desk, parts: Parts, folder: Path) -> dict[str, Content]:
    """The first seed of our row, learned from the records in our setting, for the app."""
    row = plan.compared.get(("recorded", "ours"), {}).get(OURS_ROW)
    if row is None:
        return {}
    policy = member(read_policies(desk.folder(row.train)), 0)

    def save(path: Path) -> None:
        save_policy(path, policy, OURS_ROW, seed=0)

    save_fitted(folder / "policy", save, parts, kind="policy", model=OURS_ROW)
    return kept_files(folder / "policy", "policy")


def _tables(comparisons: Sequence[Comparison]) -> dict[str, Content]:
    """Tidy tables; those of further cohorts carry the cohort's name."""
    first, tables = comparisons[0].cohort, {}
    by_name = {(one.cohort, one.name): one for one in comparisons}
    for (cohort, name), one in by_name.items():
        tables[name if cohort == first else f"{name}-{cohort}"] = to_csv(one.rows)
    for end in ("", "-paper"):
        clean, noisy = (by_name.get((first, f"{x}{end}")) for x in ("noiseless", "noisy"))
        if clean and noisy:
            tables[f"drop{end}"] = to_csv(drop_rows(clean, noisy))
    if recorded := by_name.get((first, "recorded")):
        tables["penalty"] = to_csv(penalty_rows(recorded))
    tables["time"] = to_csv(time_rows(comparisons), TIMES)
    return {f"tables/{name}.csv": text for name, text in tables.items()}


def _lead(plan: Plan, parts: Parts) -> str:
    cohorts = (parts.train, parts.select, parts.test)
    stays = sum(len(part.patient) for part in cohorts)
    hours = sum(float(np.sum(part.seen)) * part.minutes / 60 for part in cohorts)
    whose = "recorded" if isinstance(plan.patients.settings, Imported) else "simulated"
    return f"{stays:,} {whose} stays on a micro-axial heart pump, {hours:,.0f} hours ({plan.name})."


def _cohort_section(rows, folder: Path) -> Section:
    if not (folder / OVERVIEW).is_file():  # imported
        return Section("The patients", "<p>Imported recordings; the truth behind is unknown.</p>")
    return cohort_section(
        rows, (folder / OVERVIEW).read_bytes(), (folder / CARD).read_text("utf-8")
    )
