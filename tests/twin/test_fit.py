"""Twins as a user meets them: units, levels, what-if, learning, saving, and refusals."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.artifacts import (
    ArtifactError,
    config_from_dict,
    config_to_dict,
    load_config,
    save_module,
)
from stepdown.patients.pump import load_profile, pump_flow
from stepdown.problem.persistence import CarryForward
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import (
    CURRENT,
    DBP,
    FLOW,
    HR,
    LEVEL,
    LVP,
    MAP,
    PULSATILITY,
    SBP,
    SPEED,
    TAU,
    hard_ranges,
)
from stepdown.training import FitConfig
from stepdown.twin.baselines import PersistenceConfig
from stepdown.twin.coordinates import fit_coordinates
from stepdown.twin.fit import (
    KIND,
    SavedTwin,
    TwinConfig,
    check_state,
    fit_twin,
    fit_twins,
    make_twin,
    read_saved,
    save_twin,
    twin_rows,
)
from stepdown.twin.twins import TWINS, config_of, load_twin
from tests.twin.toys import MODELS, SELECT, STEPS, TRAIN, empty_column, pocket, put

STATE, LEVELS = TRAIN.state[0], jnp.array([3, 8])
KEYS = jr.split(jr.key(5), 4)
SCALER = fit_scaler(TRAIN)
PUMP = load_profile("cp")
SCALE = fit_coordinates(TRAIN, SCALER.present, PUMP)
LEARNED = [model for model in MODELS if model not in ("persistence", "best", "ridge")]


@pytest.fixture(scope="module", params=MODELS)
def twin(request):
    """A twin of each kind that has learned nothing; its answers have the right form all the same.

    Persistence, ridge and the best twin are fitted: they draw the errors that they remember.
    """
    config = pocket(request.param)
    if request.param in ("persistence", "best", "ridge"):
        return fit_twin(TRAIN, SELECT, config, key=jr.key(0))[0], config
    return make_twin(SCALER, SCALE, STEPS, config, key=jr.key(0)), config


@eqx.filter_jit
def ask(twin, state, levels, keys):
    """All forecasts of a twin, compiled together."""
    one = jax.vmap(lambda level, key: twin(state, level, key=key), (None, 0))
    draws = jax.vmap(one, (0, None))(levels, keys)
    centers = jax.vmap(lambda level: twin.center(state, level))(levels)
    return draws, centers, twin.what_if(state, levels, keys=keys)


@pytest.fixture(scope="module")
def whole(twin):
    return [np.asarray(x) for x in ask(twin[0], STATE, LEVELS, KEYS)]


def test_forecasts_are_states_in_units_under_the_chosen_level(whole):
    for forecast in whole[:2]:
        assert np.isfinite(forecast).all()
        assert np.all(forecast[0, ..., LEVEL] == 3)
        assert np.all(forecast[1, ..., LEVEL] == 8)
    score = (whole[1][..., :LEVEL] - np.asarray(SCALER.mean)) / np.asarray(SCALER.sd)
    assert np.abs(score).max() < 10  # mmHg and rpm, not z-scores


def test_the_same_key_is_the_same_draw_and_another_is_not(twin, whole):
    again = twin[0](STATE, LEVELS[0], key=KEYS[1])  # without compilation as a whole
    assert np.allclose(again, whole[0][0, 1], rtol=1e-4)
    spread = np.ptp(whole[0][0, :, :, :LEVEL], axis=0) / np.asarray(SCALER.sd)
    assert spread.max() > 1e-3


def test_the_chosen_level_matters(whole):
    signals = whole[1][..., :LEVEL] / np.asarray(SCALER.sd)
    assert np.abs(signals[0] - signals[1]).max() > 1e-3


def test_what_if_equals_single_calls_with_the_same_luck(whole):
    assert whole[2].shape == (2, 4, STEPS, 13)
    assert np.allclose(whole[2], whole[0], rtol=1e-5, atol=1e-5)


def test_a_saved_twin_forecasts_as_before(twin, whole, tmp_path):
    save_twin(tmp_path / "twin", *twin)
    about = load_config(tmp_path / "twin", SavedTwin, kind=KIND)
    assert config_of(about, twin[1].kind, tmp_path) == twin[1]
    loaded = read_saved(tmp_path / "twin", twin[1], about)
    if twin[1].kind.name in TWINS:
        assert load_twin(tmp_path / "twin")[1] == twin[1]
    assert loaded.scaler.present == SCALER.present
    again = ask(loaded, STATE, LEVELS, KEYS)[2]
    assert np.allclose(again, whole[2], rtol=1e-4)


def test_one_level_is_the_same_level_for_every_sample(twin, whole):
    held = jnp.tile(LEVELS[:, None], (1, STEPS))
    assert np.allclose(ask(twin[0], STATE, held, KEYS)[0], whole[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("moment", [1, 3, 5])
def test_the_pump_follows_its_level_from_the_sample_on_in_which_it_changes(twin, whole, moment):
    levels = jnp.full((1, STEPS), 3).at[:, moment:].set(8)
    drawn, center, _ = (np.asarray(x)[0] for x in ask(twin[0], STATE, levels, KEYS))
    table = np.asarray(PUMP.speed)[np.asarray(levels[0]) - 2]
    for hour in (*drawn, center):
        assert np.all(np.abs(hour[:, SPEED] / table - 1) < 0.02)
    assert np.all(drawn[..., LEVEL] == np.floor(np.mean(levels) + 0.5))  # as of a recorded hour
    late = whole[1][0, moment:, CURRENT]  # at P3 throughout
    assert np.abs(center[moment:, CURRENT] - late).min() > 20  # mA


@eqx.filter_jit
def six_hours(twin, states, levels, keys):
    def one(state, levels, key):
        def hour(now, x):
            now = twin(now, x[0], key=x[1])
            return now, now

        return jax.lax.scan(hour, state, (levels, jr.split(key, 6)))[1]

    return jax.vmap(one)(states, levels, keys)


def test_draws_obey_every_identity_for_six_hours(twin):
    """0 exceptions; levels change at random, inside hours too."""
    draw = np.random.default_rng(0)
    levels = jnp.asarray(draw.integers(2, 10, (256, 6, STEPS)), jnp.int32)
    drawn = six_hours(twin[0], TRAIN.state[:256], levels, jr.split(jr.key(8), 256))
    drawn, at = np.asarray(drawn).reshape(-1, 13), np.asarray(levels).ravel()
    assert np.isfinite(drawn).all()
    assert np.all(drawn[:, DBP] <= drawn[:, MAP])
    assert np.all(drawn[:, MAP] <= drawn[:, SBP])
    assert np.array_equal(drawn[:, PULSATILITY], drawn[:, SBP] - drawn[:, DBP])
    assert np.all(np.abs(drawn[:, SPEED] / np.asarray(PUMP.speed)[at - 2] - 1) < 0.02 + 1e-6)
    low, high = np.array(hard_ranges(SCALER.columns), np.float32).T
    assert np.all((drawn >= low) & (drawn <= high))
    idle, speed = np.asarray(PUMP.idle_current)[at - 2], np.asarray(PUMP.speed)[at - 2]
    mapped = idle + 194.6 * speed / 46_000 * drawn[:, FLOW]
    usual = mapped > 200  # mA: the edge of the range, 0, is far
    least, most = np.asarray(SCALE.scatter)[1]  # of the current
    assert np.all(drawn[usual, CURRENT] > mapped[usual] + least - 1)
    assert np.all(drawn[usual, CURRENT] < mapped[usual] + most + 1)


def test_a_twin_of_an_older_layout_is_refused_in_words(tmp_path):
    config = pocket("mlp")
    made = make_twin(SCALER, SCALE, STEPS, config, key=jr.key(0))
    save_twin(tmp_path / "twin", made, config)
    about = load_config(tmp_path / "twin", SavedTwin, kind=KIND)
    older = config_to_dict(about)
    del older["gives"]  # as saved before there were free coordinates
    with pytest.raises(ArtifactError, match="difference in gives.* make it again"):
        config_from_dict(older, SavedTwin, "twin")
    other = dataclasses.replace(about, gives="z-scores")
    save_module(tmp_path / "other", made, config=other, kind=KIND)
    with pytest.raises(ArtifactError, match="gives z-scores. Fit it again"):
        load_twin(tmp_path / "other")


@pytest.mark.parametrize("file", ["arrays.safetensors", "config.json"])
def test_a_damaged_twin_is_refused(tmp_path, file):
    config = pocket("mlp")
    save_twin(tmp_path / "t", make_twin(SCALER, SCALE, STEPS, config, key=jr.key(0)), config)
    damaged = bytearray((tmp_path / "t" / file).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "t" / file).write_bytes(damaged)
    with pytest.raises(ArtifactError, match=file):
        load_twin(tmp_path / "t")


# ── learning ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def carried_error():
    return float(fit_twin(TRAIN, SELECT, pocket("persistence"), key=jr.key(0))[1]["select_mse"])


@pytest.mark.parametrize("model", LEARNED)
def test_every_network_learns_the_linear_world(model, carried_error):
    longer = FitConfig(epochs=20, batch=32, learning_rate=3e-3)
    twin, info = fit_twin(TRAIN, SELECT, pocket(model, fit=longer), key=jr.key(1))
    held = info["held_out"]
    assert held.min() < held[0]
    assert info["best_epoch"] == held.argmin()
    share = {"tdt": 0.2, "mlp": 0.25, "np": 0.65}.get(model, 0.5)
    assert info["select_mse"] < share * carried_error
    if model not in ("np", "best"):  # the loss of the others is the squared error, no dropout
        assert info["select_mse"] == pytest.approx(held.min(), rel=1e-4)
    forecast = jax.jit(jax.vmap(twin.center))(SELECT.state, SELECT.levels)
    free = jax.jit(jax.vmap(lambda hour, levels: SCALE.to_free(hour, levels, PUMP)))
    error = free(forecast, SELECT.levels) - free(SELECT.next_state, SELECT.levels)
    error = error / SCALE.unit[None, None]
    assert np.mean(np.square(error)) == pytest.approx(info["select_mse"], rel=1e-2)


def test_a_member_comes_out_as_if_fitted_alone():
    keys = jr.split(jr.key(2), 2)
    config = pocket("mlp")
    both, info = fit_twins(TRAIN, SELECT, config, keys=keys)
    alone, own = fit_twin(TRAIN, SELECT, config, key=keys[1])
    pair = both[1].center(STATE, LEVELS[0]), alone.center(STATE, LEVELS[0])
    assert np.allclose(*pair, rtol=1e-4)
    assert info["select_mse"][1] == pytest.approx(own["select_mse"], rel=1e-4)
    assert info["select_mse"][0] != info["select_mse"][1]


@pytest.mark.parametrize("base", ["last", "carried"])
def test_a_network_that_adds_nothing_forecasts_its_base(base):
    twin = make_twin(SCALER, SCALE, STEPS, pocket("mlp", base=base), key=jr.key(0))
    silent = eqx.tree_at(
        lambda t: [t.network.out.weight, t.network.out.bias], twin, replace_fn=jnp.zeros_like
    )
    expected = CarryForward(PUMP)(STATE, LEVELS[1])
    if base == "last":  # speed, flow and current keep their distance from the new level's
        head, before = STATE[-1, MAP] - STATE[-1, LVP], jnp.asarray(3)
        off = STATE[-1, FLOW] - pump_flow(PUMP, before, head)
        flow = pump_flow(PUMP, LEVELS[1], head) + off
        current = expected[-1, CURRENT] + (flow - expected[-1, FLOW]) * 194.6 * 44 / 46
        expected = expected.at[:, FLOW].set(flow).at[:, CURRENT].set(current)
    assert np.allclose(silent.center(STATE, LEVELS[1]), expected, rtol=1e-4)
    scores, levels, target = twin_rows(twin, TRAIN)
    rest = silent.center(TRAIN.state[3], TRAIN.levels[3])
    missed = [SCALE.to_free(hour, TRAIN.levels[3], PUMP) for hour in (TRAIN.next_state[3], rest)]
    assert np.allclose(target[3], (missed[0] - missed[1]) / SCALE.unit[None], atol=2e-3)
    in_force = np.full(STEPS, TRAIN.state[3, 0, LEVEL], int)
    free = SCALE.to_free(TRAIN.state[3], jnp.asarray(in_force), PUMP)
    assert np.allclose(scores[3, :, :-1], free, atol=1e-3)
    for found, level in ((scores[3, :, -1], in_force), (levels[3], TRAIN.levels[3])):
        assert np.allclose(found, (np.asarray(level) - 5.5) / np.std(np.arange(2, 10)))


def test_persistence_errs_as_it_did_on_train_patients():
    config = pocket("persistence", sizes=PersistenceConfig(errors=512))
    twin, info = fit_twin(TRAIN, SELECT, config, key=jr.key(3))
    carried = CarryForward(load_profile("cp"))
    assert np.allclose(twin.center(STATE, LEVELS[1]), carried(STATE, LEVELS[1]), rtol=1e-5)
    missed = TRAIN.next_state - jax.jit(jax.vmap(carried))(TRAIN.state, TRAIN.levels)
    what_if = eqx.filter_jit(twin.what_if)
    draws = what_if(STATE, LEVELS[1:], keys=jr.split(jr.key(4), 4000))[0]
    added = np.asarray(draws - twin.center(STATE, LEVELS[1])[None])[..., :LEVEL]
    levels, alone = [5, 25, 50, 75, 95], [MAP, LVP, HR, TAU]
    known = np.percentile(np.asarray(missed)[..., alone], levels, axis=(0, 1))
    found = np.percentile(added[..., alone], levels, axis=(0, 1))
    assert np.all(np.abs(known - found) < 0.1 * np.asarray(missed)[..., alone].std((0, 1)))
    between = [np.corrcoef(x[:, 0, MAP], x[:, 5, MAP])[0, 1] for x in (np.asarray(missed), added)]
    assert between[0] == pytest.approx(between[1], abs=0.05)  # samples of an hour err together


def test_a_signal_without_data_is_left_out_and_its_neighbors_are_not():
    train, select = (empty_column(hours, FLOW) for hours in (TRAIN, SELECT))
    twin, info = fit_twin(train, select, pocket("persistence"), key=jr.key(0))
    forecast = np.asarray(twin.center(train.state[0], LEVELS[0]))
    assert np.isnan(forecast[:, FLOW]).all()
    assert np.isfinite(np.delete(forecast, FLOW, axis=1)).all()
    # Without a flow the pump's curve cannot be followed: the current stays as it was.
    assert np.allclose(forecast[:, CURRENT], STATE[-1, CURRENT])
    assert np.isfinite(info["select_mse"])


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("train", "select", "words"),
    [
        (SELECT, SELECT, "expected train patients, got select"),
        (TRAIN, TRAIN, "expected select patients, got train"),
        (put(TRAIN, "next_state", (3, 1, TAU), np.nan), SELECT, "finite tau in every sample of tr"),
        (TRAIN, put(SELECT, "state", (3, 1, MAP), np.inf), "finite map in every sample of select"),
        (TRAIN, empty_column(SELECT, TAU), "expected tau in the hours of select patients"),
        (jax.tree.map(lambda x: x[:0], TRAIN), SELECT, "hours of train patients, got none"),
        (TRAIN, jax.tree.map(lambda x: x[:0], SELECT), "hours of select patients, got none"),
        (
            TRAIN,
            dataclasses.replace(
                SELECT,
                state=SELECT.state[:, :3],
                next_state=SELECT.next_state[:, :3],
                levels=SELECT.levels[:, :3],
            ),
            "states of 6 samples, as the train patients have, got 3",
        ),
    ],
)
def test_hours_that_cannot_be_used_are_refused(train, select, words):
    with pytest.raises(ValueError, match=words):
        fit_twin(train, select, pocket("mlp"), key=jr.key(0))


def test_a_state_that_would_give_nan_is_refused_on_the_host():
    with_all = make_twin(SCALER, SCALE, STEPS, pocket("mlp"), key=jr.key(0))
    scaler = fit_scaler(empty_column(TRAIN, TAU))
    scale = fit_coordinates(TRAIN, scaler.present, PUMP)
    without_tau = make_twin(scaler, scale, STEPS, pocket("mlp"), key=jr.key(0))
    gap, gone = STATE.at[2, MAP].set(np.nan), STATE.at[:, TAU].set(np.nan)
    for twin, state, words in (
        (with_all, gap, "finite map in every sample"),
        (with_all, gone, "expected tau in the hours of the patient, got none"),
        (with_all, STATE[:5], r"expected a state of 6 samples \(1 h\) and 13 columns"),
        (with_all, STATE[:, :12], r"expected a state of 6 samples \(1 h\) and 13 columns"),
        (with_all, STATE.at[:, LEVEL].set(1.0), "whole levels 2 to 9 in force, got 1"),
    ):
        with pytest.raises(ValueError, match=words):
            check_state(twin, state)
    with pytest.raises(ValueError, match="fitted on .* got tau"):
        check_state(without_tau, STATE, wanted=("map", "tau"))
    check_state(without_tau, gone, wanted=("map",))
    assert np.isfinite(np.delete(without_tau.center(gone, LEVELS[0]), TAU, axis=1)).all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"base": "mean"}, "mean"),
        ({"profile": "none"}, "profile: expected one of"),
    ],
)
def test_settings_of_no_twin_are_refused(wrong, words):
    with pytest.raises((ValueError, TypeError), match=words):  # in tests, types are checked first
        TwinConfig(TWINS["tdt"], **wrong)
