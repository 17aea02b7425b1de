"""A policy for patients who lack some of the signals that it was fitted on.

What a patient lacks is filled before the policy reads the hour (problem/filling.py).
"""

import equinox as eqx
from jaxtyping import Array, Float

from stepdown.policies.networks import LearnedPolicy


class FilledPolicy(eqx.Module):
    """Decides with whatever signals there are."""

    policy: LearnedPolicy

    def __call__(self, state: Float[Array, "steps columns"], /) -> Float[Array, " 8"]:
        """Weigh the levels P2..P9."""
        return self.policy(self.policy.scaler.fill(state))
