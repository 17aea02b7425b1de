"""What the server does, without HTTP: load a run, answer and remember, replay, review.

Computations go one after the other through a short queue. An answer becomes an entry of the audit
before anybody sees it, and the entry holds all that is needed to compute it again.
"""

import datetime
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, Literal

from stepdown.app.audit import Audit, Entry
from stepdown.app.calibration import calibrate
from stepdown.app.commands import AppConfig, read_site
from stepdown.app.engine import Engine, warm_up
from stepdown.app.ledger import Past, Scored, past_hours, score_hours, skill_so_far
from stepdown.app.limits import GateConfig, Limits, limits_from_dict, limits_to_dict
from stepdown.app.recordings import Stay, patient_row, quality, request_at
from stepdown.app.request import Request, request_from_dict, request_to_dict
from stepdown.app.run_folder import Loaded, load_recordings, load_run
from stepdown.app.whatif import refuse_service, to_bytes, what_if
from stepdown.artifacts import ArtifactError

Phase = Literal["warming", "ready", "refused"]
Computed = tuple[dict[str, Any], dict[str, Any]]  # an answer, and the settings it was made under


class Service:
    """A run being served."""

    def __init__(self, config: AppConfig):
        """Open the audit; models are loaded by `start`."""
        self.config = config
        self.site, self.gates = read_site(config.site)
        self.audit = Audit(config.folder)
        self.worker = ThreadPoolExecutor(1, "whatif")
        self.phase: Phase = "warming"
        self.problem = ""  # why the phase is "refused"
        self.loaded: Loaded | None = None
        self.stays: dict[str, Stay] = {}
        self.reviews: dict[str, dict[str, Any]] = {}
        self.preset, self.changed = "paper", None
        self._books: dict[str, tuple[Past, Scored]] = {}
        self._writing = threading.Lock()
        self._stopped = threading.Event()
        self._read_limits()

    def start(self) -> None:
        """Load and warm up in the background."""
        self.worker.submit(self.load)

    def load(self) -> None:
        """Load, verify, warm up; a damaged model leaves the recordings to look at (R13)."""
        config = self.config
        try:
            self.loaded = load_run(config.run, config.draws, self.gates, self.site)
            self.stays = self.loaded.stays
            warm_up(self.loaded.engine)
            self._warm_ledger()
        except (ArtifactError, ValueError, OSError) as error:
            self._refuse(str(error))
            return
        about = {"model": self.loaded.engine.model, "gates": asdict(self.gates)}
        self.audit.append("start", about, now_text())
        self.phase = "ready"
        self.worker.submit(self.review_all)

    def stop(self) -> None:
        """Finish what is being computed and close the audit."""
        self._stopped.set()
        self.worker.shutdown(wait=True, cancel_futures=True)
        self.audit.close()

    def _refuse(self, problem: str) -> None:
        self.problem, self.loaded = problem, None
        try:
            _, self.stays = load_recordings(self.config.run)
        except (ArtifactError, ValueError, OSError):
            self.stays = {}
        self.phase = "refused"

    @property
    def engine(self) -> Engine:
        """The engine of a ready service."""
        if self.loaded is None:
            raise RuntimeError("expected a ready service, got one without models.")
        return self.loaded.engine

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def compute(self, request: Request, source: dict[str, Any] | None) -> Computed:
        """An answer without its number in the audit; `source` is a moment of a recording."""
        if self.loaded is None:
            return self.give_up(request, source, "R13")
        context = self._context(None)
        return self._answer(request, source, context), context

    def give_up(
        self, request: Request, source: dict[str, Any] | None, code: str = "R14"
    ) -> Computed:
        """The answer to a request that could not be computed, or took too long."""
        context = self._context(code)
        return self._answer(request, source, context), context

    def _context(self, service: str | None) -> dict[str, Any]:
        """The settings of this moment; with them an answer can be computed again."""
        return {
            "preset": self.preset,
            "site": limits_to_dict(self.site),
            "gates": asdict(self.gates),
            "service": service,
        }

    def _answer(
        self, request: Request, source: dict[str, Any] | None, context: dict[str, Any]
    ) -> dict[str, Any]:
        moment = source and {name: source[name] for name in ("patient", "minute")}  # one order
        about = {"source": moment, "at": request.now or request.t_end, "t_end": request.t_end}
        if context["service"] is not None:
            return about | refuse_service(request, context["service"])
        engine = replace(
            self.engine,
            site=limits_from_dict(context["site"]),
            gates=GateConfig(**context["gates"]),
        )
        return about | what_if(engine, request, context["preset"], self._skill(source))

    def remember(
        self, request: Request, source: dict[str, Any] | None, computed: Computed
    ) -> bytes:
        """Put an answer into the audit and return it as bytes."""
        answer, context = computed
        body = context | {
            "request": request_to_dict(request),
            "source": source,
            "answer_sha256": hashlib.sha256(to_bytes(answer)).hexdigest(),
            "status": answer["status"],
            "codes": [one["code"] for one in answer["refusals"]],
            "acceptable": answer["acceptable"],
            "suggested": answer["suggested"],
            "model": (answer["model"] or {}).get("sha256"),
        }
        entry = self.audit.append("whatif", body, now_text())
        return to_bytes(answer | {"audit_id": entry.id})

    def replay(self, entry: Entry) -> tuple[bytes, bool]:
        """Compute an entry again; the bytes, and whether they are those of back then."""
        body = entry.content()
        request = request_from_dict(body["request"])
        known = self.loaded.engine.model["sha256"] if self.loaded else None
        if body["service"] is None and body["model"] != known:
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
            earlier = self.audit.of_kind("response", body["audit_id"])
            told = {name: body[name] for name in ("answer", "reason", "by")}
            if earlier and all(earlier[-1].content()[name] == x for name, x in told.items()):
                return earlier[-1].id, False
            replaced = {"replaces": earlier[-1].id if earlier else None}
            entry = self.audit.append("response", body | replaced, now_text())
        return entry.id, True

    # ── limits ───────────────────────────────────────────────────────────────────────────────────

    def set_limits(self, preset: str, site: Limits | None, by: str) -> int:
        """Change the preset, and the site's own limits if given; an entry of the audit."""
        with self._writing:
            changed = {
                "preset": preset,
                "site": limits_to_dict(site or self.site),
                "by": by,
                "before": {"preset": self.preset, "site": limits_to_dict(self.site)},
            }
            entry = self.audit.append("limits", changed, now_text())
            self._take_limits(entry)
        return entry.id

    def _read_limits(self) -> None:
        """The limits of the newest entry about them outlive a restart."""
        before: int | None = None
        while entries := self.audit.newest(256, before):
            for entry in entries:
                if entry.kind == "limits":
                    self._take_limits(entry)
                    return
            before = entries[-1].id

    def _take_limits(self, entry: Entry) -> None:
        told = entry.content()
        self.preset, self.site = told["preset"], limits_from_dict(told["site"])
        self.changed = {"by": told["by"], "time": entry.time, "audit_id": entry.id}

    # ── patients ─────────────────────────────────────────────────────────────────────────────────

    def review_all(self) -> None:
        """Look at every patient's newest moment, for the list; one at a time, between answers."""
        for patient in sorted(self.stays):
            if patient not in self.reviews and not self._stopped.is_set():
                self.reviews[patient] = self._review(self.stays[patient])
                self.worker.submit(self.review_all)  # so that answers need not wait for all
                return

    def _review(self, stay: Stay) -> dict[str, Any]:
        answer, _ = self.compute(request_at(stay, stay.last), None)
        known = [answer["now"][name]["inside"] for name in ("map", "hr", "pulsatility")]
        inside = False if False in known else None if None in known else True
        rank = 0 if answer["status"] == "refused" else 1 if inside is False else 2
        return {
            "status": answer["status"],
            "codes": [one["code"] for one in answer["refusals"]],
            "inside_limits": inside,
            "suggested": answer["suggested"],
            "rank": rank if answer["suggested"] is not None or rank < 2 else 3,
        }

    def patients(self) -> list[dict[str, Any]]:
        """The list, those who need a look first."""
        rows = []
        for patient, stay in self.stays.items():
            row = patient_row(stay, stay.last)
            row["quality"] = quality(stay, stay.last)["chip"]
            rows.append(row | {"review": self.reviews.get(patient)})
        rows.sort(key=lambda row: ((row["review"] or {"rank": 9})["rank"], row["patient"]))
        return rows

    def _skill(self, source: dict[str, Any] | None) -> dict[str, Any] | None:
        if source is None or self.loaded is None:
            return None
        past, scored = self._book(source["patient"])
        return skill_so_far(scored, past, source["minute"])

    def _book(self, patient: str) -> tuple[Past, Scored]:
        """The ledger of a patient, scored once."""
        if patient not in self._books:
            engine = self.engine
            past = past_hours(self.stays[patient], engine.twin.steps, engine.used)
            self._books[patient] = past, score_hours(engine.twin, past, engine.draws)
        return self._books[patient]

    def _warm_ledger(self) -> None:
        for patient in list(self.stays)[:1]:
            self._book(patient)

    def calibration(self) -> dict[str, Any]:
        """How the forecasts of test patients came out, and what the models give away."""
        fitted_on = self.loaded.fitted_on.values() if self.loaded else ()
        return calibrate(self.engine, self.stays.values(), fitted_on)


def now_text() -> str:
    """The server's time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
