"""What a long command says while it works: a bar or a line on stderr, curves for TensorBoard."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepdown.export.tensorboard import Event, append_event, write_events
from stepdown.signals import LEVELS

BOARD = "tensorboard"
SHOWN = ("reward", "penalty", "critic_loss", "entropy", "loss", "held_out", "twin_reward")
EVERY = 5.0  # s between two lines of a training where stderr is a file


@contextlib.contextmanager
def progress(words: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal; elsewhere a line for every quarter."""
    start, quarters, terminal = time.monotonic(), 0, sys.stderr.isatty()

    def watch(share: float) -> None:
        nonlocal quarters
        taken = time.monotonic() - start
        elapsed = f"{100 * share:3.0f} %, {taken:.0f} s"
        if 0 < share < 1:
            elapsed += f", about {taken * (1 - share) / share:.0f} s left"
        if terminal:
            bar = ("#" * round(30 * share)).ljust(30, ".")
            sys.stderr.write(f"\r{words} [{bar}] {elapsed} \x1b[K")
        elif int(4 * share) > quarters:
            quarters = int(4 * share)
            sys.stderr.write(f"{words}: {elapsed}\n")
        sys.stderr.flush()

    try:
        yield watch
    finally:
        if terminal:
            sys.stderr.write("\n")


class Terminal:
    """Tells whoever waits (jobs.Teller), and keeps curves for TensorBoard beside the record."""

    def __init__(self):
        self._last = 0.0

    def progress(self, words: str) -> contextlib.AbstractContextManager[Callable[[float], None]]:
        """A bar on a terminal; elsewhere a line for every quarter."""
        return progress(words)

    def begin(self, folder: Path, seed: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the curves of a seed so far; it goes on from there."""
        write_board(folder, seed, lines)

    def epoch(self, folder: Path, title: str, share: float, line: Mapping[str, Any]) -> None:
        """Tell the newest line of a seed; in a file only now and then."""
        append_event(_board(folder, line["seed"]), _event(line))
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if not terminal and now - self._last < EVERY and share < 1:
            return
        self._last = now
        words = f"{title} seed {line['seed']} {100 * share:3.0f} %  {words_of(line)}"
        ending = "\n" if share >= 1 or not terminal else ""
        sys.stderr.write(("\r\x1b[K" if terminal else "") + words + ending)
        sys.stderr.flush()


def write_board(folder: Path, seed: int, lines: Sequence[Mapping[str, Any]]) -> None:
    """The lines of a seed as a file for TensorBoard."""
    write_events(_board(folder, seed), [_event(line) for line in lines])


def _event(line: Mapping[str, Any]) -> Event:
    return Event(line["time"], line["updates"], numbers(line))


def _board(folder: Path, seed: int) -> Path:
    return folder / BOARD / f"seed-{seed}" / f"events.out.tfevents.{seed}.stepdown"


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


def mix_words(shares: Sequence[float]) -> str:
    """The levels that are set, in percent."""
    used = [(level, 100 * x) for level, x in zip(LEVELS, shares, strict=True) if x >= 0.005]
    return " ".join(f"P{level} {x:.0f}%" for level, x in used)
