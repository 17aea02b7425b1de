"""A command that is asked to end does so in time, even out of a step that takes long."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from stepdown.experiment.stopping import stoppable

BUSY = """
import sys, time
from stepdown.experiment.stopping import stoppable
with stoppable("saved.", patience=0.3):
    print("ready", flush=True)
    time.sleep(3600)  # Python goes back to it after the signal, as to a compiled program
"""


OVER = """
import sys, time
from stepdown.experiment.stopping import stoppable
with stoppable("saved.", minutes=0.001, last_job=0.3) as stop:
    while not stop.asked():
        time.sleep(0.01)
    print(stop.code, flush=True)
    if sys.argv[1] == "late":
        time.sleep(3600)
"""


@pytest.mark.parametrize(("way", "code"), [("in time", 0), ("late", 75)])
def test_a_command_ends_when_its_minutes_are_over(way, code):
    done = subprocess.run(
        [sys.executable, "-c", OVER, way], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "75\n")
    assert done.stderr == ("stepdown: saved.\n" if way == "late" else "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noticed_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with stoppable("saved.") as stop:
        assert not stop.asked()
        os.kill(os.getpid(), number)
        assert stop.asked()
    assert stop.code == 128 + number
    assert signal.getsignal(number) == before


def test_a_second_interrupt_does_not_wait():
    with stoppable("saved."):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_long_step_is_ended_from_beside():
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate()  # it would sleep for an hour and say nothing
    assert process.returncode == 143
    assert words == b"stepdown: saved.\n"


def test_other_threads_are_left_alone():
    found = []

    def work():
        with stoppable("saved.") as stop:
            found.append(stop.asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
