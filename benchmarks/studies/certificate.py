"""How loose are the theorems? `python -m benchmarks.studies.certificate --help`.

tables: random tabular problems, everything exact: the deficit that each form of Theorem 1 allows
against the error that the model really makes. printed: what the paper's constants come to.
run: the certificate of the policies of a finished run, by its folder of jobs, such as
runs/demo.jobs/guarded-7. rules: the certificate of simple rules with models fitted here, on
cohorts whose records are confounded or not.
"""

import argparse
import time
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.cohorts import KDE
from stepdown.evaluation.certificate import (
    Certificate,
    CertificateConfig,
    HeldOut,
    certify,
    cover,
    fit_values,
    imagine_hours,
    reaches,
    recorded_hours,
    redraw_hours,
    reward_range,
    tightest_cover,
    value_gaps,
)
from stepdown.evaluation.compare import spearman
from stepdown.evaluation.guardians import charge_all
from stepdown.evaluation.judging import draw_judged_starts
from stepdown.experiment.evidence_jobs import read_as_trained
from stepdown.experiment.jobs import Desk
from stepdown.experiment.patients import read_parts, read_truth
from stepdown.experiment.plan import make_plan
from stepdown.experiment.presets import PRESETS, CohortChoice, RunPreset
from stepdown.experiment.readers import read_ensemble, read_guardian, read_policies
from stepdown.guardian.fit import fit_guardian
from stepdown.guardian.threshold import RECORDED
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort, world_of
from stepdown.patients.episodes import Mode, play
from stepdown.patients.population import PresetName
from stepdown.policies.ensemble import fit_ensemble
from stepdown.policies.methods import OURS_METHOD
from stepdown.policies.rules import RULES
from stepdown.policies.saved import POLICIES
from stepdown.problem.hours import make_transitions
from stepdown.records.latents import latents_of
from stepdown.records.split import SPLIT, split_patients
from stepdown.signals import LEVEL
from stepdown.training import member
from tests.evaluation.random_mdps import Problem, draw_policy, draw_problem

HOURS = 6
FORMS = ("E|G|", "c E[d]", "C and eps at their best")


def tables(count: int) -> None:
    """Median, over random problems, of what a bound allows for over what really is lost."""
    print(f"| case | {' | '.join(FORMS)} | vacuous |\n|---|---|---|---|---|")
    for discount in (0.3, 0.9, 0.99, None):
        found = [_looseness(seed, discount) for seed in range(count)]
        ratio = np.median([one[:3] for one in found], axis=0)
        empty = np.mean([one[3] for one in found])
        name = f"{HOURS} h, not discounted" if discount is None else f"discount {discount:g}"
        cells = " | ".join(f"{x:.3g}" for x in ratio)
        print(f"| {name} | {cells} | {100 * empty:.0f} % |", flush=True)


def _looseness(seed: int, discount: float | None) -> tuple[float, float, float, bool]:
    """Allowed deficits over the model's real error, and whether the last leaves the range."""
    problem = draw_problem(seed)._replace(discount=discount or 0.9)
    policy = draw_policy(problem, seed + 1)
    spread = float(np.ptp(problem.choosing) + np.ptp(problem.arriving))
    if discount is None:
        visits = problem.short_visits(policy, HOURS)
        reach = 0.5 * spread * np.arange(HOURS, 0, -1)
        later = problem.short_values(problem.truth, policy, HOURS)
        gaps = np.array([_gap(problem, problem.arriving + x) for x in later[:-1]])[::-1]
        in_model = problem.short_values(problem.model, policy, HOURS)[-1]
        error = float(problem.start @ (in_model - later[-1]))
        least = HOURS * float(problem.choosing.min() + problem.arriving.min())
        value = float(problem.start @ in_model)
    else:
        visits = problem.occupancy(policy)[None]
        reach, gaps = np.array([problem.reach]), problem.gap(policy)[None]
        value = problem.value(problem.model, policy)
        error = value - problem.value(problem.truth, policy)
        least = float(problem.choosing.min() + problem.arriving.min()) / (1 - discount)
    weights = visits.sum((1, 2)) * reach
    plus = np.maximum(problem.u, 0.0).ravel()
    met = (visits.reshape(len(visits), -1) @ plus) * reach
    metric = problem.metric.ravel()
    slope = tightest_cover(metric, plus, float(met.sum() / weights.sum()))
    allowed = slope * met.sum() + cover(metric, plus, slope) * weights.sum()
    sizes = (visits * np.abs(gaps)).sum()
    by_metric = ((visits.reshape(len(visits), -1) @ metric) * reach).sum()
    real = max(abs(error), 1e-12)
    return sizes / real, by_metric / real, allowed / real, bool(value - allowed <= least)


def _gap(problem: Problem, worth: np.ndarray) -> np.ndarray:
    return (problem.model - problem.truth) @ worth


def printed() -> None:
    """What the paper's constants come to: c = r_max / (1 - g), C = lambda / (g c) and the rest."""
    low, high = reward_range()
    print("| g | lambda | c | C a nat | values span | eps to span them | eps_H, H = 6 | H to fit |")
    print("|---|---|---|---|---|---|---|---|")
    for discount, weight in ((0.99, 0.005), (0.99, 0.08), (0.9, 0.08)):
        reach, span = -low / (1 - discount), (high - low) / (1 - discount)
        slope, rest = weight / (discount * reach), span * (1 - discount) / (discount * reach)
        left = discount ** np.arange(1, 5000) * (2 - discount) * -low / (1 - discount) ** 2
        hours = int(np.argmax(left < span))
        cells = (discount, weight, reach, slope, span, rest, left[HOURS], hours)
        print("| " + " | ".join(f"{x:.3g}" for x in cells) + " |")
    total = float(reaches().sum())
    span = HOURS * (high - low)
    print(
        f"\nEpisode: reaches {total:.3g}, values span {span:.3g}, eps to span {span / total:.2g}."
    )


def show(rows: dict[str, Certificate]) -> None:
    """The certificates as a table."""
    head = (
        "policy | value in model | in truth | in the mean | (95 %) | everywhere | as trained | "
        "metric's ceiling | E[u+] | E[u-] | C reach | eps in mean | eps everywhere | "
        "error u<=0 | error u>0 | bias u<=0 | rank corr. | TV u<=0"
    )
    print(f"| {head} |\n|{'---|' * (head.count('|') + 1)}")
    for name, one in rows.items():
        cells = [
            one.value_in_model,
            one.value_in_truth,
            one.in_mean.bound,
            one.in_mean_low,
            one.everywhere.bound,
            one.as_trained.bound,
            one.metric_ceiling,
            one.charged,
            one.bonus,
            one.weight_asked,
            one.in_mean.rest,
            one.everywhere.rest,
            one.error_known,
            one.error_strange,
            one.bias_known,
            one.rank_correlation,
            one.tv_known,
        ]
        print(f"| {name} | " + " | ".join(f"{x:.3g}" for x in cells) + " |", flush=True)
    one = next(iter(rows.values()))
    print(
        f"\n{one.decisions} decisions of {one.patients} patients; least value {one.floor:g}; "
        f"reach {one.reach:.3g}; largest bonus {one.largest_bonus:.3g}; chance adds up to "
        f"{one.noise:.2g} to an error; R2 of the values {one.value_fit:.2f}."
    )


def run(jobs: Path, preset: RunPreset, recorded: bool) -> None:
    """All rows of a finished run on recorded hours in our setting; the first seed of each."""
    kind, _, seed = jobs.name.rpartition("-")
    choice = CohortChoice(kind, int(seed))  # pyright: ignore[reportArgumentType]
    plan, desk = make_plan(PRESETS[preset], choice), Desk(jobs.parent)
    whole, test = read_truth(desk, plan.patients), read_parts(desk, plan.patients)[2]
    assert whole is not None  # simulated
    if recorded:
        held_out = recorded_hours(make_transitions(test), key=jr.key(5))
    else:
        held_out = _redrawn(test, latents_of(whole.latents, whole.cohort, test), whole.config)
    lent = plan.ensembles["recorded"], plan.guardians["kde, ours"]
    rows, policies = {}, {}
    for name, row in sorted(plan.recorded.items()):
        if not (desk.folder(row.train) / POLICIES).is_dir():
            continue
        policies[name] = member(read_policies(desk, row.train), 0)
        used = read_as_trained(desk, row.train, *lent)
        models, settings = (used.dynamics, used.guardian), CertificateConfig(weight=used.weight)
        rows[name] = certify(policies[name], *models, held_out, settings, key=jr.key(5))
    show(rows)
    if held_out.truth is None:
        return
    played = play(Mode(policies[OURS_METHOD]), held_out.truth.starts, held_out.truth.world)
    ensemble, guardian = read_ensemble(desk, lent[0]), read_guardian(desk, lent[1])
    told = _what_tracks(played, ensemble, guardian, held_out)
    print(f"\nRank correlation of |G| of {OURS_METHOD} with: {told}.")


def _what_tracks(played, ensemble, guardian, held_out: HeldOut) -> str:
    """Which uncertainty orders decisions as the model's error does."""
    drawn = imagine_hours(ensemble, held_out, 32, key=jr.key(6))
    values = fit_values(played, held_out.start_row)
    sizes = np.abs(value_gaps(values, held_out, drawn)[0]).sum(1)
    states, levels = jnp.asarray(held_out.state), jnp.asarray(held_out.level)
    jump = np.abs(held_out.level - np.round(held_out.state[:, -1, LEVEL]))
    u = charge_all(guardian, held_out.state, held_out.level)
    told = {
        "u+": np.maximum(u, 0.0),
        "u": u,
        "disagreement": np.asarray(ensemble.disagreements(states, levels)),
        "spread": np.asarray(ensemble.spreads(states, levels)),
        "change of level": jump,
    }
    ranks = {name: spearman(x, sizes) for name, x in told.items()}
    return ", ".join(f"{name} {rank:.2f}" for name, rank in ranks.items())


def rules(cohorts: list[PresetName]) -> None:
    """Rules with an ensemble and a guardian of the demo's size, fitted to each kind of cohort."""
    for name in cohorts:
        start = time.perf_counter()
        recipe = CohortConfig(preset=name)
        cohort, latents = simulate_cohort(recipe, key=jr.split(jr.key(7), 3)[0])
        train, select, test = split_patients(cohort, key=jr.key(SPLIT))
        hours, choose = make_transitions(train), make_transitions(select)
        ensemble, _ = fit_ensemble(hours, PRESETS["demo"].ensemble, key=jr.key(0))
        guardian, _ = fit_guardian(hours, choose, KDE, RECORDED, key=jr.key(0))
        held_out = _redrawn(test, latents_of(latents, cohort, test), recipe)
        found = {
            rule: certify(RULES[rule], ensemble, guardian, held_out, key=jr.key(5))
            for rule in ("hold", "taper", "always P2", "always P5", "always P9")
        }
        print(f"\n{name}: {time.perf_counter() - start:.0f} s\n")
        show(found)


def _redrawn(test, latents: Latents, recipe: CohortConfig) -> HeldOut:
    starts = draw_judged_starts(test, latents, 1000, key=jr.key(1))
    return redraw_hours(starts, world_of(recipe), key=jr.key(5))


def main() -> None:
    """Say which."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("tables", "printed", "run", "rules"))
    parser.add_argument("--count", type=int, default=2000, help="of random problems")
    parser.add_argument("--jobs", type=Path, help="such as runs/demo.jobs/guarded-7")
    parser.add_argument("--preset", default="demo", choices=PRESETS, help="of the run")
    parser.add_argument("--recorded", action="store_true", help="only what records hold")
    parser.add_argument("--cohorts", nargs="*", default=["guarded", "hidden"])
    args = parser.parse_args()
    if args.what == "run" and args.jobs is None:
        parser.error("expected --jobs FOLDER, such as runs/demo.jobs/guarded-7.")
    start = time.perf_counter()
    if args.what == "tables":
        tables(args.count)
    elif args.what == "printed":
        printed()
    elif args.what == "run":
        run(args.jobs, args.preset, args.recorded)
    else:
        rules(args.cohorts)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
