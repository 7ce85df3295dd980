"""The requests of one connection that wait for their answers.

A broker answers a connection's requests in their order (`SocketServer.scala` reads no request before it has answered
the one before). So an answer is the first one's, or it is nobody's, and whoever sends it is not to be believed: never
is an answer given to the request whose number it has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from kunicorn.errors import PeerError
from kunicorn.wire import codec
from kunicorn.wire.errors import AuthenticationFailed, ConnectionLost, ProtocolError

_CORRELATION_IDS = 2**31
_TOLD_AS_THEY_ARE = (ProtocolError, AuthenticationFailed)


class Pending(NamedTuple):
    """A request whose answer is still to come."""

    correlation_id: int
    what: str
    answer: asyncio.Future[bytes]


class InFlight:
    """In the order in which they were sent. Belongs to the event loop that it was made in."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        """There are none. Not the same as every caller having gone: one that is cancelled leaves its request."""
        self.idle.set()
        self._sent = 0
        self._pending: deque[Pending] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def next_id(self) -> int:
        """The correlation id of the next request."""
        return self._sent % _CORRELATION_IDS

    def add(self, what: str) -> Pending:
        """One more, with `next_id`; `what` names it in errors."""
        pending = Pending(self.next_id, what, asyncio.get_running_loop().create_future())
        self._sent += 1
        self._pending.append(pending)
        self.idle.clear()
        return pending

    def deliver(self, frame: bytes) -> None:
        """Hand the frame to whoever waits for it. Raises `ProtocolError` where it is not the next one's answer."""
        answered = codec.correlation_id(frame)
        if not self._pending or self._pending[0].correlation_id != answered:
            raise ProtocolError(f"an answer to request {answered}, which is not the next to be answered")
        pending = self._pending.popleft()
        if not self._pending:
            self.idle.set()
        if not pending.answer.done():
            pending.answer.set_result(frame)

    def fail(self, failure: PeerError) -> None:
        """No answer will come any more: tell all who wait why."""
        kind = next((each for each in _TOLD_AS_THEY_ARE if isinstance(failure, each)), ConnectionLost)
        for pending in self._pending:
            if not pending.answer.done():
                pending.answer.set_exception(kind(f"{pending.what}: {failure}"))
                # Marks it as seen: a caller cancelled while writing will not come for it.
                pending.answer.exception()
        self._pending.clear()
