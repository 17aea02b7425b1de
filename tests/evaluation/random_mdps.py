"""Small decision problems in which every quantity of docs/theory.md is exact.

A problem has a true and a model's table of next conditions, a reward for the choice and one for
arriving, and a penalty u that may be anything: the theorems ask for no more.
"""

import itertools
from typing import NamedTuple

import numpy as np


class Problem(NamedTuple):
    """Conditions × choices; tables end with the next condition."""

    truth: np.ndarray
    model: np.ndarray
    choosing: np.ndarray  # reward of the choice: the paper's r(s, a)
    arriving: np.ndarray  # reward of the next condition: the paper's environment, and ours
    u: np.ndarray
    start: np.ndarray
    discount: float

    @property
    def metric(self) -> np.ndarray:
        """The paper's: the supremum over functions within ±1, twice the total variation."""
        return np.abs(self.truth - self.model).sum(-1)

    @property
    def reach(self) -> float:
        """c: half the range of a discounted sum of rewards."""
        spread = np.ptp(self.choosing) + np.ptp(self.arriving)
        return float(0.5 * spread / (1.0 - self.discount))

    def values(self, table: np.ndarray, policy: np.ndarray, charge: float = 0.0) -> np.ndarray:
        """Discounted value of each condition under a policy (conditions × choices)."""
        reward = self.choosing + table @ self.arriving - charge * self.u
        moves = np.einsum("sa,saj->sj", policy, table)
        inside = np.eye(len(moves)) - self.discount * moves
        return np.linalg.solve(inside, (policy * reward).sum(1))

    def value(self, table: np.ndarray, policy: np.ndarray, charge: float = 0.0) -> float:
        """Of the start."""
        return float(self.start @ self.values(table, policy, charge))

    def occupancy(self, policy: np.ndarray) -> np.ndarray:
        """Discounted visits in the model; they add up to 1 / (1 − discount)."""
        moves = np.einsum("sa,saj->sj", policy, self.model)
        visits = np.linalg.solve(np.eye(len(moves)) - self.discount * moves.T, self.start)
        return visits[:, None] * policy

    def gap(self, policy: np.ndarray) -> np.ndarray:
        """G at every decision: model minus truth of what it leads to, by the true value."""
        worth = self.arriving + self.discount * self.values(self.truth, policy)
        return (self.model - self.truth) @ worth

    def short_values(self, table: np.ndarray, policy: np.ndarray, hours: int) -> np.ndarray:
        """Values with 0 to `hours` hours to go, not discounted."""
        found = [np.zeros(len(self.start))]
        for _ in range(hours):
            reward = self.choosing + table @ (self.arriving + found[-1])
            found.append((policy * reward).sum(1))
        return np.array(found)

    def short_visits(self, policy: np.ndarray, hours: int) -> np.ndarray:
        """Chance of each decision in the model, hour by hour."""
        now, found = self.start, []
        for _ in range(hours):
            found.append(now[:, None] * policy)
            now = np.einsum("sa,saj->j", found[-1], self.model)
        return np.array(found)

    def best(self, charge: float) -> np.ndarray:
        """The optimum of the penalized model, by policy iteration."""
        count, choices = self.u.shape
        policy = np.eye(choices)[np.zeros(count, int)]
        while True:
            later = self.arriving + self.discount * self.values(self.model, policy, charge)
            worth = self.choosing - charge * self.u + self.model @ later
            better = np.where((worth * policy).sum(1) >= worth.max(1) - 1e-12, -1, worth.argmax(1))
            if (better < 0).all():
                return policy
            policy = np.where(better[:, None] < 0, policy, np.eye(choices)[better])


def draw_problem(
    seed: int, *, on_arrival: bool = True, conditions: int = 4, choices: int = 2
) -> Problem:
    """A random problem; the model is wrong where u is large, more or less, and elsewhere."""
    draw = np.random.default_rng(seed)
    shape = (conditions, choices, conditions)
    truth = draw.dirichlet(np.full(conditions, 0.5), shape[:2])
    wrong = draw.dirichlet(np.full(conditions, 0.5), shape[:2])
    u = draw.normal(size=shape[:2]) * draw.choice([0.3, 3.0])
    share = np.clip(0.3 * np.maximum(u, 0.0) + draw.uniform(0, 0.3, shape[:2]), 0.0, 1.0)
    return Problem(
        truth=truth,
        model=share[..., None] * wrong + (1 - share[..., None]) * truth,
        choosing=draw.uniform(-1, 1, shape[:2]),
        arriving=draw.uniform(-2, 1, conditions) * on_arrival,
        u=u,
        start=draw.dirichlet(np.ones(conditions)),
        discount=float(draw.choice([0.3, 0.9, 0.99])),
    )


def draw_policy(problem: Problem, seed: int) -> np.ndarray:
    """Any policy, some nearly certain."""
    draw = np.random.default_rng(seed)
    return draw.dirichlet(np.full(problem.u.shape[1], draw.choice([0.1, 1.0])), len(problem.u))


def all_policies(problem: Problem) -> list[np.ndarray]:
    """Every certain policy."""
    count, choices = problem.u.shape
    return [np.eye(choices)[list(one)] for one in itertools.product(range(choices), repeat=count)]


def leak(discount: float, *, u: float = 0.0, on_arrival: bool = False) -> Problem:
    """Well or ill, and ill stays ill. Two treatments; the model thinks that the worse is better.

    Truth: the first loses twice `small` of the well in an hour, the second nobody. The model: both
    lose `small`, the first a trifle less. Rewards are +1 when well and −1 when ill.
    """
    small, trifle = 1e-5, 1e-9

    def table(first: float, second: float) -> np.ndarray:
        ill = [[0.0, 1.0], [0.0, 1.0]]
        return np.array([[[1 - first, first], [1 - second, second]], ill])

    worth = np.array([1.0, -1.0])
    return Problem(
        truth=table(2 * small, 0.0),
        model=table(small - trifle, small),
        choosing=np.zeros((2, 2)) if on_arrival else np.repeat(worth[:, None], 2, axis=1),
        arriving=worth if on_arrival else np.zeros(2),
        u=np.full((2, 2), u),
        start=np.array([1.0, 0.0]),
        discount=discount,
    )
