"""A small real run (simulated patients, a fitted twin and guardian) and a client for it."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import httpx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.app.engine import Engine, make_support
from stepdown.app.recordings import Stay, read_stays
from stepdown.app.server import create_app
from stepdown.app.service import Service, ServiceConfig
from stepdown.artifacts import CONFIG, config_to_dict, provenance, write_folder
from stepdown.guardian.fit import DensityConfig, fit_guardian, save_guardian
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.kde import KdeConfig
from stepdown.guardian.threshold import RECORDED
from stepdown.handover import Cohort, Transitions
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.patients.pump import load_profile
from stepdown.policies.networks import LearnedPolicy, feature_count, make_network
from stepdown.policies.saved import save_policy
from stepdown.problem.hours import make_transitions
from stepdown.problem.scaling import Scaler, fit_scaler
from stepdown.records.files import COHORT, KIND, cohort_table, to_parquet
from stepdown.records.split import read_parts, save_fitted
from stepdown.signals import LEVELS, columns_with
from stepdown.training import stack
from stepdown.twin.calibrated import (
    CalibratedConfig,
    Member,
    calibrate,
    fit_line,
    usual_step,
    usual_walk,
)
from stepdown.twin.coordinates import fit_coordinates
from stepdown.twin.fit import Twin, TwinConfig, make_twin, save_twin, twin_rows
from stepdown.twin.twins import TWINS

COHORT_CONFIG = CohortConfig(patients=48, hours=24.0)
SIZES = CalibratedConfig(members=2, width=16, depth=1, errors=256)
TWIN = TwinConfig(TWINS["best"], SIZES)
DRAWS = 50  # simulated courses
GUARDIAN = DensityConfig(DENSITIES["kde"], 0.5, KdeConfig(action_weight=4.0))


def make_run(out: Path) -> Path:
    """A run folder as `stepdown run` leaves it, as far as the app looks at it."""
    cohort, _ = simulate_cohort(COHORT_CONFIG, key=jr.key(7))
    files = {
        COHORT: to_parquet(cohort_table(cohort)),
        CONFIG: json.dumps(config_to_dict(COHORT_CONFIG)).encode(),
    }
    write_folder(out / "cohort", files, kind=KIND, about=provenance(config=COHORT_CONFIG, seed=7))
    parts = read_parts(out / "cohort")
    train, select = make_transitions(parts.train), make_transitions(parts.select)
    twin = quick_twin(train, select)
    guardian, _ = fit_guardian(train, select, GUARDIAN, RECORDED, key=jr.key(0))
    save_fitted(
        out / "twin", lambda path: save_twin(path, twin, TWIN), parts, kind="twin", model="best"
    )
    save_fitted(
        out / "guardian",
        lambda path: save_guardian(path, guardian, GUARDIAN, RECORDED, contains_patient_data=True),
        parts,
        kind="guardian",
        model="kde",
    )
    return out


def quick_twin(train: Transitions, select: Transitions) -> Twin:
    """The best twin without its training: near persistence, errors of select patients kept."""
    scaler = fit_scaler(train)
    scale = fit_coordinates(train, scaler.present, load_profile("cp"))
    twin = make_twin(scaler, scale, 6, TWIN, key=jr.key(0))
    rows = twin_rows(twin, train), twin_rows(twin, select)
    step, walk = jax.jit(usual_step)(*rows[0]), usual_walk(rows[0][0])
    members = [Member(step, walk, 6, SIZES, key=key) for key in jr.split(jr.key(1))]
    members = [eqx.tree_at(_last, x, tuple(0.1 * y for y in _last(x))) for x in members]
    line = fit_line(rows[0], step, walk)
    network = calibrate(line, stack(members), rows[1], SIZES.errors, key=jr.key(2))
    return dataclasses.replace(twin, network=network)


def _last(member: Member) -> tuple[Any, Any]:
    layer = member.trunk.layers[-1]
    return layer.weight, layer.bias


def add_policy(run: Path, scaler: Scaler | None = None) -> None:
    """An unlearned policy, saved as a learned one is; by default of the run's own scale."""
    parts = read_parts(run / "cohort")
    policy = make_policy(scaler or fit_scaler(make_transitions(parts.train)))
    save_fitted(
        run / "policy",
        lambda path: save_policy(path, policy, "bc"),
        parts,
        kind="policy",
        model="bc",
    )


def make_policy(scaler: Scaler) -> LearnedPolicy:
    sizes = (feature_count(scaler, 6), 8, len(LEVELS))
    return LearnedPolicy(scaler, make_network(sizes, key=jr.key(3)))


@dataclasses.dataclass(frozen=True)
class Further:
    """Models that were fitted on lactate, too, and test patients who have it."""

    engine: Engine
    stays: dict[str, Stay]


def add_lactate(run: Path) -> Further:
    """What a run would hold if its recordings had a further column."""
    found = read_parts(run / "cohort")
    train, select = (make_transitions(with_lactate(x)) for x in (found.train, found.select))
    twin = quick_twin(train, select)
    guardian, _ = fit_guardian(train, select, GUARDIAN, RECORDED, key=jr.key(0))
    engine = Engine(
        twin,
        guardian,
        make_support(train, select, twin.scaler, found.train.patient),
        table="cp",
        model={"sha256": "-"},
        draws=DRAWS,
        policy=make_policy(twin.scaler),
        method="bc",
        read_by_policy=twin.scaler.present,
    )
    return Further(engine, read_stays(with_lactate(found.test), "cp-smartassist"))


def with_lactate(cohort: Cohort) -> Cohort:
    """Lactate that falls with MAP, measured anew every hour."""
    pressure = np.asarray(cohort.signals)[..., :1]
    hourly = np.repeat(pressure[:, ::6], 6, axis=1)[:, : pressure.shape[1]]
    signals = np.concatenate([np.asarray(cohort.signals), 1.0 + np.abs(90.0 - hourly) / 20], -1)
    return dataclasses.replace(
        cohort, signals=jnp.asarray(signals, jnp.float32), columns=columns_with(["lactate"])
    )


def make_service(run: Path, state: Path, *, load: bool = True, **settings: Any) -> Service:
    """A service of a run, ready unless told otherwise."""
    service = Service(ServiceConfig(run, state, draws=DRAWS, **settings))
    if load:
        service.load()
    return service


def beside(
    service: Service,
    state: Path,
    engine: Engine | None = None,
    stays: dict[str, Stay] | None = None,
    **settings: Any,
) -> Service:
    """Another ready service with the same models and patients, or with some of them changed."""
    made = Service(dataclasses.replace(service.config, folder=state, **settings))
    assert service.loaded is not None
    made.loaded = dataclasses.replace(service.loaded, engine=engine or service.engine)
    made.stays, made.phase = stays or service.stays, "ready"
    made.planning.set()
    return made


class Client:
    """HTTP without a network: the real app behind a plain synchronous face."""

    def __init__(self, service: Service, token: str | None = None):
        self.service = service
        self.app = create_app(service, token)
        self.runner = asyncio.Runner()
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://127.0.0.1:8000",
        )
        self.csrf = {"X-CSRF-Token": self.get("/v1/session").json()["csrf"]}

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.runner.run(self.http.get(path, **options))

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.runner.run(self.http.post(path, json=body, **options))

    def raw(self, path: str, content: Any, media: str = "application/json") -> httpx.Response:
        headers = {"content-type": media}
        return self.runner.run(self.http.post(path, content=content, headers=headers))

    def send(self, method: str, url: str, params: Any, headers: Any, content: Any):
        """Any request at all."""
        kept = {k: v for k, v in (headers or {}).items() if v is not None}
        return self.runner.run(
            self.http.request(method, url, params=params, headers=kept, **content)
        )

    def together(self, *calls: Any) -> list[httpx.Response]:
        """Requests at the same time; each call is (method, path, json)."""

        async def gather() -> list[httpx.Response]:
            asked = [self.http.request(method, path, json=body) for method, path, body in calls]
            return list(await asyncio.gather(*asked))

        return self.runner.run(gather())

    def close(self) -> None:
        self.runner.run(self.http.aclose())
        self.runner.close()
