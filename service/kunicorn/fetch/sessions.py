"""Incremental fetch sessions (KIP-227): of each broker's partitions a request names only those that have changed.

A session begins with a request that names all partitions, and the broker gives it a number. It is over when the broker
has dropped it for want of room, or when a connection breaks: nobody knows then whether the broker has read the last
request. The next request names all again, and closes the old one where there may be one (`FetchSessionHandler.java`). A
broker without room for sessions answers with number 0: then every request names all. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import NO_EPOCH, TopicPartition

NO_SESSION = 0
_BEGINS = 0
_LAST_EPOCH = 2**31 - 1

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors of a whole response that a new session cures."""


class Ask(NamedTuple):
    """What a request says of one partition."""

    topic_id: bytes
    """Sixteen bytes; empty where the cluster has none."""
    offset: int
    leader_epoch: int = NO_EPOCH
    """The leader is asked in this epoch, so that one that was replaced is found out."""
    last_epoch: int = NO_EPOCH
    """That of the record before the offset: with it the broker finds a truncated log (KIP-595)."""
    max_bytes: int = 1024 * 1024


class Request(NamedTuple):
    """One Fetch request's part that differs from request to request."""

    session_id: int
    epoch: int
    asks: Mapping[TopicPartition, Ask]
    """New or changed ones; all of them, where a session begins."""
    forgotten: Sequence[tuple[TopicPartition, bytes]]
    """Partitions, with their topics' ids, that are asked for no more."""
    by_id: bool = True
    """Whether every topic of the session has an id: if not, it is sent in a version that names them (KIP-516)."""


class Session:
    """Partitions that one broker is asked for."""

    def __init__(self) -> None:
        self._asks: dict[TopicPartition, Ask] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._gone: dict[TopicPartition, bytes] = {}
        self._named: set[TopicPartition] = set()
        """What the broker knows of, in this session."""
        self._id, self._epoch = NO_SESSION, _BEGINS
        self._without_id: set[TopicPartition] = set()
        """Partitions whose topics have no ids."""
        self._by_id = True

    def __len__(self) -> int:
        return len(self._asks)

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._asks

    def put(self, tp: TopicPartition, ask: Ask) -> None:
        """Ask for the partition from the next request on, as `ask` says."""
        known = self._asks.get(tp)
        if known == ask:
            return
        if known is not None and known.topic_id != ask.topic_id:
            # Within a session a partition is known by its topic's id: under another it would be there twice.
            self.remove(tp)
        # To the end: a broker without sessions fills its answer in the request's order. Those behind one that always
        # has records for a whole answer would never have their turn (in a session the broker sees to that).
        self._asks.pop(tp, None)
        self._asks[tp] = ask
        if not ask.topic_id:
            self._without_id.add(tp)
        self._changed[tp] = None

    def remove(self, tp: TopicPartition) -> None:
        """Ask for the partition no more."""
        if (ask := self._asks.pop(tp, None)) is None:
            return
        self._changed.pop(tp, None)
        self._without_id.discard(tp)
        if tp in self._named:
            self._named.discard(tp)
            self._gone[tp] = ask.topic_id

    def next(self) -> Request:
        """The next request. Caller: sends it, and then says `answered` or `lost`."""
        by_id = not self._without_id
        if by_id != self._by_id:
            # A broker refuses a session that names topics in both ways (FETCH_SESSION_TOPIC_ID_ERROR).
            self._by_id, self._epoch = by_id, _BEGINS
        begins = self._epoch == _BEGINS
        asks = dict(self._asks) if begins else {tp: self._asks[tp] for tp in self._changed}
        # One that is asked for again is no longer to be forgotten: brokers drop what a request names as forgotten last.
        gone = [] if begins else [(tp, topic_id) for tp, topic_id in self._gone.items() if _is_gone(tp, topic_id, asks)]
        self._changed.clear()
        self._gone.clear()
        if begins:
            self._named.clear()
        self._named.update(asks)
        return Request(self._id, self._epoch, asks, gone, by_id)

    def answered(self, session_id: int) -> None:
        """Note the number that an answer without an error has given the session."""
        if session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, _BEGINS
        else:
            self._id, self._epoch = session_id, 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def refused(self, error: int) -> None:
        """Begin anew: the broker has answered the request as a whole with this error."""
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id = NO_SESSION
        self._epoch = _BEGINS

    def lost(self) -> None:
        """Begin anew: the request was not answered. With the old number, so that the broker drops that session."""
        self._epoch = _BEGINS


def _is_gone(tp: TopicPartition, topic_id: bytes, asks: Mapping[TopicPartition, Ask]) -> bool:
    ask = asks.get(tp)
    return ask is None or ask.topic_id != topic_id
