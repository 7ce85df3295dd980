"""The worker's control thread: serves the pipe, whatever the runner is doing.

It sleeps in `poll`, so that it takes nothing from the runner; it wakes for a message, or when the lease runs out.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn, assert_never

from confluent_kafka import Consumer, KafkaException

from kunicorn.errors import ExitCode, PeerError
from kunicorn.pipes.clock import NANOSECONDS, now_ns
from kunicorn.pipes.framing import FrameError
from kunicorn.pipes.ledger import Ledger
from kunicorn.pipes.messages import Configure, Drain, FetcherStart, Ping, Pong, StartFetcher, StopFetcher, ToWorker
from kunicorn.worker.channel import Channel, SupervisorGone
from kunicorn.worker.fetcher import Fetcher
from kunicorn.worker.linux import ResidentMemory
from kunicorn.worker.runner import Runner

_LEASE_RECHECK_SECONDS = 0.25
_WARM_UP_SECONDS = 5.0


class Control(threading.Thread):
    """Applies what the supervisor says, at once, and answers its pings."""

    def __init__(
        self,
        channel: Channel,
        ledger: Ledger,
        fetcher: Fetcher,
        runner: Runner,
        warm_up: Callable[[set[str]], None],
        logs_dropped: Callable[[], int],
    ) -> None:
        """`warm_up` makes topics known to the client and does not block."""
        super().__init__(name="control", daemon=True)
        self._channel = channel
        self._ledger = ledger
        self._fetcher = fetcher
        self._runner = runner
        self._warm_up = warm_up
        self._logs_dropped = logs_dropped
        self._memory = ResidentMemory()

    def run(self) -> None:
        """Serve until the process ends. The pipe's end is the worker's, even with the runner stuck: no orphans."""
        try:
            while True:
                message = self._channel.receive(self._patience())
                if message is not None:
                    self._react(message)
        except SupervisorGone:
            os._exit(ExitCode.BUG)
        except PeerError as error:
            _die(f"worker {os.getpid()}: the supervisor sent nonsense, exiting: {error}\n")
        except BaseException:
            _die(f"worker {os.getpid()}: the control thread broke, exiting\n{traceback.format_exc()}")

    def _patience(self) -> float:
        """Seconds until the lease runs out; it is usually extended long before, and nobody is woken for that."""
        left = self._ledger.lease_ns - now_ns()
        if left > 0:
            return left / NANOSECONDS
        self._fetcher.interrupt()
        return _LEASE_RECHECK_SECONDS

    def _react(self, message: ToWorker) -> None:
        match message:
            case StartFetcher(partitions=partitions):
                self._start(partitions)
            case StopFetcher(grants=grants):
                self._fetcher.stop(grants)
            case Ping(sequence=sequence):
                self._channel.send(self._evidence(sequence))
            case Drain():
                self._fetcher.drain()
            case Configure():
                raise FrameError("a second Configure")
            case _:
                assert_never(message)

    def _start(self, partitions: list[FetcherStart]) -> None:
        self._warm_up({start.topic for start in partitions})
        self._fetcher.start(partitions)

    def _evidence(self, sequence: int) -> Pong:
        handled, deltas = self._fetcher.measured()
        return Pong(
            sequence=sequence,
            runner=self._runner.progress,
            handled=handled,
            in_hand=self._fetcher.in_hand(now_ns()),
            rss_bytes=self._memory.bytes(),
            paused_by_lease=self._runner.paused_by_lease,
            deltas=deltas,
            logs_dropped=self._logs_dropped(),
        )


class Topics:
    """Makes topics known to the client: one that is new to a running client stalls up to a second.

    librdkafka looks for unknown topics of assigned partitions once a second; asking for the topic's metadata is faster.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._known: set[str] = set()

    def learn(self, topics: set[str], seconds: float) -> None:
        """Ask for those not known yet; blocks up to `seconds`. Failing is no failure: fetching then starts later."""
        deadline = now_ns() + int(seconds * NANOSECONDS)
        for topic in sorted(topics - self._known):
            left = (deadline - now_ns()) / NANOSECONDS
            if left <= 0:
                return
            try:
                self._consumer.list_topics(topic, timeout=left)
            except KafkaException:
                return
            self._known.add(topic)

    def learn_beside(self, topics: set[str]) -> None:
        """The same without blocking: a broker that does not answer must not keep StopFetcher waiting."""
        if topics - self._known:
            threading.Thread(target=self.learn, args=(topics, _WARM_UP_SECONDS), name="metadata", daemon=True).start()


def _die(text: str) -> NoReturn:
    """Exit now. The text is written only where that cannot block: a full stderr must not make an orphan."""
    poll = select.poll()
    poll.register(sys.__stderr__.fileno() if sys.__stderr__ else 2, select.POLLOUT)
    if poll.poll(0):
        os.write(2, text.encode()[-select.PIPE_BUF :])
    os._exit(ExitCode.BUG)
