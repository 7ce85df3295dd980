"""One connection's requests and answers, with scripted faults of single ones: refused, lost, late. Pure but for kio.

Kafka answers a connection's requests in their order, and so do the faults here: what is refused in the broker's place
waits for the answers before it, and what comes behind a late one is late as well.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from kunicorn.kafka.versions import Api, Schema
from tests.fakes.messages import blank, nested, response_frame

_LENGTH = 4


class Kind(StrEnum):
    """What becomes of a request."""

    #: The broker never sees it, it is answered with an error.
    REFUSE = "refuse"
    #: It is carried out, and neither its answer nor any later one of the connection comes.
    LOSE = "lose"
    #: It is carried out, and the connection is reset in place of the answer.
    RESET = "reset"
    #: It is carried out, and the answer comes late.
    LATE = "late"


class Fault(NamedTuple):
    """`amount`: the error's code, or how many seconds late."""

    kind: Kind
    amount: float = 0


class Script:
    """The faults to come on one link: the next requests of an API get them, whichever connection they come over."""

    def __init__(self) -> None:
        self._faults: defaultdict[int, deque[Fault]] = defaultdict(deque)

    def plan(self, api: int, fault: Fault, times: int) -> None:
        """The next `times` requests of this API."""
        self._faults[api] += [fault] * times

    def forget(self) -> None:
        """What was planned and has not happened will not."""
        self._faults.clear()

    def next(self, api: int) -> Fault | None:
        """What becomes of a request of this API."""
        return self._faults[api].popleft() if self._faults[api] else None


class Sent(NamedTuple):
    """What the client gets: a frame, so many seconds late; None: nothing more, for `RESET` by a reset."""

    frame: bytes | None
    late: float = 0.0
    reset: bool = False


@dataclass
class _Asked:
    correlation_id: int
    fault: Fault | None
    answer: bytes | None = None


class Conversation:
    """What was asked over one connection and is not answered."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._asked: deque[_Asked] = deque()

    def asks(self, frame: bytes) -> bool:
        """A request, with its length; whether the broker is to see it."""
        api, version, correlation_id = (
            int.from_bytes(frame[at : at + size], "big") for at, size in ((4, 2), (6, 2), (8, 4))
        )
        fault = self._script.next(api)
        asked = _Asked(correlation_id, fault)
        self._asked.append(asked)
        if fault is None or fault.kind is not Kind.REFUSE:
            return True
        asked.answer = _framed(response_frame(correlation_id, refusal(Api(api), version, frame, int(fault.amount))))
        return False

    def answers(self, frame: bytes) -> None:
        """The broker's answer, with its length. Raises `ValueError` for one to nothing that was asked."""
        correlation_id = int.from_bytes(frame[_LENGTH : _LENGTH + 4], "big")
        asked = next((each for each in self._asked if each.answer is None), None)
        if asked is None or asked.correlation_id != correlation_id:
            raise ValueError(f"an answer to request {correlation_id}, which is not the next one to be answered")
        asked.answer = frame

    def due(self) -> list[Sent]:
        """What can be sent to the client now, in order."""
        sent = []
        while self._asked and (frame := self._asked[0].answer) is not None:
            sent.append(_sent(frame, self._asked.popleft().fault))
        return sent


def _sent(frame: bytes, fault: Fault | None) -> Sent:
    match fault:
        case Fault(Kind.LOSE):
            return Sent(None)
        case Fault(Kind.RESET):
            return Sent(None, reset=True)
        case Fault(Kind.LATE, seconds):
            return Sent(frame, late=seconds)
        case _:
            return Sent(frame)


def refusal(api: Api, version: int, frame: bytes, error: int) -> Schema:
    """The answer with that error, in every place where this API has one; `frame` is the request, with its length."""
    schema: Schema = load_response_schema(api, version)
    if api is not Api.OFFSET_COMMIT:
        more = {"protocol_name": None} if api is Api.JOIN_GROUP and version >= _JOIN_WITH_NO_PROTOCOL else {}
        return blank(schema, error_code=error, **more)
    request: Schema = load_request_schema(api, version)
    body = frame[_LENGTH:]
    _, size = entity_reader(request.__header_schema__)(body, 0)
    asked, _ = entity_reader(request)(body, size)
    row = nested(schema, "topics")
    cell = nested(row, "partitions")
    named = "topic_id" if version >= _COMMIT_BY_ID else "name"
    return blank(
        schema,
        topics=tuple(
            blank(
                row,
                **{named: getattr(topic, named)},
                partitions=tuple(
                    blank(cell, partition_index=each.partition_index, error_code=error) for each in topic.partitions
                ),
            )
            for topic in asked.topics
        ),
    )


_JOIN_WITH_NO_PROTOCOL, _COMMIT_BY_ID = 7, 10
"""The versions from which on an answer to JoinGroup may name no protocol, and OffsetCommit names topics by id."""


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(_LENGTH, "big") + body
