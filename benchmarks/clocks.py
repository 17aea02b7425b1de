"""How time is taken, and on what machine."""

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def machine() -> str:
    """The line above every table of seconds."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return (
        f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {platform.machine()}, "
        f"{cores} cores, load {load:.1f} before the start, {time.strftime('%F')}"
    )


def clock() -> np.ndarray:
    """Wall and CPU seconds: on a busy machine only the second ones mean anything."""
    return np.array([time.perf_counter(), time.process_time()])


def timed(work: Callable[[], Any], calls: int) -> list[float]:
    """Seconds of each call; the first one compiles."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - start)
    return times


def alternate(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work, warm and in turns, so that a busy machine is unfair to all alike."""
    for work in works.values():
        jax.block_until_ready(work())
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name] += timed(work, 1)
    return times
