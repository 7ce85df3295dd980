"""`kunicorn dlq`: lists and shows dead letters, and sends them back to their topics (`replay`), each once unless it is
asked to be repeated.

What was delivered is remembered in the committed offsets of a side group, committed only after delivery: a replay that
is interrupted repeats at most what was on its way. Output is text for people with control characters escaped, or JSON.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heappush, heappushpop
from typing import Any

from confluent_kafka import KafkaError
from rich.console import Console
from rich.progress import Progress

from kunicorn.clients.post import Post
from kunicorn.commands.dlq_topic import Found, LettersTopic, Replayed, Selection, one_line, opened
from kunicorn.commands.sigterm import sigterm_interrupts
from kunicorn.commands.topics.plan import RETENTION
from kunicorn.errors import ConfigError, ExitCode, PeerError, ServiceError
from kunicorn.handler.dead_letters import replayed as replayed_headers
from kunicorn.ipc.clock import wall_ms
from kunicorn.settings import Settings
from kunicorn.settings.checks import has_legal_name
from kunicorn.text import printable, utc

_REMEMBER_EVERY = 1_000
_ANSWER_SECONDS = 30.0
"""For answers, beyond the time in which the client gives up what it could not deliver."""


class NotAllReplayed(ServiceError):
    """Some letters were not delivered to their topics: they were refused, not acknowledged, or not found any more.
    They are not remembered as replayed.
    """

    exit_code = ExitCode.NOT_ALL_COMMITTED

    def __init__(self, why: str, delivered: int) -> None:
        """`delivered`: how many of them were."""
        super().__init__(why)
        self.delivered = delivered


@dataclass(frozen=True, slots=True)
class TooOld:
    """Letters that are sent back with a timestamp which is older than a limit, and so may never be handled."""

    topic: str
    """Where they go."""
    count: int
    setting: str
    limit_ms: int

    def __str__(self) -> str:
        why = (
            "are passed over or given up again" if self.setting == MAX_AGE else "may be deleted before they are handled"
        )
        return f"{self.count:>8}  to {printable(self.topic)} are older than {self.setting} = {self.limit_ms}, and {why}"


MAX_AGE = "handler.max_age_ms"


def too_old(
    times: Mapping[str, Iterable[int]], settings: Settings, retention_ms: Mapping[str, int], now_ms: int
) -> list[TooOld]:
    """What a replay would send in vain: letters keep their timestamps. `times`: of those to send, in milliseconds since
    1970, by topic; `retention_ms`: of the topics that are known to delete records by age. Pure.
    """
    found = []
    for topic, at in sorted(times.items()):
        limits = {MAX_AGE: _max_age(settings, topic), f"the topic's {RETENTION}": retention_ms.get(topic)}
        for setting, limit in limits.items():
            if limit is not None and (count := sum(now_ms - each > limit for each in at)):
                found.append(TooOld(topic, count, setting, limit))
    return found


def _max_age(settings: Settings, topic: str) -> int | None:
    try:
        return settings.handler_of(topic).max_age_ms
    except LookupError:
        return None


@dataclass(slots=True)
class Plan:
    """Dead letters that a replay would send, and those that it would leave out."""

    chosen: set[tuple[int, int]] = field(default_factory=set)
    """Partition and offset of each letter to send."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By topic and error type."""
    left: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Letters by partition that are not yet replayed, chosen or not; ascending."""
    replayed: int = 0
    others: Counter[str] = field(default_factory=Counter)
    """Letters of other groups, by group."""
    foreign: int = 0
    forgotten: bool = False
    """Whether the brokers forget what was replayed after `offsets.retention.minutes`."""
    times: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Timestamps of the chosen letters, which they keep, by the topic they go to."""
    old: list[TooOld] = field(default_factory=list)
    repeats: bool = False
    """Whether letters are chosen that were replayed before."""

    def lines(self) -> Iterator[str]:
        """The plan for the person who decides."""
        yield f"to send back: {len(self.chosen)}"
        for (topic, error), count in sorted(self.counts.items()):
            yield printable(f"{count:>8}  {error}  to {topic}")
        if self.left_out:
            yield f"{self.left_out:>8}  left out by the filters"
        if self.replayed:
            yield f"{self.replayed:>8}  replayed before; --from-beginning repeats them"
        for group, count in sorted(self.others.items()):
            yield f"{count:>8}  of the group {printable(group)!r}, passed over; --group sends them"
        if self.foreign:
            yield f"{self.foreign:>8}  no dead letters of kunicorn's, passed over"
        yield from map(str, self.old)
        if self.chosen and self.forgotten:
            yield (
                "these brokers forget what was replayed offsets.retention.minutes after the last replay: letters that "
                "were replayed before that are sent again"
            )

    @property
    def left_out(self) -> int:
        """Number of letters that are not yet replayed and were not asked for."""
        return sum(map(len, self.left.values())) - len(self.chosen)

    def told(self, sent: int) -> dict[str, Any]:
        """The plan for a program, with how many were delivered."""
        return {
            "planned": [
                {"topic": topic, "error": error, "records": count}
                for (topic, error), count in sorted(self.counts.items())
            ],
            "left_out": self.left_out,
            "replayed_before": self.replayed,
            "other_groups": dict(self.others),
            "foreign": self.foreign,
            "too_old": [
                {"topic": each.topic, "records": each.count, "setting": each.setting, "ms": each.limit_ms}
                for each in self.old
            ],
            "forgotten_after_offsets_retention": self.forgotten,
            "sent": sent,
        }


def plan(topic: LettersTopic, selection: Selection, done: dict[int, Replayed], limit: int | None) -> Plan:
    """Plan of a replay, from a look through the topic. Raises `ConfigError` where a letter's topic does not exist any
    more.
    """
    found = Plan()
    for letter in topic.letters():
        if letter.told is None:
            found.foreign += 1
        elif letter.told.group not in ("", topic.group):
            found.others[letter.told.group] += 1
        elif letter.offset in done[letter.partition]:
            found.replayed += 1
        else:
            found.left[letter.partition].append(letter.offset)
            if selection.takes(letter.told, letter.record.key) and (limit is None or len(found.chosen) < limit):
                found.chosen.add((letter.partition, letter.offset))
                found.counts[letter.told.topic, letter.told.cause.type] += 1
                if letter.record.timestamp is not None:
                    found.times[letter.told.topic].append(letter.record.timestamp)
    if gone := sorted({name for name, _ in found.counts if not (has_legal_name(name) and topic.partitions_of(name))}):
        raise ConfigError(f"topic {gone[0]!r}, where letters came from, does not exist any more: filter by --topic")
    return found


def replay(topic: LettersTopic, plan: Plan, done: dict[int, Replayed], sent: Callable[[], None]) -> int:
    """Send what is planned; the number of delivered letters. `sent` is called for each. Raises `NotAllReplayed`,
    whatever ends it once a letter is sent; also for a Ctrl-C and for SIGTERM.
    """
    sending = _Sending(topic, Post(topic.producer()), done, sent)
    sending.learn()
    # Who may not commit, or into a group that has members, is told before anything is sent, and not behind it.
    topic.remember(done)
    starts = {number: end for number, (_, end) in topic.bounds.items()}
    for number, offset in plan.chosen:
        starts[number] = min(starts[number], offset)
    ended = forgot = ""
    try:
        for letter in topic.letters(starts):
            if (letter.partition, letter.offset) in plan.chosen and not sending.is_done(letter, plan):
                sending.send(letter)
                if sending.sent % _REMEMBER_EVERY == 0:
                    sending.remember(plan)
    except _ENDS as end:
        if not sending.sent and not isinstance(end, KeyboardInterrupt):
            raise
        ended = _in_words(end)
    finally:
        # Whatever has ended it: what was delivered by then is remembered.
        try:
            sending.remember(plan)
        except _ENDS as end:
            forgot = _in_words(end)
    if told := "; ".join(sending.left(plan, ended, forgot)):
        raise NotAllReplayed(told, sending.delivered)
    return sending.delivered


_ENDS = (KeyboardInterrupt, ServiceError, PeerError)
"""What ends a replay amid its letters."""


def _in_words(end: BaseException) -> str:
    return "it was interrupted" if isinstance(end, KeyboardInterrupt) else str(end)


class _Sending:
    """Letters of one replay on their way back, and the side group's progress."""

    def __init__(self, topic: LettersTopic, post: Post, done: dict[int, Replayed], told: Callable[[], None]) -> None:
        self.sent = self.delivered = self.remembered = 0
        self.refused: Counter[str] = Counter()
        self.elsewhere: set[tuple[int, int]] = set()
        """Chosen letters that another replay has delivered since the plan was made."""
        self._topic = topic
        self._post = post
        self._done = done
        self._told = told
        self._partitions: dict[str, int] = {}

    def send(self, letter: Found) -> None:
        """Send a letter to the partition it came from, as long as that exists: whatever partitioner its producer
        had.
        """
        told, record = letter.told, letter.record
        assert told is not None
        if told.topic not in self._partitions:
            self._partitions[told.topic] = self._topic.partitions_of(told.topic)
        self.sent += 1
        if not self._partitions[told.topic]:
            # Deleted since the plan was made. Sent nevertheless, brokers would make another one of that name.
            self.refused[f"topic {told.topic!r} does not exist any more"] += 1
            return
        self._post.send(
            told.topic,
            record.key,
            record.value,
            list(replayed_headers(told)),
            partial(self._hear, letter),
            timestamp=record.timestamp,
            partition=told.partition if 0 <= told.partition < self._partitions[told.topic] else None,
        )

    def _hear(self, letter: Found, error: KafkaError | None) -> None:
        if error is not None:
            self.refused[error.str()] += 1
            return
        self.delivered += 1
        self._done[letter.partition].add(letter.offset)
        self._told()

    def left(self, plan: Plan, ended: str, forgot: str) -> Iterator[str]:
        """What another replay has to send, in words. `ended`: what ended this one before its last letter, if anything;
        `forgot`: why what was delivered is not remembered.
        """
        if missing := len(plan.chosen) - self.delivered - len(self.elsewhere):
            failures = ", ".join(self._failures(plan, ended))
            yield f"{missing} of {len(plan.chosen)} letters were not delivered: {failures}; another replay sends them"
        if again := self.delivered - self.remembered:
            yield f"{again} were delivered and cannot be remembered: {forgot}; another replay sends them once more"

    def _failures(self, plan: Plan, ended: str) -> Iterator[str]:
        """What became of the letters that were not delivered."""
        refused = self.refused.total()
        if refused:
            (why, count), *_ = self.refused.most_common(1)
            yield f"{refused} were refused, {count} of them: {why}"
        if silent := self.sent - self.delivered - refused:
            yield f"{silent} are not acknowledged, and may arrive yet"
        if unsent := len(plan.chosen) - self.sent - len(self.elsewhere):
            yield f"{unsent} were not sent: {ended}" if ended else f"{unsent} are not in {self._topic.name!r} any more"

    def is_done(self, letter: Found, plan: Plan) -> bool:
        """Whether another replay has delivered this letter since the plan was made."""
        done = not plan.repeats and letter.offset in self._done[letter.partition]
        if done:
            self.elsewhere.add((letter.partition, letter.offset))
        return done

    def learn(self) -> None:
        """Read what is remembered by now: a person may think for long at the prompt, and another one may replay."""
        for number, known in self._topic.replayed().items():
            self._done[number].learn(known)

    def remember(self, plan: Plan) -> None:
        """Wait until what is on its way is answered, then commit for the side group, with what other replays have
        committed meanwhile: nothing fences commits of a group without members.
        """
        self._post.flush(self._topic.delivery_seconds + _ANSWER_SECONDS)
        self.learn()
        for number, (_, end) in self._topic.bounds.items():
            self._done[number].settle(plan.left[number], end)
        delivered = self.delivered
        self._topic.remember(self._done)
        self.remembered = delivered


@dataclass(slots=True)
class Letters:
    """All letters of a dead-letter topic, counted."""

    topic: str
    most: int
    """So many of the latest are named."""
    counts: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """By error type, and the topic and partition where they came from."""
    foreign: Counter[str] = field(default_factory=Counter)
    """Records that are no letters, by what is missing."""
    times: list[int] = field(default_factory=list)
    """When the first and the last of them were given up."""
    _youngest: list[tuple[int, int, Found]] = field(default_factory=list)
    """A heap by when they were given up, and of those at one time by how many were read before."""
    _read: int = 0

    def add(self, found: Found) -> None:
        """Count one record of the topic."""
        if found.told is None:
            self.foreign[found.why] += 1
            return
        self.counts[found.told.cause.type, found.told.topic, found.told.partition] += 1
        self.times = [min([found.told.time_ms, *self.times]), max([found.told.time_ms, *self.times])]
        self._read += 1
        youngest = (found.told.time_ms, self._read, found)
        if len(self._youngest) < self.most:
            heappush(self._youngest, youngest)
        else:
            heappushpop(self._youngest, youngest)

    @property
    def latest(self) -> list[Found]:
        """Those that were given up last, in that order, in whichever partitions they are: these come as they are
        fetched.
        """
        return [found for *_, found in sorted(self._youngest)]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def groups(self) -> list[tuple[tuple[str, str, int], int]]:
        """The counts, greatest first."""
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))

    def lines(self) -> Iterator[str]:
        span = f", {utc(self.times[0])} to {utc(self.times[1])}" if self.times else ""
        yield f"{self.topic}: {self.total} dead letter{'' if self.total == 1 else 's'}{span}"
        for (error, source, partition), count in self.groups():
            yield printable(f"{count:>8}  {error}  {source}-{partition}")
        for why, count in self.foreign.items():
            yield f"{count:>8}  no dead letters of kunicorn's: {why}"
        latest = self.latest
        if latest:
            yield "the latest, for `kunicorn dlq show`:"
        for found in latest:
            told = found.told
            assert told is not None
            source = f"{told.topic}-{told.partition}@{told.offset}"
            error = f"{told.cause.type}: {one_line(told.cause.message)}"
            yield printable(f"  {found.partition}@{found.offset}  {utc(told.time_ms)}  {source}  {error}")

    def as_json(self) -> dict[str, Any]:
        groups = [
            {"error": error, "topic": source, "partition": partition, "count": count}
            for (error, source, partition), count in self.groups()
        ]
        first, last = self.times or (None, None)
        return {
            "topic": self.topic,
            "letters": self.total,
            "first": first,
            "last": last,
            "foreign": self.foreign.total(),
            "reasons": [{"why": why, "count": count} for why, count in self.foreign.items()],
            "groups": groups,
            "latest": [found.as_json() for found in self.latest],
        }


def summary(topic: str, letters: Iterable[Found], latest: int) -> Letters:
    """Counts by origin and cause, times, the latest letters, and records that are no letters."""
    counted = Letters(topic, latest)
    for found in letters:
        counted.add(found)
    return counted


def one(topic: LettersTopic, place: str) -> Found:
    """The letter at "partition@offset". Raises `ConfigError`."""
    number, at, offset = place.partition("@")
    # Kafka's have 19 digits at most, and Python refuses thousands.
    if not (at and number.isdecimal() and offset.isdecimal() and max(len(number), len(offset)) < 20):
        raise ConfigError(f"{place!r} is not the place of a letter; `kunicorn dlq list` shows them, such as 0@12")
    first, end = topic.bounds.get(int(number), (0, 0))
    if first <= int(offset) < end:
        ends = {other: bound[1] for other, bound in topic.bounds.items() if other != int(number)}
        for found in topic.letters({**ends, int(number): int(offset)}):
            if found.offset == int(offset):
                return found
            break
    raise ConfigError(f"there is no record at {place} of {topic.name!r}: it has {_shown_bounds(topic)}")


def _shown_bounds(topic: LettersTopic) -> str:
    return ", ".join(f"{number}@{first} to {number}@{end - 1}" if end > first else f"nothing in {number}"
                     for number, (first, end) in topic.bounds.items())  # fmt: skip


def run(  # noqa: PLR0913 - most are options
    settings: Settings,
    selection: Selection,
    limit: int | None,
    *,
    letters: str | None = None,
    group: str | None = None,
    from_beginning: bool,
    confirm: Callable[[], bool],
    say: Callable[[str], None],
    answer: Callable[[dict[str, Any]], None],
) -> None:
    """Plan, ask for confirmation, send. `letters`: another dead-letter topic than that of the settings; `group`: whose
    letters, if not those of the settings' group. `answer` gets the result for a program, also where not all letters
    were delivered. Blocks. Raises `ConfigError`, `NotAllReplayed`."""
    # From the plan on: to PID 1 it would not come, and letters be sent until SIGKILL.
    with sigterm_interrupts(), opened(settings, letters, group) as topic:
        done = topic.replayed()
        nothing = {number: Replayed() for number in topic.bounds}
        planned = plan(topic, selection, nothing if from_beginning else done, limit)
        planned.repeats = from_beginning
        planned.forgotten = topic.forgets()
        planned.old = too_old(planned.times, settings, topic.retention_ms(planned.times), wall_ms())
        say("\n".join(planned.lines()))
        if not planned.chosen:
            return answer(planned.told(0))
        if not confirm():
            raise ConfigError("nothing was sent")
        # On standard error, and only on a terminal: a log of a job wants the result alone.
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("sending", total=len(planned.chosen))
            try:
                delivered = replay(topic, planned, done, lambda: bar.advance(task))
            except NotAllReplayed as error:
                answer(planned.told(error.delivered))
                raise
        say(f"sent back and acknowledged: {delivered}")
        return answer(planned.told(delivered))
