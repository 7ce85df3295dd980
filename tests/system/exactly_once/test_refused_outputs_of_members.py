"""Outputs that brokers refuse, with members as real processes: nothing is lost, and nothing stays where it is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from kunicorn.handler.dead_letters import read
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.lengths import rest_long
from tests.system.members import Members, merged
from tests.system.outputs import committed_outputs, committed_records
from tests.system.producing import committed_offsets, headers_of, producer

LAST, LARGE, NOWHERE = 40, 11, 23
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("picky", {}),
    "batches": ("picky_batch", {"mode": "batch", "batch_max_records": 4}),
    "several": ("picky", {"ordering": "key", "concurrency": 4}),
}


CORE = {("one", "transactions"), ("several", "transactions")}
"""At least once, a bare worker has it: `test_at_least_once.py`; in every form, `tests/contract/worker`."""


@pytest.mark.parametrize(("form", "delivery"), rest_long(product(FORMS, ("at_least_once", "transactions")), CORE))
def test_records_whose_outputs_are_refused_become_dead_letters_and_every_other_has_its_output(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], form: str, delivery: str
) -> None:
    for name in (topic, f"{topic}.out", f"{topic}.letters"):
        kafka.create_topic(name, 1)
    sender = producer(kafka.bootstrap)
    for offset in range(LAST):
        sender.produce(topic, {LARGE: b"large", NOWHERE: b"nowhere"}.get(offset, b"fine"), b"k%d" % (offset % 3))
    assert sender.flush(60) == 0
    entrypoint, in_hand = FORMS[form]
    librdkafka = {"topic.metadata.propagation.max.ms": 500}
    settings: dict[str, dict[str, Any]] = {
        "producing": {"delivery": delivery, "topic": f"{topic}.out", "librdkafka": librdkafka},
        "handler": {"on_failure": "dead_letter", "max_attempts": 2, "retry_backoff_ms": 10},
        "dead_letters": {"topic": f"{topic}.letters"},
        "group": {"commit_interval_ms": 500},
    }
    members = members_of(
        kafka.bootstrap,
        topic,
        entrypoint=f"tests.system.handlers.sending:{entrypoint}",
        settings=merged(settings, {"handler": in_hand}),
    )
    member = members.start()
    place = TopicPartition(topic, 0)
    member.wait(lambda: committed_offsets(kafka.bootstrap, topic, topic, 1)[place] == LAST, "all to be committed")
    assert member.stop() == 0, member.output()[-3000:]
    letters = [read(headers_of(letter)) for letter in committed_records(kafka.bootstrap, f"{topic}.letters", 1)]
    assert {letter.offset for letter in letters} == {LARGE, NOWHERE}
    assert {letter.cause.type for letter in letters} == {"kunicorn.worker.refusals.NotDelivered"}
    outputs = committed_outputs(kafka.bootstrap, f"{topic}.out", 1)
    assert set(outputs) == {f"0:{offset}" for offset in range(LAST) if offset not in (LARGE, NOWHERE)}
    if delivery == "transactions":
        assert set(outputs.values()) == {1}
        assert len(letters) == 2
