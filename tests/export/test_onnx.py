"""Every ONNX graph gives in onnxruntime what its JAX original gives, edge levels included."""

import dataclasses
import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import onnx
import pytest

from stepdown.__main__ import main
from stepdown.artifacts import check_folder
from stepdown.export.onnx_models import EXPORTABLE, guardian_graph, policy_graph, twin_graph
from stepdown.guardian.fit import DensityConfig, save_guardian
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.kde import KdeConfig
from stepdown.guardian.threshold import RECORDED, log_densities
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.policies.constraint import Constrained, allowed_levels, masked
from stepdown.policies.saved import save_policy
from stepdown.problem.hours import make_transitions
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import ESE, LEVEL, NAMES, SPEED, TAU
from stepdown.twin.coordinates import blank_coordinates
from stepdown.twin.fit import make_twin, save_twin
from stepdown.twin.twins import twin_config
from tests.export.graphs import (
    HIDDEN,
    density_of,
    feed,
    filled,
    guardian_of,
    make_any_twin,
    make_policy,
    run,
)
from tests.records.recordings import with_lactate


@pytest.fixture(scope="module")
def cohort():
    cohort, _ = simulate_cohort(CohortConfig(patients=12, hours=12.0), key=jr.key(4))
    return dataclasses.replace(cohort, role="train")


@pytest.fixture(scope="module")
def hours(cohort):
    """Recorded train hours."""
    return make_transitions(cohort)


@pytest.fixture(scope="module")
def rows(hours):
    return rows_of(hours)


def rows_of(hours):
    """States and choices: 64 recorded hours; P-2 and P-9 in force and chosen."""
    draw = np.random.default_rng(0)
    state = np.array(hours.state)[draw.choice(len(hours.level), 64, replace=False)]
    state[:8, :, LEVEL], state[8:16, :, LEVEL] = 2.0, 9.0
    choice = draw.integers(2, 10, 64)
    choice[::4], choice[1::4] = 2, 9
    return state, choice


def without(hours, rows):
    """The same of patients whose tau and elastance nobody measured."""
    gone = jnp.asarray([TAU, ESE])
    first, later = (x.at[..., gone].set(jnp.nan) for x in (hours.state, hours.next_state))
    state = rows[0].copy()
    state[..., [TAU, ESE]] = np.nan
    return replace(hours, state=first, next_state=later), (state, rows[1])


def assert_close(found, wanted):
    """Within 1e-4 of each column's own size; what is NaN there is NaN here."""
    wanted = np.asarray(wanted)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    found, wanted = np.nan_to_num(found), np.nan_to_num(wanted)
    size = np.abs(wanted).max(tuple(range(wanted.ndim - 1)), keepdims=True)
    gap = np.abs(found - wanted) / np.maximum(size, 1e-6)
    assert gap.max() < 1e-4


@eqx.filter_jit
def weigh(policy, states):
    weights, allowed = jax.vmap(policy)(states), jax.vmap(allowed_levels)(states)
    return weights, allowed, jax.vmap(masked)(weights, allowed)


@pytest.mark.parametrize("constrained", [False, True])
def test_policies_agree(hours, rows, constrained):
    policy = make_policy(hours)
    policy = Constrained(policy) if constrained else policy
    state = rows[0].copy()
    state[20:30, 2, 0] = 60.0  # at the limit: no step down
    state[30:34, 3, 9] = np.nan  # a missing sample is left out
    state[34:38, :, 6] = np.nan  # nothing known: no step down
    state[38:42, 4, 9] = 5.0  # pulsatility alone forbids nothing
    found = run(policy_graph(policy, 6, {}), feed((state, rows[1])))
    weights, allowed, kept = (np.asarray(x) for x in weigh(policy, jnp.asarray(state)))
    known = ~np.isnan(np.asarray(weights)).any(1)
    assert known.sum() == 56
    assert_close(found["log_probability"][known], weights[known])
    np.testing.assert_array_equal(found["allowed"], allowed)
    np.testing.assert_array_equal(found["choice"][known], 2 + np.argmax(kept, axis=1)[known])
    assert allowed[20:30].any()
    assert not allowed.all()


@eqx.filter_jit
def luck_of(twin, states, choices, keys):
    """The noise that stands for a key, by the definitions of the draws."""
    name = type(twin.network).__name__
    if name == "MLP":
        return jax.vmap(
            lambda k: jnp.concatenate(
                [jr.uniform(jr.split(k)[i], (n,)) for i, n in enumerate(HIDDEN)]
            )
        )(keys)
    if name == "Transformer":
        return jax.vmap(lambda k: jr.uniform(k, (24,)))(keys)
    count = jnp.full(len(keys), 64)
    if name == "Calibrated":
        table = twin.carry.profile.speed[None]
        speed = jnp.argmin(jnp.abs(states[:, -1, SPEED, None] / table - 1), axis=1)
        turn = jnp.sign(choices - 2 - speed)
        free = jax.vmap(twin.read)(states)[..., :-1]
        way = jnp.clip((free[:, :-1] - free[:, -1:]) / 0.4, -6, 6)
        restless = jnp.abs(way).mean((1, 2)) > 1.0
        group = jnp.where(turn < 0, 0, jnp.where(turn > 0, 3, jnp.where(restless, 2, 1)))
        count = twin.network.count[group]
    if name == "Ridge":
        count = jnp.full(len(keys), len(twin.network.errors))
    picked = jax.vmap(lambda k, n: jr.randint(k, (), 0, n))(keys, count)
    return (picked + 0.5) / count


@eqx.filter_jit
def forecast(twin, states, choices, keys):
    center = jax.vmap(twin.center)(states, choices)
    draw = jax.vmap(lambda s, c, k: twin(s, c, key=k))(states, choices, keys)
    return center[..., :LEVEL], draw[..., :LEVEL]


def check_twin(hours, rows, model, base="direct"):
    twin, _ = make_any_twin(hours, model, base)
    states, choices = map(jnp.asarray, rows)
    keys = jr.split(jr.key(9), 64)
    noise = np.asarray(luck_of(twin, states, choices, keys), np.float32)
    found = run(twin_graph(twin, {}), feed(rows, noise=noise))
    center, draw = forecast(twin, states, choices, keys)
    assert_close(found["center"], center)
    assert_close(found["draw"], draw)
    assert np.nanmax(np.abs(found["draw"] - found["center"])) > 1.0


@pytest.mark.parametrize(
    ("model", "base"), [*((model, "direct") for model in EXPORTABLE), ("mlp", "last")]
)
def test_twins_agree_on_center_and_draw(hours, rows, model, base):
    check_twin(hours, rows, model, base)


def check_guardian(hours, rows, name):
    density = density_of(hours, name)
    score = log_densities(density, *map(jnp.asarray, rows))
    guardian = guardian_of(density, score[::2])
    found = run(guardian_graph(guardian, 6, {}), feed(rows))
    assert_close(found["log_density"], score)
    np.testing.assert_allclose(
        found["u"], np.clip(np.median(score[::2]) - score, -3, 5), atol=1e-4 * np.abs(score).max()
    )
    below = (score[None, ::2] <= score[:, None]).sum(1)
    assert np.abs(found["p_value"] - (1 + below) / 33).max() < 1.5 / 33  # itself by rounding
    assert np.ptp(found["log_density"]) > 1.0


@pytest.mark.parametrize(
    "name", ["flow", "conditional flow", "kernels", "all kernels", "conditional kernels"]
)
def test_guardians_agree(hours, rows, name):
    check_guardian(hours, rows, name)


def test_signals_that_nobody_measured_are_left_out(hours, rows):
    hours, rows = without(hours, rows)
    assert len(fit_scaler(hours).present) == 10
    check_twin(hours, rows, "best")
    check_guardian(hours, rows, "flow")


def test_a_further_signal_is_a_column_of_every_graph(cohort, tmp_path):
    wider = make_transitions(with_lactate(cohort))
    rows = rows_of(wider)
    assert fit_scaler(wider).names == (*NAMES, "lactate")
    check_twin(wider, rows, "best")
    check_twin(wider, rows, "mlp", "carried")
    check_guardian(wider, rows, "flow")
    policy = make_policy(wider)
    found = run(policy_graph(policy, 6, {}), feed(rows))
    assert_close(found["log_probability"], weigh(policy, jnp.asarray(rows[0]))[0])

    save_twin(tmp_path / "run/twin", *make_any_twin(wider, "best"))
    save_policy(tmp_path / "run/policy", policy, "bc")
    words = ["export", str(tmp_path / "run"), "--onnx", str(tmp_path / "out")]
    assert main([*words, "--models", "policy", "twin"]) == 0
    told = json.loads((tmp_path / "out/README.json").read_text())
    assert [one["name"] for one in told["signals"]] == [*NAMES, "lactate"]
    assert told["signals"][-1]["unit"] == "mmol/L"
    for about in told["files"].values():
        assert about["inputs"]["signals"]["shape"] == ["batch", 6, len(NAMES) + 1]
        assert about["inputs"]["signals"]["meaning"].endswith("ese mmHg/mL, lactate mmol/L")


# ── the command ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def folder(hours, tmp_path_factory):
    """A run with a policy, a twin and a guardian by kernels, as far as an export looks at it."""
    made = tmp_path_factory.mktemp("onnx") / "run"
    save_twin(made / "twin", *make_any_twin(hours, "best"))
    save_policy(made / "policy", make_policy(hours), "bc")
    config = DensityConfig(DENSITIES["kde"], settings=KdeConfig(neighbors=20, bandwidth=2.0))
    guardian = guardian_of(density_of(hours, "kernels"), np.linspace(-90.0, -60.0, 33))
    save_guardian(made / "guardian", guardian, config, RECORDED, contains_patient_data=True)
    return made


def test_patients_leave_only_with_the_flag(folder, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["export", str(folder), "--onnx", out]) == 2
    assert "expected --include-patient-data" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["export", str(folder), "--onnx", out, "--include-patient-data"]) == 0
    told = json.loads((tmp_path / "out/README.json").read_text())
    assert told["files"]["guardian.onnx"]["about"]["contains_patient_data"] == "true"
    assert told["files"]["policy.onnx"]["about"]["contains_patient_data"] == "false"


def test_an_export_describes_itself_and_is_sealed(folder, tmp_path, rows):
    out = tmp_path / "out"
    words = ["export", str(folder), "--onnx", str(out), "--models", "policy", "twin"]
    assert main(words) == 0
    manifest = check_folder(out, "onnx")
    assert set(manifest["files"]) == {"policy.onnx", "twin.onnx", "README.json"}
    told = json.loads((out / "README.json").read_text())
    assert [one["unit"] for one in told["signals"]][:4] == ["mmHg", "rpm", "mA", "L/min"]
    for name, about in told["files"].items():
        model = onnx.load(out / name)
        ports = {**about["inputs"], **about["outputs"]}
        assert {one.key for one in model.metadata_props} == {*ports, *about["about"]}
        assert ports["signals"]["shape"] == ["batch", 6, 12]
        assert "map mmHg" in ports["signals"]["meaning"]
        assert about["about"]["use"] == "Research tool, not for patient care."
        found = run((out / name).read_bytes(), feed(rows, noise=np.zeros(64, np.float32)))
        assert set(found) == set(about["outputs"])
    assert main([*words[:3], str(tmp_path / "again"), *words[4:]]) == 0
    assert (tmp_path / "again/twin.onnx").read_bytes() == (out / "twin.onnx").read_bytes()


def test_what_cannot_be_exported_is_said(hours, folder, tmp_path, capsys):
    scaler = fit_scaler(hours)
    scale = blank_coordinates(scaler.present, scaler.columns)
    ssm = twin_config("ssm", "small")
    twin = filled(lambda: make_twin(scaler, scale, 6, ssm, key=jr.key(1)))
    with pytest.raises(
        ValueError, match=r"best, ridge, persistence, tdt, rotary, mlp\), got another"
    ):
        twin_graph(twin, {})
    (tmp_path / "half/twin").mkdir(parents=True)
    assert main(["export", str(tmp_path / "half"), "--onnx", str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert "expected a finished run with policy/" in said
    assert "--models twin" in said
    assert main(["export", str(folder)]) == 2
    assert "--onnx (the models of a run)" in capsys.readouterr().err
