"""How fast the kernel density is: `python -m benchmarks.speed.kde` (taskset -c 0), or on a GPU.

On a CPU ours, FAISS flat and scikit-learn answer the same queries on the same cores in turns; a
ratio is the median over rounds. On a GPU the peer is torch (cdist, then topk). Peers that are not
installed are left out. `--points` is for the run with very many points.
"""

import argparse
import dataclasses
import functools
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy.special import logsumexp

from benchmarks.clocks import alternate, machine, timed
from stepdown.guardian.kde import Kde, fit_kde, to_points
from stepdown.guardian.largest import Way, full_width, log_sum_largest
from stepdown.guardian.threshold import make_guardian
from stepdown.handover import Cohort, Role, Transitions
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.hours import make_transitions

POINTS, SELECT, NEIGHBORS = 13_400, 2_900, 100


def main() -> None:
    """Measure and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    asked = parser.parse_args()
    gpu = jax.default_backend() != "cpu"
    versions = {name: _version(name) for name in ("faiss", "sklearn", "torch")}
    print(f"{machine()}; peers {versions}\n")
    train, select, test = hours()
    kde = fit_kde(train)
    queries = jittered(np.asarray(to_points(kde.pairs, test.state, test.level)), asked.queries, 1)
    fitting(train, select)
    selecting(kde, queries, asked.rounds)
    (on_gpu if gpu else on_cpu)(kde, queries, asked.rounds)
    few = queries[: 1024 if gpu else 512]
    points = jittered(np.asarray(kde.points), asked.points, 2)
    many_points(dataclasses.replace(kde, points=jnp.asarray(points)), few)


def hours() -> tuple[Transitions, Transitions, Transitions]:
    """Recorded hours of simulated patients: 13,400 to fit, 2,900 to choose, the rest to ask."""
    cohort, _ = simulate_cohort(CohortConfig(), key=jr.key(7))
    return (
        _part(cohort, slice(0, 246), "train", POINTS),
        _part(cohort, slice(246, 303), "select", SELECT),
        _part(cohort, slice(303, 379), "test", None),
    )


def _part(cohort: Cohort, patients: slice, role: Role, rows: int | None) -> Transitions:
    """Patients were drawn independently, so that neighbors may share a role."""
    part = Cohort(
        cohort.signals[patients],
        cohort.level[patients],
        cohort.seen[patients],
        cohort.patient[patients],
        cohort.minutes,
        role,
    )
    return jax.tree.map(lambda leaf: leaf[:rows], make_transitions(part))


def jittered(points: np.ndarray, count: int, seed: int, sd: float = 0.2) -> np.ndarray:
    """As many points as wanted, clustered as the real ones are."""
    draw = np.random.default_rng(seed)
    rows = draw.integers(len(points), size=count)
    noise = sd * draw.normal(size=(count, points.shape[1]))
    noise[:, -2:] = 0  # levels are whole numbers
    return np.asarray(points[rows] + noise, np.float32)


def fitting(train: Transitions, select: Transitions) -> None:
    """From hours to a guardian with its threshold."""
    times = timed(lambda: make_guardian(fit_kde(train), select).threshold, 3)
    print("| fitting with threshold | first, s (compiles) | then, s |\n|---|---|---|")
    print(
        f"| {POINTS:,} train, {SELECT:,} select hours | {times[0]:.2f} | {min(times[1:]):.3f} |\n"
    )


def selecting(kde: Kde, queries: np.ndarray, rounds: int) -> None:
    """The ways of selection, to see that the default of this device is the fastest."""
    rows = 64 if jax.default_backend() == "cpu" else len(queries)
    scores = jnp.asarray(queries[:rows]) @ kde.points.T
    short = full_width(len(kde.points), NEIGHBORS) - len(kde.points)
    filled = jnp.pad(scores, ((0, 0), (0, short)), constant_values=-1e30)
    names: tuple[Way, ...] = ("threshold", "groups", "sort")
    ways = {way: jax.jit(functools.partial(_select, way)) for way in names}
    times = alternate({name: lambda f=f: f(filled) for name, f in ways.items()}, rounds)
    print(f"| selecting {NEIGHBORS} of {POINTS:,}, {rows} rows | ms |\n|---|---|")
    for name, each in times.items():
        print(f"| {name} | {1e3 * np.median(each):.3f} |")
    print()


def _select(way: Way, scores):
    return log_sum_largest(scores, NEIGHBORS, way)


def ours(kde: Kde, queries: np.ndarray) -> Callable[[], jax.Array]:
    """A compiled call, already warm."""
    asked = jnp.asarray(queries)
    run = eqx.filter_jit(lambda kde, asked: kde.log_density_at(asked))
    jax.block_until_ready(run(kde, asked))
    return lambda: run(kde, asked)


def on_cpu(kde: Kde, queries: np.ndarray, rounds: int) -> None:
    """Ours against FAISS flat and scikit-learn."""
    everything = dataclasses.replace(kde, neighbors=None)
    works: dict[str, Callable[[], Any]] = {
        f"ours, exact top {NEIGHBORS}": ours(kde, queries),
        "ours, all points": ours(everything, queries),
    }
    points = np.asarray(kde.points)
    if _version("faiss"):
        works[f"FAISS flat, top {NEIGHBORS}"] = _faiss(points, queries)
    times = alternate(works, rounds)
    truth = next(iter(works.values()))()
    if _version("sklearn"):  # far slower: fewer queries, one round
        few = queries[: max(1, len(queries) // 50)]
        for name, work in _sklearn(points, few).items():
            start = time.perf_counter()
            work()
            times[name] = [(time.perf_counter() - start) * len(queries) / len(few)]
    show(times, len(queries))
    if _version("faiss"):
        flat = works[f"FAISS flat, top {NEIGHBORS}"]() + float(kde.log_constant)
        print(f"largest difference to FAISS: {np.abs(flat - np.asarray(truth)).max():.1e} nats\n")


def on_gpu(kde: Kde, queries: np.ndarray, rounds: int) -> None:
    """Ours against torch in full precision."""
    everything = dataclasses.replace(kde, neighbors=None)
    works: dict[str, Callable[[], Any]] = {
        f"ours, exact top {NEIGHBORS}": ours(kde, queries),
        "ours, all points": ours(everything, queries),
    }
    if _version("torch"):
        works["torch cdist + topk"] = _torch(np.asarray(kde.points), queries)
    show(alternate(works, max(rounds, 20)), len(queries))


def many_points(many: Kde, few: np.ndarray) -> None:
    """Seconds among very many points; on a GPU the memory, too."""
    (seconds,) = alternate({"exact": ours(many, few)}, 3).values()
    print(f"| {len(many.points):,} jittered hours, {len(few):,} queries | s |\n|---|---|")
    print(f"| exact | {np.median(seconds):.3f} |")
    if memory := (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"):
        print(f"\npeak memory of the device {memory / 2**30:.2f} GiB")


def _faiss(points, queries) -> Callable[[], np.ndarray]:
    import faiss  # pyright: ignore[reportMissingImports]

    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(points)

    def run():
        squared, _ = index.search(queries, NEIGHBORS)
        return logsumexp(-0.5 * squared, axis=1) - np.log(len(points))

    return run


def _sklearn(points, queries) -> dict[str, Callable[[], np.ndarray]]:
    from sklearn.neighbors import (  # pyright: ignore[reportMissingImports]
        KernelDensity,
        NearestNeighbors,
    )

    near = NearestNeighbors(n_neighbors=NEIGHBORS, algorithm="brute").fit(points)
    density = KernelDensity(bandwidth=1.0).fit(points)

    def nearest():
        distance, _ = near.kneighbors(queries)
        return logsumexp(-0.5 * distance**2, axis=1) - np.log(len(points))

    return {
        f"scikit-learn brute, top {NEIGHBORS}": nearest,
        "scikit-learn KernelDensity, all points": lambda: density.score_samples(queries),
    }


def _torch(points, queries) -> Callable[[], None]:
    import torch  # pyright: ignore[reportMissingImports]

    there, asked = torch.tensor(points, device="cuda"), torch.tensor(queries, device="cuda")

    def run():
        squared = torch.cdist(asked, there) ** 2
        kernels = torch.topk(-0.5 * squared, NEIGHBORS, dim=1).values
        torch.logsumexp(kernels, dim=1)
        torch.cuda.synchronize()

    return run


def show(times: dict[str, list[float]], queries: int) -> None:
    """Print the table; the ratio is to the first row, round by round where there are as many."""
    first = next(iter(times.values()))
    print(f"| {queries:,} queries, {POINTS:,} points | median, s | best, s | times ours |")
    print("|---|---|---|---|")
    for name, each in times.items():
        base = first if len(each) == len(first) else [float(np.median(first))]
        ratio = np.median(np.divide(each, base))
        print(f"| {name} | {np.median(each):.4f} | {min(each):.4f} | {ratio:.2f} |")
    print()


def _version(name: str) -> str | None:
    """The version of a peer, or None where it is not installed."""
    if importlib.util.find_spec(name) is None:
        return None
    return str(importlib.import_module(name).__version__)


if __name__ == "__main__":
    main()
