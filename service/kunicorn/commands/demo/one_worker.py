"""The demo where the service cannot run: one worker, as `kunicorn.testing` runs it, on records of the cluster. It is
killed in the middle, and another one goes on.

There is no group: offsets are those that would be committed. The audit is that of the whole demo.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from uuid import uuid4

from confluent_kafka import Consumer

from kunicorn.clients.range_reader import RangeReader
from kunicorn.commands.demo.audit import read_audit
from kunicorn.commands.demo.judge import Audit, Line, of_report, uncommitted
from kunicorn.commands.demo.member import Feed, MemberConfig
from kunicorn.commands.demo.view import View
from kunicorn.handler.record import Record
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.testing import HandlerTest
from kunicorn.testing.memory import GivenRecord, given_of
from kunicorn.testing.outcome import Run

FED = 0.5
"""The part of the demo's time in which records are produced."""


def play(config: MemberConfig, rate: float, wait: float, view: View) -> list[Line]:
    """Produce for `wait` seconds, handle everything with one worker that is killed once, and judge it. Blocks.

    Caller: the main thread. Raises what a client raises whose broker does not answer.
    """
    with view:
        view.happened("this is not Linux: one worker, without a group; elsewhere the demo has two members")
        feed = Feed(config.bootstrap, config.topic, rate)
        feed.start()
        feed.wait(wait)
        feed.stop()
        records = _fetched(config, feed.produced)
        view.happened(f"{feed.acknowledged} records are produced and fetched; the worker begins")
        os.environ |= {
            "KUNICORN_AUDIT_DIR": str(config.audit),
            "KUNICORN_AUDIT_MEMBER": "worker",
            "KUNICORN_HANDLER_MS": "1",
        }
        handler = tomllib.loads(config.handler)
        test = HandlerTest(handler.pop("entrypoint"), **handler)
        first = test.run(*records, kill_at=len(records) // 2)
        killed = {file.pid for file in read_audit(config.audit)}
        view.happened(f"SIGKILL to the worker when {_done(first)} records are done; another one goes on behind them")
        second = test.run(*first.left)
        view.happened(f"it has handled the other {_done(second)}")
    report = Audit(config.audit).check(feed.produced, killed)
    committed = {**first.committed, **second.committed}
    left = [str(tp) for tp, offsets in feed.produced.items() if committed[tp] != max(offsets) + 1]
    return [*of_report(report, config.in_hand), uncommitted(left)]


def _fetched(config: MemberConfig, produced: Mapping[TopicPartition, set[int]]) -> Sequence[GivenRecord]:
    """All records that were produced, as a worker may get them: of each partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": config.bootstrap,
            "group.id": f"kunicorn-demo-{uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    wanted = [OffsetRange(*tp, min(offsets), max(offsets) + 1) for tp, offsets in produced.items()]
    try:
        return [given_of(Record.of(message)) for some in RangeReader(consumer).read(*wanted) for message in some]
    finally:
        consumer.close()


def _done(run: Run) -> int:
    return len(run.records) - len(run.left)
