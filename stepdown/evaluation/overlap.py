"""How far records follow a policy: who carries the weight, what was seen, how heavy the tail is.

Three numbers decide whether an estimate says anything. Effective patients: so many equally weighted
patients would vary as much. Share seen: importance weights have mean 1 if the records hold all
that the policy does, so a smaller mean is a share that nobody ever recorded, of which no weighting
can tell. Unsupported: the share of the policy's choices that teams practically never make there.
The limits were set on pilot cohorts with their truth in sight; those cohorts count in no table.
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Float

from stepdown.evaluation.weighted import Paths, PerHour, patient_sums

Word = Literal["informative", "uninformative"]


@dataclass(frozen=True)
class Limits:
    """Less than this, and an estimate is called uninformative."""

    patients: float = 10.0  # effective, harmonic mean over the hours
    seen: float = 0.4  # share of the policy's hours, mean over the hours
    unsupported: float = 0.2  # no more than this share of its choices

    def __post_init__(self):
        if self.patients < 0 or not (0 <= self.seen <= 1 and 0 <= self.unsupported <= 1):
            raise ValueError(
                "expected a number of patients from 0 and shares of 0 to 1, got "
                f"{self.patients:g}, {self.seen:g} and {self.unsupported:g}."
            )


LIMITS = Limits()


class Overlap(eqx.Module):
    """How far the records follow the policy; arrays by hour of the episode."""

    effective: Float[np.ndarray, " hours"]  # patients that carry the weight (Kish)
    seen: Float[np.ndarray, " hours"]  # mean weight: 1 if all that the policy does was recorded
    largest: Float[np.ndarray, " hours"]  # share of the weight that one patient carries
    tail: Float[np.ndarray, " hours"]  # weight of the largest hundredth of the episodes, as a share
    recorded: Float[np.ndarray, " hours"]  # share of the episodes that are recorded that far
    unsupported: float  # share of the policy's choices that teams practically never make

    def patients(self) -> float:
        """Effective patients over the whole episode: the harmonic mean of the hours."""
        with np.errstate(divide="ignore"):
            return float(1.0 / np.mean(1.0 / self.effective))

    def share_seen(self) -> float:
        """Share of the policy's hours that was seen, without the patient who carries most.

        Nobody's single stay is evidence, and a mean weight above 1 makes up for nothing.
        """
        return float(np.mean(np.minimum(self.seen * (1.0 - self.largest), 1.0)))


def measure_overlap(paths: Paths, weight: PerHour, unsupported: float) -> Overlap:
    """How many patients carry the weight, how much of the policy was seen, how heavy the tail."""
    sums = patient_sums(paths, weight)
    total = np.maximum(sums.sum(0), 1e-300)
    top = np.sort(weight, axis=0)[-max(len(weight) // 100, 1) :]
    return Overlap(
        effective=sums.sum(0) ** 2 / np.maximum((sums**2).sum(0), 1e-300),
        seen=weight.mean(0),
        largest=sums.max(0) / total,
        tail=top.sum(0) / total,
        recorded=paths.known.mean(0),
        unsupported=unsupported,
    )


def verdict(overlap: Overlap, limits: Limits = LIMITS) -> Word:
    """Whether the records say anything about the policy."""
    enough = overlap.patients() >= limits.patients and overlap.share_seen() >= limits.seen
    usual = overlap.unsupported <= limits.unsupported
    return "informative" if enough and usual else "uninformative"
