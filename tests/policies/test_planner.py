"""Planning: the choices of a slow textbook planner, the optimum of a world, care in all forms."""

from dataclasses import replace
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float

from stepdown.guardian.threshold import Guardian
from stepdown.handover import Policy
from stepdown.patients.pump import load_profile
from stepdown.policies.distilled import decided
from stepdown.policies.planner import Planner, PlannerConfig, count_models, gated, plan_offsets
from stepdown.policies.rules import certain
from stepdown.problem.clinical import normalized_reward
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import HR, LEVEL, LEVELS, LVEDP, MAP, PULSATILITY
from stepdown.twin.coordinates import fit_coordinates
from stepdown.twin.fit import fit_twin, make_twin
from tests.twin.toys import SELECT, STEPS, TRAIN, pocket

LUCK = jnp.asarray(11)


class World(eqx.Module):
    """Pressure goes to 4 mmHg per level, half of the way in an hour; so many models err by bias."""

    bias: Float[Array, " models"]
    noise: float = 3.0

    @property
    def members(self) -> int:
        return len(self.bias)

    def member(self, number):
        return replace(self, bias=self.bias[number][None])

    def __call__(self, state, level, /, *, key):
        goal = 40.0 + (4.0 + self.bias[0]) * level
        pressure = 0.5 * (state[-1, MAP] + goal) + self.noise * jr.normal(key, (6,))
        later = jnp.broadcast_to(state[-1:], state.shape).at[:, MAP].set(pressure)
        return later.at[:, LEVEL].set(level)


def patient(pressure: float, level: int):
    row = jnp.full(13, 50.0).at[MAP].set(pressure).at[HR].set(75.0).at[PULSATILITY].set(30.0)
    return jnp.broadcast_to(row.at[LEVEL].set(level), (6, 13))


def textbook(planner: Planner, state) -> tuple[np.ndarray, int]:
    """Plan by plan, model by model, draw by draw; gains by plan, and the level chosen."""
    config, now, world = planner.config, int(state[-1, LEVEL]), planner.dynamics
    assert isinstance(world, World)
    near = range(-config.reach, config.reach + 1)
    if config.changes == 1:
        plans = [[one] * config.hours for one in near]
    else:
        plans = [[a] + [a + b] * (config.hours - 1) for a in near for b in near]
    luck = jr.split(jr.key(planner.luck), (config.draws, config.hours))
    values = np.zeros((world.members, len(plans)))
    for model in range(world.members):
        dynamics = world.member(model)
        for number, plan in enumerate(plans):
            for draw in range(config.draws):
                hour = state
                for ahead, offset in enumerate(plan):
                    level = jnp.asarray(min(max(now + offset, 2), 9))
                    hour = dynamics(hour, level, key=luck[draw, ahead])
                    values[model, number] += float(normalized_reward(hour)) / config.draws
    hold = next(i for i, plan in enumerate(plans) if not any(plan))
    gains = values - values[:, hold][:, None]
    best, chosen = -np.inf, now
    for number, plan in enumerate(plans):
        level = min(max(now + plan[0], 2), 9)
        score = gains[:, number].mean() - config.caution * gains[:, number].std()
        score -= 1e-4 * abs(level - now) + config.margin * (level != now)
        score -= config.lowering * config.hours * max(now - level, 0)
        if score > best:
            best, chosen = score, level
    return gains, chosen


CONFIGS = [
    PlannerConfig(hours=2, draws=3),
    PlannerConfig(hours=3, draws=2, caution=0.0, margin=0.05),
    PlannerConfig(hours=2, draws=2, changes=2, reach=1),
    PlannerConfig(hours=1, draws=4, caution=2.0),
    PlannerConfig(hours=3, draws=2, lowering=0.05),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_slow_planner_chooses_the_same_and_agrees_in_values(config):
    planner = Planner(World(jnp.asarray([0.0, -0.4, 0.6])), LUCK, config=config)
    weigh = eqx.filter_jit(lambda planner, state: planner.weigh(state))
    values = eqx.filter_jit(lambda planner, state, plans: planner.values(state, plans))
    for pressure, level in ((55.0, 3), (62.0, 4), (80.0, 9), (64.0, 2), (110.0, 7)):
        state = patient(pressure, level)
        gains, chosen = textbook(planner, state)
        plans = np.clip(level + plan_offsets(config), 2, 9)
        found = np.asarray(values(planner, state, jnp.asarray(plans)))
        hold = int(np.flatnonzero((plan_offsets(config) == 0).all(1))[0])
        np.testing.assert_allclose(found - found[:, hold][:, None], gains, atol=1e-5)
        assert int(np.argmax(weigh(planner, state).score)) + 2 == chosen
        assert int(np.argmax(planner(state))) + 2 == chosen


def test_planning_in_the_true_world_finds_its_optimum():
    """Pressures below 60 are charged: the lowest level that keeps 60 and its noise is enough."""
    world = World(jnp.zeros(1), noise=0.0)
    planner = Planner(world, LUCK, config=PlannerConfig(hours=3, draws=1, reach=7, lowering=0.0))
    decide = eqx.filter_jit(lambda state: planner.weigh(state))
    for pressure, level in ((50.0, 2), (58.0, 4), (70.0, 3)):
        found, state = decide(patient(pressure, level)), patient(pressure, level)
        best = {}
        for choice in LEVELS:
            hour, total = state, 0.0
            for _ in range(3):
                hour = world(hour, jnp.asarray(choice), key=jr.key(LUCK))
                total += float(normalized_reward(hour))
            best[choice] = total - 1e-4 * abs(choice - level)
        assert int(np.argmax(found.score)) + 2 == max(best, key=lambda x: best[x])
        np.testing.assert_allclose(found.score, [best[x] - best[level] for x in LEVELS], atol=1e-4)


class Debt(eqx.Module):
    """Support lifts pressure by 3 mmHg a level, and each level above P5 costs 4 mmHg ever after."""

    def __call__(self, state, level, /, *, key):
        debt = state[-1, LVEDP]
        later = jnp.broadcast_to(state[-1:], state.shape).at[:, MAP].set(40.0 + 3.0 * level - debt)
        owed = debt + 4.0 * jnp.maximum(level - 5.0, 0.0)
        return later.at[:, LVEDP].set(owed).at[:, LEVEL].set(level)


def test_planning_in_a_world_with_debt_finds_the_best_of_all_plans():
    """Rewards by hand: P7 for an hour alone, P7 then P9 of all pairs, and P5 for three hours."""

    def earned(levels) -> float:
        debt, total = 0.0, 0.0
        for level in levels:
            charge = max(7 * (60 - (40 + 3 * level - debt)) / 20, 0)
            total += min(max((1.7018 - charge) / 2.6621, -2), 2)
            debt += 4 * max(level - 5, 0)
        return total

    state = patient(55.0, 4).at[:, LVEDP].set(0.0)
    for hours, changes, plans in (
        (1, 1, [[x] for x in LEVELS]),
        (3, 1, [[x] * 3 for x in LEVELS]),
        (2, 2, list(product(LEVELS, repeat=2))),
    ):
        config = PlannerConfig(hours=hours, draws=1, reach=7, changes=changes, lowering=0.0)
        told = eqx.filter_jit(Planner(Debt(), LUCK, config=config).weigh)(state)
        best = max(plans, key=lambda x: earned(x) - 1e-4 * abs(x[0] - 4))
        chosen = int(np.argmax(told.score))
        assert chosen + 2 == best[0] == {1: 7, 2: 7, 3: 5}[hours]
        gained = earned(best) - earned([4] * hours)
        assert float(told.gain[chosen]) == pytest.approx(gained, abs=1e-5)


def test_what_models_disagree_about_earns_nothing():
    """One model says that more support helps, the other that it harms: careful planning holds."""
    torn = World(jnp.asarray([3.0, -8.0]), noise=0.0)
    state = patient(58.0, 4)
    sure = Planner(torn, LUCK, config=PlannerConfig(hours=2, draws=1, caution=0.0))
    careful = replace(sure, config=replace(sure.config, caution=3.0))
    told = careful.weigh(state)
    assert int(np.argmax(sure(state))) + 2 != 4
    assert int(np.argmax(careful(state))) + 2 == 4
    assert np.asarray(told.spread)[4] > 0
    assert np.isnan(np.asarray(told.gain)[[6, 7]]).all()  # out of reach
    assert not np.asarray(told.open)[[6, 7]].any()


def test_stepping_down_must_earn_a_charge_that_stepping_up_need_not():
    """Of a pressure that is a little too high, one level less takes all there is to earn."""
    high = patient(140.0, 9)
    plain = Planner(World(jnp.zeros(1), noise=0.0), LUCK, config=PlannerConfig(hours=1, draws=1))
    earned = float(plain.weigh(high).gain[6])  # of P-8
    assert earned == pytest.approx(2 / 18 / 2.6621, rel=1e-4)
    for lowering, chosen in ((0.9 * earned, 8), (1.1 * earned, 9)):
        charged = replace(plain, config=replace(plain.config, lowering=lowering))
        assert int(np.argmax(charged(high))) + 2 == chosen
        np.testing.assert_array_equal(plain.weigh(high).gain, charged.weigh(high).gain)
        assert int(np.argmax(charged(patient(50.0, 4)))) + 2 == 6


class Dearer(eqx.Module):
    """A guardian that knows levels below 6."""

    def __call__(self, state, level, /):
        return jnp.where(level >= 6, 2.0, 0.0)


def test_a_guardian_charges_or_closes_and_clinicians_close():
    world, state = World(jnp.zeros(1), noise=0.0), patient(50.0, 4)
    plain = Planner(world, LUCK, config=PlannerConfig(hours=2, draws=1))
    assert int(np.argmax(plain(state))) + 2 == 6

    def choice(**changes):
        guards = {name: changes.pop(name) for name in ("penalty", "clinicians") if name in changes}
        return (
            int(np.argmax(replace(plain, config=replace(plain.config, **changes), **guards)(state)))
            + 2
        )

    assert choice(penalty=Dearer(), charge=5.0) == 5
    assert choice(penalty=Dearer(), charge=0.0) == 6
    assert choice(penalty=Dearer(), closed_from=1.0) == 5
    never = lambda state: certain(jnp.asarray(2))  # noqa: E731
    assert choice(clinicians=never, least=0.01) == 4  # holding is always open
    told = replace(plain, penalty=Dearer()).weigh(state)
    np.testing.assert_array_equal(told.penalty, [0, 0, 0, 0, 2, 2, 2, 2])


class Far:
    """A density that falls with the level's distance from P6, and with the heart rate's from 75."""

    pairs = None
    shape = (0, 1)

    def floor(self) -> None:
        return None

    def log_density(self, state, level, /):
        return -jnp.abs(level - 6.0) - jnp.abs(state[-1, HR] - 75.0)

    def log_densities(self, states, levels, /):
        return jax.vmap(self.log_density)(states, levels)


def test_a_gated_planner_takes_the_best_level_that_is_not_refused_and_else_holds():
    """By hand, of 99 recorded decisions: P5 and P7 have a p-value of 0.06, P4 and P8 of 0.02."""
    scores = jnp.concatenate([jnp.full(1, -2.5), jnp.full(4, -1.5), jnp.full(94, -0.5)])
    zero = jnp.zeros(())
    guardian = Guardian(Far(), zero, zero, zero, scores)
    config = PlannerConfig(hours=2, draws=1, lowering=0.0)
    plain = Planner(World(jnp.zeros(1), noise=0.0), LUCK, config=config)
    low = patient(40.0, 6)

    def choice(planner, state):
        return int(np.argmax(planner(state))) + 2

    assert choice(plain, low) == 8
    told = gated(plain, guardian, 0.065).weigh(low)
    assert int(np.argmax(told.score)) + 2 == 6
    np.testing.assert_array_equal(np.flatnonzero(told.refused) + 2, [4, 5, 7, 8])
    assert choice(gated(plain, guardian), low) == 7  # at 5 %
    assert choice(gated(plain, guardian, 0.015), low) == 8
    strange = low.at[:, HR].set(60.0)  # every level is, the present one among them
    assert choice(plain, strange) == 8
    assert choice(gated(plain, guardian), strange) == 6
    assert not gated(plain, guardian).weigh(strange).refused[4]


def test_it_plans_in_a_fitted_twin_as_a_policy():
    twin, _ = fit_twin(TRAIN, SELECT, pocket("ridge"), key=jr.key(0))
    planner = Planner(twin, LUCK, config=PlannerConfig(hours=2, draws=2))
    assert isinstance(planner, Policy)
    found = eqx.filter_jit(lambda p, states: jax.vmap(p)(states))(planner, TRAIN.state[:16])
    assert found.shape == (16, 8)
    np.testing.assert_allclose(np.exp(found).sum(1), 1.0, atol=1e-5)
    apart = np.argmax(found, axis=1) + 2 - np.asarray(TRAIN.state)[:16, -1, LEVEL]
    assert np.abs(apart).max() <= 2
    assert planner.values(TRAIN.state[0], jnp.asarray([[5, 5]])).shape == (2, 1)


def test_a_twin_whose_members_cannot_be_asked_one_by_one_is_one_model():
    scaler = fit_scaler(TRAIN)
    scale = fit_coordinates(TRAIN, scaler.present, load_profile("cp"))
    for name, models in (("best", 1), ("ridge", 2)):
        twin = make_twin(scaler, scale, STEPS, pocket(name), key=jr.key(0))
        assert count_models(twin) == models


def test_a_network_is_distilled_from_the_levels_that_the_planner_would_set():
    """P6 after an hour at P4 with a low pressure, P4 where nothing is to be gained."""
    planner = Planner(World(jnp.zeros(1), noise=0.0), LUCK, config=PlannerConfig(hours=2, draws=1))
    few = jax.tree.map(lambda x: x[:3], TRAIN)
    states = jnp.stack([patient(50.0, 4), patient(90.0, 4), patient(50.0, 9)])
    taught = decided(planner, replace(few, state=states))
    np.testing.assert_array_equal(taught.level, [6, 4, 9])
    np.testing.assert_array_equal(taught.next_state, few.next_state)


def test_odd_settings_are_refused_in_words():
    with pytest.raises(ValueError, match="hours: expected at least 1, got 0"):
        PlannerConfig(hours=0)
    with pytest.raises(ValueError, match="changes: expected 1 or 2 in a plan, got 3"):
        PlannerConfig(changes=3)
    with pytest.raises(
        ValueError, match="expected caution, margin, lowering and charge of at least 0"
    ):
        PlannerConfig(caution=-1.0)
