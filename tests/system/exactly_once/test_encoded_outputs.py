"""Avro in, models out in transactions, by a schema registry: what is in the topics is read by confluent-kafka's own
deserialisers.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.contract.decoding.shop_schemas import AVRO as ORDER
from tests.contract.encoding.shop_models import TOTALS, ProtoTotal
from tests.fakes.schema_registry import registry
from tests.kafka import KafkaCluster
from tests.kafka.ports import kept_port
from tests.system.handlers.encoding import LATE
from tests.system.members import Members
from tests.system.outputs import committed_records
from tests.system.producing import committed_inputs, producer

RECORDS = 200
BY_TOPIC = {"subject.name.strategy.type": "TOPIC"}
TOTAL = {
    "type": "record",
    "name": "Total",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": "string"}],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


def test_models_go_out_in_transactions_as_confluents_deserialisers_read_them_although_the_registry_was_away(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> None:
    for name in (topic, f"{topic}.out", f"{topic}.proto", f"{topic}.copy"):
        kafka.create_topic(name, 1)
    file = tmp_path / "schemas.json"
    known = json.dumps(
        {
            "1": {"schema": json.dumps(ORDER), "subject": f"{topic}-value"},
            "2": {"schema": json.dumps(TOTAL), "subject": f"{topic}.out-value"},
            "3": {"schema": json.dumps(KEY), "subject": f"{topic}.out-key"},
        }
    )
    file.write_text(known)
    with registry(file) as url:
        client = SchemaRegistryClient({"url": url})
        writes = AvroSerializer(client, json.dumps(ORDER), conf={**BY_TOPIC, "auto.register.schemas": False})
        sender = producer(kafka.bootstrap)
        for number in range(RECORDS):
            order = {"id": number, "by": f"customer {number}"}
            sender.produce(topic, writes(order, SerializationContext(topic, MessageField.VALUE)), key=b"%d" % number)
        assert sender.flush(60) == 0
        file.write_text("503")
        protos = f'[[producing.topics]]\ntopic = "{topic}.proto"\nvalue = "{TOTALS}"\nregister_schemas = true\n'
        own = {"delivery": "transactions", "topic": f"{topic}.out", "value": "avro", "key": "avro"}
        members = members_of(
            kafka.bootstrap,
            topic,
            workers=1,
            entrypoint="tests.system.handlers.encoding:total",
            settings={
                "handler": {"value": "avro"},
                "schema_registry": {"url": url},
                "producing": own,
            },
        )
        member = members.start(more=protos)
        member.wait(lambda: "cannot be asked" in member.output(), "the registry to be missed")
        file.write_text(known)
        member.wait(lambda: committed_inputs(kafka.bootstrap, topic, topic, 1) >= RECORDS, "all inputs to be committed")
        assert member.stop() == 0, member.output()[-3000:]
        assert_read(client, kafka, topic)


@pytest.mark.parametrize("delivery", ["transactions", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_an_encoder_waits_for_a_registry_that_has_gone_and_nothing_is_lost_or_sent_twice(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path, delivery: str
) -> None:
    for name in (topic, f"{topic}.out", f"{topic}.late"):
        kafka.create_topic(name, 1)
    file = tmp_path / "schemas.json"
    schema = json.dumps(TOTAL)
    subjects = enumerate((f"{topic}.out-value", f"{topic}.late-value"), 1)
    file.write_text(json.dumps({str(number): {"schema": schema, "subject": subject} for number, subject in subjects}))
    sender: Any = producer(kafka.bootstrap)

    def send(numbers: range) -> None:
        for number in numbers:
            sender.produce(topic, str(number))
        assert sender.flush(60) == 0

    def consumed() -> int:
        return committed_inputs(kafka.bootstrap, topic, topic, 1)

    port = kept_port()
    with registry(file, port=port) as url:
        settings = {
            # The first failure of a record's own would end in a hole.
            "handler": {"max_attempts": 1, "on_failure": "skip", "retry_backoff_max_ms": 500},
            "schema_registry": {"url": url},
            "producing": {"delivery": delivery, "topic": f"{topic}.out", "value": "avro"},
        }
        handler = "tests.system.handlers.encoding:numbered"
        member = members_of(kafka.bootstrap, topic, workers=1, entrypoint=handler, settings=settings).start()
        send(range(LATE))
        member.wait(lambda: consumed() >= LATE, "what the registry was there for to be committed")
    send(range(LATE, RECORDS))
    missed = {"group": topic, "topic": f"{topic}.late", "why": "registry"}
    member.wait(lambda: member.metric("kunicorn_unencoded_outputs_total", **missed) > 0, "the registry to be missed")
    if delivery == "transactions":
        # Its successor has no schema in memory, and meets the same wait.
        os.kill(member.wait(member.workers, "its workers")[0]["pid"], signal.SIGKILL)
        member.wait(lambda: member.metric("kunicorn_worker_restarts_total", group=topic) > 0, "its death to be seen")
    waits = {"group": topic, "waits_for": "retry"}
    member.wait(lambda: member.metric("kunicorn_partitions_waiting", **waits) == 1, "the partition to wait")
    with registry(file, port=port) as again:
        assert again == url
        member.wait(lambda: consumed() >= RECORDS, "all inputs to be committed")
        assert member.stop() == 0, member.output()[-3000:]
        reads: Any = AvroDeserializer(SchemaRegistryClient({"url": url}), conf=BY_TOPIC)
        for name, numbers in (("out", range(LATE)), ("late", range(LATE, RECORDS))):
            context = SerializationContext(f"{topic}.{name}", MessageField.VALUE)
            found = [reads(each.value(), context) for each in committed_records(kafka.bootstrap, f"{topic}.{name}", 1)]
            assert [each["id"] for each in found] == list(numbers)


def assert_read(client: Any, kafka: KafkaCluster, topic: str) -> None:
    """What the three topics have, as the serialisers' own readers see it."""
    of_avro = AvroDeserializer(client, conf=BY_TOPIC)
    of_proto = ProtobufDeserializer(ProtoTotal, BY_TOPIC, schema_registry_client=client)
    records = {name: committed_records(kafka.bootstrap, f"{topic}.{name}", 1) for name in ("out", "proto", "copy")}
    value, key = (SerializationContext(topic, part) for part in (MessageField.VALUE, MessageField.KEY))
    numbers = range(RECORDS)
    assert [of_avro(each.value(), value) for each in records["out"]] == [
        {"id": number, "customer": f"customer {number}"} for number in numbers
    ]
    assert [of_avro(each.key(), key) for each in records["out"]] == [{"id": number} for number in numbers]
    assert [of_proto(each.value(), value) for each in records["proto"]] == [
        ProtoTotal(customer=f"customer {number}", amount=number) for number in numbers
    ]
    copies = [(each.value(), each.key()) for each in records["copy"]]
    inputs = [(each.value(), each.key()) for each in committed_records(kafka.bootstrap, topic, 1)]
    assert copies == inputs
