"""When records that failed are tried again, with a table of the test's."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message

from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.positions import TopicPartition
from kunicorn.worker.failures import Failures, Observer
from kunicorn.worker.progress import Attempt, Grant

HOUR = 3600 * NANOSECONDS


class Parking:
    """A table where everything that failed is parked."""

    def park(self, attempt: Attempt[Grant], waits_for: str, why: str) -> bool:
        attempt.grant.held = attempt.records
        return True


def test_a_record_that_failed_behind_a_rewind_is_not_tried_at_the_time_of_the_one_that_was_rewound() -> None:
    table: Any = Parking()
    policies = Policies(RetryPolicy(10, 3_600_000, 3_600_000, None, End.HALT))
    failures = Failures[Grant](table, lambda topic: policies, None, Observer())
    grant = Grant(1, TopicPartition("t", 0), 0, 0)
    for offset, now in ((5, 0), (3, HOUR // 2)):
        failed = Attempt(grant, [Message(topic="t", partition=0, offset=offset)], offset + 1)
        assert not failures.meet(failed, ValueError(), now)
    assert list(failures.due(HOUR * 13 // 10)) == [], "an hour after its own failure, to within a fifth"
    ((_, held),) = failures.due(2 * HOUR)
    assert [message.offset() for message in held] == [3]
