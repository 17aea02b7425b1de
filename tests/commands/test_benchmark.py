"""The benchmark: data sets whose environment is theirs, submissions that are judged again."""

import hashlib
import json
from pathlib import Path

import gymnasium
import jax.random as jr
import minari
import numpy as np
import pytest

from stepdown.__main__ import main
from stepdown.commands import benchmark
from stepdown.commands.benchmark import PROTOCOL
from stepdown.evaluation.judging import draw_judged_starts, judge_in_patients
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.policies.rules import RULES
from stepdown.signals import LOWEST

STEADY = "import numpy as np\ndef steady(hours): return np.round(hours[:, -1, -1])\n"
UP = "import numpy as np\ndef steady(hours): return np.full(len(hours), 9)\n"
DATA = ("benchmark", "data", "guarded-v2", "--out")
ROOT = Path(__file__).parents[2]
FROZEN = "92823c9364fb1bd143a9b284c334de4c047a1cba1f8da637b62fbccd4cd27598"


@pytest.fixture(scope="module")
def small():
    """The protocol with few patients."""
    with pytest.MonkeyPatch.context() as patched:
        words = PROTOCOL["data"]["guarded-v2"] | {"patients": 10, "hours": 12.0}
        patched.setitem(PROTOCOL["data"], "guarded-v2", words)
        few = PROTOCOL["judged_on"] | {"patients": 6, "episodes": 24}
        patched.setitem(PROTOCOL, "judged_on", few)
        yield patched


@pytest.fixture(scope="module")
def data(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark") / "data"
    assert main([*DATA, str(folder)]) == 0
    return folder


@pytest.fixture
def minari_data(data, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(data / "minari"))
    return minari.load_dataset("stepdown/guarded-v2")


def test_the_protocol_is_frozen():
    """A change of it is another protocol, with another number."""
    protocol = json.loads((ROOT / "stepdown/commands/protocol.json").read_bytes())
    text = json.dumps(protocol, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == FROZEN
    assert f"`{FROZEN[:12]}`" in (ROOT / "docs/benchmark.md").read_text("utf-8")


def test_a_data_set_says_what_it_holds(data, minari_data):
    card = (data / "card.md").read_text()
    for name in ("train.parquet", "minari/stepdown/guarded-v2/data/main_data.hdf5"):
        assert hashlib.sha256((data / name).read_bytes()).hexdigest() in card
    assert f"| train | 7 | {minari_data.total_steps} | `stepdown/guarded-v2` |" in card
    assert not list(data.rglob("*latents*"))  # nothing of the truth
    assert not (data / "test.parquet").exists()


def test_the_environment_of_a_data_set_is_the_one_that_it_came_from(minari_data):
    """Recorded decisions lead to the recorded hours and rewards, patient by patient."""
    assert minari_data.env_spec.kwargs["seed"] == PROTOCOL["data"]["guarded-v2"]["seed"]
    env = minari_data.recover_environment(replay=True)
    recorded = {}
    for episode in minari_data.iterate_episodes():
        for hour in range(len(episode.actions)):
            whole = episode.infos["levels"][hour + 1]
            held = (whole == episode.actions[hour] + LOWEST).all()
            key = episode.observations[hour].tobytes()
            after = (episode.actions[hour], episode.observations[hour + 1], episode.rewards[hour])
            recorded[key] = after if held else None
    checked = 0
    for start in range(40):
        seen, _ = env.reset(options={"start": start})
        key = seen.tobytes()
        if key not in recorded:  # the last hour of a stay
            continue
        if recorded[key] is not None:
            action, later, reward = recorded[key]
            after, earned, *_ = env.step(int(action))
            np.testing.assert_allclose(after, later, rtol=1e-4, atol=1e-2)
            assert earned == pytest.approx(reward, abs=1e-3)
            checked += 1
    assert checked > 10


def test_gymnasium_makes_the_environment_by_its_short_name():
    env = gymnasium.make(
        "stepdown:Patients-v0", preset="guarded", seed=7101, patients=10, hours=12.0
    )
    assert env.reset(seed=0)[0].shape == (78,)
    with pytest.raises(ValueError, match="expected a ward, or preset and seed"):
        gymnasium.make("stepdown:Patients-v0", seed=7)


@pytest.fixture(scope="module")
def submitted(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("submissions")
    (folder / "mine.py").write_text(STEADY)
    rows = {"clinicians": "clinicians", "steady": f"{folder / 'mine.py'}:steady"}
    for name, policy in rows.items():
        words = ["--data", "guarded-v2", "--name", name, "--out", str(folder / f"{name}.json")]
        assert main(["benchmark", "run", policy, *words]) == 0
    return folder


def test_a_submission_has_the_numbers_that_are_judged_inside(submitted):
    told = json.loads((submitted / "steady.json").read_text())["open"]
    recipe = CohortConfig(patients=6, hours=12.0)
    key = jr.split(jr.key(PROTOCOL["judged_on"]["open_seeds"]["guarded-v2"]), 3)[0]
    starts = draw_judged_starts(*simulate_cohort(recipe, key=key), 24, key=jr.key(1))
    inside = judge_in_patients(RULES["hold"], starts, world_of(recipe))
    assert told["reward"] == pytest.approx(inside.scores["reward"].mean(), abs=1e-6)
    team = json.loads((submitted / "clinicians.json").read_text())["open"]
    gain = told["reward"] - team["reward"]
    assert told["reward_minus_clinicians"] == pytest.approx(gain, abs=2e-6)
    assert team["reward_minus_clinicians"] == 0


def test_the_board_has_the_numbers_of_the_submissions(submitted, tmp_path):
    files = [str(submitted / f"{name}.json") for name in ("clinicians", "steady")]
    assert main(["benchmark", "board", *files, "--out", str(tmp_path / "board.md")]) == 0
    page = (tmp_path / "board.md").read_text()
    told = json.loads((submitted / "steady.json").read_text())["open"]
    (line,) = [x for x in page.splitlines() if x.startswith("| steady")]
    assert line.split(" | ")[1] == f"{told['reward']:.2f}".replace("-", "−")
    assert "## hidden-v2" not in page


def test_a_submission_is_judged_again(submitted, tmp_path, capsys):
    mine = f"{submitted / 'mine.py'}:steady"
    verified = tmp_path / "verified.json"
    words = ["benchmark", "verify", str(submitted / "steady.json"), "--policy", mine]
    assert main([*words, "--out", str(verified)]) == 0
    assert "verified: the same policy, the same numbers" in capsys.readouterr().out
    better = json.loads((submitted / "steady.json").read_text())
    better["open"]["reward"] += 1
    (tmp_path / "better.json").write_text(json.dumps(better))
    assert main(["benchmark", "verify", str(tmp_path / "better.json"), "--policy", mine]) == 1
    assert "not verified: reward is" in capsys.readouterr().out
    (tmp_path / "other.py").write_text(UP)
    assert main([*words[:-1], f"{tmp_path / 'other.py'}:steady"]) == 1
    assert "not verified: the policy is another one" in capsys.readouterr().out


def test_sealed_patients_are_those_whose_digests_the_protocol_holds(
    small, submitted, tmp_path, capsys, monkeypatch
):
    sealed = str(tmp_path / "sealed.json")
    assert main(["benchmark", "seal", "--out", sealed, "--cohorts", "1"]) == 0
    digests = json.loads(capsys.readouterr().out)["sealed"]
    mine = f"{submitted / 'mine.py'}:steady"
    with pytest.raises(ValueError, match="expected the seeds whose digests the protocol holds"):
        benchmark.judge_sealed(mine, "guarded-v2", tmp_path / "sealed.json")
    monkeypatch.setitem(PROTOCOL, "sealed", digests)
    (found,) = benchmark.judge_sealed(mine, "guarded-v2", tmp_path / "sealed.json")
    (held,) = json.loads((tmp_path / "sealed.json").read_text())["guarded-v2"]
    again, _ = benchmark.judge_open(mine, "guarded-v2", held["seed"])
    assert found == again
    other = {"guarded-v2": [held | {"seed": held["seed"] ^ 1}]}
    (tmp_path / "other.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="got others"):
        benchmark.judge_sealed(mine, "guarded-v2", tmp_path / "other.json")


def test_submissions_of_another_protocol_and_over_the_budget_are_refused(
    submitted, tmp_path, capsys
):
    old = json.loads((submitted / "steady.json").read_text()) | {"protocol_sha256": "0" * 64}
    (tmp_path / "old.json").write_text(json.dumps(old))
    page = ["--out", str(tmp_path / "x")]
    assert main(["benchmark", "board", str(tmp_path / "old.json"), *page]) == 2
    assert "got one of another" in capsys.readouterr().err
    words = ["--data", "guarded-v2", "--name", "x", "--out", str(tmp_path / "y")]
    assert main(["benchmark", "run", "clinicians", *words, "--judgements", "21"]) == 2
    assert "expected 1 to 20, as the protocol allows, got 21" in capsys.readouterr().err
