"""Ending a long command from outside, politely: it saves, says so and exits.

A signal sets a flag, which the command looks at every second or so. Python looks at signals only
between two of its own steps, and a compiled program may take longer than one is willing to wait.
So a thread watches too: if the command has not ended by itself in time, it ends the process. What
was saved is whole, as folders appear complete or not at all. A command may also be given so many
minutes: then an alarm is the signal.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

PATIENCE = 8.0  # s from the signal to the end
LAST_JOB = 20.0  # s, the same where the time is over: what is nearly made may be finished
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
TIME_OVER = 75  # exit code: all is well, call again


class Stop:
    """Whether somebody asked the command to end."""

    def __init__(self):
        self.number: int | None = None

    def __call__(self, number: int, frame: object) -> None:
        """Take a signal; a second one from the keyboard does not wait."""
        if self.number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.number = number

    def asked(self) -> bool:
        """Whether so."""
        return self.number is not None

    @property
    def code(self) -> int:
        """The exit code of a command that was asked to end."""
        return _code(self.number or signal.SIGTERM)


def _code(number: int) -> int:
    return TIME_OVER if number == signal.SIGALRM else 128 + number


@contextlib.contextmanager
def stoppable(
    hint: str,
    patience: float = PATIENCE,
    *,
    minutes: float | None = None,
    last_job: float = LAST_JOB,
) -> Iterator[Stop]:
    """Signals, and the end of the minutes, set a flag inside the block.

    `hint` is said if what is under way does not end in time.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread can take signals
        return
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    previous = signal.set_wakeup_fd(writing)
    ended = threading.Event()
    watcher = threading.Thread(
        target=_end_in_time, daemon=True, args=(reading, ended, hint, patience, last_job)
    )
    watcher.start()
    if minutes is not None:
        signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield stop
    finally:
        if minutes is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        ended.set()
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)
        watcher.join()
        os.close(reading)


def _end_in_time(
    reading: int, ended: threading.Event, hint: str, patience: float, last_job: float
) -> None:
    """End the process some seconds after a signal, unless it has ended by itself."""
    told = os.read(reading, 1)
    while told and told[0] not in SIGNALS:  # somebody else's signal
        told = os.read(reading, 1)
    if told and told[0] == signal.SIGALRM:
        patience = last_job
    if told and not ended.wait(patience):  # nothing is read when the block is left
        sys.stderr.write(f"stepdown: {hint}\n")
        sys.stderr.flush()
        os._exit(_code(told[0]))
