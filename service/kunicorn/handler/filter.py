"""Filters: which records come to the handler at all, decided on the raw record, before it is decoded.

A record that a filter drops counts as done, in its place in the order, and is counted
(`kunicorn_filtered_records`). The handler, its middlewares and its spans never see it. A filter that raises has failed
the record, as a decoder would: it is not tried again, and ends as `handler.on_undecodable` says. `max_age_ms` is a
filter, too, which drops records or raises `Expired`.

Filters are called in their order where the handler is called, by the same thread: a filter that hangs is a handler that
hangs, and time-outs and deaths are blamed on its record. Without filters nothing of this is on the way of a record.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.call import progress_of, raised_from
from kunicorn.handler.config import FilterRule, HandlerConfig
from kunicorn.handler.decode import Undecodable
from kunicorn.handler.decode.forms import Form, Gathered
from kunicorn.handler.load import DrainDeadline, located
from kunicorn.handler.messages import Run
from kunicorn.handler.outcome import BatchError, Done
from kunicorn.handler.record import Record, milliseconds_of, offset_of
from kunicorn.handler.retry import Expired
from kunicorn.handler.rows import following_offsets, without

_NS_PER_MS = 1_000_000
EXPIRED = "max_age_ms"
"""What the metric calls the filter that drops old records."""


class FilterFailed(Undecodable):
    """A filter raised, or returned something that is no bool. A rule for `kunicorn.Undecodable` is for it, too."""


class OnFiltered(Protocol):
    """Is told of each record that was dropped. Caller: the thread that calls the handler."""

    def __call__(self, message: Message, name: str, *, saved: bool) -> None:
        """`name`: the filter's. `saved`: no call was made for it; a batch that is dropped as a whole says so with its
        last record."""


def untold(message: Message, name: str, *, saved: bool) -> None:
    """Tell nobody of a dropped record."""


Keeps = Callable[[Message], bool]


class Filter(NamedTuple):
    """One condition that records have to meet."""

    name: str
    keeps: Keeps


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of one handler, in their order."""

    every: Sequence[Filter]
    on_filtered: OnFiltered

    def dropped_by(self, message: Message) -> str | None:
        """Name of the first filter that drops the record; None: the handler gets it. Raises `FilterFailed`,
        `Expired`."""
        for name, keeps in self.every:
            try:
                kept = keeps(message)
            except Expired:
                raise
            except Exception as error:
                # Of the user's own exception only the class: its text may quote the payload.
                raise _failed(message, name, type(error).__name__).with_traceback(error.__traceback__) from error
            if not isinstance(kept, bool):
                raise _failed(message, name, f"it returned {type(kept).__name__}, and not True or False")
            if not kept:
                return name
        return None


def _failed(message: Message, name: str, why: str) -> FilterFailed:
    return FilterFailed(f"{_place(message)}: the filter {name!r} failed: {why}")


def _place(message: Message) -> str:
    return f"{message.topic()}-{message.partition()}@{message.offset()}"


# -- loading -----------------------------------------------------------------------------------------------------------


def find_filter(entrypoint: str) -> Callable[[Record], Any]:
    """Import a filter and check that it is a plain function of one argument, the record. Blocks for as long as the
    import takes. Raises `HandlerLoadError`."""
    named = f"handler.filters: function = {entrypoint!r}"
    found: Callable[[Record], Any] = located(named, entrypoint)
    if inspect.isclass(found) or not callable(found) or inspect.iscoroutinefunction(found):
        raise HandlerLoadError(f"{named} is no plain function: name one that takes a record and returns True or False")
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise HandlerLoadError(f"{named} is called with one argument, the record: {error}") from error
    except ValueError:
        pass  # Written in C and silent about its arguments.
    return found


def filters_of(config: HandlerConfig, on_filtered: OnFiltered) -> Filters | None:
    """The handler's filters; None: it has none. Caller: a process that handles, once. Raises `HandlerLoadError`."""
    every = [Filter(rule.label, _keeps(rule)) for rule in config.filters]
    if config.max_age_ms is not None:
        retries = frozenset(topic.name for topic in config.retry_topics)
        every.insert(0, Filter(EXPIRED, _young(config.max_age_ms, config.on_expired, retries)))
    return Filters(every, on_filtered) if every else None


def _keeps(rule: FilterRule) -> Keeps:
    if rule.function is not None:
        wanted = find_filter(rule.function)
        return lambda message: wanted(Record.of(message))
    values = _values_of(rule.on or "key")
    if rule.exists is not None:
        exists = rule.exists
        return lambda message: bool(values(message)) is exists
    if rule.prefix is not None:
        prefix = rule.prefix.encode()
        return lambda message: any(value is not None and value.startswith(prefix) for value in values(message))
    if rule.none_of:
        unwanted = frozenset(text.encode() for text in rule.none_of)
        return lambda message: unwanted.isdisjoint(values(message))
    named = frozenset(text.encode() for text in rule.one_of)
    return lambda message: not named.isdisjoint(values(message))


def _values_of(part: str) -> Callable[[Message], Collection[bytes | None]]:
    """Function for a record's key, or for its headers of one name; nothing where it has none."""
    if part == "key":
        return lambda message: () if (key := message.key()) is None else (key,)
    _, _, header = part.partition(":")

    def of_header(message: Message) -> Collection[bytes | None]:
        return [value for name, value in Record.of(message).headers if name == header]

    return of_header


def _young(most_ms: int, on_expired: str, retry_topics: Collection[str]) -> Keeps:
    """Filter by age. A record without a time is never too old, nor one whose time lies ahead of our clock."""

    def young(message: Message) -> bool:
        at = Record.of(message).origin.timestamp if message.topic() in retry_topics else milliseconds_of(message)
        if at is None or time.time_ns() // _NS_PER_MS - at <= most_ms:
            return True
        if on_expired == "skip":
            return False
        raise Expired(f"{_place(message)} is older than handler.max_age_ms = {most_ms}")

    return young


# -- calling -----------------------------------------------------------------------------------------------------------


class Dropped(NamedTuple):
    """Argument of a call that is not made."""

    message: Message
    name: str
    """Of the filter."""


class Selection(NamedTuple):
    """Argument of one call in batch mode, and which of the fetched records are in it."""

    argument: Any
    """None: of the fetched records none is left, and there is no call."""
    kept: Run
    dropped: Mapping[int, Dropped]
    """By index among the leading records that the call is about."""
    records: int

    def widened(self, error: BaseException) -> BaseException:
        """The error as one that speaks of all records that the call is about: the dropped ones are done. A copy, as a
        handler may return the same one for each batch. Raises `ValueError` where it names records that are not in the
        batch."""
        if not self.dropped:
            return error
        if not isinstance(error, BatchError):
            # Else the dropped ones would become dead letters with those that have failed.
            whole = BatchError(outcomes=())
            whole.outcomes = [(error, self._all([True] * len(self.kept), of_dropped=False))]
            return whole
        following = following_offsets(self.kept)
        progress = progress_of(error, following)
        wide = copy(error).with_traceback(error.__traceback__)
        wide.__cause__ = raised_from(error)
        if error.outcomes is not None:
            wide.outcomes = [(outcome, self._all(mask, of_dropped=False)) for outcome, mask in error.outcomes]
            return wide
        mask = [at < progress.done or after - 1 in progress.ahead for at, after in enumerate(following)]
        wide.failed, wide.mask = None, self._all(mask, of_dropped=True)
        return wide

    def _all(self, mask: Iterable[bool], *, of_dropped: bool) -> list[bool]:
        """The mask of the kept records as one of all."""
        kept = iter(mask)
        return [of_dropped if index in self.dropped else next(kept) for index in range(self.records)]


@dataclass(frozen=True, slots=True)
class Filtered:
    """Form (`handler.decode.forms`) that leaves records out; the arguments of the others are those of `inner`."""

    inner: Form
    filters: Filters
    is_async: bool

    def adapted(self, handle: Callable[..., Any]) -> Callable[[Any], Any]:
        call = self.inner.adapted(handle)
        return self._awaited(call) if self.is_async else self._plain(call)

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        for message in messages:
            if (name := self.filters.dropped_by(message)) is not None:
                yield Dropped(message, name)
            else:
                yield next(self.inner.each((message,)))

    def batch(self, messages: Run) -> Gathered:
        dropped: dict[int, Dropped] = {}
        failure: BaseException | None = None
        count = len(messages)
        for index, message in enumerate(messages):
            try:
                name = self.filters.dropped_by(message)
            except (DrainDeadline, GeneratorExit):
                raise
            except BaseException as error:
                # A time-out, too, is of the record that the filter was called with.
                count, failure = index, error
                break
            if name is not None:
                dropped[index] = Dropped(message, name)
        kept = messages if count == len(messages) else messages[:count]
        if len(dropped) == count:
            return Gathered(Selection(None, kept[:0], dropped, count), count, failure)
        if dropped:
            kept = without(kept, {offset_of(each.message) for each in dropped.values()})
        gathered = self.inner.batch(kept)
        if gathered.records < len(kept):
            # The next one cannot be decoded, or is of the next call. The dropped records before it are done with these.
            count = [index for index in range(count) if index not in dropped][gathered.records]
            failure = gathered.undecodable
            dropped = {index: each for index, each in dropped.items() if index < count}
            kept = kept[: gathered.records]
        argument = gathered.argument if gathered.records else None
        return Gathered(Selection(argument, kept, dropped, count), count, failure)

    def blame(self, message: Message) -> None:
        # Called while that failure is handled: of a filter's own nothing needs to be found out.
        if not isinstance(sys.exc_info()[1], FilterFailed | Expired):
            self.inner.blame(message)

    def _plain(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def filtered(argument: Any) -> Any:
            if type(argument) is Dropped:
                self.filters.on_filtered(*argument, saved=True)
                return None
            if type(argument) is not Selection:
                return call(argument)
            try:
                returned = call(argument.argument) if argument.argument is not None else None
            except DrainDeadline:
                raise  # Nothing of it is done.
            except BaseException as error:
                if (told := self._failed(argument, error)) is error:
                    raise
                raise told  # noqa: B904
            return self._returned(argument, returned)

        return filtered

    def _awaited(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def filtered(argument: Any) -> Any:
            if type(argument) is Dropped:
                self.filters.on_filtered(*argument, saved=True)
                return None
            if type(argument) is not Selection:
                return await call(argument)
            try:
                returned = await call(argument.argument) if argument.argument is not None else None
            except (DrainDeadline, GeneratorExit):
                raise  # Nothing of it is done, or the loop is closed and nobody asks any more.
            except BaseException as error:
                told = self._failed(argument, error)
                try:
                    if told is error:
                        raise
                    raise told
                finally:
                    del told  # It has this coroutine: see `clear_frames`.
            return self._returned(argument, returned)

        return filtered

    def _returned(self, of: Selection, returned: Any) -> Any:
        """What the call has returned. An exception means the same as one that is raised."""
        if isinstance(returned, Exception):
            return self._failed(of, returned)
        self._tell(of)
        return returned

    def _failed(self, of: Selection, error: BaseException) -> BaseException:
        """What the call has raised, as it is told of all records."""
        said = error
        if not isinstance(error, Done):
            try:
                said = of.widened(error)
            except Exception as strange:  # A class of the user's may lack what its __init__ did not set.
                said = of.widened(strange)
        self._tell(of)
        return said

    def _tell(self, of: Selection) -> None:
        last = len(of.dropped) if of.argument is None else 0
        for number, each in enumerate(of.dropped.values(), 1):
            self.filters.on_filtered(*each, saved=number == last)
