"""The command line: words to a typed config, a config to its verb, errors to one sentence.

Commands are imported when they are asked for, so that help and a wrong word are answered at once.

Exit codes: 0 done, 1 the doctor found something that needs action, 2 wrong input (options,
folders, mapping files), 65 a recording that cannot be read, 130 interrupted,
143 stopped by SIGTERM (`train`, `search` and `run`, which go on when they are started again).
"""

import contextlib
import dataclasses
import difflib
import importlib
import io
import itertools
import os
import re
import sys
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepdown import __version__

WRONG_INPUT, INTERRUPTED = 2, 130


@dataclass(frozen=True)
class Command:
    """Where a command is, and what the help says about it."""

    module: str  # of stepdown.commands
    config: str
    verb: str
    words: str


COMMANDS: dict[str, Command] = {
    "simulate": Command(
        "simulate",
        "SimulateConfig",
        "simulate",
        "Simulate a cohort of pump patients and write it to a folder.",
    ),
    "run": Command(
        "run",
        "RunConfig",
        "run",
        "Run the whole journey of the paper, from patients to a report.",
    ),
    "judge": Command(
        "run", "JudgeConfig", "judge", "Add evidence beyond the twin to a finished run."
    ),
    "evaluate": Command(
        "evaluate",
        "EvaluateConfig",
        "evaluate_policy",
        "Judge a policy of your own in a finished run, as a row beside its own.",
    ),
    "import": Command(
        "import_recordings",
        "ImportCommand",
        "import_recordings",
        "Import recordings into a cohort folder.",
    ),
    "merge": Command("merge", "MergeConfig", "merge", "Merge cohort folders into one."),
    "score": Command(
        "score", "ScoreConfig", "score", "Score the stays of a cohort or episode file."
    ),
    "export": Command(
        "export",
        "ExportConfig",
        "export",
        "Export the hours of a cohort, or the models of a run, for other people's programs.",
    ),
    "doctor": Command(
        "doctor",
        "DoctorConfig",
        "doctor",
        "Say what is wrong with a recording and propose a mapping file.",
    ),
    "compare": Command(
        "compare",
        "CompareConfig",
        "compare",
        "Show a cohort beside another one or the simulator, as a page.",
    ),
    "twin fit": Command(
        "twin",
        "TwinFitConfig",
        "fit_and_save",
        "Fit a digital twin to the train patients of a cohort.",
    ),
    "twin score": Command(
        "twin", "TwinScoreConfig", "score_twins", "Score the forecasts of twins on test patients."
    ),
    "guardian fit": Command(
        "guardian",
        "GuardianFitConfig",
        "fit_and_save_guardian",
        "Fit a density guardian to the train patients of a cohort.",
    ),
    "guardian score": Command(
        "guardian",
        "GuardianScoreConfig",
        "score_guardians",
        "Score what guardians notice and refuse on test patients.",
    ),
    "guardian search": Command(
        "guardian",
        "GuardianSearchConfig",
        "search",
        "Search the weight of the chosen level and the bandwidth on select patients.",
    ),
    "train": Command(
        "train",
        "TrainConfig",
        "train",
        "Train policies on the train patients of a cohort or data set.",
    ),
    "search": Command(
        "train",
        "SearchConfig",
        "search",
        "Try a method's six settings on select patients, judged by the twin.",
    ),
    "benchmark data": Command(
        "benchmark",
        "DataConfig",
        "write_data",
        "Write a versioned data set: Parquet and Minari, hashes and a card.",
    ),
    "benchmark run": Command(
        "benchmark",
        "SubmitConfig",
        "submit",
        "Judge a policy on the open patients of a data set and leave a submission file.",
    ),
    "benchmark verify": Command(
        "benchmark",
        "VerifyConfig",
        "verify",
        "Judge a submission again: the same policy, protocol and numbers.",
    ),
    "benchmark board": Command(
        "benchmark",
        "BoardConfig",
        "board",
        "Make the page of the board from submission files.",
    ),
    "benchmark seal": Command(
        "benchmark",
        "SealConfig",
        "seal",
        "Draw the seeds of sealed patients, and print the digests that go into the protocol.",
    ),
    "app": Command(
        "app",
        "AppConfig",
        "serve",
        "Show the what-if screen of a finished run; research use, on recorded data.",
    ),
    "audit verify": Command(
        "audit",
        "AuditConfig",
        "verify_audit",
        "Verify the audit of an app: every entry, their order, and the end.",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except KeyboardInterrupt:
        return _complain("interrupted.", INTERRUPTED)
    except (ValueError, OSError) as error:
        return _complain(_describe(error), _code(error))


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        print(f"stepdown {__version__}")
        return 0
    if words[:1] in (["-h"], ["--help"]):
        print(_overview())
        return 0
    if words[:1] == ["--completion"]:
        print(completion(words[1:]))
        return 0
    if len(words) == 2 and words[1] in ("-h", "--help") and (family := _family(words[0])):
        print(_overview(family))
        return 0
    name, options = _command(words)
    command = COMMANDS[name]
    module = importlib.import_module(f"stepdown.commands.{command.module}")
    config = _parse(getattr(module, command.config), f"stepdown {name}", options)
    if config is None:
        return 0  # help was asked for and printed
    _keep_compiled_programs()
    code = getattr(module, command.verb)(config)
    return code if isinstance(code, int) else 0


def _command(words: list[str]) -> tuple[str, list[str]]:
    """The command that the words begin with, such as `score` or `twin fit`, and the rest."""
    for length in (2, 1):
        if (name := " ".join(words[:length])) in COMMANDS:
            return name, words[length:]
    family = _family(words[0]) if words else ()
    got = repr(" ".join(words[: 2 if family else 1])) if words else "nothing"
    meant = _suggest(" ".join(words[: 2 if family else 1]), COMMANDS)
    raise ValueError(
        f"expected a command ({', '.join(family or COMMANDS)}), got {got}.\n\n"
        f"See stepdown {f'{words[0]} ' if family else ''}--help.{meant}"
    )


def _family(word: str) -> tuple[str, ...]:
    """The commands of two words that begin with this one."""
    return tuple(name for name in COMMANDS if name.split()[:-1] == [word])


def _suggest(word: str, known: Iterable[str]) -> str:
    """What a mistyped word may have meant, as a further sentence."""
    close = difflib.get_close_matches(word, list(known), 1, 0.7) if word else []
    return f" Did you mean {close[0]}?" if close else ""


def _overview(family: Sequence[str] = ()) -> str:
    """Help for the command itself, or for a family such as `twin`; each command prints its own."""
    shown = {name: command for name, command in COMMANDS.items() if name in (family or COMMANDS)}
    commands = "\n".join(f"  {name:16s}{command.words}" for name, command in shown.items())
    if family:
        first = family[0].split()[0]
        return f"""usage: stepdown {first} COMMAND [OPTIONS]

commands:
{commands}

options:
  -h, --help  show this help; stepdown {family[0]} --help shows the options of a command"""
    return f"""usage: stepdown COMMAND [OPTIONS]

Careful weaning from a micro-axial heart pump, studied on simulated patients.
Research software, not a medical device.

commands:
{commands}

options:
  -h, --help         show this help; stepdown COMMAND --help shows the options of a command
  --version          show the version
  --completion bash  print what a shell needs to complete commands (bash or zsh)"""


def completion(words: list[str]) -> str:
    """A script for bash or zsh that completes commands and their options, and then files."""
    if words not in (["bash"], ["zsh"]):
        got = " ".join(words) or "nothing"
        raise ValueError(f"--completion: expected bash or zsh, got {got}.")
    cases = [f'    "{name}") words="{" ".join(_options(name))}" ;;' for name in COMMANDS]
    families = {name.split()[0] for name in COMMANDS if " " in name}
    cases += [
        f'    "{one}") words="{" ".join(name.split()[1] for name in _family(one))}" ;;'
        for one in sorted(families)
    ]
    first = " ".join(dict.fromkeys(name.split()[0] for name in COMMANDS))
    known = "\n".join(cases)
    begin = "autoload -Uz bashcompinit && bashcompinit\n" if words == ["zsh"] else ""
    several = "|".join(sorted(families))
    return f"""{begin}_stepdown() {{
  local words="" name="${{COMP_WORDS[1]}}"
  case "$name" in {several})
    [ "$COMP_CWORD" -gt 2 ] && name="$name ${{COMP_WORDS[2]}}" ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then words="{first} --help --version"; else case "$name" in
{known}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -o bashdefault -F _stepdown stepdown"""


def _options(name: str) -> list[str]:
    """The options of a command, and the words that its first argument may be."""
    command = COMMANDS[name]
    config = getattr(importlib.import_module(f"stepdown.commands.{command.module}"), command.config)
    hints, found = typing.get_type_hints(config, include_extras=True), []
    for field in dataclasses.fields(config):
        kind = hints[field.name]
        if "_OnlyPositional" in str(kind) or "positional" in str(kind).lower():
            found += [x for x in _choices(kind) if isinstance(x, str)]
        else:
            found.append(f"--{field.name.replace('_', '-')}")
    return [*found, "--help"]


def _choices(kind: Any) -> tuple[Any, ...]:
    """The words that a positional argument may be, if they are few."""
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    return typing.get_args(inner) if typing.get_origin(inner) is typing.Literal else ()


def _parse(config: type, program: str, words: list[str]) -> Any:
    """Read a config from the words, or None if help was asked for."""
    import tyro

    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                config,
                prog=program,
                args=words,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=_numbers(),
            )
    except SystemExit as stop:
        if not stop.code:
            return None
        sentence = _sentence(printed.getvalue())
        meant = _meant(sentence, config)
        raise ValueError(f"{sentence}\n\nSee {program} --help.{meant}") from None


def _meant(sentence: str, config: type) -> str:
    """What a mistyped option or choice may have meant."""
    if option := re.search(r"Unrecognized options: (--[\w-]+)", sentence):
        known = [f"--{x.name.replace('_', '-')}" for x in dataclasses.fields(config)]
        return _suggest(option[1], known)
    if choice := re.search(r"invalid choice '([^']*)'.*expected one of \((.*)\)", sentence):
        return _suggest(choice[1], re.findall(r"'([^']*)'", choice[2]))
    return ""


def _numbers() -> Any:
    """Numbers in our words: tyro says "invalid literal for int() with base 10", as Python does."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def number(info: Any) -> Any:
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

    return registry


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
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return str(error)


def _code(error: Exception) -> int:
    """Wrong input, unless the error knows better: a recording that cannot be read does."""
    return getattr(error, "exit_code", WRONG_INPUT)


def _complain(sentence: str, code: int) -> int:
    print(f"stepdown: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
