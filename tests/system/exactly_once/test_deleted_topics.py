"""Transactions commit the offsets of all partitions of a worker together, by the names of their topics: what becomes of
the others when one topic is deleted, and of the topic that has its name afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from tests.compiled import compiled
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, Members, merged
from tests.system.outputs import committed_outputs
from tests.system.producing import committed_inputs, produce

MembersOf = Callable[..., Members]
PARTITIONS = 2
RECORDS = 2000
OFTEN = {"metadata_max_age_ms": 2000}
BOTH = pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.consumer)])


def consumed(kafka: KafkaCluster, group: str, topic: str) -> int:
    """So many records of the topic the group has committed."""
    return committed_inputs(kafka.bootstrap, group, topic, PARTITIONS)


def member_of_both(
    kafka: KafkaCluster, topic: str, members_of: MembersOf, protocol: str, of_kafka: Mapping[str, Any] = OFTEN
) -> MemberProcess:
    """In the middle of its topic and of the one that will be deleted, which one worker has."""
    for name in (topic, f"{topic}.doomed", f"{topic}.out"):
        kafka.create_topic(name, PARTITIONS)
    members = members_of(
        kafka.bootstrap,
        topic,
        entrypoint="tests.system.handlers.sending:copy_value",
        workers=1,
        settings=merged(
            {"producing": {"delivery": "transactions", "topic": f"{topic}.out", "transaction_max_records": 10}},
            {"group": {"group_protocol": protocol, "topics": [topic, f"{topic}.doomed"]}},
            {"kafka": of_kafka},
        ),
        env={"KUNICORN_HANDLER_MS": "2"},
    )
    produce(kafka.bootstrap, topic, RECORDS, value=b"other")
    produce(kafka.bootstrap, f"{topic}.doomed", RECORDS, value=b"former")
    member = members.start()
    member.wait(lambda: consumed(kafka, topic, f"{topic}.doomed") > 50, "the first transactions")
    return member


@pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=[pytest.mark.consumer, pytest.mark.long])]
)
def test_a_topic_that_is_deleted_holds_up_no_other_partition_of_its_worker(
    kafka: KafkaCluster, topic: str, members_of: MembersOf, protocol: str
) -> None:
    member = member_of_both(kafka, topic, members_of, protocol)
    kafka.delete_topic(f"{topic}.doomed")
    member.wait(lambda: consumed(kafka, topic, topic) == RECORDS, "the other topic to be committed")
    assert member.stop() == 0, member.output()[-3000:]
    assert "drain budget was over" not in member.output(), "its revoke has ended by itself"
    assert committed_outputs(kafka.bootstrap, f"{topic}.out", PARTITIONS)["other"] == RECORDS


@BOTH
def test_a_topic_that_is_created_anew_under_transactions_is_handled_from_its_beginning(
    kafka: KafkaCluster, topic: str, members_of: MembersOf, protocol: str
) -> None:
    """Invariant 9. A transaction may come late, and commit the former topic's offset under the name."""
    begin_anew(kafka, topic, member_of_both(kafka, topic, members_of, protocol))


def test_what_our_own_fetcher_hears_of_a_topic_that_is_created_anew_waits_for_no_metadata(
    kafka: KafkaCluster, topic: str, members_of: MembersOf
) -> None:
    """Its partitions are halted then; the supervisor would ask for metadata, and see why, five minutes later."""
    compiled()
    seldom = {"fetcher": "own", "metadata_max_age_ms": 900_000}
    begin_anew(kafka, topic, member_of_both(kafka, topic, members_of, "classic", seldom))


def begin_anew(kafka: KafkaCluster, topic: str, member: MemberProcess) -> None:
    """The member goes on with the topic that takes the name of the other one, from its beginning."""
    kafka.delete_topic(f"{topic}.doomed")
    kafka.create_topic(f"{topic}.doomed", PARTITIONS)
    produce(kafka.bootstrap, f"{topic}.doomed", RECORDS, value=b"new")
    member.wait(lambda: consumed(kafka, topic, topic) == RECORDS, "the other topic to be committed")
    # The former one's offset may be committed, under the name, and be as high.
    outputs = partial(committed_outputs, kafka.bootstrap, f"{topic}.out", PARTITIONS)
    # Each look reads all that there is.
    member.wait(lambda: outputs()["new"] >= RECORDS, "the new one to be handled", every=1.0)
    member.wait(lambda: consumed(kafka, topic, f"{topic}.doomed") == RECORDS, "the new one to be committed")
    assert member.stop() == 0, member.output()[-3000:]
    assert (outputs()["other"], outputs()["new"]) == (RECORDS, RECORDS)
