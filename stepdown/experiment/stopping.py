"""Ending a long command from outside, politely: it saves, says so and exits.

A signal sets a flag, which the command looks at every second or so. Python looks at signals only
between two of its own steps, and a compiled program may take longer than one is willing to wait.
So a thread watches too: if the command has not ended by itself in time, it ends the process. What
was saved is whole, as folders appear complete or not at all.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

PATIENCE = 8.0  # s from the signal to the end
SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
        return 128 + (self.number or signal.SIGTERM)


@contextlib.contextmanager
def stoppable(hint: str, patience: float = PATIENCE) -> Iterator[Stop]:
    """Signals inside the block set a flag; `hint` is said if time runs out."""
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
        target=_end_in_time, daemon=True, args=(reading, ended, hint, patience)
    )
    watcher.start()
    try:
        yield stop
    finally:
        ended.set()
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)
        watcher.join()
        os.close(reading)


def _end_in_time(reading: int, ended: threading.Event, hint: str, patience: float) -> None:
    """End the process some seconds after a signal, unless it has ended by itself."""
    told = os.read(reading, 1)
    while told and told[0] not in SIGNALS:  # somebody else's signal
        told = os.read(reading, 1)
    if told and not ended.wait(patience):  # nothing is read when the block is left
        sys.stderr.write(f"stepdown: {hint}\n")
        sys.stderr.flush()
        os._exit(128 + told[0])
