"""As whom offsets are committed in a transaction: asked of the supervisor, told to the brokers (KIP-447)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kunicorn.pipes.messages import CommitAs, CommitOver, CommitWanted, FromWorker


def group_metadata(group: str, identity: CommitAs) -> bytes:
    """The member as librdkafka passes it about (`rd_kafka_consumer_group_metadata_write`): no consumer of ours has
    joined, so that its own would name nobody."""
    instance = b"\1" if identity.instance_id is None else b"\0" + identity.instance_id.encode() + b"\0"
    generation = identity.generation.to_bytes(4, "little", signed=True)
    return b"CGMDv2:" + generation + group.encode() + b"\0" + identity.member_id.encode() + b"\0" + instance


class Identities:
    """Questions to the supervisor, and its answers, by number; each of a worker's transactions has its own.

    From its question until `over` a transaction has a window, for which the supervisor lets JoinGroup wait a while.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last = 0
        self._answers: dict[int, CommitAs | None] = {}
        """Of each open window; None until it is there."""

    def ask(self, tell: Callable[[FromWorker], None]) -> int:
        """Open a window; its number. Caller: a sender's thread."""
        with self._changed:
            self._last = number = self._last + 1
            self._answers[number] = None
        tell(CommitWanted(number))
        return number

    def given(self, answer: CommitAs) -> None:
        """Caller: the control thread."""
        with self._changed:
            if answer.number in self._answers:
                self._answers[answer.number] = answer
                self._changed.notify_all()

    def wait(self, number: int, seconds: float) -> CommitAs | None:
        """The answer to that question; None if there is none for so long. Caller: the sender's thread that asked."""
        with self._changed:
            self._changed.wait_for(lambda: self._answers[number] is not None, seconds)
            return self._answers[number]

    def over(self, number: int, tell: Callable[[FromWorker], None]) -> None:
        """Close the window: its transaction is committed or aborted. Likewise."""
        with self._changed:
            del self._answers[number]
        tell(CommitOver(number))
