"""The results of a run: models to use, tables, figures, one page, few lines for the terminal.

Everything is read from finished jobs; nothing is fitted or scored here.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from stepdown.artifacts import CONFIG, Content, provenance
from stepdown.evaluation.compare import difference, estimate, resample, values_of
from stepdown.experiment.cohort_folder import CARD, FLOW, OVERVIEW, write_simulated
from stepdown.experiment.evaluated import find_evaluated
from stepdown.experiment.evidence_jobs import EstimateFromRecords
from stepdown.experiment.jobs import Desk, Job, files_of, in_order, saved
from stepdown.experiment.judging import TEAM, Trained, read_judged
from stepdown.experiment.legs import legs_words, read_legs
from stepdown.experiment.patients import (
    ImportPatients,
    SimulatePatients,
    read_hours,
    read_patients,
    read_truth,
)
from stepdown.experiment.plan import PERCENTILE, EvidencePlan, Plan, finished_evidence
from stepdown.experiment.presets import ExperimentConfig
from stepdown.experiment.readers import read_policies, read_twin
from stepdown.experiment.training import ChooseTrial
from stepdown.experiment.twins import read_examples
from stepdown.guardian.fit import KIND as GUARDIAN
from stepdown.guardian.threshold import RECORDED
from stepdown.handover import Cohort, Episodes, Judged
from stepdown.policies.methods import DEFAULT_METHOD, OURS_METHOD, make_recipe
from stepdown.policies.saved import POLICY, save_policy
from stepdown.problem.metrics import METRICS as EVERY_METRIC
from stepdown.records.split import Parts, make_parts, save_fitted
from stepdown.report.cohort_report import (
    Row,
    cohort_section,
    describe_cohort,
    moment_rows,
    moments_text,
)
from stepdown.report.comparison import (
    PAIRED,
    PRESET,
    SEARCHED,
    Comparison,
    compared_rows,
    pairs_grid,
    same_question,
    short_grid,
)
from stepdown.report.comparison_figures import (
    SensitivityPoint,
    constant_levels,
    draw_across,
    draw_comparison,
    draw_constant_levels,
    draw_exploitation,
    draw_sensitivity,
)
from stepdown.report.evidence import Findings, first_screen, named_pictures
from stepdown.report.evidence_figures import draw_evidence
from stepdown.report.grids import plain, to_csv, to_html, to_text
from stepdown.report.labels import AGREED, BEDSIDE, EXPERT, JUDGES, METRICS, OURS
from stepdown.report.model_figures import (
    draw_examples,
    draw_growth,
    draw_honesty,
    draw_horizons,
    draw_predicted_rewards,
    draw_shifts,
)
from stepdown.report.model_tables import guardian_grid, guardian_rows, guardian_text, twin_grid
from stepdown.report.page import BANNER, Section, chapter_of
from stepdown.report.patient_figures import (
    draw_agreement,
    draw_records,
    draw_rollouts,
    draw_weaning,
)
from stepdown.report.protocol import (
    Facts,
    Point,
    protocol_points,
    protocol_section,
    protocol_sentences,
)
from stepdown.report.recorded import BANNER as RECORDINGS
from stepdown.report.recorded import missing_section, patients_section
from stepdown.report.results_page import (
    Results,
    make_tables,
    results_page,
    say_across,
    say_clinicians,
)
from stepdown.signals import HIGHEST, HORIZON, LOWEST
from stepdown.training import member
from stepdown.twin.fit import KIND as TWIN
from stepdown.twin.twins import JUDGING_TWIN, TWINS

TITLE = "Stepping down: who weans a heart pump best?"
QUICK = "A quick look: trainings are far too short here to rank the methods."
REPORT, RESULTS = "report.html", "results.txt"
DRAWN_TWINS = tuple(dict.fromkeys((JUDGING_TWIN, "tdt", *TWINS)))  # the first one with its bands
ROLLOUTS = {
    "rollouts reward": ("high reward", "low reward"),
    "rollouts ws": ("high weaning score", "low weaning score"),
    "rollouts acp": ("large jumps", "small jumps"),
}

Judgments = dict[str, dict[str, Judged]]  # by judge, then by method


def publish(sizes: ExperimentConfig, plans: Sequence[Plan], desk: Desk) -> dict[str, Content]:
    """Every file of the results."""
    plan = plans[0]
    patients = _cohort_files(plan, desk)
    cohort = read_patients(desk, plan.patients)
    parts, rows = make_parts(cohort, desk.info(plan.patients)["split"]), describe_cohort(cohort)
    guardians = {
        "kde": desk.info(plan.guardians["kde, ours"]),
        "kde, sharper": desk.info(plan.bedside),
    }
    comparisons = [one for each in plans for one in read_comparisons(each, desk)]
    judged = finished_evidence(plans, desk)
    evidence = _evidence(judged, comparisons, desk)
    pictures = draw_run(plan, desk, comparisons, cohort) | draw_sweep(sizes, plan, desk)
    pictures |= draw_twins(plan, desk) | {"shifts": draw_shifts(guardians)}
    pictures |= draw_cohorts(plans[1:], desk, comparisons)
    pictures |= named_pictures(evidence, [draw_evidence(one) for one in evidence])
    recorded = isinstance(plan.patients.work, ImportPatients)
    points = _protocol(sizes, plan, desk, patients, evidence) if recorded else []
    if recorded:  # nothing to hold a promise against
        rows = tuple(row for row in rows if not math.isnan(row.ours))
        pictures = {x: png for x, png in pictures.items() if chapter_of(x) != "truth"}
    made = in_order([job for each in plans for job in each.jobs])
    more = [job for each in judged for job in each.by_kind.values()]
    results = Results(
        title=TITLE,
        comparisons=comparisons,
        about=provenance(config=sizes, seed=0),
        twins={name: desk.info(job)["seeds"] for name, job in plan.twins.items()},
        windows={words: desk.info(job) for words, job in plan.windows.items()},
        sampled=[one for each in plans for one in read_sampled(each, desk)],
        searches=search_rows([job for each in plans for job in each.searches], desk),
        pictures=pictures,
        sections=[
            _patients(rows, patients),
            Section("Have we seen this before", to_html(guardian_grid(guardians))),
        ],
        banner=" ".join([RECORDINGS if recorded else BANNER, *[QUICK] * bool(sizes.shrink)]),
        recorded=[protocol_section(points), _missing(plan, desk, judged, cohort)]
        if recorded
        else [],
        allowed=protocol_sentences(points)[-1] if recorded else "",
        stages=stage_seconds(in_order([*made, *more]), desk),
        took=legs_words(legs) if (legs := read_legs(desk.path)) else "",
        evidence=evidence,
    )
    main = comparisons[0]
    said = [*say_clinicians(main), *say_across(comparisons), *first_screen(evidence)]
    text = [
        _lead(plan, parts),
        "",
        moments_text(rows),
        "",
        to_text(twin_grid(results.twins)),
        f"Have we seen this before: guardians on test patients.\n\n{guardian_text(guardians)}",
        *(to_text(short_grid(one)) for one in comparisons),
        *([to_text(pairs_grid(main))] if len(compared_rows(main)) <= PAIRED else []),
        *([QUICK] if sizes.shrink else []),
        *map(plain, said),
        *(map(plain, protocol_sentences(points)) if recorded else ()),
        "",
    ]
    tables = make_tables(results) | _sweep_table(plan, desk)
    tables |= {
        "tables/cohort.csv": to_csv(moment_rows(rows)),
        "tables/guardian.csv": to_csv(guardian_rows(guardians), digits=None),
    }
    if JUDGING_TWIN in plan.twins and (risks := desk.info(plan.twins[JUDGING_TWIN])["risks"]):
        tables["tables/risks.csv"] = to_csv(risks)
    named = {x.replace(", ", "-").replace(" ", "-"): png for x, png in pictures.items()}
    return (
        patients
        | _models(plan, desk, parts)
        | tables
        | {f"figures/{name}.png": png for name, png in named.items()}
        | {RESULTS: "\n".join(text).encode(), REPORT: results_page(results).encode()}
    )


# ── what the jobs have found, as the report takes it ─────────────────────────────────────────────


def read_comparisons(plan: Plan, desk: Desk) -> list[Comparison]:
    """Every data set in every setting, learned rows and rules side by side."""
    rules = _by_judge(read_judged(desk, plan.rules))
    found = []
    for (data, setting), rows in plan.compared.items():
        judged: Judgments = {judge: dict(methods) for judge, methods in rules.items()}
        if setting in plan.experts:
            for judge, one in read_judged(desk, plan.experts[setting]).items():
                judged.setdefault(judge, {})[EXPERT] = one
        for judge, methods in _read_rows(rows, desk).items():
            judged.setdefault(judge, {}).update(methods)
        if (data, setting) == next(iter(plan.compared)):  # rows from outside: the first table
            for name, job, _ in find_evaluated(plan.name, plan.bench, desk):
                for judge, one in read_judged(desk, job).items():
                    judged.setdefault(judge, {})[name] = one
        clean = plan.without_noise.get(setting, {}) if data == "noisy" else {}
        curves = {name: desk.arrays(row.train) for name, row in rows.items()}
        seconds = {name: float(desk.about(row.train)["seconds"]) for name, row in rows.items()}
        without_noise = _read_rows(clean, desk)
        found.append(Comparison(plan.name, data, setting, judged, curves, seconds, without_noise))
    return found


def read_sampled(plan: Plan, desk: Desk) -> list[Comparison]:
    """The same rows with drawn levels; who has no probabilities stands beside them as he is."""
    found = []
    for (data, setting), rows in plan.sampled.items():
        judged = _by_judge(read_judged(desk, plan.rules))
        for name, job in rows.items():
            for judge, one in read_judged(desk, job).items():
                judged.setdefault(judge, {})[name] = one
        found.append(Comparison(plan.name, data, setting, judged, sampled=True))
    return found


def _read_rows(rows: Mapping[str, Trained], desk: Desk) -> Judgments:
    """What every judge has seen of trained rows."""
    seen = {f"{name}/{judge}": one for name, row in rows.items()
            for judge, one in read_judged(desk, row.judge).items()}  # fmt: skip
    return _by_judge(seen)


_SWEPT = ("parameter", "value", "judge", "metric", "mean", "sd", "low", "high")


def sweep_rows(plan: Plan, desk: Desk) -> list[dict[str, object]]:
    """CORMPO with one number changed: every metric before every judge."""
    rows: list[dict[str, object]] = []
    for (parameter, value), one in plan.sweep.items():
        for judge, judged in read_judged(desk, one.judge).items():
            weights = resample(judged.row)
            for metric in EVERY_METRIC:
                found = estimate(values_of(judged, metric), weights)
                point = {"parameter": parameter, "value": value, "judge": judge, "metric": metric}
                rows.append({**point, **found})
    return rows


def stage_seconds(jobs: list[Job], desk: Desk) -> dict[str, float]:
    """How long the jobs of each kind took together."""
    seconds: dict[str, float] = {}
    for job in jobs:
        stage = "/".join(job.name.split("/")[:4][: -1 if job.name.count("/") > 2 else None])
        seconds[stage] = seconds.get(stage, 0.0) + float(desk.about(job)["seconds"])
    return seconds


def _by_judge(found: Mapping[str, Judged]) -> Judgments:
    """From "hold/twin" to judge, then method."""
    judged: Judgments = {}
    for name, one in found.items():
        method, judge = name.rsplit("/", 1)
        judged.setdefault(judge, {})[method] = one
    return judged


def search_rows(jobs: Sequence[Job], desk: Desk) -> list[dict[str, str | float]]:
    """Every trial of the searches: what was changed, what it scored."""
    rows: list[dict[str, str | float]] = []
    for job in jobs:
        assert isinstance(job.work, ChooseTrial)
        found, (cohort, _, data, setting, method) = desk.info(job), job.name.split("/")
        for one in found["trials"]:
            changes = (f"{name} {value:g}" for name, value in one["changes"].items())
            chosen = "yes" if one["changes"] == found["chosen"] else "no"
            words = ", ".join(changes) or PRESET
            values = (cohort, data, setting, method, words, one["score"], chosen)
            rows.append(dict(zip(SEARCHED, values, strict=True)))
    return rows


def _evidence(
    plans: Sequence[EvidencePlan], comparisons: Sequence[Comparison], desk: Desk
) -> list[Findings]:
    """What `stepdown judge` has found, if it was asked."""
    own = {x.cohort: x for x in same_question(comparisons)}
    found = []
    for plan in plans:
        kinds = {kind: desk.info(job) for kind, job in plan.by_kind.items()}
        if "records" in kinds and plan.records is not None:
            kinds["records"] = _with_evaluated(kinds["records"], plan, desk)
        found.append(Findings(own[plan.name], **kinds))
    return found


def _with_evaluated(records: dict[str, Any], plan: EvidencePlan, desk: Desk) -> dict[str, Any]:
    """Estimates from records, those of rows from outside included."""
    assert plan.records is not None
    assert isinstance(plan.records.work, EstimateFromRecords)
    bench = plan.records.work.judges.bench
    more = [
        row
        for name, _, told in find_evaluated(plan.name, bench, desk)
        for row in told["policies"]
        if row["method"] == name
    ]
    return records | {"policies": [*records["policies"], *more]}


def _sweep_table(plan: Plan, desk: Desk) -> dict[str, Content]:
    """Sensitivities, where the preset has them."""
    return {"tables/sweep.csv": to_csv(sweep_rows(plan, desk), _SWEPT)} if plan.sweep else {}


# ── patients and models to go on with ────────────────────────────────────────────────────────────


def _cohort_files(plan: Plan, desk: Desk) -> dict[str, Content]:
    """The patients as `stepdown simulate` or `import` would have left them."""
    work = plan.patients.work
    if isinstance(work, ImportPatients):
        return files_of(work.path, "cohort")
    assert isinstance(work, SimulatePatients)
    truth = read_truth(desk, plan.patients)
    assert truth is not None
    both = truth.cohort, truth.latents
    return saved(lambda path: write_simulated(path, both, work.cohort, work.seed), "cohort")


def _models(plan: Plan, desk: Desk, parts: Parts) -> dict[str, Content]:
    """The judging twin, the bedside guardian and a policy, with a note about their patients.

    The policy is the default's, or CORMPO's in a run without it.
    """
    twin = desk.folder(plan.twins[JUDGING_TWIN]) / TWIN
    guardian = desk.folder(plan.bedside) / GUARDIAN
    files = _noted(TWIN, lambda path: shutil.copytree(twin, path), parts, JUDGING_TWIN)
    files |= _noted(GUARDIAN, lambda path: shutil.copytree(guardian, path), parts, "kde")
    kept = next((x for x in (DEFAULT_METHOD, OURS_METHOD) if x in plan.recorded), None)
    if kept is None:
        return files
    policy = member(read_policies(desk, plan.recorded[kept].train), 0)
    return files | _noted(POLICY, lambda path: save_policy(path, policy, kept, seed=0), parts, kept)


def _noted(kind: str, save, parts: Parts, model: str) -> dict[str, Content]:
    return saved(lambda path: save_fitted(path, save, parts, kind=kind, model=model), kind)


def _lead(plan: Plan, parts: Parts) -> str:
    cohorts = (parts.train, parts.select, parts.test)
    stays = sum(len(part.patient) for part in cohorts)
    hours = sum(float(np.sum(part.seen)) * part.minutes / 60 for part in cohorts)
    whose = "recorded" if isinstance(plan.patients.work, ImportPatients) else "simulated"
    return f"{stays:,} {whose} stays on a micro-axial heart pump, {hours:,.0f} hours ({plan.name})."


def _patients(rows: Sequence[Row], files: Mapping[str, Content]) -> Section:
    card, overview = (files.get(f"cohort/{name}", b"") for name in (CARD, OVERVIEW))
    assert isinstance(card, bytes)
    assert isinstance(overview, bytes)
    if not overview:  # imported
        flow = files.get(f"cohort/{FLOW}", b"")
        assert isinstance(flow, bytes)
        return patients_section(rows, card.decode(), flow)
    return cohort_section(rows, overview, card.decode())


def _protocol(
    sizes: ExperimentConfig,
    plan: Plan,
    desk: Desk,
    files: Mapping[str, Content],
    evidence: Sequence[Findings],
) -> list[Point]:
    """What this run makes of the protocol for recorded patients."""
    about = files[f"cohort/{CONFIG}"]
    assert isinstance(about, bytes)
    errors = {
        name: float(np.mean([one["mae_map"] for one in desk.info(job)["seeds"]]))
        for name, job in plan.twins.items()
    }
    facts = Facts(
        cohort=read_patients(desk, plan.patients),
        hours=read_hours(desk, plan.patients),
        present=read_twin(desk, plan.bench.twin).scaler.names,
        charted=json.loads(about).get("charted"),
        quick=sizes.shrink is not None,
        methods=tuple(plan.recorded),
        twins=errors,
        judging=JUDGING_TWIN,
        alarms={x["asked"]: x["real"] for x in desk.info(plan.bedside)["false_alarms"]},
        findings=next(iter(evidence), None),
    )
    return protocol_points(facts)


def _missing(plan: Plan, desk: Desk, judged: Sequence[EvidencePlan], cohort: Cohort) -> Section:
    """What nobody can say about recorded patients."""
    hours, kinds = read_hours(desk, plan.patients), {x for one in judged for x in one.by_kind}
    return missing_section(cohort, hours, read_twin(desk, plan.bench.twin).scaler.names, kinds)


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────


def draw_twins(plan: Plan, desk: Desk) -> dict[str, bytes]:
    """The judging twin beside every other twin of the run, on test patients."""
    shown = {name: plan.twins[name] for name in DRAWN_TWINS if name in plan.twins}
    found = {name: desk.info(job) for name, job in shown.items()}
    examples = {name: read_examples(desk, job) for name, job in shown.items()}
    known = {name: one for name, one in examples.items() if one is not None}
    starts = found[JUDGING_TWIN]["starts"]
    pictures = {"examples": draw_examples(known)} if known else {}
    return pictures | {
        "growth": draw_growth({name: one["growth"] for name, one in found.items()}, starts),
        "calibration": draw_honesty({name: one["honesty"] for name, one in found.items()}),
    }


def draw_run(
    plan: Plan, desk: Desk, comparisons: Sequence[Comparison], cohort: Cohort
) -> dict[str, bytes]:
    """Every picture by its name on the page."""
    main = comparisons[0]
    pictures = draw_comparison(main)
    pictures |= {"records": draw_records(cohort), "weaning": draw_weaning(cohort)}
    if plan.figures is not None:
        pictures |= _draw_figures(plan, desk, main, cohort)
    return pictures


def draw_cohorts(
    plans: Sequence[Plan], desk: Desk, comparisons: Sequence[Comparison]
) -> dict[str, bytes]:
    """All cohorts together, and promise and truth of every further one."""
    own = {x.cohort: x for x in same_question(comparisons)}
    pictures = {"cohorts": draw_across(comparisons)} if len(own) > 1 else {}
    for plan in (x for x in plans if x.name in own):
        pictures[f"exploitation, {plan.name}"] = draw_exploitation(own[plan.name])
        if plan.figures is not None:
            arrays = desk.arrays(plan.figures)
            levels = constant_levels(own[plan.name]) | {"ensemble": arrays["constant/ensemble"]}
            pictures[f"levels, {plan.name}"] = draw_constant_levels(levels, arrays["constant/row"])
    return pictures


def _draw_figures(plan: Plan, desk: Desk, main: Comparison, cohort: Cohort) -> dict[str, bytes]:
    assert plan.figures is not None
    arrays, info = desk.arrays(plan.figures), desk.info(plan.figures)
    levels = constant_levels(main) | {"ensemble": arrays["constant/ensemble"]}
    seen = np.asarray(cohort.level)[np.asarray(cohort.seen)]
    share = np.bincount(seen - LOWEST, minlength=HIGHEST - LOWEST + 1) / len(seen)
    found = {
        who: {
            metric: values
            for metric in ("reward", "acp", "ws_gradient")
            if not np.isnan(values := arrays[f"horizon/{who}/{metric}"]).all()
        }
        for who in ("records", "twin")
    }
    chosen = _by_row(arrays, "chosen/", AGREED)
    recorded, before = arrays["recorded/level"], arrays["recorded/before"]
    pictures = {
        "levels": draw_constant_levels(levels, arrays["constant/row"], share),
        "rewards": draw_predicted_rewards(arrays["reward/recorded"], arrays["reward/forecast"]),
        "horizons": draw_horizons(info["horizons"], found, arrays["horizon/row"]),
        "agreement": draw_agreement(chosen, recorded, before),
    }
    for name, cases in ROLLOUTS.items():
        if name == "rollouts ws" and "ws_gradient" not in found["records"]:
            continue  # nobody knows which hours were steady
        episodes = {words: _episodes(arrays, info["cases"].index(words)) for words in cases}
        if all(episodes.values()):
            pictures[name] = draw_rollouts(episodes)
    return pictures


def _by_row(
    arrays: Mapping[str, np.ndarray], start: str, order: Sequence[str]
) -> dict[str, np.ndarray]:
    return {x: arrays[f"{start}{x}"].astype(int) for x in order if f"{start}{x}" in arrays}


def _episodes(arrays: Mapping[str, np.ndarray], case: int) -> dict[str, Episodes]:
    """One start under every method."""
    found = {}
    for row in BEDSIDE:
        if f"hours/{row}/state" in arrays:
            state, level = arrays[f"hours/{row}/state"][case], arrays[f"hours/{row}/level"][case]
            parts = (state, level.astype(np.int32), np.ones(HORIZON, bool))
            found[row] = Episodes(*map(jnp.asarray, parts))
    return found


def draw_sweep(config: ExperimentConfig, plan: Plan, desk: Desk) -> dict[str, bytes]:
    """CORMPO with one number changed, start by start minus the clinicians."""
    if not plan.sweep:
        return {}
    recipe, points = make_recipe(OURS, shrink=config.shrink), []
    rules = read_judged(desk, plan.rules)
    usual = {
        "tau": RECORDED.percentile,
        "rule": PERCENTILE,
        "lambda": getattr(recipe, "penalty_weight", None),
        "lambda1": getattr(recipe, "jump_weight", None),
        "lambda2": getattr(recipe, "weaning_weight", None),
    }
    team = {judge: rules[f"{TEAM}/{judge}"] for judge in JUDGES if f"{TEAM}/{judge}" in rules}
    for (parameter, value), one in plan.sweep.items():
        for judge, judged in read_judged(desk, one.judge).items():
            weights = resample(judged.row)
            for metric in METRICS:
                apart = difference(values_of(judged, metric), values_of(team[judge], metric))
                found = estimate(apart, weights)
                numbers = (found["mean"], found["low"], found["high"])
                chosen = usual.get(parameter) == value
                points.append(SensitivityPoint(parameter, value, judge, metric, *numbers, chosen))
    return {"sensitivity": draw_sensitivity(points)}
