"""Models with random numbers and small sizes, and onnxruntime, for the tests of ONNX graphs."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import onnxruntime

from stepdown.guardian.density import Conditional, Pairs
from stepdown.guardian.flow import FlowDensity, RealNVP, Whitening
from stepdown.guardian.kde import KdeConfig, fit_kde
from stepdown.guardian.threshold import Guardian
from stepdown.patients.pump import load_profile
from stepdown.policies.networks import LearnedPolicy, feature_count, make_network
from stepdown.problem.persistence import CarryForward
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import LEVEL, LEVELS
from stepdown.twin.baselines import MLPConfig, PersistenceConfig
from stepdown.twin.calibrated import CalibratedConfig
from stepdown.twin.coordinates import fit_coordinates
from stepdown.twin.fit import TwinConfig, make_twin
from stepdown.twin.ridge import RidgeConfig
from stepdown.twin.transformer import TransformerConfig
from stepdown.twin.twins import TWINS

HIDDEN = (24, 16)
TRANSFORMER = TransformerConfig(width=16, heads=2, layers=2, feedforward=32, decoder=24)
SIZES = {  # others are small enough
    "tdt": TRANSFORMER,
    "rotary": replace(TRANSFORMER, positions="rotary"),
    "mlp": MLPConfig(hidden=HIDDEN),
    "best": CalibratedConfig(members=2, width=16, depth=2, errors=64),
    "persistence": PersistenceConfig(errors=64),
    "ridge": RidgeConfig(members=2, errors=64),
}


def feed(rows, **more):
    state, choice = rows
    told = {"signals": state[:, :, :LEVEL], "level": state[:, -1, LEVEL].astype(np.int64)}
    return told | {"choice": choice.astype(np.int64)} | more


def run(graph: bytes, fed) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    wanted = {one.name for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    found: Any = session.run(names, {name: fed[name] for name in wanted})
    return dict(zip(names, found, strict=True))


def filled(make):
    """What `make` makes, with random numbers: as a fitted one, but without any compilation."""
    draw, like = np.random.default_rng(1), eqx.filter_eval_shape(make)

    def number(x):
        scale = 0.5 / np.sqrt(max(x.shape[-1:], default=1))
        return jnp.asarray(scale * draw.normal(size=x.shape), x.dtype)

    return jax.tree.map(lambda x: number(x) if isinstance(x, jax.ShapeDtypeStruct) else x, like)


def make_policy(hours):
    scaler = fit_scaler(hours)
    sizes = (feature_count(scaler, 6), 16, len(LEVELS))
    return LearnedPolicy(scaler, filled(lambda: make_network(sizes, key=jr.key(3))))


def make_any_twin(hours, model, base=None):
    kind, scaler = TWINS[model], fit_scaler(hours)
    config = TwinConfig(kind, SIZES.get(model, kind.small), base)
    pump = load_profile("cp")
    scale = fit_coordinates(hours, scaler.present, pump)
    twin = filled(lambda: make_twin(scaler, scale, 6, config, key=jr.key(1)))
    twin = replace(twin, scaler=scaler, coordinates=scale, carry=CarryForward(pump))
    if model == "ridge":
        network = eqx.tree_at(lambda x: x.errors, twin.network, 3 * twin.network.errors)
        return replace(twin, network=network), config
    if model != "best":
        return twin, config
    network = eqx.tree_at(
        lambda x: (x.members.step, x.members.walk, x.calm, x.width, x.errors, x.first, x.count),
        twin.network,
        (
            0.2 + jnp.abs(twin.network.members.step).at[:, -1].set(-0.2),
            jnp.full_like(twin.network.members.walk, 0.4),
            jnp.asarray(1.0),
            0.9 + jnp.abs(twin.network.width),
            3 * twin.network.errors,
            jnp.asarray([0, 0, 20, 40]),
            jnp.asarray([64, 20, 20, 24]),
        ),
    )
    return replace(twin, network=network), config


def make_flow(hours):
    pairs = Pairs(fit_scaler(hours), jnp.asarray(1.0))
    size = 6 * len(pairs.scaler.present) + 2
    draw = np.random.default_rng(5)
    matrix = np.eye(size) + 0.01 * np.tril(draw.normal(size=(size, size)), -1)
    flow = filled(lambda: RealNVP(size, 3, 8, key=jr.key(6)))
    return FlowDensity(pairs, Whitening(jnp.zeros(size), jnp.asarray(matrix, jnp.float32)), flow)


def density_of(hours, name):
    share = jnp.asarray(0.4)
    if name == "flow":
        return make_flow(hours)
    if name == "conditional flow":
        return Conditional(make_flow(hours), None, share)
    kde = fit_kde(hours, KdeConfig(neighbors=None if name == "all kernels" else 20, bandwidth=2.0))
    if name != "conditional kernels":
        return kde
    return Conditional(kde, fit_kde(hours, KdeConfig(neighbors=20, action_weight=0.0)), share)


def guardian_of(density, scores):
    """A guardian whose scale is made of these scores."""
    numbers = (jnp.asarray(x, jnp.float32) for x in (np.median(scores), -3.0, 5.0))
    return Guardian(density, *numbers, scores=jnp.sort(jnp.asarray(scores)))
