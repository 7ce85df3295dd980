"""What members of a modelled group say to the coordinator, as frames, and the processor time of what they decide.

Frames are real for some members, for whoever leads, and for the first message of each shape: the request is encoded,
the answer is encoded, decoded, and told to the member as it was read. Other messages count as many bytes as the first
one of their shape, which is all that their length depends on. (Ids of members have one length, as Kafka's have.)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from kunicorn.group import events as ev
from kunicorn.group.protocol import Plan
from kunicorn.kafka import coordinator
from kunicorn.kafka.codec import LENGTH_BYTES, Fields, decode_response, encode_request, make
from kunicorn.kafka.consumer_protocol import encode_assignment, encode_subscription
from kunicorn.kafka.versions import OURS, RESPONSES, Api
from kunicorn.positions import Position, TopicPartition
from tests.fakes.broker import Asked
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.coordinator_broker import heard_message, joined_message, synced_message
from tests.fakes.host import Host
from tests.fakes.messages import blank, blank_response, nested, response_frame
from tests.fakes.simulation import TOPIC, TOPIC_ID, Meter

GROUP = "orders-service"
CLIENT = "kunicorn"
VERSIONS: Mapping[Api, int] = {api: versions.high for api, versions in OURS.items()}


@dataclass
class Tally:
    """What passed since the count began."""

    messages: Counter[Api] = field(default_factory=Counter)
    """Requests; each has one answer."""
    sent: Counter[Api] = field(default_factory=Counter)
    """Bytes from members to the coordinator."""
    received: Counter[Api] = field(default_factory=Counter)
    """Bytes from the coordinator to members."""
    real: int = 0
    """Frames that were encoded."""
    largest: int = 0
    """Bytes of the longest frame."""
    leader_ns: int = 0
    """Processor time of whoever led."""
    follower_ns: Counter[str] = field(default_factory=Counter)
    """That of the members on the wire while they did not lead, by place."""
    plan_ns: list[int] = field(default_factory=list)


class Wire(Meter):
    """See the module."""

    def __init__(self, on_the_wire: Collection[str]) -> None:
        """`on_the_wire`: the members whose frames are all real, by `place_of`."""
        self.tally = Tally()
        self._on_the_wire = on_the_wire
        self._lengths: dict[Hashable, int] = {}
        self._reading_ns = 0

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decide(self, host: Host, event: ev.Event, now: float) -> list[ev.Command]:
        """See `Meter`."""
        leads = host.member.leader or _names_members(event)
        if not leads and place_of(host) not in self._on_the_wire:
            # The clock of a thread is asked by a call of the system, which costs more than most decisions.
            return host.member.receive(event, now)
        began = time.thread_time_ns()
        commands = host.member.receive(event, now)
        self._charge(host, time.thread_time_ns() - began, leads=leads)
        return commands

    def plan(self, host: Host, request: ev.MakePlan) -> tuple[Plan, float]:
        """The plan is there after the time that reading the members' subscriptions and planning takes here."""
        began = time.thread_time_ns()
        plan = host.plan(request)
        spent = time.thread_time_ns() - began
        self.tally.plan_ns.append(spent)
        self._charge(host, spent, leads=True)
        return plan, (spent + self._reading_ns) / 1e9

    # -- messages ------------------------------------------------------------------------------------------------------

    def asked(self, host: Host, request: ev.Request) -> None:
        """See `Meter`."""
        api = _api_of(request)
        self._request(host, api, _shape_of(host, request), lambda: _fields(host, request), leads=host.member.leader)

    def answered(self, host: Host, event: ev.Event) -> ev.Event:
        """See `Meter`."""
        api, shape, leads = _api_of_answer(event), _shape_of_answer(event), host.member.leader or _names_members(event)
        if not (leads or self._is_real(host, (api, shape))):
            self._count(self.tally.received, api, self._lengths[api, shape])
            return event
        frame = response_frame(1, _message(event))
        began = time.thread_time_ns()
        read = _read(event, decode_response(api, VERSIONS[api], frame))
        self._reading_ns = time.thread_time_ns() - began
        self._charge(host, self._reading_ns, leads=leads)
        assert read == event, f"{host.name} reads another answer to {api.title} than the coordinator gave"
        self._note(self.tally.received, api, shape, LENGTH_BYTES + len(frame))
        return read

    def committed(self, host: Host, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Meter`."""
        member, version = host.member, VERSIONS[Api.OFFSET_COMMIT]
        positions = {tp: Position(offset) for tp, offset in offsets.items()}

        def fields() -> Fields:
            return coordinator.commit(version, GROUP, member.generation, member.member_id, host.instance_id, positions,
                                      {TOPIC: TOPIC_ID}, "")  # fmt: skip

        shape = (len(offsets), len(member.member_id))
        self._request(host, Api.OFFSET_COMMIT, shape, fields, leads=member.leader)
        topic_row = nested(RESPONSES[Api.OFFSET_COMMIT, version], "topics")
        row = nested(topic_row, "partitions")
        answer_shape = ("answer", len(offsets))
        if (Api.OFFSET_COMMIT, answer_shape) in self._lengths:
            self._count(self.tally.received, Api.OFFSET_COMMIT, self._lengths[Api.OFFSET_COMMIT, answer_shape])
            return
        rows = tuple(blank(row, partition_index=tp.partition) for tp in offsets)
        message = blank_response(Api.OFFSET_COMMIT, version, topics=(topic_row(topic_id=TOPIC_ID, partitions=rows),))
        frame = response_frame(1, message)
        self._note(self.tally.received, Api.OFFSET_COMMIT, answer_shape, LENGTH_BYTES + len(frame))

    def _request(self, host: Host, api: Api, shape: Hashable, fields: Callable[[], Fields], *, leads: bool) -> None:
        self.tally.messages[api] += 1
        if not (leads or self._is_real(host, (api, shape))):
            self._count(self.tally.sent, api, self._lengths[api, shape])
            return
        began = time.thread_time_ns()
        said = fields()
        frame = encode_request(api, VERSIONS[api], 1, CLIENT, said)
        self._charge(host, time.thread_time_ns() - began, leads=leads)
        if (api, shape) not in self._lengths:
            heard = Asked(api, VERSIONS[api], frame[LENGTH_BYTES:], 0).message
            assert heard == make(api, VERSIONS[api], said), f"{api.title} is read otherwise than it was said"
        self._note(self.tally.sent, api, shape, len(frame))

    def _is_real(self, host: Host, shape: Hashable) -> bool:
        return place_of(host) in self._on_the_wire or shape not in self._lengths

    def _note(self, counted: Counter[Api], api: Api, shape: Hashable, length: int) -> None:
        self._lengths.setdefault((api, shape), length)
        self.tally.real += 1
        self._count(counted, api, length)

    def _count(self, counted: Counter[Api], api: Api, length: int) -> None:
        counted[api] += length
        self.tally.largest = max(self.tally.largest, length)

    def _charge(self, host: Host, spent_ns: int, *, leads: bool) -> None:
        if leads:
            self.tally.leader_ns += spent_ns
        elif place_of(host) in self._on_the_wire:
            self.tally.follower_ns[place_of(host)] += spent_ns


def place_of(host: Host) -> str:
    """The same for a member and the one that is started in its place."""
    return host.name.partition(".")[0]


def group_record_bytes(group: ClassicGroup) -> int:
    """Bytes of the value that a coordinator writes for the whole group with each generation: one record, which may not
    be larger than the brokers' `message.max.bytes` (`GroupMetadataValue.json`, version 3)."""
    host = len("/10.123.123.123")
    head = 2 + 2 + len("consumer") + 4 + 2 + len(group.assignor or "") + 2 + len(group.leader or "") + 8 + 4
    return head + sum(
        2 + len(seat.member_id) + 2 + len(seat.instance_id or "") + 2 + len(CLIENT) + 2 + host + 4 + 4
        + 4 + len(encode_subscription(group.assignor or "", seat.protocols[group.assignor or ""]))
        + 4 + len(encode_assignment(seat.assigned))
        for seat in group.seats.values()
    )  # fmt: skip


# -- requests ----------------------------------------------------------------------------------------------------------


def _api_of(request: ev.Request) -> Api:
    match request:
        case ev.SendJoin():
            return Api.JOIN_GROUP
        case ev.SendSync():
            return Api.SYNC_GROUP
        case ev.SendHeartbeat():
            return Api.HEARTBEAT
        case ev.SendLeave():
            return Api.LEAVE_GROUP
        case ev.SendConsumerHeartbeat():
            return Api.CONSUMER_GROUP_HEARTBEAT
        case _:
            assert_never(request)


def _shape_of(host: Host, request: ev.Request) -> Hashable:
    """What the length of the frame depends on; that of a leader's plan, which is always real, on more."""
    named = (len(request.member_id), len(host.instance_id or ""))
    match request:
        case ev.SendJoin():
            return (*named, len(request.owned), len(request.assigned), request.generation < 0, len(request.reason))
        case ev.SendConsumerHeartbeat():
            return (*named, request.full, None if request.owned is None else _numbers(request.owned))
        case ev.SendLeave():
            return (*named, len(request.reason))
        case ev.SendSync():
            return (*named, len(request.plan))
        case _:
            return named


def _numbers(named: Collection[tuple[Any, Collection[int]]]) -> tuple[int, ...]:
    return tuple(len(numbers) for _, numbers in named)


def _fields(host: Host, request: ev.Request) -> Fields:
    member_id, instance_id, timings = request.member_id, host.instance_id, host.world.timings
    rebalance_ms = round(timings.rebalance_timeout * 1000)
    match request:
        case ev.SendJoin():
            protocols = [(host.assignor or "", host.wishes(request))]
            session_ms = round(timings.session_timeout * 1000)
            return coordinator.join(GROUP, member_id, instance_id, session_ms, rebalance_ms, protocols, request.reason)
        case ev.SendSync():
            assignor, plan = request.assignor, request.plan
            return coordinator.sync(GROUP, request.generation, member_id, instance_id, assignor, plan)
        case ev.SendHeartbeat():
            return coordinator.heartbeat(GROUP, request.generation, member_id, instance_id)
        case ev.SendLeave():
            return coordinator.leave(VERSIONS[Api.LEAVE_GROUP], GROUP, member_id, instance_id, request.reason)
        case ev.SendConsumerHeartbeat():
            wishes = coordinator.Wishes((TOPIC,), "", rebalance_ms, None, None) if request.full else None
            return coordinator.consumer_heartbeat(GROUP, member_id, request.epoch, instance_id, wishes, request.owned)
        case _:
            assert_never(request)


# -- answers -----------------------------------------------------------------------------------------------------------


def _api_of_answer(event: ev.Event) -> Api:
    match event:
        case ev.Joined() | ev.Synced() | ev.HeartbeatAnswered() | ev.LeaveAnswered() | ev.ConsumerHeartbeatAnswered():
            return _api_of(event.request)
        case _:
            raise TypeError(f"{event} is no answer of a coordinator")


def _names_members(event: ev.Event) -> bool:
    return isinstance(event, ev.Joined) and bool(event.answer.members)


def _shape_of_answer(event: ev.Event) -> Hashable:
    match event:
        case ev.Joined(_, answer):
            return ("answer", len(answer.member_id), len(answer.leader), len(answer.members), answer.error)
        case ev.Synced(_, given):
            return ("answer", len(given.partitions), given.error)
        case ev.ConsumerHeartbeatAnswered(_, told, _):
            return ("answer", None if told.assignment is None else _numbers(told.assignment), told.error)
        case ev.LeaveAnswered(request, _):
            return ("answer", len(request.member_id))
        case _:
            return ("answer",)


def _message(event: ev.Event) -> Any:
    match event:
        case ev.Joined(_, answer):
            return joined_message(VERSIONS[Api.JOIN_GROUP], answer)
        case ev.Synced(_, given, _):
            return synced_message(VERSIONS[Api.SYNC_GROUP], given)
        case ev.ConsumerHeartbeatAnswered(_, told, _):
            return heard_message(VERSIONS[Api.CONSUMER_GROUP_HEARTBEAT], told)
        case ev.HeartbeatAnswered(_, error, _):
            return blank_response(Api.HEARTBEAT, VERSIONS[Api.HEARTBEAT], error_code=error)
        case ev.LeaveAnswered(request, error):
            row = nested(RESPONSES[Api.LEAVE_GROUP, VERSIONS[Api.LEAVE_GROUP]], "members")
            left = blank(row, member_id=request.member_id, error_code=error)
            return blank_response(Api.LEAVE_GROUP, VERSIONS[Api.LEAVE_GROUP], members=(left,))
        case _:
            raise TypeError(f"{event} is no answer of a coordinator")


def _read(event: ev.Event, message: Any) -> ev.Event:
    """The event as the service makes it of what it reads."""
    match event:
        case ev.Joined(request, _):
            return ev.Joined(request, coordinator.joined(message))
        case ev.Synced(request, _, sent_at):
            return ev.Synced(request, coordinator.synced(message), sent_at)
        case ev.ConsumerHeartbeatAnswered(request, _, pending):
            return ev.ConsumerHeartbeatAnswered(request, coordinator.consumer_heartbeat_answered(message), pending)
        case ev.HeartbeatAnswered(request, _, pending):
            return ev.HeartbeatAnswered(request, int(message.error_code), pending)
        case ev.LeaveAnswered(request, _):
            return ev.LeaveAnswered(request, coordinator.left(message, request.member_id, None))
        case _:
            raise TypeError(f"{event} is no answer of a coordinator")
