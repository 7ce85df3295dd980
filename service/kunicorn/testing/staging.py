"""What happens around a call of the handler: it is counted, timed, and what the test has staged takes place."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from kunicorn.handlers import Handler
from kunicorn.records import Batch, Record
from kunicorn.testing.killing import then_killed
from kunicorn.testing.stages import Kill, LoseSession, Revoke, Stage
from kunicorn.topics import TopicPartition
from kunicorn.worker.concurrent import ConcurrentRunner
from kunicorn.worker.lifecycle import Lifecycle
from kunicorn.worker.runner import Runner
from kunicorn.worker.table import GrantTable


class Staging:
    """Caller: the runner's thread, which is the test's."""

    def __init__(
        self,
        stage: Stage | None,
        index: Callable[[TopicPartition, int], int],
        called: Callable[[Sequence[int]], None],
        in_hand: Callable[[int], tuple[int, int]],
        lose: Callable[[], None],
        handler_timeout_ms: int | None,
    ) -> None:
        """`index`: of the record at a place; `called` is told of every call; `lose` ends the session.

        `in_hand`: grant and offset that the ledger has in hand, in the partition of the record with that index.
        """
        self.fetcher: GrantTable
        self.lifecycle: Lifecycle
        self.runner: Runner | ConcurrentRunner
        self.needs_signals = handler_timeout_ms is not None or isinstance(stage, Revoke)
        self._stage = stage
        self._index = index
        self._called = called
        self._in_hand = in_hand
        self._lose = lose
        self._handler_timeout_ms = handler_timeout_ms
        self._timer: threading.Timer | None = None

    def around(self, handler: Handler) -> Handler:
        """The handler, with this around it."""
        call = handler.call

        @wraps(call)  # Its annotations say what it is to be called with.
        def staged(*arguments: Any) -> Any:
            if not self._before(self.indices(arguments[-1])):
                return call(*arguments)
            # The worst of moments: the record's effects are there, and its offset does not count yet.
            return then_killed(call(*arguments))

        return replace(handler, call=staged)

    def indices(self, argument: Any) -> list[int]:
        """Of the records that the handler gets; where it gets models, those that the ledger has in hand."""
        if isinstance(argument, Record):
            argument = [argument]
        if isinstance(argument, Batch) or (isinstance(argument, list) and isinstance(argument[0], Record)):
            return [self._index(TopicPartition(each.topic, each.partition), each.offset) for each in argument]
        held = self.fetcher.in_hand(0)
        if held is None:
            return []
        count = len(argument) if isinstance(argument, list) else 1
        return self._following(TopicPartition(held.topic, held.partition), held.offset, count)

    def _following(self, tp: TopicPartition, offset: int, count: int) -> list[int]:
        """Of so many records from this offset on, whatever the gaps between them."""
        found: list[int] = []
        while len(found) < count:
            with contextlib.suppress(KeyError):
                found.append(self._index(tp, offset))
            offset += 1
        return found

    def quiet(self) -> None:
        """No timer runs any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None

    def _before(self, indices: Sequence[int]) -> bool:
        """Whether the worker is to be killed when this call returns."""
        self.quiet()
        self._called(indices)
        if not indices:
            return False
        grant, offset = self._in_hand(indices[0])
        if self._handler_timeout_ms is not None:
            self._later(self._handler_timeout_ms, lambda: self.runner.time_out(grant, offset))
        stage = self._stage
        if stage is None or stage.at not in indices:
            return False
        self._stage = None
        match stage:
            case Kill():
                return True
            case LoseSession():
                self._lose()
                self.fetcher.drain()
            case Revoke(drain_timeout_ms=limit):
                self.lifecycle.stop([grant])
                if limit is not None:
                    thread = threading.get_ident()
                    self._later(limit, lambda: signal.pthread_kill(thread, signal.SIGUSR1))
        return False

    def _later(self, milliseconds: int, act: Callable[[], None]) -> None:
        self.quiet()
        self._timer = threading.Timer(milliseconds / 1000, act)
        self._timer.daemon = True
        self._timer.start()
