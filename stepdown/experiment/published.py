"""The results of a run: models to use, tables, figures, one page, few lines for the terminal."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stepdown.artifacts import Content, provenance
from stepdown.experiment.evidence import EvidencePlan, finished
from stepdown.experiment.jobs import Desk, in_order
from stepdown.experiment.kept import read_policies
from stepdown.experiment.patients import read_truth
from stepdown.experiment.pictures import draw_cohorts, draw_run, draw_sweep
from stepdown.experiment.plan import JUDGING_TWIN, Plan
from stepdown.experiment.presets import OURS_ROW, ExperimentConfig
from stepdown.experiment.results import SWEPT, read_comparisons, stage_seconds, sweep_rows
from stepdown.experiment.searches import search_rows
from stepdown.experiment.simulate import CARD, OVERVIEW, write_cohort
from stepdown.experiment.wiring import Imported, Simulated
from stepdown.policies.checkpoints import save_policy
from stepdown.records import files
from stepdown.report.cohort_report import cohort_section
from stepdown.report.comparison import Comparison, same_question
from stepdown.report.comparison_tables import short_grid
from stepdown.report.evidence import KINDS, Findings
from stepdown.report.evidence_figures import draw_evidence
from stepdown.report.evidence_tables import first_screen, named_pictures
from stepdown.report.grids import plain, to_csv, to_text
from stepdown.report.model_tables import twin_grid
from stepdown.report.page import BANNER, Section
from stepdown.report.parts import Parts, read_parts, save_fitted
from stepdown.report.published_moments import describe_cohort, moment_rows, moments_text
from stepdown.report.results_page import Results, make_tables, results_page
from stepdown.report.stages import Stage, guardian_stage, kept_files, twin_stage
from stepdown.report.summary import say_across
from stepdown.training import member
from stepdown.twin.fit import load_twin

TITLE = "Stepping down: who weans a heart pump best?"
QUICK = "A quick look: trainings are far too short here to rank the methods."
REPORT, RESULTS = "report.html", "results.txt"


def publish(
    sizes: ExperimentConfig, plans: Sequence[Plan], desk: Desk, folder: Path
) -> dict[str, Content]:
    """Every file of the results; `folder` is a place to make them in."""
    plan = plans[0]
    _lay_out_cohort(plan, desk, folder / "cohort")
    cohort, parts = files.read_cohort(folder / "cohort"), read_parts(folder / "cohort")
    rows = describe_cohort(cohort)
    twins, guardians = _twins(plan, desk, parts, folder), guardian_stage(parts, folder)
    comparisons = [one for each in plans for one in read_comparisons(each, desk)]
    pictures = draw_run(plan, desk, comparisons, cohort)
    pictures |= draw_sweep(sizes, plan, desk) | twins.pictures | guardians.pictures
    pictures |= draw_cohorts(plans[1:], desk, comparisons)
    judged = finished(plans, desk)
    evidence = _evidence(judged, comparisons, desk)
    pictures |= named_pictures(evidence, [draw_evidence(one) for one in evidence])
    made = in_order([job for each in plans for job in each.jobs])
    results = Results(
        title=TITLE,
        comparisons=comparisons,
        about=provenance(config=sizes, seed=0),
        twins={name: desk.info(job)["seeds"] for name, job in plan.twins.items()},
        windows={words: desk.info(job) for words, job in plan.windows.items()},
        searches=search_rows(made, desk),
        pictures=pictures,
        sections=[_cohort_section(rows, folder / "cohort"), *filter(None, [guardians.section])],
        banner=f"{BANNER} {QUICK}" if sizes.shrink else BANNER,
        stages=stage_seconds(in_order([*made, *(x for each in judged for x in each.jobs)]), desk),
        evidence=evidence,
    )
    shown = [to_text(short_grid(one)) for one in comparisons]
    text = [_lead(plan, parts), "", moments_text(rows), "", to_text(twin_grid(results.twins))]
    if sizes.shrink:
        shown.append(QUICK)
    shown += map(plain, [*say_across(comparisons), *first_screen(evidence)])
    content = make_tables(results) | kept_files(folder / "cohort", "cohort") | twins.files
    content |= guardians.files | _policy(plan, desk, parts, folder) | _figures(pictures)
    return (
        content
        | _sweep_table(plan, desk)
        | {
            "tables/cohort.csv": to_csv(moment_rows(rows)),
            RESULTS: "\n".join([*text, guardians.text, *shown, ""]).encode(),
            REPORT: results_page(results).encode(),
        }
    )


def _sweep_table(plan: Plan, desk: Desk) -> dict[str, Content]:
    """Sensitivities, where the preset has them."""
    if not plan.sweep:
        return {}
    return {"tables/sweep.csv": to_csv(sweep_rows(plan, desk), SWEPT)}


def _figures(pictures: Mapping[str, bytes]) -> dict[str, Content]:
    """Pictures as files: "levels, hidden-8" becomes levels-hidden-8.png."""
    plain = {name.replace(", ", "-").replace(" ", "-"): png for name, png in pictures.items()}
    return {f"figures/{name}.png": png for name, png in plain.items()}


def _evidence(
    plans: Sequence[EvidencePlan], comparisons: Sequence[Comparison], desk: Desk
) -> list[Findings]:
    """What `stepdown judge` has found, if it was asked."""
    own = {x.cohort: x for x in same_question(comparisons)}
    found = []
    for plan in plans:
        jobs = {kind: getattr(plan, kind) for kind in KINDS}
        told = {kind: desk.info(job) for kind, job in jobs.items() if job is not None}
        found.append(Findings(own[plan.name], **told))
    return found


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
    """The judging twin beside the paper's and persistence."""
    shown = [name for name in (JUDGING_TWIN, "tdt", "persistence") if name in plan.twins]
    loaded = {name: load_twin(desk.folder(plan.twins[name]) / "twin") for name in shown}
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
