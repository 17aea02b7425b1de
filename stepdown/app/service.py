"""What the server does, without HTTP: load a run, answer and remember, replay, review.

Computations go one after the other through a short queue. An answer becomes an entry of the audit
before anybody sees it, and the entry holds all that is needed to compute it again.
"""

import asyncio
import datetime
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stepdown.app.audit import Audit, Entry
from stepdown.app.engine import DRAWS, Engine, warm_up
from stepdown.app.ledger import Book, keep_book, measure_coverage, past_hours, skill_so_far
from stepdown.app.limits import (
    PRESETS,
    GateConfig,
    Limits,
    effective_limits,
    limits_from_dict,
    most_restrictive,
    read_site,
)
from stepdown.app.own_patients import (
    PROBLEMS,
    Own,
    available,
    changed,
    follow,
    in_columns,
    read_own,
    serving,
)
from stepdown.app.plans import compare_plans, refuse_plans
from stepdown.app.plans import warm_up as warm_up_plans
from stepdown.app.recordings import (
    Loaded,
    Stay,
    load_recordings,
    load_run,
    patient_row,
    quality,
    request_at,
)
from stepdown.app.request import Request, request_from_dict
from stepdown.app.reviews import verdict
from stepdown.app.steady import words_kept
from stepdown.app.whatif import refuse_service, to_bytes, what_if
from stepdown.artifacts import ArtifactError
from stepdown.signals import KNOWN, NAMES, REQUIRED

BANNER = "Research tool, not for patient care"
LASTING = 60.0  # min for which a word may be kept
SAID = 100  # moments of a patient whose words are kept
LOG = logging.getLogger("stepdown.app")
Phase = Literal["warming", "ready", "refused"]


@dataclass(frozen=True)
class ServiceConfig:
    """What is served, and how."""

    run: Path  # folder of `stepdown run`
    folder: Path  # of the audit
    patients: Own | None = None  # shown instead of the run's test patients, and followed
    fewer: tuple[Path, ...] = ()  # runs whose models read fewer signals, for who has fewer
    site: Path | None = None  # JSON file with stricter `limits` and `gates` of a site
    draws: int = DRAWS  # simulated courses
    timeout: float = 10.0  # s until a computation is given up (R14)
    queue: int = 16  # computations that may wait; more are sent away


@dataclass(frozen=True)
class Computed:
    """An answer without its number in the audit, and the settings it was made under."""

    answer: dict[str, Any]
    context: dict[str, Any]


class Service:
    """A run being served."""

    def __init__(self, config: ServiceConfig):
        """Open the audit; models are loaded by `start`."""
        self.config = config
        self.own, self.gates = read_site(config.site)
        self.site = self.own  # stricter still, if somebody said so
        self.audit = Audit(config.folder)
        self.worker = ThreadPoolExecutor(1, "whatif")
        self.background = ThreadPoolExecutor(1, "background")  # what nobody waits for
        self.phase: Phase = "warming"
        self.problem = ""  # why the phase is "refused", for who started the server
        self.loaded: Loaded | None = None
        self.runs: list[Loaded] = []  # `loaded`, and those that read fewer signals
        self.trouble = ""  # why patients of one's own are not as new as their files
        self.stays: dict[str, Stay] = {}
        self._reviews: dict[str, tuple[Limits, dict[str, Any]]] = {}  # and the limits they hold for
        self.preset, self.changed = "paper" if config.site is None else "site", None
        self._books: dict[str, Book] = {}
        self._calibration: dict[str, Any] = {}
        self._said: dict[str, dict[float, tuple[Limits, dict[str, str]]]] = {}  # by minute
        self._writing, self._calibrating = threading.Lock(), threading.Lock()
        self.planning = threading.Event()  # plans can be compared: compiled in the background
        self._stopped = threading.Event()
        self._following: threading.Thread | None = None
        if entry := self.audit.last("limits"):  # outlives a restart
            self._take_limits(entry)

    def start(self) -> None:
        """Load and warm up in the background."""
        self.worker.submit(self.load).add_done_callback(self._see)

    def load(self) -> None:
        """Load, verify, warm up; a damaged model leaves the recordings to look at (R13)."""
        try:
            self.loaded = load_run(self.config.run, self.config.draws)
            self.runs = [self.loaded]
            self.runs += [load_run(run, self.config.draws) for run in self.config.fewer]
            self.stays = self.loaded.stays if self.config.patients is None else self._read_own()
            for one in self.runs:
                warm_up(one.engine)
            for patient in list(self.stays)[:1]:  # compiles the ledger, too
                self._book(patient)
        except (ArtifactError, ValueError, OSError) as error:
            self._refuse(str(error))
            return
        about = {"model": self.loaded.engine.model, "gates": asdict(self.gates)}
        self.audit.append("start", about, now_text())
        self.phase = "ready"
        self.worker.submit(self.review_all)
        self.background.submit(self._warm_plans)
        self.background.submit(self.calibration)
        if self.config.patients is not None:
            told = (self.config.patients, self.read_again, self._stopped)
            self._following = threading.Thread(target=follow, args=told, daemon=True)
            self._following.start()

    def _warm_plans(self) -> None:
        for one in self.runs:
            warm_up_plans(one.engine)
        self.planning.set()

    def _read_own(self) -> dict[str, Stay]:
        own, engine = self.config.patients, self.engine
        assert own is not None
        return read_own(own, self.config.run, engine.table, engine.twin.steps)

    def read_again(self) -> None:
        """Take over what has come to the files of one's own patients; keep the old if it cannot."""
        try:
            found = self._read_own()
        except PROBLEMS as error:
            LOG.warning("%s", error)
            self.trouble = "The newest rows could not be read; the log of the server says why."
            return
        self.trouble = ""
        for patient in changed(self.stays, found):
            self._books.pop(patient, None)
            self._reviews.pop(patient, None)
        self.stays = found
        self.worker.submit(self.review_all)

    def stop(self) -> None:
        """Finish what is being computed and close the audit."""
        self._stopped.set()
        if self._following is not None:
            self._following.join()  # it may be reading just now
        for one in (self.worker, self.background):
            one.shutdown(wait=True, cancel_futures=True)
        self.audit.close()

    def _see(self, loading: Future) -> None:
        """An error that nobody foresaw is a refusal, too, not an endless warm-up."""
        error = None if loading.cancelled() else loading.exception()
        if error is not None:
            self.problem = (
                f"expected models that can be loaded, got {type(error).__name__}. "
                "Make the run again with this version."
            )
            self.loaded, self.phase = None, "refused"

    def _refuse(self, problem: str) -> None:
        LOG.error("%s", problem)  # for who started the server; it may hold paths
        self.problem, self.loaded = problem, None
        try:
            _, self.stays = load_recordings(self.config.run)
        except (ArtifactError, ValueError, OSError):
            self.stays = {}
        self.phase = "refused"

    @property
    def ready(self) -> Loaded:
        """The models and recordings of a ready service."""
        if self.loaded is None:
            raise RuntimeError("expected a ready service, got one without models.")
        return self.loaded

    @property
    def engine(self) -> Engine:
        """The engine of a ready service."""
        return self.ready.engine

    @property
    def columns(self) -> tuple[str, ...]:
        """Signals that can be asked with: those of the recordings, any until they are read."""
        return next((stay.columns for stay in self.stays.values()), tuple(KNOWN))

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def compute(
        self,
        request: Request,
        source: dict[str, Any] | None,
        code: str | None = None,
        plans: list[list[int]] | None = None,
    ) -> Computed:
        """An answer without its number in the audit; `source` is a moment of a recording.

        With `plans` it compares these (plans.py). `code` says why nothing is forecast (R14 took too
        long). With the settings of this moment, which go into the audit, the same answer can be
        computed again.
        """
        context = {
            "preset": self.preset,
            "site": asdict(self.site),
            "gates": asdict(self.gates),
            "service": code or ("R13" if self.loaded is None else None),
            "before": None if plans else self._words_before(source),
        } | ({"plans": plans} if plans else {})
        answer = self._answer(request, source, context)
        if source and answer["status"] == "ok" and not request.limits and not plans:
            said = self._said.setdefault(source["patient"], {})
            said[source["minute"]] = self.limits, words_kept(answer)
            for old in sorted(said)[:-SAID]:
                del said[old]
        return Computed(answer, context)

    def _words_before(self, source: dict[str, Any] | None) -> dict[str, str] | None:
        """The words of the last answer about this patient: of an earlier moment within an hour."""
        if source is None:
            return None
        said, minute = self._said.get(source["patient"], {}), source["minute"]
        near = [x for x in said if minute - LASTING <= x < minute]
        limits, words = said[max(near)] if near else (None, None)
        return words if limits == self.limits else None

    def _answer(
        self, request: Request, source: dict[str, Any] | None, context: dict[str, Any]
    ) -> dict[str, Any]:
        moment = source and {name: source[name] for name in ("patient", "minute")}  # one order
        about = {"source": moment, "at": request.now or request.t_end, "t_end": request.t_end}
        plans = context.get("plans")
        if context["service"] is not None and plans:
            return about | refuse_plans(request, context["service"])
        if context["service"] is not None:
            return about | refuse_service(request, context["service"])
        engine = self._engine_for(request, source, context)
        engine = replace(
            engine,
            site=limits_from_dict(context["site"]),
            gates=GateConfig(**context["gates"]),
        )
        if plans:
            return about | compare_plans(engine, request, plans, context["preset"])
        skill = source and skill_so_far(self._book(source["patient"]), source["minute"])
        before = None if request.limits else context.get("before")
        return about | what_if(engine, request, context["preset"], skill, before)

    def _engine_for(
        self, request: Request, source: dict[str, Any] | None, context: dict[str, Any]
    ) -> Engine:
        """The models that serve this patient, or those of back then."""
        known = {one.engine.model["sha256"]: one for one in self.runs or [self.ready]}
        if context.get("model") in known:
            found = known[context["model"]]
        elif source is not None:
            found = serving(list(known.values()), available(self.stays[source["patient"]]))
        else:
            channels = request.channels.items()
            names = {x for x, one in channels if any(v is not None for v in one.values)}
            found = serving(list(known.values()), names)
        return replace(found.engine, first=found.engine is self.ready.engine)

    def remember(
        self, request: Request, source: dict[str, Any] | None, computed: Computed
    ) -> bytes:
        """Put an answer into the audit and return it as bytes."""
        answer = computed.answer
        body = computed.context | {
            "request": asdict(request),
            "source": source,
            "answer_sha256": hashlib.sha256(to_bytes(answer)).hexdigest(),
            "status": answer["status"],
            "codes": [one["code"] for one in answer["refusals"]],
            "acceptable": answer.get("acceptable"),
            "suggested": answer.get("suggested"),
            "model": (answer["model"] or {}).get("sha256"),
        }
        kind = "plan" if "plans" in computed.context else "whatif"
        entry = self.audit.append(kind, body, now_text())
        return to_bytes(answer | {"audit_id": entry.id})

    def keep_choice(
        self, told: dict[str, Any], request: Request, computed: Computed
    ) -> tuple[int, int]:
        """Keep a reviewer's choice beside the answer that was hidden from them: both numbers."""
        source = {"patient": told["patient"], "minute": told["minute"]}
        with self._writing:
            blind = not self.audit.shown(told["patient"], told["minute"], told["by"])
            own = replace(computed, context=computed.context | {"for": told["by"]})
            answer = json.loads(self.remember(request, source, own))
            agrees = verdict(answer, told["p"])
            body = told | {"answer_id": answer["audit_id"], "blind": blind, "agrees": agrees}
            return self.audit.append("choice", body, now_text()).id, answer["audit_id"]

    def replay(self, entry: Entry) -> tuple[bytes, bool]:
        """Compute an entry again; the bytes, and whether they are those of back then."""
        body = entry.content()
        request = request_from_dict(body["request"], self.columns)
        known = self.loaded.engine.model["sha256"] if self.loaded else None
        every = [known, *(one.engine.model["sha256"] for one in self.runs)]
        if body["service"] is None and body["model"] not in every:
            raise ValueError(
                "expected the model that the entry was computed with, got another one. "
                "Start the app with the run of back then."
            )
        answer = self._answer(request, body["source"], body)
        same = hashlib.sha256(to_bytes(answer)).hexdigest() == body["answer_sha256"]
        return to_bytes(answer | {"audit_id": entry.id}), same

    def respond(self, body: dict[str, Any]) -> tuple[int, bool]:
        """What a clinician said to an answer: the entry's number, and whether it is new.

        The same words to the same answer are one entry, however often they are sent.
        """
        with self._writing:
            earlier = self.audit.last("response", body["audit_id"])
            told = {name: body[name] for name in ("answer", "reason", "by")}
            if earlier and all(earlier.content()[name] == x for name, x in told.items()):
                return earlier.id, False
            replaced = {"replaces": earlier.id if earlier else None}
            entry = self.audit.append("response", body | replaced, now_text())
        return entry.id, True

    # ── limits ───────────────────────────────────────────────────────────────────────────────────

    @property
    def limits(self) -> Limits:
        """What is in force."""
        return effective_limits(self.site, self.preset)

    def set_limits(self, preset: str, site: Mapping[str, Any] | None, by: str) -> int:
        """Change the preset, and the site's own limits if given; an entry of the audit.

        Nothing is kept of limits that are looser than the site's file or that contradict a preset.
        """
        with self._writing:
            wanted = self.site if site is None else limits_from_dict(site, self.own)
            for name in PRESETS:
                effective_limits(wanted, name)
            changed = {
                "preset": preset,
                "site": asdict(wanted),
                "by": by,
                "before": {"preset": self.preset, "site": asdict(self.site)},
            }
            entry = self.audit.append("limits", changed, now_text())
            self._take_limits(entry)
        if self.phase == "ready":
            self.worker.submit(self.review_all)
        return entry.id

    def _take_limits(self, entry: Entry) -> None:
        told = entry.content()
        self.preset = told["preset"]
        self.site = most_restrictive(self.own, limits_from_dict(told["site"]))
        self.changed = {"by": told["by"], "time": entry.time, "audit_id": entry.id}

    # ── patients ─────────────────────────────────────────────────────────────────────────────────

    def review_all(self) -> None:
        """Look at every patient's newest moment, for the list; one at a time, between answers."""
        for patient in sorted(self.stays):
            if self.review_of(patient) is None and not self._stopped.is_set():
                limits = self.limits
                self._reviews[patient] = limits, self._review(self.stays[patient])
                self.worker.submit(self.review_all)  # so that answers need not wait for all
                return

    def review_of(self, patient: str) -> dict[str, Any] | None:
        """What was found of a patient under the limits in force; None until looked at."""
        limits, found = self._reviews.get(patient, (None, None))
        return found if limits == self.limits else None

    def _review(self, stay: Stay) -> dict[str, Any]:
        answer = self.compute(request_at(stay, stay.last), None).answer
        known = [answer["now"][NAMES[i]]["inside"] for i in REQUIRED]
        inside = False if False in known else None if None in known else True
        rank = 0 if answer["status"] == "refused" else 1 if inside is False else 2
        return {
            "status": answer["status"],
            "codes": [one["code"] for one in answer["refusals"]],
            "inside_limits": inside,
            "suggested": answer["suggested"],
            "advice": answer["advice"]["kind"],
            "act_on": answer["advice"]["p"],
            "rank": rank if answer["suggested"] is not None or rank < 2 else 3,
        }

    def patients(self) -> list[dict[str, Any]]:
        """The list, those who need a look first."""
        rows = []
        for patient, stay in self.stays.items():
            row = patient_row(stay, stay.last)
            row["quality"] = quality(stay, stay.last, self.gates)["chip"]
            rows.append(row | {"review": self.review_of(patient)})
        rows.sort(key=lambda row: ((row["review"] or {"rank": 9})["rank"], row["patient"]))
        return rows

    def _book(self, patient: str) -> Book:
        """The ledger of a patient, scored once."""
        if patient not in self._books:
            stay = self.stays[patient]
            engine = serving(self.runs or [self.ready], available(stay)).engine
            stay = in_columns(stay, engine.columns)
            self._books[patient] = keep_book(
                engine, past_hours(stay, engine.twin.steps, engine.used)
            )
        return self._books[patient]

    def calibration(self) -> dict[str, Any]:
        """How the forecasts of test patients came out, and what models give away; computed once."""
        with self._calibrating:
            loaded = self.ready
            if not self._calibration:
                self._calibration = measure_coverage(
                    loaded.engine, loaded.stays.values(), loaded.fitted_on.values()
                )
        return self._calibration

    @property
    def calibrated(self) -> dict[str, Any]:
        """What is known of the calibration; empty until it was computed in the background."""
        return self._calibration


class BusyError(RuntimeError):
    """The line is full."""


class Line:
    """Computations one after the other, at most `longest` of them waiting."""

    def __init__(self, worker: ThreadPoolExecutor, longest: int, seconds: float):
        """`seconds` until a computation is given up."""
        self.worker, self.longest, self.seconds = worker, longest, seconds
        self.inside = 0  # waiting and being computed

    @property
    def full(self) -> bool:
        """Whether nobody else may wait."""
        return self.inside > self.longest

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result; `BusyError` if the line is full, `TimeoutError` if it is slow.

        What runs already cannot be stopped: it keeps its place until it is done.
        """
        if self.full:
            raise BusyError
        self.inside += 1
        future = asyncio.get_running_loop().run_in_executor(self.worker, function, *arguments)
        future.add_done_callback(self._leave)
        done, _ = await asyncio.wait([future], timeout=self.seconds)
        if not done:
            future.cancel()  # if it has not begun yet
            raise TimeoutError
        return future.result()

    def _leave(self, future: Any) -> None:
        self.inside -= 1
        if not future.cancelled():
            future.exception()  # seen: nobody may be waiting for it any more


def now_text() -> str:
    """The server's time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
