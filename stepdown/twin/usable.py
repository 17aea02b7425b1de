"""Which hours a twin can be fitted to: enough of them, of one length, known in every signal."""

import numpy as np

from stepdown.handover import Transitions, require_role
from stepdown.problem.scaling import Scaler, fit_scaler
from stepdown.signals import LEVEL, NAMES


def check_hours(train: Transitions, select: Transitions) -> Scaler:
    """The scale of the train patients, if every row of both can be used with it."""
    require_role(train, "train")
    require_role(select, "select")
    for hours in (train, select):
        if not hours.level.size:
            raise ValueError(f"expected hours of {hours.role} patients, got none. Bring more.")
    widths = train.state.shape[-2], select.state.shape[-2]
    if widths[0] != widths[1]:
        raise ValueError(
            f"expected states of {widths[0]} samples, as the train patients have, got "
            f"{widths[1]} from the select patients. Cut both in the same way."
        )
    scaler = fit_scaler(train)
    for hours in (train, select):
        for part in (hours.state, hours.next_state):
            check_known(np.asarray(part), scaler.present, f"{hours.role} patients")
    return scaler


def check_known(states: np.ndarray, present: tuple[int, ...], whose: str) -> None:
    """Refuse states with a gap in a signal that is needed, or without it."""
    for column in (*present, LEVEL):
        name = (*NAMES, "level")[column]
        if np.isnan(states[..., column]).all():
            raise ValueError(
                f"expected {name} in the hours of {whose}, got none. "
                "A twin needs every signal that it is fitted on; fit it without this one."
            )
        if not np.isfinite(states[..., column]).all():
            raise ValueError(
                f"expected finite {name} in every sample of {whose}, got NaN or infinity. "
                "Drop these hours or carry the last value forward."
            )
