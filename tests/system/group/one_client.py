"""A worker's client by itself, without the worker around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kunicorn.columns import reference
from kunicorn.fetch.properties import MAX_UNPACKED, fetcher_of
from kunicorn.kafka.auth import Security
from kunicorn.worker.fetching.client import Client, Login
from kunicorn.worker.fetching.fetched import Taken
from kunicorn.worker.fetching.own_fetcher import OwnFetcher
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import client_of
from tests.waiting import wait_until


@contextmanager
def own_client(kafka: KafkaCluster, group: str, rack: str | None = None) -> Iterator[Client]:
    """Our own fetcher."""
    properties = client_of(kafka.bootstrap, group, rack)
    decoder = reference.Decoder(read_committed=True, max_unpacked=MAX_UNPACKED)
    fetcher, queue = fetcher_of(properties, Security(), decoder)
    fetcher.start()
    try:
        yield OwnFetcher(fetcher, queue, Login(None))
    finally:
        fetcher.close()


def taken(client: Client) -> Taken:
    """What the client gives out first: records, or why there are none."""
    return wait_until(
        lambda: client.take(100, 0.2, gathers=False, several_topics=False), "a word of the client", every=0
    )
