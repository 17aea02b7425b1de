"""Connections that nobody can keep from others by never finishing a request.

Headers have to arrive within some seconds. A client, and all of them together, may hold only so
many connections; one more closes the oldest that still owes us (a part of) a request, so who asks
in whole is always let in. Bodies have a time of their own (security.py).
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_WITHIN = 10.0  # s
PER_CLIENT, ALTOGETHER = 128, 512  # connections


class Bounded(H11Protocol):
    """One connection of uvicorn's, with a time for headers and a place among the others."""

    since = 0.0  # s, of the loop's clock
    _clock: asyncio.TimerHandle | None = None

    @property
    def owed(self) -> bool:
        """Whether the client has not sent a whole request."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Make room, then wait for headers."""
        super().connection_made(transport)
        self.since = self.loop.time()
        every = [one for one in self.connections if isinstance(one, Bounded)]
        mine = [one for one in every if one.client and one.client[:1] == (self.client or ())[:1]]
        for held, most in ((mine, PER_CLIENT), (every, ALTOGETHER)):
            if len(held) > most:
                min((one for one in held if one.owed), key=lambda one: one.since).leave()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Headers that began have to end; those that ended are waited for no more."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._clock is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Close at once, with nothing more to be sent."""
        self.connections.discard(self)
        self.transport.abort()

    def _wait(self) -> None:
        self._clock = self.loop.call_later(HEADERS_WITHIN, self.leave)

    def _stop_waiting(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
