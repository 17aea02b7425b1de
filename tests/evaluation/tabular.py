"""A patient with two conditions and two treatments, small enough to be solved by enumeration.

Every possible episode is listed once with its probability. As a "patient" counted so often as it is
likely, the list is an infinite cohort, in which a consistent estimator is exact.
"""

import itertools

import numpy as np

from stepdown.evaluation.importance import Paths

HOURS = 3
START = np.array([0.7, 0.3])
BEHAVIOR = np.array([[0.8, 0.2], [0.35, 0.65]])  # condition, treatment
POLICY = np.array([[0.3, 0.7], [0.9, 0.1]])
NEXT = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.25, 0.75], [0.6, 0.4]]])  # ..., next condition
REWARD = np.array([[1.0, -0.5], [-2.0, 0.3]])
LEAVES = np.array([0.4, 0.1])  # chance that the record ends on reaching a condition


def exact_values() -> np.ndarray:
    """The policy's value of each condition with 0 to HOURS hours to go, by dynamic programming."""
    values = [np.zeros(2)]
    for _ in range(HOURS):
        values.append((POLICY * (REWARD + NEXT @ values[-1])).sum(1))
    return np.array(values)


def exact_decisions() -> np.ndarray:
    """The same for condition and treatment, with 1 to HOURS hours to go."""
    return np.array([REWARD + NEXT @ value for value in exact_values()[:-1]])


class Episodes:
    """All episodes: conditions (n, HOURS + 1), treatments (n, HOURS), lengths and chances."""

    def __init__(self, ragged: bool):
        self.ragged = ragged
        conditions, treatments, lengths, chances = [], [], [], []
        paths = itertools.product((0, 1), repeat=HOURS + 1)
        for s, a in itertools.product(paths, itertools.product((0, 1), repeat=HOURS)):
            chance = START[s[0]]
            for t in range(HOURS):
                chance *= BEHAVIOR[s[t], a[t]] * NEXT[s[t], a[t], s[t + 1]]
            for length in range(1, HOURS + 1) if ragged else [HOURS]:
                ends = np.prod([1 - LEAVES[s[t]] for t in range(1, length)]) if ragged else 1.0
                if length < HOURS:
                    ends *= LEAVES[s[length]]
                conditions.append(s)
                treatments.append(a)
                lengths.append(length)
                chances.append(chance * ends)
        self.s, self.a = np.array(conditions), np.array(treatments)
        self.length, self.chance = np.array(lengths), np.array(chances)

    def paths(self) -> Paths:
        """Rows are (episode, hour) in order; every episode is a patient."""
        count = len(self.length)
        hour = np.arange(HOURS)[None]
        known = hour < self.length[:, None]
        row = np.arange(count)[:, None] * HOURS + np.minimum(hour, self.length[:, None] - 1)
        return Paths(row, known, np.zeros_like(known), np.arange(count), count)

    def ratio(self, behavior=BEHAVIOR) -> np.ndarray:
        """Policy over behavior for every row."""
        s = self.s[:, :-1]
        return (POLICY[s, self.a] / behavior[s, self.a]).ravel()

    def goes_on(self) -> np.ndarray:
        """Chance that the record goes on after every row."""
        return 1 - self.ragged * LEAVES[self.s[:, 1:]].ravel()

    def rewards(self) -> np.ndarray:
        return REWARD[self.s[:, :-1], self.a]

    def errors(self, decision: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Reward + value of the next condition − value of the decision, by a model's tables."""
        left = np.arange(HOURS)[::-1][None]
        s, later = self.s[:, :-1], self.s[:, 1:]
        return self.rewards() + value[left, later] - decision[left, s, self.a]
