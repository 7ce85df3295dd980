"""librdkafka's own mock broker, on a real socket, with faults of single requests: the client is a real one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

FETCH = 1
"""Kafka's key of the request."""
_PRODUCER = 0


class RefusingBroker:
    """One broker with topics of one partition. Made by `refusing_broker`."""

    def __init__(self, library: ctypes.CDLL, cluster: ctypes.c_void_p) -> None:
        self._library = library
        self._cluster = cluster
        self.bootstrap: str = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()

    def create(self, topic: str) -> None:
        """With one partition."""
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), 1, 1) == 0

    def refuse(self, api: int, error: int, times: int) -> None:
        """The next requests of that API are answered with `error`."""
        errors = (ctypes.c_int * times)(*[error] * times)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(api), ctypes.c_size_t(times), errors
        )

    def hold(self, api: int, seconds: int) -> None:
        """The next request of that API is answered so much later."""
        self._library.rd_kafka_mock_broker_push_request_error_rtts(
            self._cluster, ctypes.c_int32(1), ctypes.c_int16(api), ctypes.c_size_t(1), ctypes.c_int(0), seconds * 1000
        )


def default_of(name: str) -> str:
    """What librdkafka has where nobody sets that property."""
    library = _library()
    conf, value, size = (
        ctypes.c_void_p(library.rd_kafka_conf_new()),
        ctypes.create_string_buffer(100),
        ctypes.c_size_t(100),
    )
    assert library.rd_kafka_conf_get(conf, name.encode(), value, ctypes.byref(size)) == 0
    library.rd_kafka_conf_destroy(conf)
    return value.value.decode()


def _library() -> ctypes.CDLL:
    package = Path(confluent_kafka.__file__).parent
    library = ctypes.CDLL(str(next((package.parent / "confluent_kafka.libs").glob("librdkafka*"))))
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, function).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


@contextmanager
def refusing_broker() -> Iterator[RefusingBroker]:
    """It is gone afterwards."""
    library = _library()
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    owner = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, None, ctypes.c_size_t(0)))
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(owner, 1))
    try:
        yield RefusingBroker(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(owner)
