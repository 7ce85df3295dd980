"""What `bench.differential` does to groups: to their links, to their broker, and to single requests of theirs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode, fault
from tests.kafka import ProxiedCluster
from tests.kafka.proxied import Direction
from tests.kafka.scripted import Fault, Kind

Protocol = Literal["classic", "consumer"]
Links = Mapping[str, Protocol]
"""Each group's link, and what it speaks."""
Inflict = Callable[[ProxiedCluster, Links], None]

_AFTER = 7.0
"""Seconds; commits are sent every five."""
_PAST_A_SESSION = 50.0
"""A member that went silent is missed after 45 (Kafka's default)."""
_HEARTBEAT: Mapping[Protocol, Api] = {"classic": Api.HEARTBEAT, "consumer": Api.CONSUMER_GROUP_HEARTBEAT}


@dataclass(frozen=True)
class Hurt:
    """One fault, done to every group at the same moment."""

    name: str
    inflict: Inflict
    after: float = _AFTER
    """Seconds for which the groups are left alone afterwards."""
    only: Protocol | None = None
    fatal: bool = False
    """It ends the member: the last fault of a run."""
    down: bool = False
    """Nobody is served while it lasts, and nothing is appended: pauses count from its end. Whether a record was
    appended and not yet fetched when it began is chance, and would count as many seconds as a broker takes to start."""


def pause(seconds: float) -> None:
    """Leave everybody alone."""
    threading.Event().wait(seconds)


# -- links and brokers ---------------------------------------------------------------------------------------------


def _cut(seconds: float, *directions: Direction) -> Inflict:
    def inflict(kafka: ProxiedCluster, links: Links) -> None:
        for link in links:
            kafka.cut(link, *directions)
        pause(seconds)
        _heal(kafka, links)

    return inflict


def _heal(kafka: ProxiedCluster, links: Links) -> None:
    for link in links:
        kafka.heal(link)


def _reset(kafka: ProxiedCluster, links: Links) -> None:
    for _ in range(3):
        for link in links:
            kafka.reset(link)
        pause(0.5)


def _slow(kafka: ProxiedCluster, links: Links) -> None:
    for link in links:
        kafka.slow(link, 0.5)
    pause(8.0)
    _heal(kafka, links)


def _restart(kafka: ProxiedCluster, _: Links) -> None:
    kafka.broker(1).kill()
    kafka.broker(1).start()
    kafka.wait_until_ready()


def _freeze(kafka: ProxiedCluster, _: Links) -> None:
    kafka.broker(1).freeze()
    pause(6.0)
    kafka.broker(1).thaw()


# -- single requests ---------------------------------------------------------------------------------------------


def _next(fault: Fault, *apis: Api) -> Inflict:
    """The next request of each of these APIs on each link; none: the next heartbeat."""

    def inflict(kafka: ProxiedCluster, links: Links) -> None:
        for link, protocol in links.items():
            for api in apis or (_HEARTBEAT[protocol],):
                kafka.script(link, api, fault)

    return inflict


def _refused(what: str, code: ErrorCode, *apis: Api, only: Protocol | None = None, fatal: bool = False) -> Hurt:
    inflict = _next(Fault(Kind.REFUSE, code), *apis)
    return Hurt(f"{what} refused: {fault(code).name}", inflict, _PAST_A_SESSION if fatal else _AFTER, only, fatal)


def _rebalance_losing(api: Api, kind: Kind) -> Inflict:
    """A heartbeat asks for a rebalance, and in it an answer gets lost."""

    def inflict(kafka: ProxiedCluster, links: Links) -> None:
        _next(Fault(kind), api)(kafka, links)
        _next(Fault(Kind.REFUSE, ErrorCode.REBALANCE_IN_PROGRESS))(kafka, links)

    return inflict


def _slow_coordinator(kafka: ProxiedCluster, links: Links) -> None:
    for link, protocol in links.items():
        for api in (_HEARTBEAT[protocol], Api.OFFSET_COMMIT):
            kafka.script(link, api, Fault(Kind.LATE, 3), times=1000)
    pause(15.0)
    _heal(kafka, links)


HURTS = (
    Hurt("answers lost for 4 s", _cut(4.0, "from")),
    Hurt("requests lost for 7 s", _cut(7.0, "to")),
    Hurt("connections reset three times", _reset),
    Hurt("half a second slower each way for 8 s", _slow),
    Hurt("coordinator frozen for 6 s", _freeze, down=True),
    Hurt("nothing gets through for 50 s, longer than a session", _cut(50.0, "to", "from")),
    Hurt("coordinator killed and started: errors on heartbeats and commits", _restart, down=True),
    Hurt("coordinator slow: every heartbeat and commit answered 3 s late, for 15 s", _slow_coordinator),
    _refused("heartbeat", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    _refused("heartbeat", ErrorCode.NOT_COORDINATOR),
    _refused("heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, only="classic"),
    _refused("heartbeat", ErrorCode.ILLEGAL_GENERATION, only="classic"),
    _refused("heartbeat", ErrorCode.FENCED_MEMBER_EPOCH, only="consumer"),
    _refused("heartbeat", ErrorCode.UNKNOWN_MEMBER_ID),
    Hurt("a heartbeat's answer never comes", _next(Fault(Kind.LOSE)), _PAST_A_SESSION),
    Hurt("a heartbeat's connection is reset before its answer", _next(Fault(Kind.RESET))),
    Hurt("a heartbeat's answer comes 5 s late", _next(Fault(Kind.LATE, 5))),
    _refused("commit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Api.OFFSET_COMMIT),
    _refused("commit", ErrorCode.NOT_COORDINATOR, Api.OFFSET_COMMIT),
    _refused("commit", ErrorCode.REBALANCE_IN_PROGRESS, Api.OFFSET_COMMIT, only="classic"),
    _refused("commit", ErrorCode.STALE_MEMBER_EPOCH, Api.OFFSET_COMMIT, only="consumer"),
    Hurt("a commit's answer never comes", _next(Fault(Kind.LOSE), Api.OFFSET_COMMIT), _PAST_A_SESSION),
    Hurt("a commit's connection is reset before its answer", _next(Fault(Kind.RESET), Api.OFFSET_COMMIT)),
    Hurt(
        "a rebalance in which JoinGroup's answer is lost with its connection",
        _rebalance_losing(Api.JOIN_GROUP, Kind.RESET),
        only="classic",
    ),
    Hurt(
        "a rebalance in which SyncGroup's answer is lost with its connection",
        _rebalance_losing(Api.SYNC_GROUP, Kind.RESET),
        only="classic",
    ),
    _refused("heartbeat", ErrorCode.FENCED_INSTANCE_ID, fatal=True),
)
"""In the order in which they are done."""
