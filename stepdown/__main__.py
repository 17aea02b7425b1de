"""The command line: words to a typed config, a config to its verb, errors to one sentence.

Exit codes: 0 done, 1 the doctor found something that needs action, 2 wrong input (options,
folders, mapping files), 65 a recording that cannot be read, 130 interrupted,
143 stopped by SIGTERM (`train`, which goes on when it is started again).
"""

import contextlib
import io
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import tyro

from stepdown import __version__
from stepdown.app.commands import AppConfig, AuditConfig, serve, verify_audit
from stepdown.commands.export import ExportConfig, export
from stepdown.experiment.judge import JudgeConfig, judge
from stepdown.experiment.presets import RunPreset
from stepdown.experiment.run import RunConfig, run
from stepdown.experiment.simulate import SimulateConfig, simulate
from stepdown.records.limits import RecordingError
from stepdown.report.checkup import DoctorConfig, doctor
from stepdown.report.guardians import (
    GuardianFitConfig,
    GuardianScoreConfig,
    GuardianSearchConfig,
    fit_and_save_guardian,
    score_guardians,
    search,
)
from stepdown.report.imported import ImportCommand, import_recordings
from stepdown.report.recipes import Method
from stepdown.report.scores import ScoreConfig, score
from stepdown.report.searching import SearchConfig, search_policies
from stepdown.report.training import TrainConfig, train
from stepdown.report.twins import TwinFitConfig, TwinScoreConfig, fit_and_save, score_twins

WRONG_INPUT, UNREADABLE, INTERRUPTED = 2, 65, 130


@dataclass(frozen=True)
class _Run(RunConfig):
    """Run the whole journey of the paper, from patients to a report."""

    preset: tyro.conf.Positional[RunPreset]  # size of the run


@dataclass(frozen=True)
class _Judge(JudgeConfig):
    """Add evidence beyond the twin to a finished run."""

    run: tyro.conf.Positional[Path]  # folder of `stepdown run`


@dataclass(frozen=True)
class _Score(ScoreConfig):
    """Score the stays of a cohort or episode file."""

    file: tyro.conf.Positional[Path]  # folder of `stepdown simulate`, or a Parquet file like it


@dataclass(frozen=True)
class _Export(ExportConfig):
    """Export a cohort's hours or a run's models for other people's programs."""

    source: tyro.conf.Positional[Path]  # cohort of `stepdown simulate`, or a finished run


@dataclass(frozen=True)
class _Doctor(DoctorConfig):
    """Say what is wrong with a recording and propose a mapping file."""

    file: tyro.conf.Positional[Path]  # recording, or folder of recordings


@dataclass(frozen=True)
class _Import(ImportCommand):
    """Import recordings into a cohort folder."""

    file: tyro.conf.Positional[Path]  # recording, or folder of recordings


@dataclass(frozen=True)
class _Train(TrainConfig):
    """Train policies on the train patients of a cohort or data set."""

    method: tyro.conf.Positional[Method]  # how to learn


@dataclass(frozen=True)
class _Search(SearchConfig):
    """Try a method's six settings on select patients, judged by the twin."""

    method: tyro.conf.Positional[Method]  # how to learn


@dataclass(frozen=True)
class _App(AppConfig):
    """Serve the what-if forecasts of a finished run on this machine."""

    run: tyro.conf.Positional[Path]  # folder of `stepdown run`


@dataclass(frozen=True)
class _Audit(AuditConfig):
    """Check that nobody has changed the audit of an app."""

    folder: tyro.conf.Positional[Path]  # state folder of the app, by default RUN-app


COMMANDS: dict[str, tuple[type, Callable[[Any], object]]] = {
    "simulate": (SimulateConfig, simulate),
    "run": (_Run, run),
    "judge": (_Judge, judge),
    "import": (_Import, import_recordings),
    "score": (_Score, score),
    "export": (_Export, export),
    "doctor": (_Doctor, doctor),
    "twin fit": (TwinFitConfig, fit_and_save),
    "twin score": (TwinScoreConfig, score_twins),
    "guardian fit": (GuardianFitConfig, fit_and_save_guardian),
    "guardian score": (GuardianScoreConfig, score_guardians),
    "guardian search": (GuardianSearchConfig, search),
    "train": (_Train, train),
    "search": (_Search, search_policies),
    "app": (_App, serve),
    "audit verify": (_Audit, verify_audit),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except KeyboardInterrupt:
        return _complain("interrupted.", INTERRUPTED)
    except RecordingError as error:
        return _complain(_describe(error), UNREADABLE)
    except (ValueError, OSError) as error:
        return _complain(_describe(error), WRONG_INPUT)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        print(f"stepdown {__version__}")
        return 0
    if words[:1] in (["-h"], ["--help"]):
        print(_overview())
        return 0
    name, options = _command(words)
    config_type, verb = COMMANDS[name]
    config = _parse(config_type, f"stepdown {name}", options)
    if config is None:
        return 0  # help was asked for and printed
    _keep_compiled_programs()
    code = verb(config)
    return code if isinstance(code, int) else 0


def _command(words: list[str]) -> tuple[str, list[str]]:
    """The command that the words begin with, such as `score` or `twin fit`, and the rest."""
    for length in (2, 1):
        if (name := " ".join(words[:length])) in COMMANDS:
            return name, words[length:]
    family = [name for name in COMMANDS if words and name.split()[:-1] == words[:1]]
    got = repr(" ".join(words[: 2 if family else 1])) if words else "nothing"
    raise ValueError(
        f"expected a command ({', '.join(family or COMMANDS)}), got {got}.\n\nSee stepdown --help."
    )


def _overview() -> str:
    """Help for the command itself; each command prints its own."""
    commands = "\n".join(f"  {name:16s}{config.__doc__}" for name, (config, _) in COMMANDS.items())
    return f"""usage: stepdown COMMAND [OPTIONS]

Careful weaning from a micro-axial heart pump, studied on simulated patients.
Research software, not a medical device.

commands:
{commands}

options:
  -h, --help  show this help; stepdown COMMAND --help shows the options of a command
  --version   show the version"""


def _parse(config: type, program: str, words: list[str]) -> Any:
    """Read a config from the words, or None if help was asked for."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                config,
                prog=program,
                args=words,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=_NUMBERS,
            )
    except SystemExit as stop:
        if not stop.code:
            return None
        sentence = _sentence(printed.getvalue())
        raise ValueError(f"{sentence}\n\nSee {program} --help.") from None


# tyro words a wrong number as Python does ("invalid literal for int() with base 10").
_NUMBERS = tyro.constructors.ConstructorRegistry()


@_NUMBERS.primitive_rule
def _number(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
    kinds = {int: (int, "a whole number"), float: (float, "a number")}
    kinds |= {int | None: kinds[int], float | None: kinds[float]}
    if info.type not in kinds:
        return None
    convert, expected = kinds[info.type]

    def read(words: list[str]) -> int | float:
        try:
            return convert(words[0])
        except ValueError:
            raise ValueError(f"expected {expected}, got {words[0]!r}.") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=convert.__name__.upper(),
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, convert) or value is None,
        str_from_instance=lambda value: [str(value)],
    )


def _sentence(box: str) -> str:
    """The sentence inside the box that tyro draws around an error."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    title, *lines = [line.strip("│") for line in plain.splitlines()]
    lines = itertools.dropwhile(_is_rule, lines)  # without UTF-8 a rule follows the title
    body = list(itertools.takewhile(lambda line: not _is_rule(line), lines))
    if "Required options" in title:  # names are indented by four, their help by eight
        names = [line.strip() for line in body if re.match(r" {5,6}\S", line)]
        return f"expected {' and '.join(names)}, got nothing."
    words = " ".join(line.strip() for line in body).removeprefix("Error parsing ")
    return words.replace(". Expected", "; expected").rstrip(" .") + "."


def _is_rule(line: str) -> bool:
    return set(line.strip()) <= set("─-╰╯")


def _keep_compiled_programs() -> None:
    """Cache what JAX compiles, as compiling takes longer than running."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return  # JAX reads it by itself
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "stepdown" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or a read-only one: slower, not wrong
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return str(error)


def _complain(sentence: str, code: int) -> int:
    print(f"stepdown: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
