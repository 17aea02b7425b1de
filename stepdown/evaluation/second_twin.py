"""A second twin, built differently and fitted to other patients: a judge that users can have.

Policies are learned and chosen with models of the train patients. Whatever those models got wrong
by chance, a second model of the select patients gets wrong differently. It must do with few
patients, so it is the ridge regression of twin/ridge.py.

It learns from the same kind of records as the first: what all records lack or confound, it lacks
and confounds too.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.handover import Transitions, require_role
from stepdown.patients.pump import load_profile
from stepdown.problem.persistence import CarryForward
from stepdown.problem.scaling import Scaler
from stepdown.twin.baselines import make_residuals
from stepdown.twin.coordinates import fit_coordinates
from stepdown.twin.fit import Twin, check_history, check_known, twin_rows
from stepdown.twin.ridge import RidgeConfig, fit_ridge

SECOND = RidgeConfig(members=1)


def fit_second_twin(
    select: Transitions,
    scaler: Scaler,
    config: RidgeConfig = SECOND,
    profile: str = "cp",
    *,
    key: PRNGKeyArray,
) -> tuple[Twin, dict[str, np.ndarray]]:
    """Fit to select patients; the scale names the signals and lends their units, nothing more.

    `info` is that of `fit_ridge`.
    """
    require_role(select, "select")
    check_history(config.history, select)
    for hours in (select.state, select.next_state):
        check_known(np.asarray(hours), scaler, "select patients")
    pump, steps = load_profile(profile), select.next_state.shape[1]
    coordinates = fit_coordinates(select, scaler.present, pump)
    nothing = make_residuals(steps, len(scaler.present))
    carry = CarryForward(pump)
    carried = Twin(scaler, coordinates, nothing, carry, "carried", steps, config.history)
    rows = twin_rows(carried, select)
    network, info = fit_ridge(rows, np.asarray(select.patient), config, key=key)
    return replace(carried, network=network), info
