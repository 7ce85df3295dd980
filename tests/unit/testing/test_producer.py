"""The producer in memory."""

from __future__ import annotations

from confluent_kafka import KafkaError

from kunicorn.testing import SentRecord
from kunicorn.testing.memory import MemoryProducer


def test_what_is_produced_is_acknowledged_at_the_next_look() -> None:
    sent: list[SentRecord] = []
    told: list[object] = []
    producer = MemoryProducer(sent)
    producer.produce("totals", b"1", b"k", headers=[("a", b"1"), ("a", b"2")], on_delivery=lambda e, m: told.append(e))
    assert told == []
    assert (producer.poll(0), told) == (1, [None])
    (record,) = sent
    assert (record.topic, record.headers, record.partition, record.is_letter) == ("totals", {"a": b"2"}, None, False)
    assert record.raw_headers == (("a", b"1"), ("a", b"2"))


def test_of_a_transaction_what_is_committed_counts() -> None:
    sent: list[SentRecord] = []
    producer = MemoryProducer(sent)
    producer.init_transactions(5)
    for commits in (True, False):
        producer.begin_transaction()
        producer.produce("totals", b"yes" if commits else b"no", partition=3)
        producer.send_offsets_to_transaction([], None, 5)
        assert not [each for each in sent if each.value == b"no"]
        (producer.commit_transaction if commits else producer.abort_transaction)(5)
    assert [(each.value, each.partition) for each in sent] == [(b"yes", 3)]


def test_an_illegal_topics_record_is_refused_by_name_when_the_worker_next_polls() -> None:
    sent: list[SentRecord] = []
    told: list[KafkaError | None] = []
    producer = MemoryProducer(sent)
    producer.produce("all orders", b"1", on_delivery=lambda error, message: told.append(error))
    assert (len(producer), told, sent) == (1, [], [])
    producer.poll(0)
    assert [error and error.code() for error in told] == [KafkaError.TOPIC_EXCEPTION]
    assert (len(producer), sent) == (0, [])
