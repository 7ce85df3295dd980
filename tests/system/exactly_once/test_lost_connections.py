"""A client in transactions that loses all its connections at once, as behind a firewall that is restarted."""

from __future__ import annotations

import threading

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.chaos.group import last_for
from tests.kafka import ProxiedCluster
from tests.producers import of_outputs
from tests.waiting import wait_until

LINK = "link"
RESETS, APART = 5, 0.3
"""So often, and so many seconds apart: a client that connects anew is hit in the middle of it, too."""


class Transactions:
    """One after the other, each with offsets, as a worker's client has them; in a thread of its own."""

    def __init__(self, kafka: ProxiedCluster, outputs: str) -> None:
        servers, name = kafka.bootstrap_over(LINK), "lost-connections"
        self._producer = Producer(of_outputs(bootstrap_servers=servers, transactional_id=name, linger_ms=0))
        self._group = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": name})
        self._outputs = outputs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self.committed = 0

    def __enter__(self) -> Transactions:
        self._producer.init_transactions(60)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # Where a call of the client blocks for good, the thread goes with the process.
        self._thread.join(60)
        self._group.close()

    def _go_on(self) -> None:
        metadata = self._group.consumer_group_metadata()
        while not self._over.is_set():
            self._producer.begin_transaction()
            for _ in range(10):
                self._producer.produce(self._outputs, b"an output")
            try:
                self._producer.send_offsets_to_transaction([TopicPartition("inputs", 0, self.committed)], metadata, 5)
                self._producer.commit_transaction(5)
                self.committed += 1
            except KafkaException:
                self._abort()

    def _abort(self) -> None:
        while not self._over.is_set():
            try:
                self._producer.abort_transaction(5)
            except KafkaException:
                continue
            else:
                return


def test_a_client_whose_connections_are_all_reset_under_a_transaction_ends_it_and_the_next_ones() -> None:
    with ProxiedCluster((LINK,), brokers=1) as kafka:
        for topic in ("inputs", "outputs"):
            kafka.create_topic(topic, 1)
        with Transactions(kafka, "outputs") as transactions:
            wait_until(lambda: transactions.committed > 3, "the first transactions")
            for _ in range(3):
                for _ in range(RESETS):
                    kafka.reset(LINK)
                    last_for(APART)
                # The one that was underway may end by being aborted, and so may one that was begun by then.
                committed = transactions.committed
                wait_until(lambda: transactions.committed > committed + 1, "transactions behind the resets")  # noqa: B023
