"""What may be sent to the server and what it sends: the shapes behind the OpenAPI page.

Bodies are strict: a number is a number, unknown fields are refused, lists have a longest length.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stepdown.app.limits import PresetName
from stepdown.app.request import LONGEST
from stepdown.signals import HIGHEST, HORIZON, KNOWN, LEVELS, LOWEST

Value = Annotated[float, Field(allow_inf_nan=False)]
PATIENT = r"^[A-Za-z0-9._-]{1,64}$"
WHO = r"^[A-Za-z0-9._ -]{0,32}$"
REASON = 500  # characters that are kept

_STRICT = ConfigDict(extra="forbid", strict=True)


class ChannelBody(BaseModel):
    """One signal: a unit (UCUM), and samples of which the last is the newest; null is missing."""

    model_config = _STRICT
    unit: Annotated[str, Field(max_length=16)] | None = None
    values: Annotated[list[Value | None], Field(min_length=1, max_length=LONGEST)]


class WhatIfBody(BaseModel):
    """One moment of one patient."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "example": {
                "pump_profile": "cp-smartassist",
                "p_now": 6,
                "t_end": "2000-01-02T14:20:00+00:00",
                "grid_min": 10,
                "channels": {"MAP": {"unit": "mm[Hg]", "values": [71, 72, 72, 73, 71.5, 72]}},
                "candidates": [2, 3, 4, 5, 6, 7, 8, 9],
                "horizon_h": 6,
            }
        },
    )
    pump_profile: Annotated[str, Field(max_length=32)] | None = None
    p_now: Annotated[int, Field(ge=0, le=HIGHEST)] | None = None
    t_end: Annotated[str, Field(max_length=40)]
    now: Annotated[str, Field(max_length=40)] | None = None
    grid_min: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)] = 10.0
    channels: Annotated[
        dict[Annotated[str, Field(max_length=16)], ChannelBody], Field(max_length=len(KNOWN))
    ]
    candidates: Annotated[
        list[Annotated[int, Field(ge=LOWEST, le=HIGHEST)]],
        Field(min_length=1, max_length=len(LEVELS)),
    ] = list(LEVELS)
    horizon_h: Annotated[int, Field(ge=1, le=HORIZON)] = HORIZON
    p_levels: (
        Annotated[list[Annotated[int, Field(ge=0, le=HIGHEST)] | None], Field(max_length=LONGEST)]
        | None
    ) = None
    alarms: Annotated[list[Literal["suction", "position"]], Field(max_length=2)] = []
    limits: PresetName | None = None


class ResponseBody(BaseModel):
    """What a clinician says to an answer; Disagree needs a reason."""

    model_config = _STRICT
    audit_id: Annotated[int, Field(ge=1, le=2**53)]
    answer: Literal["agree", "disagree", "not_now"]
    reason: Annotated[str, Field(max_length=20_000)] = ""
    by: Annotated[str, Field(pattern=WHO)] = ""


class ChoiceBody(BaseModel):
    """Study mode: what a clinician would do, before the model is shown."""

    model_config = _STRICT
    patient: Annotated[str, Field(pattern=PATIENT)]
    at: Annotated[str, Field(max_length=40)] | None = None
    p: Annotated[int, Field(ge=LOWEST, le=HIGHEST)]
    reason: Annotated[str, Field(max_length=20_000)] = ""
    by: Annotated[str, Field(pattern=WHO)] = ""


class LimitsBody(BaseModel):
    """Another preset, or stricter limits of the site's own; who changes them is kept."""

    model_config = _STRICT
    preset: PresetName
    by: Annotated[str, Field(pattern=r"^[A-Za-z0-9._ -]{1,32}$")]
    site: dict[Annotated[str, Field(max_length=32)], Value | None] | None = None


class LoginBody(BaseModel):
    """The token that was shown when the server was first started for others."""

    model_config = _STRICT
    token: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,256}$")]


class Refusal(BaseModel):
    """Why something is not shown."""

    code: str
    scope: Literal["state", "candidate", "chart", "service"]
    sentence: str
    remedy: str
    about: str | None


class Gate(BaseModel):
    """A hard gate that forbids a level."""

    code: str
    sentence: str


class Support(BaseModel):
    """Recorded hours behind a candidate."""

    n: int
    pvalue: float
    needed: int


class Candidate(BaseModel):
    """One level; all numbers are null where it is refused."""

    p: int
    label: str
    status: Literal["ok", "refused"]
    refusals: list[Refusal]
    gates: list[Gate]
    acceptable: bool
    verdict: str  # why, in a sentence
    quantiles: dict[str, dict[str, list[float]]] | None
    carry_forward: dict[str, float] | None
    risk: dict[str, Any] | None
    support: Support | None
    evidence: list[dict[str, Any]]
    uncertainty: dict[str, float | None] | None
    notes: list[str]


class Answer(BaseModel):
    """What would happen under each level, or why that is not said."""

    source: dict[str, Any] | None  # patient and minute of a recording
    at: str
    t_end: str
    status: Literal["ok", "refused"]
    refusals: list[Refusal]
    now: dict[str, dict[str, Any]]
    p_now: int | None
    pump: dict[str, Any]
    limits: dict[str, float | None] | None
    horizon_h: int
    grid_min: float
    quality: dict[str, Any] | None
    candidates: list[Candidate]
    acceptable: list[int]
    suggested: int | None
    reasons: Annotated[list[str], Field(min_length=1)]
    uncertainty: dict[str, float | None] | None
    policy: dict[str, Any] | None
    skill: dict[str, Any] | None
    unknowns: list[str]
    model: dict[str, Any] | None
    audit_id: int


class Problem(BaseModel):
    """What went wrong with a request, without repeating what was sent."""

    code: str
    sentence: str
    where: list[str] = []
