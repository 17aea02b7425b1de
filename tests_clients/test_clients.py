"""Real learners, unmodified, on our environments and exports: `make test-clients`.

They pin old and heavy packages, so they have an environment of their own and are not part of
`make test`. A few steps are enough: the claim is that they accept us, not that they learn.
"""

import d3rlpy
import gymnasium
import jax.random as jr
import numpy as np
import pytest
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_checker import check_env

import stepdown.problem.environment  # noqa: F401  makes the names known to Gymnasium
from stepdown.export.datasets import write_minari
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.hours import make_transitions
from stepdown.records.split import split_patients

NAMES = ("stepdown/Patients-v0", "stepdown/Twin-v0")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("learner", [PPO, DQN])
def test_stable_baselines3_trains(name, learner):
    env = gymnasium.make(name)
    check_env(env.unwrapped)
    options = {"n_steps": 16, "batch_size": 16} if learner is PPO else {"learning_starts": 8}
    model = learner("MlpPolicy", env, seed=0, device="cpu", **options)
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(48)
    after = list(model.policy.parameters())
    assert any(not np.array_equal(b, a.detach()) for b, a in zip(before, after, strict=True))
    action, _ = model.predict(env.reset(seed=1)[0])
    assert env.action_space.contains(int(action))


def test_d3rlpy_trains_discrete_cql_on_the_minari_export(tmp_path, monkeypatch):
    cohort, _ = simulate_cohort(CohortConfig(patients=12, hours=12.0), key=jr.key(0))
    train, _, _ = split_patients(cohort, key=jr.key(1))
    hours = make_transitions(train)
    name = write_minari(tmp_path, hours, patients=train.patient, about={})
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data, env = d3rlpy.datasets.get_minari(name)
    assert data.dataset_info.action_space is d3rlpy.ActionSpace.DISCRETE
    assert sum(episode.size() for episode in data.episodes) == len(hours.level)
    cql = d3rlpy.algos.DiscreteCQLConfig(batch_size=16).create(device="cpu")
    log = d3rlpy.logging.NoopAdapterFactory()
    cql.fit(data, n_steps=8, n_steps_per_epoch=8, logger_adapter=log, show_progress=False)
    action = cql.predict(env.reset(seed=0)[0][None])
    assert env.action_space.contains(int(action[0]))
