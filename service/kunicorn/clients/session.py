"""The session of a command, or of a job's driver, with the cluster: connections made of the service's settings,
questions asked one after the other by the own protocol, and refusals in words that say what to do. Blocks.

A driver, which lives for hours, opens a session for each set of questions: each logs in with the password and the token
of now.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from kunicorn.clients.config import security_of, token_request
from kunicorn.clients.oauth import request
from kunicorn.errors import ConfigError, FatalGroupError, PeerError, ServiceError
from kunicorn.group.protocol import Committed, EpochEnd, LogOffset
from kunicorn.group.reactions import COORDINATOR_MOVED
from kunicorn.handler.config import takes
from kunicorn.ipc.clock import wall_ms
from kunicorn.ipc.messages import FetchToken, Token
from kunicorn.kafka.admin import STALE_METADATA, Described, GroupAdmin, IsolationLevel, epoch_ends, list_offsets
from kunicorn.kafka.auth import BearerToken, Security
from kunicorn.kafka.cluster import Cluster, Timeouts
from kunicorn.kafka.errors import AuthenticationFailed, BrokersUnreachable, CoordinatorUnavailable, UnsupportedByBroker
from kunicorn.kafka.metadata import Metadata, TopicInfo
from kunicorn.kafka.record_times import first_not_older, record_times
from kunicorn.kafka.stored_positions import known_ends, unanswered
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.positions import EARLIEST, LATEST, NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Edges, Offsets, TopicPartition
from kunicorn.settings import Settings
from kunicorn.settings.assign import refuse_absent
from kunicorn.settings.sections import KafkaSettings
from kunicorn.text import topic_id_text

T = TypeVar("T")
A = TypeVar("A", LogOffset, EpochEnd)

CONNECT_TIMEOUT = 5.0
REQUEST_TIMEOUT = 10.0
"""Seconds."""
_PATIENCE = 15.0
"""Seconds for a coordinator that moves or loads its offsets, also where a person waits."""
JOB_PATIENCE = 60.0
"""Seconds for brokers that restart, as tasks have: a job's work of hours must not end for them. A person would rather
be told."""
_LOGIN_PATIENCE = 150.0
"""Seconds for a log-in that is refused meanwhile, of a job that was let in before: a password is rotated at the brokers
and in its file, which in a pod is a minute or more behind its secret."""
_PAUSE = 0.5
_LOGIN_PAUSE = 5.0
"""Refused log-ins count somewhere: an account must not be locked for them."""

_let_in: set[Sequence[str]] = set()
"""Bootstrap servers of clusters that have answered this process: what they refuse from then on, they may take again."""

_TOKEN_LIFE = 0.8
"""Share of a token's life in which it is used again, as librdkafka does."""
_TOKEN_AGAIN = 10.0
"""Seconds until a token is asked for again, where none came and the last one is still valid."""
_tokens: list[tuple[FetchToken, Token, float]] = []
"""Token of this process, what it was asked by, and until when it is used: a driver opens sessions for each round."""


async def fetch_token(kafka: KafkaSettings) -> Token | None:
    """OAUTHBEARER token, if the settings ask for one. Raises `PeerError`, `ConfigError`."""
    return await asyncio.to_thread(current_token, kafka) if kafka.uses_tokens else None


def current_token(kafka: KafkaSettings) -> Token:
    """OAUTHBEARER token of settings that ask for one. Blocks. Raises `PeerError`, `ConfigError`."""
    asked, now = token_request(kafka), time.time()
    for known, token, until in _tokens:
        if known == asked and now < until:
            return token
    try:
        token = request.fetch(asked)
        until = now + _TOKEN_LIFE * (token.expires_at - now)
    except PeerError:
        valid = [token for known, token, _ in _tokens if known == asked and now < token.expires_at]
        if not valid:
            raise
        token, until = valid[0], min(now + _TOKEN_AGAIN, valid[0].expires_at)
    _tokens[:] = [(asked, token, until)]
    return token


def bearer_token(kafka: KafkaSettings) -> BearerToken:
    """Token for one log-in, a fresh one where the last is nearly over. Blocks. Raises `AuthenticationFailed`."""
    try:
        token = current_token(kafka)
    except PeerError as error:
        raise AuthenticationFailed(f"no OAUTHBEARER token: {error}") from error
    return BearerToken(token.value, token.extensions)


def command_security(kafka: KafkaSettings) -> Security:
    """Security of the connections of a command or a job. Raises `ConfigError`. Blocks on the disk."""
    # A command may last longer than a token: brokers close the connection then (KIP-368), and a new one logs in anew.
    return security_of(kafka, partial(bearer_token, kafka) if kafka.uses_tokens else None)


def open_cluster(kafka: KafkaSettings) -> Cluster:
    """The cluster, with nothing sent yet; the caller closes it. Raises `ConfigError`."""
    # A command says by itself what failed, once, and does not try again.
    logging.getLogger("kunicorn.wire").setLevel(logging.CRITICAL)
    return Cluster(
        kafka.bootstrap_servers,
        client_id=kafka.client_id,
        security=command_security(kafka),
        timeouts=Timeouts(request=REQUEST_TIMEOUT, connect=CONNECT_TIMEOUT),
        rng=random.Random(),
    )


def partition_count(metadata: Metadata, topic: str) -> int:
    """Number of the topic's partitions; 0 where it does not exist. Raises `ConfigError` where it is denied."""
    info = metadata.topics.get(topic)
    if info is not None and info.error and not info.gone:
        remedy = fault(info.error).remedy(topic=f"the topic {topic!r}", rights="READ")
        raise ConfigError(f"{describe(info.error)}: {remedy}")
    return 0 if info is None else len(info.partitions)


NOT_TOLD = "not told"
"""State of a group that its broker cannot describe."""


class Passing(CoordinatorUnavailable):
    """Refusal by the group's coordinator that asking again may cure."""


class ClusterSession:
    """Connections to the cluster and one group's coordinator. Each question is answered before the next line of the
    command runs, so that a person's Ctrl-C is never held back by an event loop.

    Methods raise `ConfigError` where a topic or a partition's leader refuses, and what `cluster_session` turns into a
    `ServiceError`.
    """

    def __init__(
        self,
        settings: Settings,
        group_id: str,
        runner: asyncio.Runner,
        patience: float = 0.0,
    ) -> None:
        """`patience`: seconds to ask on for while brokers do not answer. Sends nothing."""
        self.settings = settings
        self.group_id = group_id
        self.token: Token | None = None
        self.cluster = open_cluster(settings.kafka)
        self.group = GroupAdmin(self.cluster, group_id, REQUEST_TIMEOUT)
        self._level = IsolationLevel[settings.kafka.isolation_level.upper()]
        self._runner = runner
        self._patience = patience

    def get_token(self) -> None:
        """Have an OAUTHBEARER token, if the settings ask for one, before connections do: they have less time than it
        may take. Raises `PeerError`, `ConfigError`. Blocks.
        """
        self.token = self._runner.run(self._patiently(lambda: fetch_token(self.settings.kafka)))

    def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Result of the question, asked again while the coordinator moves. Raises `PeerError`. Blocks."""
        answer = self._runner.run(self._patiently(question))
        _let_in.add(self.settings.kafka.bootstrap_servers)
        return answer

    async def _patiently(self, question: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                return await question()
            except PeerError as failure:
                if loop.time() >= began + self._patience_with(failure):
                    raise
                refused = isinstance(failure, AuthenticationFailed)
            if refused:
                _tokens.clear()  # The wall clock may have been set back: it may have expired.
            self.group.forget()  # Another broker may be the coordinator now.
            await asyncio.sleep(_LOGIN_PAUSE if refused else _PAUSE)

    def _patience_with(self, failure: PeerError) -> float:
        """Seconds to ask on for behind this failure."""
        match failure:
            case CoordinatorUnavailable():
                passing = isinstance(failure, Passing) or failure.error in COORDINATOR_MOVED
                return max(_PATIENCE, self._patience) if passing else 0.0
            case AuthenticationFailed():
                # A password that was wrong from the start is told at once.
                known = self.settings.kafka.bootstrap_servers in _let_in
                return _LOGIN_PATIENCE if self._patience and known else 0.0
            case _:
                return self._patience

    def close(self) -> None:
        self._runner.run(self.cluster.close())

    # -- topics --------------------------------------------------------------------------------------------------

    def metadata(self, topics: Collection[str] | None) -> Metadata:
        """What the cluster says of these topics (None: of all)."""
        return self.ask(lambda: self.cluster.refresh(topics))

    def topics(
        self, wanted: Collection[str], besides: Collection[str] = (), setting: str = "group.topics"
    ) -> list[str]:
        """Names of the topics that are wanted, by name or by pattern (a leading ^), as the live service matches them;
        and of those `besides` that exist. Raises `ConfigError` for one that is wanted by name and missing, naming the
        `setting` to correct.
        """
        patterns = [topic for topic in wanted if topic.startswith("^")]
        named = [topic for topic in wanted if not topic.startswith("^")]
        known = self.metadata(None if patterns else {*named, *besides}).topics
        for name in named:
            _refuse_missing(name, known.get(name), setting)
        there = {name: info for name, info in known.items() if info.partitions and not info.error}
        matching = {name for name, info in there.items() if info.can_match and takes(patterns, name)}
        return sorted(matching.union(named, (name for name in besides if name in there)))

    def partitions(
        self, wanted: Collection[str], setting: str = "group.topics", numbered: Collection[TopicPartition] = ()
    ) -> list[TopicPartition]:
        """All partitions of the topics; see `topics`. Of a topic of which `numbered`, as [assign], names partitions, no
        others. Raises `ConfigError` where nothing matches, and for partitions that do not exist.
        """
        topics = self.topics(wanted, (), setting)
        if not topics:
            raise ConfigError(f"no topic matches {', '.join(wanted)}; correct {setting}")
        every = [TopicPartition(topic, number) for topic in topics for number in sorted(self._numbers(topic))]
        refuse_absent([tp for tp in numbered if tp.topic in topics], every)
        return narrowed(every, numbered)

    def existing(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those of the partitions that were not deleted. One that we may not see counts as there: asking for its
        offsets says why.
        """
        topics = self.metadata({tp.topic for tp in partitions}).topics if partitions else {}
        return [tp for tp in partitions if (info := topics.get(tp.topic)) is not None and not info.lacks(tp.partition)]

    def count(self, topic: str) -> int:
        """Number of the topic's partitions; 0 where it does not exist. Raises `ConfigError` where it is denied."""
        return partition_count(self.metadata([topic]), topic)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Ids of those topics that exist (KIP-516): the same name under another id is another topic. None where brokers
        know no ids (Kafka before 2.8).

        Ask for them before asking for offsets: a topic that is created anew in between is then noticed the next time.
        """
        if not (wanted := sorted(set(topics))):
            return {}
        known = self.metadata(wanted).topics
        for name in wanted:
            if (info := known.get(name)) is not None and info.error and not info.gone:
                _refuse_missing(name, info, "group.topics")
        infos = {name: known[name] for name in wanted if name in known}
        return {name: topic_id_text(info.topic_id) for name, info in infos.items() if info.topic_id and not info.error}

    def _numbers(self, topic: str) -> Collection[int]:
        return self.cluster.metadata.topics[topic].partitions

    # -- offsets of logs -----------------------------------------------------------------------------------------

    def log_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        """The leaders' answers, some of them errors; see `kunicorn.kafka.admin.list_offsets`."""
        return self.ask(lambda: self._list_offsets(queries)) if queries else {}

    def edges(
        self, partitions: Iterable[TopicPartition], level: IsolationLevel | None = None
    ) -> dict[TopicPartition, Edges]:
        """First offset and end of each log, as of now, by the settings' isolation level unless another one is given.

        Raises `ConfigError` where a leader does not answer.
        """
        wanted = list(partitions)
        self._know(wanted)
        first, end = (self._sure(dict.fromkeys(wanted, at), level) for at in (EARLIEST, LATEST))
        return {tp: Edges(first[tp].offset, end[tp].offset, end[tp].leader_epoch) for tp in wanted}

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        """First offset that is not older than each time (milliseconds since 1970); `NO_OFFSET` where all are older.

        Raises `ConfigError` where a leader does not answer: an offset that is guessed would be lost records.
        """
        self._know(times)
        return {tp: each.offset for tp, each in self._sure(times).items()}

    def at_or_end(self, times: Offsets) -> dict[TopicPartition, int]:
        """As `at`; the log's end where all records are older."""
        self._know(times)
        answers = self.ask(lambda: first_not_older(self._list_offsets, times))
        return {tp: each.offset for tp, each in _checked(answers).items()}

    def record_times(self, offsets: Offsets) -> dict[TopicPartition, int]:
        """Timestamps of the records at these offsets, in milliseconds since 1970, by the running service's rule.

        A partition is missing whose leader does not answer, or whose records carry no time.
        """
        found = self.ask(lambda: record_times(self._list_offsets, offsets, wall_ms()))
        return {tp: at for tp, at in found.items() if at != NO_TIMESTAMP}

    def epoch_ends(self, stored: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:
        """Where the logs of the committed offsets' leader epochs end (KIP-320): an offset beyond that was truncated,
        whatever is there by now. A partition is missing whose offset has no epoch, or whose leader does not know.
        """
        return self.ends_of_epochs({tp: each.leader_epoch for tp, each in stored.items() if each.offset != NO_OFFSET})

    def ends_of_epochs(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Where the logs of these leader epochs end (KIP-320): what was read beyond that was truncated, whatever is
        there by now. A partition is missing whose epoch is `NO_EPOCH`, or whose leader does not know it.

        Asks on while leaders move, for as long as the session is patient. Raises `ConfigError` where one does not
        answer then: records that are lost would pass for there.
        """
        answers = self.told_epoch_ends(epochs)
        _checked({tp: answers[tp] for tp in unanswered(answers)})
        return known_ends(answers)

    def told_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        """The leaders' answers about these leader epochs, some of them errors; without those that are `NO_EPOCH`. Asks
        on as `ends_of_epochs`."""
        known = {tp: epoch for tp, epoch in epochs.items() if epoch != NO_EPOCH}
        self._know(known)

        async def answers() -> Mapping[TopicPartition, EpochEnd]:
            return await epoch_ends(self.cluster, known, REQUEST_TIMEOUT)

        return self._while_leaders_move(answers) if known else {}

    def _know(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask for the partitions' leaders, where they are not known yet."""
        known = self.cluster.metadata.topics
        if unknown := {tp.topic for tp in partitions if tp.topic not in known}:
            self.metadata(unknown)

    def _sure(
        self, queries: Mapping[TopicPartition, int], level: IsolationLevel | None = None
    ) -> Mapping[TopicPartition, LogOffset]:
        return _checked(self._while_leaders_move(lambda: self._list_offsets(queries, level))) if queries else {}

    def _while_leaders_move(
        self, answers: Callable[[], Awaitable[Mapping[TopicPartition, A]]]
    ) -> Mapping[TopicPartition, A]:
        """The leaders' answers, asked for again while leaders move, for as long as the session is patient; with the
        errors that are left.
        """

        async def settled() -> Mapping[TopicPartition, A]:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self._patience
            while True:
                found = await answers()
                errors = {each.error for each in found.values() if each.error}
                if not errors or not errors <= _MOVING or loop.time() >= deadline:
                    return found
                await asyncio.sleep(_PAUSE)

        return self.ask(settled)

    async def _list_offsets(
        self, queries: Mapping[TopicPartition, int], level: IsolationLevel | None = None
    ) -> Mapping[TopicPartition, LogOffset]:
        return await list_offsets(self.cluster, queries, self._level if level is None else level, REQUEST_TIMEOUT)

    # -- the group -----------------------------------------------------------------------------------------------

    def refused(self, error: int, what: str) -> ServiceError:
        """Error for a refusal by the coordinator: what happened, to what, and what to do."""
        return FatalGroupError(f"group {self.group_id!r}: {what}: {_with_remedy(error)}")

    def described(self) -> Described:
        """The group with its members; one that does not exist has the error `GROUP_ID_NOT_FOUND`. Raises
        `FatalGroupError` where it may not be read. A broker that describes no groups, as the embedded one, leaves the
        state `NOT_TOLD` and names no members.
        """
        try:
            group = self.ask(self.group.describe)
        except UnsupportedByBroker:
            return Described(ErrorCode.NONE, state=NOT_TOLD)
        if group.error and group.error != ErrorCode.GROUP_ID_NOT_FOUND:
            raise self.refused(group.error, group.why or "its members cannot be read")
        return group

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What the group has committed for each of these partitions, if anything; open transactions are waited for
        (KIP-447). Raises `FatalGroupError` where it may not be read.
        """

        async def stable() -> Mapping[TopicPartition, Committed]:
            found = await self.group.committed(partitions, stable=True)
            if unstable := [each for each in found.values() if each.error == ErrorCode.UNSTABLE_OFFSET_COMMIT]:
                raise Passing(unstable[0].error, "a transaction of the group is open")
            return found

        found = self.ask(stable)
        for tp in partitions:
            if (error := found[tp].error if tp in found else ErrorCode.UNKNOWN_SERVER_ERROR) != ErrorCode.NONE:
                raise self.refused(error, f"the committed offset of {tp} cannot be read")
        return {tp: found[tp] for tp in partitions}


@contextmanager
def cluster_session(
    settings: Settings, group_id: str | None = None, *, when_lost: str = "try again", patience: float = 0.0
) -> Iterator[ClusterSession]:
    """A session, whose failures are worded by the settings at fault. `group_id`: another group than the settings'.

    Raises `ConfigError` if no broker answers or lets us in; `FatalGroupError` if the group refuses. `when_lost`: what
    to do when the connection broke in the middle.
    """
    group_id = group_id or settings.group.id
    try:
        with asyncio.Runner() as runner:
            session = ClusterSession(settings, group_id, runner, patience)
            try:
                session.get_token()
                yield session
            finally:
                session.close()
    except BrokersUnreachable as failure:
        raise ConfigError(unreached(failure)) from failure
    except AuthenticationFailed as failure:
        _tokens.clear()
        raise ConfigError(str(failure)) from failure
    except CoordinatorUnavailable as failure:
        raise FatalGroupError(f"group {group_id!r}: {failure}: {_with_remedy(failure.error)}") from failure
    except PeerError as failure:
        raise ConfigError(f"group {group_id!r}: {failure}; {when_lost}") from failure


def narrowed(partitions: Iterable[TopicPartition], numbered: Collection[TopicPartition]) -> list[TopicPartition]:
    """The partitions, of topics in `numbered` those there alone. Pure."""
    some = {tp.topic for tp in numbered}
    return [tp for tp in partitions if tp.topic not in some or tp in numbered]


def unreached(failure: PeerError) -> str:
    """Why no broker answers, and what to do; a failure that names a setting itself is given as it is."""
    text = str(failure)
    return text if "security_protocol" in text else f"{text}; correct kafka.bootstrap_servers, or start them"


_MOVING = STALE_METADATA - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def _refuse_missing(name: str, topic: TopicInfo | None, setting: str) -> None:
    error = topic.error if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if error:
        remedy = fault(error).remedy(setting=setting, rights="DESCRIBE and READ")
        raise ConfigError(f"topic {name!r}: {describe(error)}; {remedy}")


def _checked(answers: Mapping[TopicPartition, A]) -> Mapping[TopicPartition, A]:
    for tp, answer in answers.items():
        if answer.error:
            why, remedy = describe(answer.error), fault(answer.error).remedy(rights="DESCRIBE and READ")
            # By its cause a job that may be started again is told from one with a wrong setting.
            cause = PeerError(why) if answer.error in _MOVING else None
            raise ConfigError(f"{tp}: its leader does not tell an offset: {why}; {remedy}") from cause
    return answers


def _with_remedy(error: int) -> str:
    return f"{describe(error)}; {fault(error).remedy(rights='DESCRIBE and READ')}"
