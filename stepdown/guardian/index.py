"""An approximate kernel density for very many recorded decisions on a CPU.

The points are cut into lists around centers (k-means), and a query looks only into the lists with
the nearest centers. Neighbors in other lists are missed, so this is APPROXIMATE: log p comes out
too low, never too high, and a guardian that uses it errs on the careful side. The exact density
(`kde.py`) is the default; benchmarks/speed/kde.py measures recall and error. It runs on the host,
in NumPy, and not inside compiled code.
"""

from dataclasses import dataclass

import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.guardian.kde import Kde, to_points
from stepdown.guardian.pairs import Pairs

_BLOCK = 256  # queries at a time
_ROWS = 2**14  # points at a time that are compared with all centers


@dataclass(frozen=True)
class IndexConfig:
    """How finely the points are cut, and how many lists a query looks into."""

    lists: int = 1024
    probes: int = 64
    rounds: int = 8  # of k-means
    sample: int = 64  # points per list that k-means sees

    def __post_init__(self):
        if not 1 <= self.probes <= self.lists:
            raise ValueError(
                f"probes: expected 1 to {self.lists}, as many as lists, got {self.probes}."
            )
        if self.rounds < 1 or self.sample < 1:
            raise ValueError(
                "expected at least 1 round and 1 point per list, "
                f"got {self.rounds} and {self.sample}."
            )


@dataclass(frozen=True, eq=False)
class KdeIndex:
    """A kernel density over the neighbors that were found; arrays of the host, in bandwidths."""

    points: Float[np.ndarray, "points coordinates"]  # list by list
    norms: Float[np.ndarray, " points"]  # |x|^2/2
    starts: Int[np.ndarray, " bounds"]  # of the lists, and the end
    centers: Float[np.ndarray, "lists coordinates"]
    probes: int
    neighbors: int
    pairs: Pairs
    bandwidth: float
    log_constant: float

    def log_densities(
        self, states: Float[Array, "n steps 13"], levels: Int[Array, " n"], /
    ) -> Float[np.ndarray, " n"]:
        """Log p of many decisions, nats: at most the exact one."""
        return self.log_density_at(np.asarray(to_points(self.pairs, states, levels)))

    def log_density_at(
        self, queries: Float[np.ndarray, "n coordinates"]
    ) -> Float[np.ndarray, " n"]:
        """Log p at points that are decisions already."""
        kernels = self.log_kernels_at(queries)
        peak = kernels.max(1)
        sums = np.log(np.exp(kernels - peak[:, None]).sum(1))
        return peak + sums - np.log(len(self.points)) + self.log_constant

    def log_kernels_at(
        self, queries: Float[np.ndarray, "n coordinates"]
    ) -> Float[np.ndarray, "n neighbors"]:
        """-|x - x_i|^2 / 2h^2 of the neighbors found, in no order; -inf where there are too few."""
        scaled = np.asarray(queries, np.float32) / np.float32(self.bandwidth)
        blocks = [self._search(scaled[i : i + _BLOCK]) for i in range(0, len(scaled), _BLOCK)]
        return np.concatenate(blocks) - 0.5 * (scaled**2).sum(1, keepdims=True)

    def _search(self, queries: np.ndarray) -> np.ndarray:
        """The largest scores q.x - |x|^2/2, list by list, so that each list is one product."""
        near = _scores(queries, self.centers)
        probed = np.argpartition(near, -self.probes, axis=1)[:, -self.probes :]
        ends = np.diff(self.starts)[probed].cumsum(1)
        width = max(int(ends[:, -1].max()), self.neighbors)
        found = np.full((len(queries), width), -np.inf, np.float32)
        order = np.argsort(probed, axis=None, kind="stable")
        lists, first = np.unique(probed.flat[order], return_index=True)
        for each, visits in zip(lists, np.split(order, first[1:]), strict=True):
            here = slice(self.starts[each], self.starts[each + 1])
            rows, slots = np.divmod(visits, self.probes)
            scores = queries[rows] @ self.points[here].T - self.norms[here]
            for row, end, score in zip(rows, ends[rows, slots], scores, strict=True):
                found[row, end - len(score) : end] = score
        return np.partition(found, -self.neighbors, axis=1)[:, -self.neighbors :]


def fit_index(kde: Kde, config: IndexConfig, *, key: PRNGKeyArray) -> KdeIndex:
    """Cut the points of a density into lists; the key draws the points that k-means starts from."""
    count = len(kde.points)
    if kde.neighbors is None:
        raise ValueError("expected a density over its nearest neighbors, got one over all points.")
    if count < config.lists:
        raise ValueError(
            f"expected at least {config.lists} points, one per list, got {count}. "
            "Ask for fewer lists, or use the exact density."
        )
    points = np.asarray(kde.points / kde.bandwidth)
    drawn = np.asarray(jr.permutation(key, count))[: config.sample * config.lists]
    centers = _k_means(points[drawn], config)
    nearest = _nearest(points, centers)
    order = np.argsort(nearest, kind="stable")
    ordered = np.ascontiguousarray(points[order])
    return KdeIndex(
        points=ordered,
        norms=0.5 * (ordered**2).sum(1),
        starts=np.searchsorted(nearest[order], np.arange(config.lists + 1)),
        centers=centers,
        probes=config.probes,
        neighbors=kde.neighbors,
        pairs=kde.pairs,
        bandwidth=float(kde.bandwidth),
        log_constant=float(kde.log_constant),
    )


def _k_means(points: np.ndarray, config: IndexConfig) -> np.ndarray:
    """Centers of the lists; one that loses all its points stays where it is."""
    centers = points[: config.lists].copy()
    for _ in range(config.rounds):
        nearest = _nearest(points, centers)
        order = np.argsort(nearest, kind="stable")
        kept, first, sizes = np.unique(nearest[order], return_index=True, return_counts=True)
        centers[kept] = np.add.reduceat(points[order], first) / sizes[:, None]
    return centers


def _nearest(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    blocks = range(0, len(points), _ROWS)
    return np.concatenate([_scores(points[i : i + _ROWS], centers).argmax(1) for i in blocks])


def _scores(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Larger is nearer: x.c - |c|^2/2."""
    return points @ centers.T - 0.5 * (centers**2).sum(1)
