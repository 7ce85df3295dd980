"""Faults of single requests, as the proxy brings them about."""

from __future__ import annotations

from typing import Any

import pytest

from kunicorn.kafka.codec import decode_response, encode
from kunicorn.kafka.versions import OURS, REQUESTS, Api
from tests.fakes.messages import blank, blank_response, nested, response_frame
from tests.kafka.scripted import Conversation, Fault, Kind, Script, Sent

UNKNOWN_MEMBER_ID = 25


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def request(api: Api, version: int, correlation_id: int, **values: Any) -> bytes:
    schema = REQUESTS[api, version]
    header = blank(
        schema.__header_schema__,
        request_api_key=int(api),
        request_api_version=version,
        correlation_id=correlation_id,
        client_id="orders",
    )
    return framed(encode(header) + encode(blank(schema, **values)))


def answer(correlation_id: int) -> bytes:
    return framed(response_frame(correlation_id, blank_response(Api.HEARTBEAT, 4)))


def beat(correlation_id: int) -> bytes:
    return request(Api.HEARTBEAT, 4, correlation_id)


def conversation(*faults: Fault) -> Conversation:
    script = Script()
    for fault in faults:
        script.plan(Api.HEARTBEAT, fault, 1)
    return Conversation(script)


def test_without_faults_everything_passes() -> None:
    talk = conversation()
    assert talk.asks(beat(1))
    assert talk.due() == []
    talk.answers(answer(1))
    assert talk.due() == [Sent(answer(1))]


def test_a_refused_request_never_reaches_the_broker_and_its_answer_waits_for_those_before_it() -> None:
    talk = conversation()
    assert talk.asks(beat(1))
    talk._script.plan(Api.HEARTBEAT, Fault(Kind.REFUSE, UNKNOWN_MEMBER_ID), 1)
    assert not talk.asks(beat(2))
    assert talk.asks(beat(3))
    assert talk.due() == []
    talk.answers(answer(1))
    first, refused = talk.due()
    assert first == Sent(answer(1))
    assert refused.frame is not None
    assert decode_response(Api.HEARTBEAT, 4, refused.frame[4:]).error_code == UNKNOWN_MEMBER_ID
    talk.answers(answer(3))
    assert talk.due() == [Sent(answer(3))]


@pytest.mark.parametrize(
    ("fault", "sent"),
    [
        (Fault(Kind.LOSE), Sent(None)),
        (Fault(Kind.RESET), Sent(None, reset=True)),
        (Fault(Kind.LATE, 3), Sent(answer(1), late=3)),
    ],
)
def test_a_request_whose_answer_suffers_is_carried_out(fault: Fault, sent: Sent) -> None:
    talk = conversation(fault)
    assert talk.asks(beat(1))
    talk.answers(answer(1))
    assert talk.due() == [sent]


def test_what_was_planned_and_has_not_happened_can_be_forgotten() -> None:
    script = Script()
    script.plan(Api.HEARTBEAT, Fault(Kind.LOSE), 3)
    assert script.next(Api.HEARTBEAT) == Fault(Kind.LOSE)
    script.forget()
    assert script.next(Api.HEARTBEAT) is None


@pytest.mark.parametrize(
    ("api", "version"),
    [
        (api, version)
        for api in (Api.HEARTBEAT, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.CONSUMER_GROUP_HEARTBEAT, Api.OFFSET_COMMIT)
        for version in range(OURS[api].low, OURS[api].high + 1)
    ],
)
def test_refusals_can_be_read_in_every_version(api: Api, version: int) -> None:
    values: dict[str, Any] = {}
    if api is Api.OFFSET_COMMIT:
        row = nested(REQUESTS[api, version], "topics")
        cell = nested(row, "partitions")
        values["topics"] = (blank(row, partitions=(blank(cell, partition_index=7),)),)
    script = Script()
    script.plan(api, Fault(Kind.REFUSE, UNKNOWN_MEMBER_ID), 1)
    talk = Conversation(script)
    assert not talk.asks(request(api, version, 9, **values))
    (sent,) = talk.due()
    assert sent.frame is not None
    message = decode_response(api, version, sent.frame[4:])
    if api is Api.OFFSET_COMMIT:
        message = message.topics[0].partitions[0]
        assert message.partition_index == 7
    assert message.error_code == UNKNOWN_MEMBER_ID
