"""A short line before the one worker: who comes when it is full is sent away at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class BusyError(RuntimeError):
    """The line is full."""


class Line:
    """Computations one after the other, at most `longest` of them waiting."""

    def __init__(self, worker: ThreadPoolExecutor, longest: int, seconds: float):
        """`seconds` until a computation is given up."""
        self.worker, self.longest, self.seconds = worker, longest, seconds
        self.inside = 0  # waiting and being computed

    @property
    def full(self) -> bool:
        """Whether nobody else may wait."""
        return self.inside > self.longest

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result; `BusyError` if the line is full, `TimeoutError` if it is slow.

        What runs already cannot be stopped: it keeps its place until it is done.
        """
        if self.full:
            raise BusyError
        self.inside += 1
        future = asyncio.get_running_loop().run_in_executor(self.worker, function, *arguments)
        future.add_done_callback(self._leave)
        done, _ = await asyncio.wait([future], timeout=self.seconds)
        if not done:
            future.cancel()  # if it has not begun yet
            raise TimeoutError
        return future.result()

    def _leave(self, future: Any) -> None:
        self.inside -= 1
        if not future.cancelled():
            future.exception()  # seen: nobody may be waiting for it any more
