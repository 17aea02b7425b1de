"""What a training says while it runs: a line on stderr, a line of JSON, a point for TensorBoard.

`metrics.jsonl` is the record; the files for TensorBoard are made from it. A training that goes on
from an earlier moment first drops the lines that it will write again.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepdown.export.tensorboard import Event, append_event, write_events
from stepdown.signals import LEVELS

METRICS, BOARD = "metrics.jsonl", "tensorboard"
SHOWN = ("reward", "penalty", "critic_loss", "entropy", "loss", "held_out", "twin_reward")
EVERY = 5.0  # s between two lines where stderr is a file


class Diary:
    """The lines of one folder."""

    def __init__(self, folder: Path, title: str):
        self._folder, self._title, self._last = folder, title, 0.0
        self.lines = read_metrics(folder / METRICS)

    def rewind(self, seed: int, done: int) -> None:
        """Forget what was written about a seed after `done` updates."""
        kept = [x for x in self.lines if x["seed"] != seed or x["updates"] <= done]
        file = self._folder / METRICS
        draft = file.with_suffix(".draft")
        draft.write_text("".join(map(_line, kept)), encoding="utf-8")
        os.replace(draft, file)
        self.lines = kept
        own = [x for x in kept if x["seed"] == seed]
        events = [Event(x["time"], x["updates"], numbers(x)) for x in own]
        write_events(self._board(seed), events)

    def write(self, seed: int, epoch: int, updates: int, info: Mapping[str, Any]) -> None:
        """Note one epoch of one seed."""
        plain = {name: np.asarray(x).tolist() for name, x in info.items()}
        head = {"seed": seed, "epoch": epoch, "updates": updates, "time": round(time.time(), 1)}
        line = head | plain
        self.lines.append(line)
        with (self._folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(_line(line))
        append_event(self._board(seed), Event(line["time"], updates, numbers(line)))

    def show(self, seed: int, share: float) -> None:
        """Tell the newest line of a seed; in a file only now and then."""
        own = [x for x in self.lines if x["seed"] == seed]
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if not own or (not terminal and now - self._last < EVERY and share < 1):
            return
        self._last = now
        words = f"{self._title} seed {seed} {100 * share:3.0f} %  {words_of(own[-1])}"
        ending = "\n" if share >= 1 or not terminal else ""
        sys.stderr.write(("\r\x1b[K" if terminal else "") + words + ending)
        sys.stderr.flush()

    def _board(self, seed: int) -> Path:
        return self._folder / BOARD / f"seed-{seed}" / f"events.out.tfevents.{seed}.stepdown"


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The lines of a file; one that a sudden end has cut short is left out."""
    if not file.is_file():
        return []
    lines = []
    for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line by name; the shares of the levels one by one."""
    plain = {k: float(x) for k, x in line.items() if k not in (*_HEAD, "levels")}
    shares = line.get("levels") or []
    return plain | {f"levels/P{level}": x for level, x in zip(LEVELS, shares, strict=False)}


_HEAD = ("seed", "epoch", "updates", "time")


def words_of(line: Mapping[str, Any]) -> str:
    """A line for people: losses, rewards and how often each level is set."""
    words = [f"{name.replace('_', ' ')} {line[name]:.3f}" for name in SHOWN if name in line]
    return "  ".join([*words, mix_words(line["levels"])] if line.get("levels") else words)


def mix_words(shares: list[float]) -> str:
    """The levels that are set, in percent."""
    used = [(level, 100 * x) for level, x in zip(LEVELS, shares, strict=True) if x >= 0.005]
    return " ".join(f"P{level} {x:.0f}%" for level, x in used)


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False) + "\n"
