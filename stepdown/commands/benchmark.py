"""`stepdown benchmark`: data sets, submissions and a board that anybody can enter.

`data` writes a versioned data set. `run` judges a policy that was learned from it, on patients that
are in no data set, and leaves a submission file. `verify` judges again and compares; whoever runs
the board adds the sealed patients, whose seeds only they know and whose digests stand in the
protocol. `board` makes the page. The protocol is protocol.json beside this file; a submission holds
its digest, so numbers of another protocol never meet.
"""

import hashlib
import json
import math
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax.random as jr
import numpy as np
from tyro.conf import Positional

from stepdown import __version__
from stepdown.artifacts import CONFIG, Content, config_to_dict, provenance, to_json, write_folder
from stepdown.commands.evaluate import find_policy
from stepdown.evaluation.compare import paired_difference
from stepdown.evaluation.judging import draw_judged_starts, judge_in_patients, judge_team
from stepdown.handover import Cohort, Judged
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort, world_of
from stepdown.problem.hours import make_transitions
from stepdown.problem.metrics import METRICS
from stepdown.records import files
from stepdown.records.split import SPLIT, require_unseen, split_patients
from stepdown.report.grids import number, signed, span

PROTOCOL: dict[str, Any] = json.loads(
    Path(__file__).with_name("protocol.json").read_text(encoding="utf-8")
)
KIND, CARD = "benchmark data", "card.md"
JUDGED = ("reward", "unsafe_hours", "acp")
CARD_TEXT = """# stepdown/{name}

Recorded stays of simulated patients on a micro-axial heart pump: twelve signals and the level of
the pump every ten minutes, one decision an hour. Made by stepdown {version}; the same patients as
`{made}`. Research data on nobody real, not for treating patients.

| role | patients | decisions | Minari |
|---|---|---|---|
{sizes}

Test patients are left out. A death ends an episode as a termination; its reward is the least for
the hour and for each of the six that would have followed. Everything else that ends an episode is a
truncation. `recover_environment()` of the Minari data set is the simulator with these patients, the
same observations and the same reward.

| file | sha256 |
|---|---|
{digests}

Another machine may order sums differently and so write other last digits; then the digests differ.
"""
AGAIN = 0.02  # by which a reward may differ on another machine, whose sums have another order
KEY = 1
CLINICIANS = "clinicians"
if TYPE_CHECKING:
    DataSet = str
else:
    DataSet = Literal[tuple(PROTOCOL["data"])]


@dataclass(frozen=True)
class DataConfig:
    """Write a versioned data set: Parquet and Minari, hashes and a card."""

    data_set: Positional[DataSet]  # which one
    out: Path  # new folder


@dataclass(frozen=True)
class SubmitConfig:
    """Judge a policy on the open patients of a data set and leave a submission file."""

    policy: Positional[str]  # folder of `stepdown train`, ONNX file, FILE.py:FUNCTION, clinicians
    data: DataSet  # that it was learned from
    name: str  # of the row of the board
    out: Path  # new file
    judgements: int = 1  # how often this and earlier versions were judged on open patients
    note: str = ""  # a sentence for the board: how it was learned


@dataclass(frozen=True)
class VerifyConfig:
    """Judge a submission again: the same policy, protocol and numbers."""

    submission: Positional[Path]  # file of `stepdown benchmark run`
    policy: str  # what was submitted
    sealed: Path | None = None  # file of `stepdown benchmark seal`: judge on sealed patients, too
    out: Path | None = None  # new file for the verified submission


@dataclass(frozen=True)
class BoardConfig:
    """Make the page of the board from submission files."""

    submissions: Positional[tuple[Path, ...]]  # files of `stepdown benchmark run` or `verify`
    out: Path  # page in Markdown


@dataclass(frozen=True)
class SealConfig:
    """Draw the seeds of sealed patients, and print the digests that go into the protocol."""

    out: Path  # new file, to be kept by whoever runs the board
    cohorts: int = 3  # for each data set


# ── data sets ────────────────────────────────────────────────────────────────────────────────────


def write_data(config: DataConfig) -> None:
    """The recorded stays of train and select patients; nothing of the truth leaves."""
    files_, hashes = data_files(config.data_set)
    about = provenance(config=config) | {"protocol": protocol_digest(), "files": hashes}
    write_folder(config.out, files_, kind=KIND, about=about)
    sys.stdout.write(f"{config.data_set}: {len(files_)} files in {config.out}; {CARD} says what.\n")


def data_files(name: str) -> tuple[dict[str, Content], dict[str, str]]:
    """Every file of a data set, and the digests of those that hold hours."""
    from stepdown.export.datasets import write_minari
    from stepdown.problem.environment import patients_spec

    words = _task(name)
    recipe = _recipe(words)
    cohort, _ = _simulate(recipe, words["seed"])
    parts = {part.role: part for part in split_patients(cohort, key=jr.key(SPLIT))}
    made: dict[str, Content] = {CONFIG: to_json(config_to_dict(recipe))}
    decisions: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for role in ("train", "select"):
            part, hours = parts[role], make_transitions(parts[role])
            tables = {role: files.cohort_table(part), f"{role}-deaths": files.death_table(part)}
            for kind, table in tables.items():
                path = Path(folder) / f"{kind}.parquet"
                files.to_parquet(table)(path)
                made[path.name] = path.read_bytes()
                path.unlink()
            spec = patients_spec(**words, role=role)
            about = {"data": "recorded", "benchmark": name}
            write_minari(Path(folder), hours, patients=part.patient, about=about,
                         name=minari_name(name, role), spec=spec)  # fmt: skip
            decisions[role] = len(hours.level)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                made[f"minari/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    hashes = {
        file: hashlib.sha256(content).hexdigest()
        for file, content in made.items()
        if isinstance(content, bytes) and file.endswith((".parquet", ".hdf5"))
    }
    made[CARD] = _card(name, words, parts, decisions, hashes).encode()
    return made, hashes


def minari_name(name: str, role: str) -> str:
    """Of a role's data set, such as stepdown/guarded-v2 for train patients."""
    kind, _, version = name.rpartition("-")
    return f"stepdown/{name}" if role == "train" else f"stepdown/{kind}-{role}-{version}"


def _card(
    name: str,
    words: Mapping[str, Any],
    parts: Mapping[str, Cohort],
    decisions: Mapping[str, int],
    hashes: Mapping[str, str],
) -> str:
    """What the data set is, in words."""
    sizes = "\n".join(
        f"| {role} | {len(parts[role].patient)} | {count:,} | `{minari_name(name, role)}` |"
        for role, count in decisions.items()
    )
    digests = "\n".join(f"| `{file}` | `{digest}` |" for file, digest in hashes.items())
    made = f"stepdown simulate --preset {words['preset']} --seed {words['seed']} " \
        f"--version {words['version']} --patients {words['patients']}"  # fmt: skip
    return CARD_TEXT.format(name=name, version=__version__, made=made, sizes=sizes, digests=digests)


def _task(name: str) -> dict[str, Any]:
    """The words of a data set, as the environment takes them."""
    return dict(PROTOCOL["data"][name])


def _recipe(words: Mapping[str, Any], **changes: Any) -> CohortConfig:
    named = {x: y for x, y in words.items() if x != "seed"}
    return CohortConfig(**(named | changes))


def _simulate(recipe: CohortConfig, seed: int) -> tuple[Cohort, Latents]:
    return simulate_cohort(recipe, key=jr.split(jr.key(seed), 3)[0])


# ── submissions ──────────────────────────────────────────────────────────────────────────────────


def protocol_digest() -> str:
    """What makes two submissions comparable."""
    return hashlib.sha256(json.dumps(PROTOCOL, sort_keys=True).encode()).hexdigest()


def submit(config: SubmitConfig) -> None:
    """Judge on open patients, and write the file."""
    if config.out.exists():
        raise FileExistsError(f"--out: expected a new file, got {config.out}, which exists.")
    if not 1 <= config.judgements <= PROTOCOL["judgements"]:
        raise ValueError(
            f"--judgements: expected 1 to {PROTOCOL['judgements']}, as the protocol allows, got "
            f"{config.judgements}."
        )
    if not config.name.strip() or "|" in config.name or "\n" in config.name:
        raise ValueError(f"--name: expected a name without |, got {config.name!r}.")
    seed = PROTOCOL["judged_on"]["open_seeds"][config.data]
    scores, digest = judge_open(config.policy, config.data, seed)
    told = {
        "protocol": PROTOCOL["protocol"],
        "protocol_sha256": protocol_digest(),
        "name": config.name,
        "data": config.data,
        "policy_sha256": digest,
        "judgements": config.judgements,
        "note": config.note,
        "stepdown": __version__,
        "open": scores,
    }
    config.out.write_bytes(to_json(told))
    sys.stdout.write(f"{_line(told)}\nWritten: {config.out}\n")


def judge_open(policy: str, data: str, seed: int) -> tuple[dict[str, float], str]:
    """A policy on freshly simulated patients of a data set's kind: scores, and a digest of it."""
    size = PROTOCOL["judged_on"]
    recipe = _recipe(_task(data), patients=size["patients"])
    cohort, latents = _simulate(recipe, seed)
    starts = draw_judged_starts(cohort, latents, size["episodes"], key=jr.key(KEY))
    world, team = world_of(recipe), judge_team(starts, world_of(recipe))
    if policy == CLINICIANS:
        return _scores(team, team), ""
    given, digest = find_policy(policy, np.asarray(starts.state), _refuse_known(cohort))
    judged = judge_in_patients(given.policy, starts, world)
    given.complain()
    return _scores(judged, team), digest


def _refuse_known(cohort: Cohort):
    """Whoever has seen the judging patients is not judged by them."""

    def check(note: Mapping[str, Any], path: Path) -> None:
        require_unseen({"patients": note.get("patients", [])}, cohort, path)

    return check


def _scores(judged: Judged, team: Judged) -> dict[str, float]:
    """Means over seeds and episodes, and differences to the clinicians with intervals."""
    found: dict[str, float] = {}
    for metric in JUDGED:
        own, theirs = (METRICS[metric].scale * np.asarray(x.scores[metric], np.float64).mean(0)
                       for x in (judged, team))  # fmt: skip
        found[metric] = float(own.mean())
        mean, low, high = paired_difference(own, theirs, judged.row)
        found |= {
            f"{metric}_minus_{CLINICIANS}": mean,
            f"{metric}_low": low,
            f"{metric}_high": high,
        }
    return {name: round(value, 6) for name, value in found.items()}


def verify(config: VerifyConfig) -> int:
    """Say whether a submission is what it says; 1 if it is not."""
    told = read_submission(config.submission)
    wrong = []
    scores, digest = judge_open(
        config.policy, told["data"], PROTOCOL["judged_on"]["open_seeds"][told["data"]]
    )
    if digest != told["policy_sha256"]:
        wrong.append(f"the policy is another one: {digest[:12]} instead of "
                     f"{told['policy_sha256'][:12]}")  # fmt: skip
    apart = {
        name: abs(scores[name] - told["open"].get(name, math.nan))
        for name in ("reward", f"reward_minus_{CLINICIANS}")
    }
    wrong += [
        f"{name} is {scores[name]:.4f}, not {told['open'].get(name, math.nan):.4f}"
        for name, gap in apart.items()
        if not gap <= AGAIN
    ]
    if config.sealed is not None:
        told["sealed"] = judge_sealed(config.policy, told["data"], config.sealed)
    said = (
        "\n".join(f"not verified: {x}" for x in wrong)
        or "verified: the same policy, the same numbers"
    )
    sys.stdout.write(f"{_line(told)}\n{said}\n")
    if config.out is not None and not wrong:
        config.out.write_bytes(to_json(told | {"verified_by": __version__}))
    return 1 if wrong else 0


def read_submission(path: Path) -> dict[str, Any]:
    """A submission of this protocol; any other file is refused."""
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: expected a submission, which is missing.") from None
    except ValueError as error:
        raise ValueError(f"{path}: expected a submission in JSON, got {error}.") from error
    lacking = {"name", "data", "open", "policy_sha256", "judgements", "protocol_sha256"} - set(told)
    if lacking:
        raise ValueError(
            f"{path}: expected {', '.join(sorted(lacking))} in a submission, got none."
        )
    if told["protocol_sha256"] != protocol_digest():
        raise ValueError(
            f"{path}: expected a submission of protocol {PROTOCOL['protocol']} as it stands, got "
            "one of another. Judge it again: stepdown benchmark run."
        )
    if told["data"] not in PROTOCOL["data"] or not told["judgements"] <= PROTOCOL["judgements"]:
        raise ValueError(f"{path}: expected a data set and a budget of the protocol, got others.")
    return told


# ── sealed patients ──────────────────────────────────────────────────────────────────────────────


def seal(config: SealConfig) -> None:
    """Seeds that nobody can guess, and digests that bind whoever holds them."""
    if config.out.exists():
        raise FileExistsError(f"--out: expected a new file, got {config.out}, which exists.")
    held = {
        name: [{"seed": secrets.randbelow(2**31), "salt": secrets.token_hex(16)}
               for _ in range(config.cohorts)]
        for name in PROTOCOL["data"]
    }  # fmt: skip
    config.out.write_bytes(to_json(held))
    digests = {name: [_seal_digest(name, x) for x in own] for name, own in held.items()}
    sys.stdout.write(json.dumps({"sealed": digests}, indent=1) + "\n")


def _seal_digest(name: str, one: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{name} {one['seed']} {one['salt']}".encode()).hexdigest()


def judge_sealed(policy: str, data: str, sealed: Path) -> list[dict[str, float]]:
    """Scores on every sealed cohort; a file that the protocol does not know is refused."""
    held = json.loads(sealed.read_bytes()).get(data, [])
    digests = [_seal_digest(data, one) for one in held]
    if not digests or digests != PROTOCOL["sealed"].get(data):
        raise ValueError(
            f"{sealed}: expected the seeds whose digests the protocol holds for {data}, got "
            f"{'others' if digests else 'none'}. Ask whoever runs the board."
        )
    return [judge_open(policy, data, one["seed"])[0] for one in held]


# ── the board ────────────────────────────────────────────────────────────────────────────────────


def board(config: BoardConfig) -> None:
    """One table for each data set, best first."""
    told = [read_submission(path) for path in config.submissions]
    config.out.write_text(board_page(told), encoding="utf-8")
    sys.stdout.write(f"{len(told)} rows: {config.out}\n")


def board_page(submissions: Sequence[Mapping[str, Any]]) -> str:
    """The page from submissions alone."""
    gain = f"reward_minus_{CLINICIANS}"
    lines = [
        "# Board",
        "",
        f"Protocol {PROTOCOL['protocol']} (`{protocol_digest()[:12]}`). Made by `benchmark board`",
        "from submission files. Reward and unsafe hours are those of six hours in simulated",
        "patients that are in no data set, minus their own clinicians', with 95 % intervals over",
        "patients.",
    ]
    for data in PROTOCOL["data"]:
        rows = sorted((x for x in submissions if x["data"] == data),
                      key=lambda x: -x["open"][gain])  # fmt: skip
        if not rows:
            continue
        lines += [
            "",
            f"## {data}",
            "",
            "| row | reward | minus clinicians | unsafe hours, points | ACP | sealed | judged "
            "| how |",
            f"|{'---|' * 8}",
        ]
        for one in rows:
            own = one["open"]
            sealed = [x[gain] for x in one.get("sealed", ())]
            mean = signed(sum(sealed) / len(sealed)) if sealed else "–"
            cells = (
                one["name"],
                number(own["reward"]),
                _apart(own, "reward", 2),
                _apart(own, "unsafe_hours", 1),
                number(own["acp"]),
                mean,
                str(one["judgements"]),
                one["note"].replace("|", "/"),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _apart(own: Mapping[str, float], metric: str, digits: int) -> str:
    mean, low, high = (own[f"{metric}_{x}"] for x in (f"minus_{CLINICIANS}", "low", "high"))
    if low == high == mean == 0:
        return "0"
    word = " undecided" if low <= 0 <= high else ""
    return f"{signed(mean, digits)} {span(low, high, digits)}{word}"


def _line(told: Mapping[str, Any]) -> str:
    own = told["open"]
    parts = (
        f"{told['name']} on {told['data']}: reward {number(own['reward'])}",
        f"minus clinicians {_apart(own, 'reward', 2)}",
        f"unsafe hours {_apart(own, 'unsafe_hours', 1)} points",
    )
    return "; ".join(parts).replace("−", "-")
