"""Paths about recorded patients: the list, trends, data quality, and what-if at a moment."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Response
from fastapi.responses import JSONResponse

from stepdown.app import wire
from stepdown.app.recordings import Stay, patient_row, quality, request_at, to_minute, trends
from stepdown.app.service import Service
from stepdown.app.waiting import Line
from stepdown.app.web import PROBLEMS, answer_whatif, find_stay
from stepdown.signals import HORIZON

Patient = Annotated[str, Path(pattern=wire.PATIENT)]
At = Annotated[
    str | None,
    Query(max_length=40, description="ISO time on the recording's clock, or minute of support"),
]


def patients_router(service: Service, line: Line) -> APIRouter:
    """The paths under /v1/patients."""
    router = APIRouter(prefix="/v1/patients", tags=["patients"], responses=PROBLEMS)

    @router.get("")
    def patients() -> JSONResponse:
        """Test patients, those who need a look first; `review` is null until looked at."""
        return JSONResponse({"patients": service.patients(), "phase": service.phase})

    @router.get("/{patient}")
    def patient(patient: Patient, at: At = None) -> JSONResponse:
        """One patient at a moment."""
        stay = find_stay(service, patient)
        row = patient_row(stay, moment(at, stay))
        return JSONResponse(row | {"review": service.reviews.get(patient)})

    @router.get("/{patient}/trends")
    def trend(
        patient: Patient, at: At = None, hours: Annotated[float, Query(gt=0, le=120)] = 12.0
    ) -> JSONResponse:
        """Samples up to a moment; null is a gap."""
        stay = find_stay(service, patient)
        return JSONResponse(trends(stay, moment(at, stay), hours))

    @router.get("/{patient}/quality")
    def data_quality(patient: Patient, at: At = None) -> JSONResponse:
        """By channel: unit, ranges, what is missing, out of range or standing still."""
        stay = find_stay(service, patient)
        return JSONResponse(quality(stay, moment(at, stay)))

    _whatif(router, service, line)
    return router


def _whatif(router: APIRouter, service: Service, line: Line) -> None:
    @router.get("/{patient}/whatif", responses={200: {"model": wire.Answer}})
    async def whatif(
        patient: Patient,
        at: At = None,
        h: Annotated[int, Query(ge=1, le=HORIZON)] = HORIZON,
        limits: Literal["paper", "map65", "site"] | None = None,
    ) -> Response:
        """What would happen under each level, at a moment of the recording."""
        stay = find_stay(service, patient)
        minute = moment(at, stay)
        request = request_at(stay, minute, h, limits)
        source: dict[str, Any] = {"patient": patient, "minute": minute}
        return await answer_whatif(service, line, request, source)


def moment(at: str | None, stay: Stay) -> float:
    """The chosen minute, or 422."""
    try:
        return to_minute(at, stay)
    except (ValueError, OverflowError):
        raise HTTPException(
            422, "at: expected a moment of the recording, as ISO time with a zone or in minutes."
        ) from None
