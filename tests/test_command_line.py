"""The command line answers wrong input with one sentence and exit code 2."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepdown import __version__
from stepdown.__main__ import COMMANDS, main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", f"expected a command ({', '.join(COMMANDS)}), got nothing."),
        ("simulat", f"expected a command ({', '.join(COMMANDS)}), got 'simulat'."),
        ("simulate", "expected --out PATH, got nothing."),
        ("simulate --out x --patients abc", "--patients: expected a whole number, got 'abc'."),
        ("simulate --out x --patients 2.5", "--patients: expected a whole number, got '2.5'."),
        ("simulate --out x --hours long", "--hours: expected a number, got 'long'."),
        ("simulate --out x --colour red", "Unrecognized options: --colour, red."),
        (
            "simulate --out x --preset mild",
            "invalid choice 'mild' for argument '--preset'; "
            "expected one of ('guarded', 'benign', 'hidden').",
        ),
        ("run --out x", "expected {pocket,demo,overnight,paper,full}, got nothing."),
        (
            "run all --out x",
            "invalid choice 'all' for argument 'preset'; expected one of ('pocket', 'demo', "
            "'overnight', 'paper', 'full').",
        ),
    ],
)
def test_wrong_words_are_answered_with_one_sentence(words, sentence, capsys):
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    first, blank, hint = printed.err.splitlines()
    assert (first, blank) == (f"stepdown: {sentence}", "")
    assert hint.startswith("See stepdown ")


@pytest.mark.parametrize("columns", ["20", "300"])
def test_sentences_do_not_depend_on_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["simulate", "--out", "x", "--patients", "many"]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "stepdown: --patients: expected a whole number, got 'many'."


def test_values_outside_their_range_write_nothing(tmp_path, capsys):
    out = tmp_path / "new" / "cohort"
    assert main(["simulate", "--out", str(out), "--patients", "-3"]) == 2
    sentence = capsys.readouterr().err
    assert "patients" in sentence
    assert "-3" in sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["simulate"], ["run", "pocket"]])
def test_existing_output_is_refused_and_untouched(command, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("precious")
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "exists; choose another one or remove it" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize("command", [["simulate"], ["run", "pocket"]])
def test_a_place_that_cannot_be_written_is_refused(command, tmp_path, capsys):
    (tmp_path / "file").write_text("not a folder")
    assert main([*command, "--out", str(tmp_path / "file" / "out")]) == 2
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1
    assert "Not a directory" in sentence


def test_an_interrupt_ends_with_one_line_and_no_files(tmp_path, capsys):
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002)  # long before the first patient is simulated
        code = main(["simulate", "--out", str(tmp_path / "out")])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (code, capsys.readouterr().err) == (130, "stepdown: interrupted.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option_with_its_default(command, capsys):
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith(f"usage: stepdown {command}")
    module = importlib.import_module(f"stepdown.commands.{COMMANDS[command].module}")
    config = getattr(module, COMMANDS[command].config)
    assert config.__doc__ in printed.out
    assert config.__doc__ == COMMANDS[command].words  # help of help
    positional = {"preset", "file", "source", "method", "run", "folder", "cohorts"}
    positional |= {"policy", "submission", "submissions", "data_set"}
    for name, field in config.__dataclass_fields__.items():
        if name not in positional:
            word = f"no-{name}" if field.default is True else name  # what changes the default
            word = {"other": "with", "origin": "from"}.get(word, word)  # no names in Python
            assert f"--{word.replace('_', '-')}" in printed.out
    if command == "simulate":
        assert "(default: 379)" in printed.out


def test_the_overview_names_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name}" in printed
        assert command.words in printed


@pytest.mark.parametrize("family", ["twin", "guardian", "audit", "benchmark"])
def test_a_first_word_of_two_has_help(family, capsys):
    assert main([family, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: stepdown {family} COMMAND [OPTIONS]\n")
    own = [name for name in COMMANDS if name.startswith(f"{family} ")]
    assert [line.strip() for line in printed.splitlines() if line.startswith(f"  {family} ")] == [
        f"{name:16s}{COMMANDS[name].words}".strip() for name in own
    ]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("simulat", "See stepdown --help. Did you mean simulate?"),
        ("twin fitt", "See stepdown twin --help. Did you mean twin fit?"),
        ("simulate --out x --patient 3", "See stepdown simulate --help. Did you mean --patients?"),
        ("run demoo --out x", "See stepdown run --help. Did you mean demo?"),
        ("run xyz --out x", "See stepdown run --help."),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(words, hint, capsys):
    assert main(words.split()) == 2
    assert capsys.readouterr().err.splitlines()[-1] == hint


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("twin fit --coh", "--cohort"),
        ("guardian s", "score search"),
        ("run ove", "overnight"),
        ("simu", "simulate"),
    ],
)
def test_a_shell_completes_commands_options_and_presets(typed, offered, capsys):
    assert main(["--completion", "bash"]) == 0
    words = ["stepdown", *typed.split()]
    script = (
        capsys.readouterr().out
        + f"""
COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _stepdown; echo "${{COMPREPLY[@]}}"
"""
    )
    told = subprocess.check_output(["bash", "-c", script], text=True)
    assert told.strip() == offered


def test_messages_name_no_class_of_ours():
    """A type's name may stand in a message only where it is an error of somebody's own."""
    found = []
    for path in (ROOT / "stepdown").rglob("*.py"):
        for line in path.read_text("utf-8").splitlines():
            if "__name__" in line and "type(" in line and "type(error)" not in line:
                found.append(f"{path.name}: {line.strip()}")
    assert [x for x in found if not x.startswith(("artifacts", "jobs"))] == []


def test_the_installed_command_tells_its_version():
    script = os.path.join(os.path.dirname(sys.executable), "stepdown")
    run = subprocess.run([script, "--version"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, f"stepdown {__version__}\n", "")


def test_the_module_runs_without_terminal_and_color(tmp_path):
    # No UTF-8, no home, no terminal: the sentence is still plain.
    plain = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "stepdown", "simulate", "--patients", "-", "--out", "x"]
    run = subprocess.run(words, capture_output=True, env=plain, cwd=tmp_path, check=False)
    assert run.returncode == 2
    assert run.stdout == b""
    expected = b"stepdown: --patients: expected a whole number, got '-'.\n\n"
    assert run.stderr == expected + b"See stepdown simulate --help.\n"
