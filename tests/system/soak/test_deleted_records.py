"""How the soak cuts logs whose leaders have moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kafka import KafkaCluster
from tests.soak.cut_logs import log_starts
from tests.system.producing import produce

pytestmark = pytest.mark.long
PARTITIONS = range(6)


def test_records_are_deleted_and_logs_looked_up_though_the_client_has_last_heard_of_other_leaders(
    kafka_factory: Callable[..., KafkaCluster],
) -> None:
    kafka = kafka_factory(brokers=3)
    kafka.create_topic("t", len(PARTITIONS))
    for number in PARTITIONS:
        produce(kafka.bootstrap, "t", 3, partition=number)
    assert kafka.delete_records("t", dict.fromkeys(PARTITIONS, 1)) == dict.fromkeys(PARTITIONS, 1)
    kafka.lead_anew("t")
    assert kafka.delete_records("t", dict.fromkeys(PARTITIONS, 2)) == dict.fromkeys(PARTITIONS, 2)
    kafka.lead_anew("t")
    assert log_starts(kafka, "t", PARTITIONS) == dict.fromkeys(PARTITIONS, 2)
