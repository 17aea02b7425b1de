"""Why the app says nothing: one table of stable codes, each with a sentence and a remedy.

R01 to R09 refuse the whole state, R10 and R11 one candidate level, R12 one chart, R13 and R14 the
computation. H1 to H5 are the hard gates: what may never be suggested, whatever a model thinks.
A code never changes its meaning.
"""

from dataclasses import dataclass
from typing import Literal

Scope = Literal["state", "candidate", "chart", "service"]


@dataclass(frozen=True)
class Code:
    """One line of the table."""

    scope: Scope
    sentence: str  # what is the matter
    remedy: str  # what to do about it


CODES: dict[str, Code] = {
    "R01": Code(
        "state",
        "The newest sample is more than 15 min old.",
        "Wait for new samples, or choose an earlier moment of the recording.",
    ),
    "R02": Code(
        "state",
        "More than 20 % of the last hour is missing in MAP, HR or pulsatility.",
        "Check the sensors; a forecast needs at least five of six samples.",
    ),
    "R03": Code(
        "state",
        "A signal stands still for 30 min or longer.",
        "Check the sensor and the line; a stuck value is no measurement.",
    ),
    "R04": Code(
        "state",
        "A value lies outside the range in which it can be a measurement.",
        "Look at the data quality screen; leave the value empty if the device had none.",
    ),
    "R05": Code(
        "state",
        "The values do not fit their declared unit, or no unit is declared.",
        "Declare the unit that the device really writes.",
    ),
    "R06": Code(
        "state",
        "The clock jumped, or samples come from the future.",
        "Check the time and the zone of the recording.",
    ),
    "R07": Code(
        "state",
        "The pump profile is missing or unknown, or the P-level is not one of its levels.",
        "Choose the pump type and enter the P-level that is in force.",
    ),
    "R08": Code(
        "state",
        "Suction or a wrong position of the pump is reported.",
        "Resolve it at the console first; it comes before any change of support.",
    ),
    "R09": Code(
        "state",
        "This patient's state is unlike the training data.",
        "Decide without the model: it has not seen patients like this one.",
    ),
    "R10": Code(
        "candidate",
        "This P-level is unlike the training data for such states. No forecast is shown.",
        "Look at another level, or decide without the model.",
    ),
    "R11": Code(
        "candidate",
        "The members of the model disagree about this P-level. No forecast is shown.",
        "Look at another level, or decide without the model.",
    ),
    "R12": Code(
        "chart",
        "LV metrics are not available below P-4.",
        "Judge by MAP, HR, pulsatility and flow, or by echo.",
    ),
    "R13": Code(
        "service",
        "A model file failed its integrity check.",
        "Restore the run folder or make it again; nothing is forecast until then.",
    ),
    "R14": Code(
        "service",
        "The computation took too long and was given up.",
        "Try again; if it happens often, use a smaller model or a faster machine.",
    ),
}
STATE_CODES = tuple(name for name, code in CODES.items() if code.scope == "state")

GATES: dict[str, str] = {
    "H1": "Outside P-2 to the highest level of this pump.",
    "H2": "More than two levels away from the level in force.",
    "H3": "Lower than the level in force, while MAP, HR or pulsatility was outside the limits in "
    "the last hour.",
    "H4": "A change, while the state is refused.",
    "H5": "A change, while a sample of the last hour is missing.",
}
LV_END = "Below P-4 the console shows no LV metrics: LVEDP ends there."


def refusal(code: str, detail: str = "", about: str | None = None) -> dict[str, str | None]:
    """One refusal as the screen shows it; `about` names the signal or chart it concerns."""
    known = CODES[code]
    return {
        "code": code,
        "scope": known.scope,
        "sentence": detail or known.sentence,
        "remedy": known.remedy,
        "about": about,
    }
